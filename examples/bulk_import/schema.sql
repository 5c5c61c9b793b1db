select pgq_create_queue('imports', max_attempts => 3);

create table product (sku text, name text, cents bigint);

create table import (
    id bigint generated always as identity primary key,
    path text not null,
    finished_at timestamptz
);

create table import_chunk (
    job bigint primary key,
    import bigint not null references import,
    rows bigint  -- null until it is loaded
);

create view import_progress as
select i.id, i.path, count(c.job) as chunks, count(c.rows) as loaded,
       coalesce(sum(c.rows), 0)::bigint as rows, i.finished_at
  from import i left join import_chunk c on c.import = i.id
 group by i.id;
