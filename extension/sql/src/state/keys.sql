/*
 * Buckets for dedupe keys (0 to 16383) and for groups and waiting jobs (from 16384 on).
 */

create table pgq.bucket (
    id integer not null,
    constraint bucket_pkey primary key (id)
);
comment on table pgq.bucket is
'Rows to lock, never changed: each for all keys, groups or jobs of one hash.';
insert into pgq.bucket (id) select n from pg_catalog.generate_series(0, 32767) n;
