with job as (insert into floor.job (payload) values ('{{payload}}') returning id)
select pg_notify('floor', '') from job;
