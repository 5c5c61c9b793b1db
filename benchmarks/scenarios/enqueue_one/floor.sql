insert into floor.job (payload) values ('{{payload}}');
