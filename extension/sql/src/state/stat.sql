/*
 * How many jobs end: see core/stat.sql.
 */

create sequence pgq.stat_n;
create sequence pgq.stat_seen;
comment on sequence pgq.stat_seen is 'Register: pgq.stat_n at the last tick.';

--@ each stat
create table pgq.stat_{slot} (
    n bigint not null,
    queue_id integer not null,
    at timestamptz not null,
    completed bigint not null,
    failed bigint not null
);
alter table pgq.stat_{slot} replica identity full;
create index stat_{slot}_n_idx on pgq.stat_{slot} (n);
comment on table pgq.stat_{slot} is
'Ends of jobs in every third minute; each row stands for as many as it says.';
--@ end

create table pgq.stat (
    queue_id integer not null,
    at timestamptz not null,
    completed bigint not null,
    failed bigint not null
);
alter table pgq.stat replica identity full;
comment on table pgq.stat is 'Ends of jobs by minute, for an hour.';
