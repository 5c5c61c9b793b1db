/*
 * 0.1.0 to 0.2.0: queues have a description and know their first job; dropped queues and
 * errands are left to ticks; pgq.home tells restored and cloned databases; jobs that a clock
 * set back has put below a claim position are counted; claims that return jobs put maintenance
 * off, and say where others were in their way; ticks say which parked slots are empty; what a
 * transaction notes of groups travels with its events; pgq.awaited tells whether a job may be
 * marked, which nobody knows here; pgq.group_seed makes ids of groups secret, but not here,
 * where there are some already; pgq.skipped is what maintenance leaves out.
 */

create sequence pgq.home;
create sequence pgq.put_off;
create sequence pgq.crowded;
create sequence pgq.empty_4;
create sequence pgq.empty_5;
create sequence pgq.admission;
create sequence pgq.admission_seen;
create sequence pgq.event_table;
create sequence pgq.group_seed;
select pg_catalog.pg_extension_config_dump('pgq.group_seed', '');
create sequence pgq.awaited;
select setval('pgq.awaited', 1);
select pg_catalog.pg_extension_config_dump('pgq.awaited', '');
create type pgq.obstacle as (
    queue_id integer, cause text, jobs bigint, group_key text, job_id bigint, state text,
    worker text, pid integer, transaction text, since timestamptz, until timestamptz
);
comment on type pgq.obstacle is 'a row of pgq_obstacles';
create table pgq.skipped (
    kind text not null,
    key text not null,
    lane integer,
    at timestamptz not null,
    error text not null,
    constraint skipped_kind_check check (kind in ('job', 'group', 'schedule'))
);
alter table pgq.skipped replica identity full;
create table pgq.dropped (
    queue_id integer not null,
    name text not null,
    is_forced boolean not null,
    keep_for interval not null,
    xid xid8 not null default pg_catalog.pg_current_xact_id(),
    holders text[],
    constraint dropped_pkey primary key (queue_id)
);
select pg_catalog.pg_extension_config_dump('pgq.dropped', '');
create table pgq.errand (
    role oid
);
alter table pgq.errand replica identity full;
comment on column pgq.job.lease_ms is
'the timeout of the claim, for heartbeats that name none; negative: the lease before was lost. '
'0, without a lease: the last one was lost';
--@ functions
--@ lock pgq.queue, pgq.gate, pgq.chore, pgq.group_event_0, pgq.group_event_1
alter table pgq.queue add column description text;
alter table pgq.queue add column first_job bigint not null default 0;
alter table pgq.chore add column round smallint, add column written bigint;
create constraint trigger dropped_at_commit after insert on pgq.dropped
    deferrable initially deferred
    for each row execute function pgq._check_dropped();
alter table pgq.gate add column clock_was timestamptz, add column set_back_at timestamptz;
alter table pgq.queue add column is_serial boolean not null default false;
alter table pgq.group_event_0
    add column noted smallint, add column lane integer, add column group_ids bigint[],
    add column places bigint[], add column xid xid8, add column slots smallint[],
    add column lanes integer[], add column waiters bigint[], add column waiter_lanes integer[];
alter table pgq.group_event_0 set (autovacuum_enabled = off);
create index group_event_0_xid_idx on pgq.group_event_0 (xid, last);
alter table pgq.group_event_1
    add column noted smallint, add column lane integer, add column group_ids bigint[],
    add column places bigint[], add column xid xid8, add column slots smallint[],
    add column lanes integer[], add column waiters bigint[], add column waiter_lanes integer[];
alter table pgq.group_event_1 set (autovacuum_enabled = off);
create index group_event_1_xid_idx on pgq.group_event_1 (xid, last);
create unlogged table pgq.group_event_2 (
    last boolean not null default false, noted smallint, lane integer, group_ids bigint[],
    places bigint[], xid xid8, slots smallint[], lanes integer[], waiters bigint[],
    waiter_lanes integer[]
) with (autovacuum_enabled = off);
create index group_event_2_xid_idx on pgq.group_event_2 (xid, last);
create constraint trigger group_event_2_at_commit after insert on pgq.group_event_2
    deferrable initially deferred
    for each row execute function pgq._at_group_commit();
alter table pgq.group_event_2 enable always trigger group_event_2_at_commit;
create unlogged table pgq.group_event_3 (
    last boolean not null default false, noted smallint, lane integer, group_ids bigint[],
    places bigint[], xid xid8, slots smallint[], lanes integer[], waiters bigint[],
    waiter_lanes integer[]
) with (autovacuum_enabled = off);
create index group_event_3_xid_idx on pgq.group_event_3 (xid, last);
create constraint trigger group_event_3_at_commit after insert on pgq.group_event_3
    deferrable initially deferred
    for each row execute function pgq._at_group_commit();
alter table pgq.group_event_3 enable always trigger group_event_3_at_commit;
create unlogged table pgq.group_event_4 (
    last boolean not null default false, noted smallint, lane integer, group_ids bigint[],
    places bigint[], xid xid8, slots smallint[], lanes integer[], waiters bigint[],
    waiter_lanes integer[]
) with (autovacuum_enabled = off);
create index group_event_4_xid_idx on pgq.group_event_4 (xid, last);
create constraint trigger group_event_4_at_commit after insert on pgq.group_event_4
    deferrable initially deferred
    for each row execute function pgq._at_group_commit();
alter table pgq.group_event_4 enable always trigger group_event_4_at_commit;
create unlogged table pgq.group_event_5 (
    last boolean not null default false, noted smallint, lane integer, group_ids bigint[],
    places bigint[], xid xid8, slots smallint[], lanes integer[], waiters bigint[],
    waiter_lanes integer[]
) with (autovacuum_enabled = off);
create index group_event_5_xid_idx on pgq.group_event_5 (xid, last);
create constraint trigger group_event_5_at_commit after insert on pgq.group_event_5
    deferrable initially deferred
    for each row execute function pgq._at_group_commit();
alter table pgq.group_event_5 enable always trigger group_event_5_at_commit;
