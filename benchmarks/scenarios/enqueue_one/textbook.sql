insert into textbook.job (payload) values ('{{payload}}');
