insert into floor.job (payload) values ('{{payload}}') \; notify floor;
