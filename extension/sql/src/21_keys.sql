/*
 * What dedupe keys and groups need beside the jobs: see 37_dedupe.sql and 38_group.sql.
 */

create table pgq.bucket (
    id integer not null,
    constraint bucket_pkey primary key (id)
);
comment on table pgq.bucket is
'rows to be locked, never changed: each for all dedupe keys, or from 16384 on for all groups, that '
'hash to it';
insert into pgq.bucket (id) select n from pg_catalog.generate_series(0, 32767) n;

create sequence pgq.event_table;
comment on sequence pgq.event_table is
'the table of events that is written now, and since when: see pgq._clear_group_events';

--@ define event_table
(coalesce(pg_sequence_last_value('pgq.event_table'), 0) % 10)::integer
--@ end

--@ each event
create unlogged table pgq.group_event_{slot} (
    last boolean not null default false,
    noted smallint,
    lane integer,
    group_ids bigint[],
    places bigint[],
    xid xid8,
    slots smallint[],
    lanes integer[],
    waiters bigint[],
    waiter_lanes integer[]
) with (autovacuum_enabled = off);
create index group_event_{slot}_xid_idx on pgq.group_event_{slot} (xid, last);
comment on table pgq.group_event_{slot} is
'what a transaction has noted of groups and waiting jobs: an insert queues pgq._at_group_commit, '
'which takes all of xid. One table is written at a time, so that the others can be truncated';
--@ end
comment on column pgq.group_event_0.noted is 'see pgq._note_alike';

create table pgq.group_block (
    group_id bigint not null,
    queue_id integer not null,
    job_id bigint not null,
    constraint group_block_pkey primary key (group_id, job_id)
);
comment on table pgq.group_block is
'groups of which a job has died, where group_on_dead is block, until it is retried or unblocked';

create table pgq.group_hint (
    group_id bigint not null,
    id bigint not null
);
create index group_hint_group_id_idx on pgq.group_hint (group_id);
alter table pgq.group_hint replica identity full;
comment on table pgq.group_hint is
'groups that the next tick looks at, and from which place on: see pgq._take_hints. id below 0: all '
'groups of the queue that group_id is';
