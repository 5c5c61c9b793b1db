-- Built by extension/build.py from extension/sql/src; edit it there.
\echo Use "CREATE EXTENSION pgq" to load this file. \quit

/*
 * Refuses databases in which the installation could not work, before anything is created.
 * Skytools' PgQ also is an extension named pgq with a schema pgq; the two cannot live in one
 * database.
 */

set local search_path = pg_catalog, pg_temp;

do $guard$
begin
    if exists (
        select
          from pg_catalog.pg_class c
         where c.relnamespace = pg_catalog.to_regnamespace('pgq')::oid
           and c.relname in ('tick', 'subscription')
    ) then
        raise exception 'this database holds the PgQ of Skytools, which uses the schema "pgq" too'
            using errcode = 'duplicate_schema',
                  hint = 'Install this extension in another database, or drop PgQ first.';
    end if;
    if pg_catalog.to_regnamespace('pgq') is not null then
        raise exception 'schema "pgq" exists already'
            using errcode = 'duplicate_schema',
                  detail = 'The extension keeps its tables in a schema of that name.',
                  hint = 'Drop or rename that schema; choose another one for the public functions.';
    end if;
end
$guard$;

/*
 * The internal schema and the public row type.
 */

create schema pgq;
revoke all on schema pgq from public;
comment on schema pgq is 'tables and helpers of the extension pgq; not an interface';

create type @extschema@.pgq_job as (
    id bigint,
    token bigint,
    queue text,
    priority integer,
    state text,
    attempt integer,
    max_attempts integer,
    payload jsonb,
    headers jsonb,
    group_key text,
    dedupe_key text,
    worker text,
    enqueued_at timestamptz,
    run_at timestamptz,
    claimed_at timestamptz,
    lease_expires_at timestamptz,
    last_error text,
    cancel_requested boolean,
    checkpoint jsonb
);
comment on type @extschema@.pgq_job is
'A job as its consumer sees it. (id, token) is the receipt: heartbeat, complete, fail and '
'release take it. checkpoint: what the last heartbeat with one left, of this attempt or an '
'earlier one. attempt counts the tries so far, this one included, towards max_attempts. All '
'times are the server''s.';

/*
 * The stored state. Every row of pgq.job is a live job; which state it is in follows from its
 * columns:
 *   active     token is set; lease_expires_at may lie in the past, then anybody may claim it
 *   waiting    behind another job of its group, see pgq._turn_group, or after other jobs, see
 *              pgq._turn_waiters
 *   scheduled  token is null and run_at lies in the future
 *   ready      otherwise
 * Finished jobs are in pgq.archive, see 21_archive.sql.
 *
 * pgq.job is a ring of slots 0 to 3, which enqueue fills one after the other, and two parked
 * slots, 4 and 5, for jobs that come in any order: scheduled, given back, retried, or evacuated
 * from the ring. A slot without rows is truncated: that, and nothing else, removes dead versions
 * while a transaction holds the xmin horizon.
 *
 * A lane is one priority of one queue. (lane, id) finds a job in its slot; a token carries lane
 * and slot, so that a receipt is looked up without an index on id. No index covers a column that
 * a claim, a heartbeat or a completion changes: all of them are HOT updates or deletes.
 *
 * Rows that would be updated often are appended instead, and the newest one counts: under a held
 * horizon an updated row grows a chain of versions that every reader walks.
 *
 * All tables have a replica identity: a publication for all tables would stop the queue otherwise.
 *
 * Lock order: pgq.gate, then slots in number order, then rows in (lane, id) order.
 */

create table pgq.queue (
    id integer generated always as identity,
    name text not null,
    max_attempts integer not null default 20,
    backoff_base interval not null default '1 second',
    backoff_factor double precision not null default 2,
    backoff_max interval not null default '1 hour',
    keep_completed interval not null default '1 day',
    keep_dead interval not null default '30 days',
    dedupe_for interval not null default '0',
    group_concurrency integer not null default 1,
    group_on_dead text not null default 'continue',
    max_active integer not null default 0,
    rate_limit integer not null default 0,
    rate_interval interval not null default '1 second',
    rate_burst integer not null default 0,
    priority_ageing interval not null default '0',
    max_ready integer not null default 0,
    max_payload integer not null default 0,
    paused boolean not null default false,
    created_at timestamptz not null default pg_catalog.now(),
    sample integer not null default 1,
    is_limited boolean not null generated always as (max_active > 0 or rate_limit > 0) stored,
    is_bounded boolean not null generated always as (max_ready > 0 or max_payload > 0) stored,
    is_special boolean not null generated always as (
        paused or max_active > 0 or rate_limit > 0 or priority_ageing > '0'
    ) stored,
    constraint queue_pkey primary key (id),
    constraint queue_name_key unique (name),
    constraint queue_name_check check (pg_catalog.length(name) between 1 and 200),
    constraint queue_max_attempts_check check (max_attempts >= 1),
    constraint queue_backoff_check check (
        backoff_base >= '0' and backoff_max >= backoff_base and backoff_factor between 1 and 1000
    ),
    constraint queue_keep_check check (
        keep_completed >= '0' and keep_dead >= '0' and dedupe_for >= '0'
    ),
    constraint queue_group_check check (
        group_concurrency >= 1 and group_on_dead in ('continue', 'block')
    ),
    constraint queue_limit_check check (
        max_active >= 0 and rate_limit >= 0 and rate_interval > '0' and rate_burst >= 0
        and priority_ageing >= '0' and max_ready >= 0 and max_payload >= 0
    )
);
comment on table pgq.queue is 'queues and their settings';
comment on column pgq.queue.sample is 'of how many calls that end jobs one is counted';
comment on column pgq.queue.is_limited is 'claims go through pgq._grab_limited';
comment on column pgq.queue.is_bounded is 'enqueue goes through pgq._check_bounds';
comment on column pgq.queue.is_special is 'claims go through pgq._grab';

create sequence pgq.lane_id as integer maxvalue 65535 cycle;

create table pgq.lane (
    id integer not null,
    queue_id integer not null,
    priority smallint not null,
    queue text not null,
    expiring boolean not null default false,
    is_bounded boolean not null default false,
    awaited_until timestamptz,
    constraint lane_pkey primary key (id)
);
create index lane_queue_id_idx on pgq.lane (queue_id, priority desc, id);
create index lane_plain_idx on pgq.lane (queue, priority) where not (expiring or is_bounded);
comment on table pgq.lane is
'one row per priority in use in a queue; two only if two sessions used it first at the same time, '
'and for jobs with start_by, which are on lanes of their own';
comment on column pgq.lane.queue is 'the queue''s name; enqueue reads no other table of the queue';
comment on column pgq.lane.awaited_until is 'until then somebody may sleep: see pgq._wake';

create sequence pgq.job_id;
create sequence pgq.token;

create table pgq.job (
    id bigint not null,
    enqueued_at timestamptz not null,
    lane integer not null,
    slot smallint not null,
    attempt smallint not null default 0,
    max_attempts integer,
    run_at timestamptz,
    due bigint,
    token bigint,
    claimed_at timestamptz,
    lease_expires_at timestamptz,
    lease_ms integer,
    pid integer,
    worker text,
    payload jsonb not null,
    headers jsonb,
    last_error text,
    dedupe_key text collate "C",
    dedupe_queue_id integer,
    group_key text collate "C",
    group_id bigint,
    wait bigint,
    cancel_requested boolean,
    checkpoint jsonb,
    start_by timestamptz,
    is_awaited boolean
) partition by list (slot);
comment on table pgq.job is
'the live jobs; what a claim changes lies before the payload, so that WAL does not repeat that';
comment on column pgq.job.max_attempts is 'null: as the queue says';
comment on column pgq.job.run_at is 'when it was asked to run; null: at once';
comment on column pgq.job.due is
'parked slots only: the place there, see pgq._due';
comment on column pgq.job.dedupe_queue_id is 'the queue, if there is a dedupe_key';
comment on column pgq.job.group_id is 'see pgq._group_id';
comment on column pgq.job.wait is 'its place in the group while it waits, see pgq._turn_group';
comment on column pgq.job.start_by is 'the expires_at of pgq_enqueue';
comment on column pgq.job.pid is 'the backend that claimed it';
comment on column pgq.job.is_awaited is 'true: jobs of pgq.dependency wait for it';
comment on column pgq.job.lease_ms is 'the timeout of the claim, for heartbeats that name none';

create table pgq.job_0 partition of pgq.job for values in (0) with (
    fillfactor = 40,
    vacuum_truncate = off,
    autovacuum_vacuum_scale_factor = 0.5,
    autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_analyze_threshold = 1000000
);
create table pgq.job_1 partition of pgq.job for values in (1) with (
    fillfactor = 40,
    vacuum_truncate = off,
    autovacuum_vacuum_scale_factor = 0.5,
    autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_analyze_threshold = 1000000
);
create table pgq.job_2 partition of pgq.job for values in (2) with (
    fillfactor = 40,
    vacuum_truncate = off,
    autovacuum_vacuum_scale_factor = 0.5,
    autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_analyze_threshold = 1000000
);
create table pgq.job_3 partition of pgq.job for values in (3) with (
    fillfactor = 40,
    vacuum_truncate = off,
    autovacuum_vacuum_scale_factor = 0.5,
    autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_analyze_threshold = 1000000
);
create table pgq.job_4 partition of pgq.job for values in (4) with (
    fillfactor = 40,
    vacuum_truncate = off,
    autovacuum_vacuum_scale_factor = 0.5,
    autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_analyze_threshold = 1000000
);
create table pgq.job_5 partition of pgq.job for values in (5) with (
    fillfactor = 40,
    vacuum_truncate = off,
    autovacuum_vacuum_scale_factor = 0.5,
    autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_analyze_threshold = 1000000
);
create unique index job_0_lane_id_idx on pgq.job_0 (lane, id);
alter table pgq.job_0 replica identity using index job_0_lane_id_idx;
create unique index job_0_dedupe_idx on pgq.job_0 (dedupe_queue_id, dedupe_key)
    where dedupe_key is not null;
create unique index job_1_lane_id_idx on pgq.job_1 (lane, id);
alter table pgq.job_1 replica identity using index job_1_lane_id_idx;
create unique index job_1_dedupe_idx on pgq.job_1 (dedupe_queue_id, dedupe_key)
    where dedupe_key is not null;
create unique index job_2_lane_id_idx on pgq.job_2 (lane, id);
alter table pgq.job_2 replica identity using index job_2_lane_id_idx;
create unique index job_2_dedupe_idx on pgq.job_2 (dedupe_queue_id, dedupe_key)
    where dedupe_key is not null;
create unique index job_3_lane_id_idx on pgq.job_3 (lane, id);
alter table pgq.job_3 replica identity using index job_3_lane_id_idx;
create unique index job_3_dedupe_idx on pgq.job_3 (dedupe_queue_id, dedupe_key)
    where dedupe_key is not null;
create unique index job_4_lane_id_idx on pgq.job_4 (lane, id);
alter table pgq.job_4 replica identity using index job_4_lane_id_idx;
create unique index job_4_dedupe_idx on pgq.job_4 (dedupe_queue_id, dedupe_key)
    where dedupe_key is not null;
create unique index job_5_lane_id_idx on pgq.job_5 (lane, id);
alter table pgq.job_5 replica identity using index job_5_lane_id_idx;
create unique index job_5_dedupe_idx on pgq.job_5 (dedupe_queue_id, dedupe_key)
    where dedupe_key is not null;
-- All parked jobs that do not wait have it, and the condition keeps plans that look for an id from
-- taking this index.
create index job_4_due_idx on pgq.job_4 (lane, due) where due is not null;
create index job_4_group_due_idx on pgq.job_4 (group_id, due)
    where group_id is not null and wait is null;
create index job_4_group_wait_idx on pgq.job_4 (group_id, wait, id)
    where wait is not null;
create index job_5_due_idx on pgq.job_5 (lane, due) where due is not null;
create index job_5_group_due_idx on pgq.job_5 (group_id, due)
    where group_id is not null and wait is null;
create index job_5_group_wait_idx on pgq.job_5 (group_id, wait, id)
    where wait is not null;
create index job_0_group_idx on pgq.job_0 (group_id, id) where group_id is not null;
create index job_1_group_idx on pgq.job_1 (group_id, id) where group_id is not null;
create index job_2_group_idx on pgq.job_2 (group_id, id) where group_id is not null;
create index job_3_group_idx on pgq.job_3 (group_id, id) where group_id is not null;

/*
 * Where claims may start in a slot and lane: rows up to "floor" are finished or leased, rows up to
 * "base" are finished, see pgq._raise_floor. The key is the id in the ring and due in the parked
 * slots. The row with the highest n counts. A floor table is truncated with its slot.
 */
create sequence pgq.floor_n;
create table pgq.floor_0 (
    n bigint not null,
    lane integer not null,
    floor bigint not null,
    base bigint not null,
    mark bigint not null,
    mark_xid bigint
) with (vacuum_truncate = off);
create index floor_0_lane_n_idx on pgq.floor_0 (lane, n);
comment on table pgq.floor_0 is 'claim positions in slot 0';
comment on column pgq.floor_0.mark_xid is 'null: the id of the transaction that wrote the row';
create table pgq.floor_1 (
    n bigint not null,
    lane integer not null,
    floor bigint not null,
    base bigint not null,
    mark bigint not null,
    mark_xid bigint
) with (vacuum_truncate = off);
create index floor_1_lane_n_idx on pgq.floor_1 (lane, n);
comment on table pgq.floor_1 is 'claim positions in slot 1';
comment on column pgq.floor_1.mark_xid is 'null: the id of the transaction that wrote the row';
create table pgq.floor_2 (
    n bigint not null,
    lane integer not null,
    floor bigint not null,
    base bigint not null,
    mark bigint not null,
    mark_xid bigint
) with (vacuum_truncate = off);
create index floor_2_lane_n_idx on pgq.floor_2 (lane, n);
comment on table pgq.floor_2 is 'claim positions in slot 2';
comment on column pgq.floor_2.mark_xid is 'null: the id of the transaction that wrote the row';
create table pgq.floor_3 (
    n bigint not null,
    lane integer not null,
    floor bigint not null,
    base bigint not null,
    mark bigint not null,
    mark_xid bigint
) with (vacuum_truncate = off);
create index floor_3_lane_n_idx on pgq.floor_3 (lane, n);
comment on table pgq.floor_3 is 'claim positions in slot 3';
comment on column pgq.floor_3.mark_xid is 'null: the id of the transaction that wrote the row';
create table pgq.floor_4 (
    n bigint not null,
    lane integer not null,
    floor bigint not null,
    base bigint not null,
    mark bigint not null,
    mark_xid bigint
) with (vacuum_truncate = off);
create index floor_4_lane_n_idx on pgq.floor_4 (lane, n);
comment on table pgq.floor_4 is 'claim positions in slot 4';
comment on column pgq.floor_4.mark_xid is 'null: the id of the transaction that wrote the row';
create table pgq.floor_5 (
    n bigint not null,
    lane integer not null,
    floor bigint not null,
    base bigint not null,
    mark bigint not null,
    mark_xid bigint
) with (vacuum_truncate = off);
create index floor_5_lane_n_idx on pgq.floor_5 (lane, n);
comment on table pgq.floor_5 is 'claim positions in slot 5';
comment on column pgq.floor_5.mark_xid is 'null: the id of the transaction that wrote the row';

create table pgq.ring (
    gen bigint not null,
    live smallint[] not null,
    firsts bigint[] not null,
    closing smallint[] not null,
    parked smallint[] not null,
    parked_closing smallint[] not null,
    switched_at timestamptz not null,
    ready smallint[] not null,
    constraint ring_pkey primary key (gen)
);
comment on table pgq.ring is
'which slots hold jobs: oldest first, the last one is written; closing ones seemed empty. '
'firsts, by slot number: below its ids. The row with the highest gen counts';
comment on column pgq.ring.switched_at is 'since when all but ready has been so';
comment on column pgq.ring.ready is
'those of live in which something may be claimable, in the same order; ticks look into the others, '
'too: see pgq._ready_slots';

create type pgq.target as (
    queue_id integer,
    lane integer,
    slot smallint,
    parked smallint,
    run_at timestamptz,
    is_bounded boolean,
    is_awaited boolean
);
comment on type pgq.target is 'for enqueue: where jobs go; run_at: null for now';

create type pgq.source as (
    slot smallint,
    lane integer,
    head bigint,
    ids bigint[]
);
comment on type pgq.source is
'for pgq._gather: where jobs may be, and a lower bound of the claimable ids there';

create type pgq.renewal as (
    id bigint,
    token bigint,
    lease_expires_at timestamptz,
    cancel_requested boolean
);
comment on type pgq.renewal is 'for pgq._renew: a receipt that was good, and its new expiry';

create type pgq.turn as (
    group_id bigint,
    place bigint,
    noted smallint,
    slot smallint,
    lane integer,
    id bigint,
    at bigint,
    is_followed boolean
);
comment on type pgq.turn is
'for pgq._next_heads: what pgq._note_groups has noted of a group (6: anything), and the new or '
'waiting job that may be next; at: its place. is_followed: another one may wait behind it';

create table pgq.gate (
    one boolean not null default true,
    constraint gate_pkey primary key (one),
    constraint gate_one_check check (one)
);
comment on table pgq.gate is
'its only row is locked by whoever does maintenance; nobody waits for it';

create table pgq.chore (
    last boolean not null default false,
    wake integer
);
alter table pgq.chore replica identity full;
comment on table pgq.chore is
'an insert queues maintenance for the commit of its transaction: see pgq._at_commit';
comment on column pgq.chore.wake is 'a queue to notify for instead: see pgq._wake';

create sequence pgq.next_tick;
create sequence pgq.last_tick;
create sequence pgq.xid_recent;
create sequence pgq.xid_old;
create sequence pgq.xid_shifted;
comment on sequence pgq.next_tick is
'register: from when (ms since 1970) maintenance is due; a hint. Since PostgreSQL 15 it is not '
'logged, so that it is empty after a crash and on a promoted standby: see pgq._skip_lost_tokens';
do $unlogged$
begin
    if current_setting('server_version_num')::integer >= 150000 then
        execute 'alter sequence pgq.next_tick set unlogged';
    end if;
end
$unlogged$;
comment on sequence pgq.last_tick is 'register: when (ms since 1970) maintenance ran last';
comment on sequence pgq.xid_recent is 'register: the next transaction id at the last maintenance';
comment on sequence pgq.xid_old is 'register: xid_recent before that, at least a second ago';

insert into pgq.queue (name) values ('default');
insert into pgq.lane (id, queue_id, priority, queue)
select pg_catalog.nextval('pgq.lane_id'), q.id, 0, q.name from pgq.queue q;
insert into pgq.ring (gen, live, firsts, closing, parked, parked_closing, switched_at, ready)
values (1, '{0}', '{0,0,0,0}', '{}', '{4}', '{}', pg_catalog.clock_timestamp(), '{0}');
insert into pgq.gate default values;

/*
 * Retention is by whole partitions: bucket says in which window of time its rows expire, for one of
 * five classes of retention (see pgq._archive_bucket); a window that has passed is truncated.
 */
create table pgq.archive (
    id bigint not null,
    enqueued_at timestamptz not null,
    finished_at timestamptz not null,
    expires_at timestamptz not null,
    run_at timestamptz,
    claimed_at timestamptz,
    token bigint,
    bucket smallint not null,
    priority smallint not null,
    attempt integer not null,
    max_attempts integer,
    state text not null,
    queue text not null,
    worker text,
    payload jsonb not null,
    headers jsonb,
    last_error text,
    dedupe_key text collate "C",
    group_key text collate "C",
    checkpoint jsonb,
    result jsonb,
    constraint archive_state_check check (state in ('completed', 'dead', 'cancelled'))
) partition by list (bucket);
comment on table pgq.archive is 'finished jobs, until they expire';
create index archive_id_idx on pgq.archive (id);
create index archive_dead_idx on pgq.archive (queue, id) where state = 'dead';
create index archive_dedupe_idx on pgq.archive (queue, dedupe_key)
    where state = 'completed' and dedupe_key is not null;

create table pgq.archive_0 partition of pgq.archive for values in (0);
alter table pgq.archive_0 replica identity full;
create table pgq.archive_1 partition of pgq.archive for values in (1);
alter table pgq.archive_1 replica identity full;
create table pgq.archive_2 partition of pgq.archive for values in (2);
alter table pgq.archive_2 replica identity full;
create table pgq.archive_3 partition of pgq.archive for values in (3);
alter table pgq.archive_3 replica identity full;
create table pgq.archive_4 partition of pgq.archive for values in (4);
alter table pgq.archive_4 replica identity full;
create table pgq.archive_5 partition of pgq.archive for values in (5);
alter table pgq.archive_5 replica identity full;
create table pgq.archive_6 partition of pgq.archive for values in (6);
alter table pgq.archive_6 replica identity full;
create table pgq.archive_7 partition of pgq.archive for values in (7);
alter table pgq.archive_7 replica identity full;
create table pgq.archive_8 partition of pgq.archive for values in (8);
alter table pgq.archive_8 replica identity full;
create table pgq.archive_9 partition of pgq.archive for values in (9);
alter table pgq.archive_9 replica identity full;
create table pgq.archive_10 partition of pgq.archive for values in (10);
alter table pgq.archive_10 replica identity full;
create table pgq.archive_11 partition of pgq.archive for values in (11);
alter table pgq.archive_11 replica identity full;
create table pgq.archive_12 partition of pgq.archive for values in (12);
alter table pgq.archive_12 replica identity full;
create table pgq.archive_13 partition of pgq.archive for values in (13);
alter table pgq.archive_13 replica identity full;
create table pgq.archive_14 partition of pgq.archive for values in (14);
alter table pgq.archive_14 replica identity full;
create table pgq.archive_15 partition of pgq.archive for values in (15);
alter table pgq.archive_15 replica identity full;
create table pgq.archive_16 partition of pgq.archive for values in (16);
alter table pgq.archive_16 replica identity full;
create table pgq.archive_17 partition of pgq.archive for values in (17);
alter table pgq.archive_17 replica identity full;
create table pgq.archive_18 partition of pgq.archive for values in (18);
alter table pgq.archive_18 replica identity full;
create table pgq.archive_19 partition of pgq.archive for values in (19);
alter table pgq.archive_19 replica identity full;
create table pgq.archive_20 partition of pgq.archive for values in (20);
alter table pgq.archive_20 replica identity full;
create table pgq.archive_21 partition of pgq.archive for values in (21);
alter table pgq.archive_21 replica identity full;
create table pgq.archive_22 partition of pgq.archive for values in (22);
alter table pgq.archive_22 replica identity full;
create table pgq.archive_23 partition of pgq.archive for values in (23);
alter table pgq.archive_23 replica identity full;
create table pgq.archive_24 partition of pgq.archive for values in (24);
alter table pgq.archive_24 replica identity full;
create table pgq.archive_25 partition of pgq.archive for values in (25);
alter table pgq.archive_25 replica identity full;
create table pgq.archive_26 partition of pgq.archive for values in (26);
alter table pgq.archive_26 replica identity full;
create table pgq.archive_27 partition of pgq.archive for values in (27);
alter table pgq.archive_27 replica identity full;
create table pgq.archive_28 partition of pgq.archive for values in (28);
alter table pgq.archive_28 replica identity full;
create table pgq.archive_29 partition of pgq.archive for values in (29);
alter table pgq.archive_29 replica identity full;
create table pgq.archive_30 partition of pgq.archive for values in (30);
alter table pgq.archive_30 replica identity full;
create table pgq.archive_31 partition of pgq.archive for values in (31);
alter table pgq.archive_31 replica identity full;
create table pgq.archive_32 partition of pgq.archive for values in (32);
alter table pgq.archive_32 replica identity full;
create table pgq.archive_33 partition of pgq.archive for values in (33);
alter table pgq.archive_33 replica identity full;
create table pgq.archive_34 partition of pgq.archive for values in (34);
alter table pgq.archive_34 replica identity full;
create table pgq.archive_35 partition of pgq.archive for values in (35);
alter table pgq.archive_35 replica identity full;
create table pgq.archive_36 partition of pgq.archive for values in (36);
alter table pgq.archive_36 replica identity full;
create table pgq.archive_37 partition of pgq.archive for values in (37);
alter table pgq.archive_37 replica identity full;
create table pgq.archive_38 partition of pgq.archive for values in (38);
alter table pgq.archive_38 replica identity full;
create table pgq.archive_39 partition of pgq.archive for values in (39);
alter table pgq.archive_39 replica identity full;

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

create unlogged table pgq.group_event_0 (
    last boolean not null default false
);
create unlogged table pgq.group_event_1 (
    last boolean not null default false
);
comment on table pgq.group_event_0 is
'an insert queues pgq._at_group_commit for the commit of its transaction';
comment on table pgq.group_event_1 is
'the same: the two are written by turns, so that each can be truncated while the other is';

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
'groups that the next tick looks at, and from which place on: see pgq._take_hints';

/*
 * What the limits of a queue need beside the jobs: see 33_limits.sql.
 */

create table pgq.permit (
    queue_id integer not null,
    kind "char" not null,
    n integer not null,
    constraint permit_pkey primary key (queue_id, kind, n),
    constraint permit_kind_check check (kind in ('a', 'r'))
);
comment on table pgq.permit is
'rows to be locked, never changed: what a job needs to be active (a), from 1 to max_active, and to '
'start (r), from 0 to rate_burst - 1';

create table pgq.hold (
    slot smallint not null,
    queue_id integer not null,
    permit integer not null,
    token bigint not null,
    lane integer not null,
    id bigint not null
) partition by list (slot);
comment on table pgq.hold is
'which claim took a permit; of each permit the row with the highest token counts, for as long as '
'its job lives with that token';

create table pgq.hold_0 partition of pgq.hold for values in (0)
with (vacuum_truncate = off);
create unique index hold_0_permit_idx on pgq.hold_0 (queue_id, permit, token);
alter table pgq.hold_0 replica identity using index hold_0_permit_idx;
create table pgq.hold_1 partition of pgq.hold for values in (1)
with (vacuum_truncate = off);
create unique index hold_1_permit_idx on pgq.hold_1 (queue_id, permit, token);
alter table pgq.hold_1 replica identity using index hold_1_permit_idx;
create table pgq.hold_2 partition of pgq.hold for values in (2)
with (vacuum_truncate = off);
create unique index hold_2_permit_idx on pgq.hold_2 (queue_id, permit, token);
alter table pgq.hold_2 replica identity using index hold_2_permit_idx;
create table pgq.hold_3 partition of pgq.hold for values in (3)
with (vacuum_truncate = off);
create unique index hold_3_permit_idx on pgq.hold_3 (queue_id, permit, token);
alter table pgq.hold_3 replica identity using index hold_3_permit_idx;
create table pgq.hold_4 partition of pgq.hold for values in (4)
with (vacuum_truncate = off);
create unique index hold_4_permit_idx on pgq.hold_4 (queue_id, permit, token);
alter table pgq.hold_4 replica identity using index hold_4_permit_idx;
create table pgq.hold_5 partition of pgq.hold for values in (5)
with (vacuum_truncate = off);
create unique index hold_5_permit_idx on pgq.hold_5 (queue_id, permit, token);
alter table pgq.hold_5 replica identity using index hold_5_permit_idx;

create table pgq.start (
    queue_id integer not null,
    moment bigint not null,
    token bigint not null,
    constraint start_pkey primary key (queue_id, moment, token)
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
comment on table pgq.start is
'moments of rate limits of which the start is used up, and by which claim: see pgq._take_starts. '
'One moment twice only if settings changed between the claims';

/*
 * Which jobs wait until others have completed: see 38_after.sql.
 */

create table pgq.dependency (
    on_id bigint not null,
    job_id bigint not null,
    lane integer not null,
    on_dead text not null,
    constraint dependency_pkey primary key (on_id, job_id),
    constraint dependency_on_dead_check check (on_dead in ('die', 'wait'))
);
create index dependency_job_id_idx on pgq.dependency (job_id, on_id);
comment on table pgq.dependency is
'job_id, of that lane, waits for on_id, which is live or dead; gone when on_id completes';

create table pgq.waiter_hint (
    job_id bigint not null,
    lane integer not null
);
alter table pgq.waiter_hint replica identity full;
comment on table pgq.waiter_hint is
'waiting jobs that the next tick looks at, see pgq._turn_waiters; below zero: one of those that it '
'waits for has died. lane 0: not those, but a job that has completed or, below zero, died';

/*
 * Who may do what: see 30_privilege.sql.
 */

create table pgq.privilege (
    role regrole not null,
    queue_id integer,
    verb text not null,
    constraint privilege_verb_check check (
        verb in ('enqueue', 'consume', 'observe', 'manage', 'usage')
    )
);
create unique index privilege_role_verb_queue_id_idx
    on pgq.privilege (role, verb, coalesce(queue_id, 0));
alter table pgq.privilege replica identity full;
comment on table pgq.privilege is 'what pgq_grant has granted';
comment on column pgq.privilege.role is
'0: public. What a role had is not left to another one that gets its name';
comment on column pgq.privilege.queue_id is 'null: all queues';
comment on column pgq.privilege.verb is
'usage: on the schema of the public functions, see pgq._set_grants';

/*
 * Recurring jobs: see 49_schedule.sql.
 */

create table pgq.schedule (
    name text not null,
    queue_id integer not null,
    cron text not null,
    timezone text not null,
    payload jsonb not null,
    priority smallint not null,
    max_attempts integer,
    headers jsonb,
    missed text not null,
    paused boolean not null default false,
    next_at timestamptz not null,
    last_at timestamptz,
    constraint schedule_pkey primary key (name),
    constraint schedule_missed_check check (missed in ('skip', 'once', 'all'))
);
create index schedule_queue_id_idx on pgq.schedule (queue_id);
comment on table pgq.schedule is 'what adds a job at times that a cron expression names';

/*
 * How many jobs end: see 36_stat.sql.
 */

create sequence pgq.stat_n;
create sequence pgq.stat_seen;
comment on sequence pgq.stat_seen is 'register: pgq.stat_n at the last tick';

create table pgq.stat_0 (
    n bigint not null,
    queue_id integer not null,
    at timestamptz not null,
    completed bigint not null,
    failed bigint not null
);
alter table pgq.stat_0 replica identity full;
create index stat_0_n_idx on pgq.stat_0 (n);
comment on table pgq.stat_0 is
'ends of jobs in every third minute; each row stands for as many as it says';
create table pgq.stat_1 (
    n bigint not null,
    queue_id integer not null,
    at timestamptz not null,
    completed bigint not null,
    failed bigint not null
);
alter table pgq.stat_1 replica identity full;
create index stat_1_n_idx on pgq.stat_1 (n);
comment on table pgq.stat_1 is
'ends of jobs in every third minute; each row stands for as many as it says';
create table pgq.stat_2 (
    n bigint not null,
    queue_id integer not null,
    at timestamptz not null,
    completed bigint not null,
    failed bigint not null
);
alter table pgq.stat_2 replica identity full;
create index stat_2_n_idx on pgq.stat_2 (n);
comment on table pgq.stat_2 is
'ends of jobs in every third minute; each row stands for as many as it says';

create table pgq.stat (
    queue_id integer not null,
    at timestamptz not null,
    completed bigint not null,
    failed bigint not null
);
alter table pgq.stat replica identity full;
comment on table pgq.stat is 'ends of jobs by minute, for an hour';

/*
 * What pg_dump carries along: jobs, settings, and the sequences that number them. What a dump meets
 * where it is restored is in 72_restore.sql.
 *
 * Not the rest: claim positions, transaction ids and times of the last maintenance mean nothing in
 * another cluster, rows that are only locked are made by the installation, and events have been
 * dealt with when their transaction committed. pgq.next_tick is empty in a restored database, which
 * makes the first claim skip the tokens that may have been drawn since the dump.
 */

select pg_catalog.pg_extension_config_dump('pgq.queue', '');
select pg_catalog.pg_extension_config_dump('pgq.queue_id_seq', '');
select pg_catalog.pg_extension_config_dump('pgq.lane', '');
select pg_catalog.pg_extension_config_dump('pgq.lane_id', '');
select pg_catalog.pg_extension_config_dump('pgq.job_id', '');
select pg_catalog.pg_extension_config_dump('pgq.token', '');
select pg_catalog.pg_extension_config_dump('pgq.job_0', '');
select pg_catalog.pg_extension_config_dump('pgq.hold_0', '');
select pg_catalog.pg_extension_config_dump('pgq.job_1', '');
select pg_catalog.pg_extension_config_dump('pgq.hold_1', '');
select pg_catalog.pg_extension_config_dump('pgq.job_2', '');
select pg_catalog.pg_extension_config_dump('pgq.hold_2', '');
select pg_catalog.pg_extension_config_dump('pgq.job_3', '');
select pg_catalog.pg_extension_config_dump('pgq.hold_3', '');
select pg_catalog.pg_extension_config_dump('pgq.job_4', '');
select pg_catalog.pg_extension_config_dump('pgq.hold_4', '');
select pg_catalog.pg_extension_config_dump('pgq.job_5', '');
select pg_catalog.pg_extension_config_dump('pgq.hold_5', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_0', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_1', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_2', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_3', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_4', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_5', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_6', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_7', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_8', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_9', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_10', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_11', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_12', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_13', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_14', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_15', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_16', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_17', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_18', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_19', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_20', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_21', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_22', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_23', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_24', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_25', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_26', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_27', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_28', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_29', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_30', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_31', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_32', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_33', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_34', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_35', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_36', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_37', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_38', '');
select pg_catalog.pg_extension_config_dump('pgq.archive_39', '');
-- The installation makes the first one.
select pg_catalog.pg_extension_config_dump('pgq.ring', 'where gen > 1');
select pg_catalog.pg_extension_config_dump('pgq.group_block', '');
select pg_catalog.pg_extension_config_dump('pgq.group_hint', '');
select pg_catalog.pg_extension_config_dump('pgq.dependency', '');
select pg_catalog.pg_extension_config_dump('pgq.waiter_hint', '');
select pg_catalog.pg_extension_config_dump('pgq.permit', '');
select pg_catalog.pg_extension_config_dump('pgq.start', '');
select pg_catalog.pg_extension_config_dump('pgq.schedule', '');
-- Those of dropped roles are numbers, which may be other roles elsewhere.
select pg_catalog.pg_extension_config_dump(
    'pgq.privilege',
    'where role = 0::oid or role::oid in (select r.oid from pg_catalog.pg_roles r)'
);

/*
 * Small helpers: the clock, checks of arguments, settings, and where things are.
 */

-- It becomes part of the calling expression, as it would not if it pinned search_path.
create function pgq._now()
returns timestamptz
language sql
volatile
as $$
select pg_catalog.clock_timestamp()
$$;
comment on function pgq._now() is 'the only clock; tests replace it';

create function pgq._ms(p_at timestamptz)
returns bigint
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (extract(epoch from p_at) * 1000)::bigint;
end
$$;
comment on function pgq._ms(timestamptz) is 'milliseconds since 1970';

create function pgq._us(p_at timestamptz)
returns bigint
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (extract(epoch from p_at) * 1000000)::bigint;
end
$$;
comment on function pgq._us(timestamptz) is 'microseconds since 1970, exact';

create function pgq._due(p_run_at timestamptz, p_id bigint)
returns bigint
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgq._us(p_run_at) + p_id % 4096;
end
$$;
comment on function pgq._due(timestamptz, bigint) is
'the place of a job in a parked slot: in microseconds since 1970, spread over 4 milliseconds, so '
'that a claim position can pass some of a million jobs which fall due at one moment';

create function pgq._read_committed()
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return current_setting('transaction_isolation') in ('read committed', 'read uncommitted');
end
$$;
comment on function pgq._read_committed() is
'whether every statement sees what has committed before it';

create function pgq._is_preparing()
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A commit by a Sync message has no current query.
    return coalesce(current_query(), '')
        ~* E'[[:<:]]prepare([[:space:]]|--[^\n]*\n|/[*].*[*]/)+transaction[[:>:]]';
end
$$;
comment on function pgq._is_preparing() is
'for deferred triggers: whether it is PREPARE TRANSACTION, which locks outlive';

create function pgq._check_not_null(p_name text, p_is_null boolean)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_is_null then
        raise exception '"%" must not be null', p_name
            using errcode = 'null_value_not_allowed';
    end if;
end
$$;
comment on function pgq._check_not_null(text, boolean) is 'raises 22004 for a null argument';

create function pgq._check_array(p_name text, p_value anyarray, p_nulls boolean default false)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null(p_name, p_value is null);
    if array_ndims(p_value) > 1 then
        raise exception '"%" must have one dimension, not %', p_name, array_ndims(p_value)
            using errcode = 'invalid_parameter_value';
    end if;
    perform pgq._check_not_null(p_name, not p_nulls and array_position(p_value, null) is not null);
end
$$;
comment on function pgq._check_array(text, anyarray, boolean) is
'raises 22004 for a null array or, unless p_nulls, element, and 22023 for more than one dimension';

create function pgq._check_lengths(
    p_name text, p_length integer, p_other_name text, p_other_length integer
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_length <> p_other_length then
        raise exception '"%" and "%" must have the same length, not % and %', p_name, p_other_name,
                p_length, p_other_length
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
comment on function pgq._check_lengths(text, integer, text, integer) is
'raises 22023 for arrays of different lengths';

create function pgq._check_interval(p_name text, p_value interval, p_zero_allowed boolean)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_value is null then
        return;
    end if;
    -- Two looks: with years, days and hours of both signs, one can be above zero, the other not.
    if p_value < '0' or extract(epoch from p_value) < 0
        or (extract(epoch from p_value) = 0 and not p_zero_allowed)
    then
        raise exception '"%" must be %, not %', p_name,
                case when p_zero_allowed then 'zero or a positive interval'
                     else 'a positive interval' end,
                p_value
            using errcode = 'invalid_parameter_value';
    end if;
    -- Infinite ones (PostgreSQL 17) included; adding them to a time would give 22008 or infinity.
    if p_value > '1000 years' then
        raise exception '"%" must be at most 1000 years, not %', p_name, p_value
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
comment on function pgq._check_interval(text, interval, boolean) is
'raises 22023 for a negative, an infinite and, unless allowed, an empty interval; null passes';

create function pgq._check_batch(p_name text, p_value integer)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null(p_name, p_value is null);
    if p_value < 1 then
        raise exception '"%" must be at least 1, not %', p_name, p_value
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
comment on function pgq._check_batch(text, integer) is
'raises 22004 for null and 22023 for less than 1';

create function pgq._lease_ms(p_timeout interval)
returns integer
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ms constant numeric := extract(epoch from p_timeout) * 1000;
begin
    if p_timeout > '0' and p_timeout <= '24 days' and v_ms between 1 and 2073600000 then
        return ceil(v_ms)::integer;
    end if;
    perform pgq._check_interval('timeout', p_timeout, false);
    if p_timeout > '24 days' or v_ms > 2073600000 then
        raise exception '"timeout" must be at most 24 days, not %', p_timeout
            using errcode = 'invalid_parameter_value',
                  hint = 'A lease is renewed with pgq_heartbeat for as long as the job runs.';
    end if;
    return case when p_timeout is not null then 1 end;
end
$$;
comment on function pgq._lease_ms(interval) is
'a checked lease in milliseconds, at least 1; null for null';

create function pgq._check_receipts(p_ids bigint[], p_tokens bigint[])
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if array_ndims(p_ids) = 1 and array_ndims(p_tokens) = 1
        and cardinality(p_ids) = cardinality(p_tokens)
        and array_position(p_ids, null) is null and array_position(p_tokens, null) is null
    then
        return;
    end if;
    perform pgq._check_array('ids', p_ids);
    perform pgq._check_array('tokens', p_tokens);
    perform pgq._check_lengths('ids', cardinality(p_ids), 'tokens', cardinality(p_tokens));
end
$$;
comment on function pgq._check_receipts(bigint[], bigint[]) is
'raises 22004 for a null array or element and 22023 for different lengths';

create function pgq._add_lane(p_queue_id integer, p_priority smallint, p_expiring boolean)
returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_lane integer;
begin
    -- A token has 16 bits for the lane.
    for v_try in 1..65535 loop
        v_lane := nextval('pgq.lane_id')::integer;
        if not exists (select from pgq.lane l where l.id = v_lane) then
            insert into pgq.lane (
                id, queue_id, priority, queue, expiring, is_bounded, awaited_until
            )
            select v_lane, q.id, p_priority, q.name, p_expiring, q.is_bounded,
                   (select max(l.awaited_until) from pgq.lane l where l.queue_id = q.id)
              from pgq.queue q where q.id = p_queue_id;
            return v_lane;
        end if;
    end loop;
    raise exception 'too many priorities are in use'
        using errcode = 'program_limit_exceeded',
              detail = 'Each priority of each queue takes one of 65535 lanes.',
              hint = 'Drop queues that are no longer used.';
end
$$;
comment on function pgq._add_lane(integer, smallint, boolean) is
'gives a queue a lane for a priority. No unique index guards it: a second session would wait for '
'the first one''s transaction. Two lanes of one priority are merged by claims';

/*
 * Privileges. All public functions run with the rights of the extension's owner, so that the tables
 * are closed to everybody else; what the caller may do is looked up in pgq.privilege. The caller is
 * the role that the session has set, or has logged in as: not the owner of a function with SECURITY
 * DEFINER that calls pgq, whom PostgreSQL does not tell.
 *
 * Where PostgreSQL itself runs code of others than the session's role (index expressions in REINDEX
 * and ANALYZE, also by autovacuum; materialized views), nobody has privileges. UNLISTEN, which does
 * nothing here, is one of the statements that fail there.
 *
 * What a role may not touch does not exist for it: a receipt is lost, a job unknown, and of a queue
 * it does not learn whether there is one.
 */


-- Nothing needs to be looked up then.

create function pgq._check_restricted()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    unlisten pgq_nobody;
    -- As in pgq._live_keys. A session that has ever listened could not prepare the transaction.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return;
end
$$;
comment on function pgq._check_restricted() is
'raises 42501 where PostgreSQL runs code of others than the session''s role';

create function pgq._caller()
returns name
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('max_prepared_transactions') = '0' then
        unlisten pgq_nobody;
    else
        perform pgq._check_restricted();
    end if;
    return case current_setting('role') when 'none' then session_user
                                        else current_setting('role')::name end;
end
$$;
comment on function pgq._caller() is
'the role on whose behalf a public function runs; raises 42501 if PostgreSQL runs code of others';

create function pgq._may_role(p_role name, p_queue_id integer, p_verb text)
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    return pg_has_role(p_role, current_user, 'usage') or exists (
        select from pgq.privilege p
         where p.verb = p_verb and (p.queue_id is null or p.queue_id = p_queue_id)
           and (p.role = 0::oid or pg_has_role(p_role, p.role::oid, 'usage'))
    );
end
$$;
comment on function pgq._may_role(name, integer, text) is
'whether a role has a privilege on a queue, or (null) on all of them';

create function pgq._may(p_queue_id integer, p_verb text)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgq._may_role(pgq._caller(), p_queue_id, p_verb);
end
$$;
comment on function pgq._may(integer, text) is 'pgq._may_role for the caller';

create function pgq._raise_unknown_queue(p_queue text, p_verb text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null('queue', p_queue is null);
    if not pgq._may(null, p_verb) then
        raise exception 'permission denied for queue "%"', p_queue
            using errcode = 'insufficient_privilege',
                  detail = format('Role "%s" needs the privilege "%s".', pgq._caller(), p_verb),
                  hint = 'Somebody who manages the queue can give it with pgq_grant.';
    end if;
    raise exception 'queue "%" does not exist', p_queue
        using errcode = 'undefined_object',
              hint = format('Create it first: SELECT pgq_create_queue(%s).',
                            quote_literal(p_queue));
end
$$;
comment on function pgq._raise_unknown_queue(text, text) is
'raises 42704 for a name, 22004 for null; 42501 if the caller may not know whether there is such a '
'queue';

create function pgq._queue_id(p_queue text, p_verb text)
returns integer
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id integer;
begin
    if current_setting('max_prepared_transactions') = '0' then
        unlisten pgq_nobody;
    else
        perform pgq._check_restricted();
    end if;
    select q.id into v_id
      from pgq.queue q where q.name = p_queue and ((session_user = current_user and current_setting('role') = 'none') or pgq._may(q.id, p_verb));
    if not found then
        perform pgq._raise_unknown_queue(p_queue, p_verb);
    end if;
    return v_id;
end
$$;
comment on function pgq._queue_id(text, text) is
'the id of a queue on which the caller has a privilege; raises 42704, 42501 or 22004';

create function pgq._may_lane(p_lane integer, p_verb text)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('max_prepared_transactions') = '0' then
        unlisten pgq_nobody;
    else
        perform pgq._check_restricted();
    end if;
    return (session_user = current_user and current_setting('role') = 'none') or coalesce(
        (select pgq._may(l.queue_id, p_verb) from pgq.lane l where l.id = p_lane), false
    );
end
$$;
comment on function pgq._may_lane(integer, text) is
'pgq._may for the queue of a lane; false if there is none';

create function pgq._find_mine(p_id bigint, p_verb text)
returns pgq.job
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_job pgq.job := pgq._find(p_id);
begin
    if v_job.id is not null and not pgq._may_lane(v_job.lane, p_verb) then
        -- What pgq._find does if there is none.
        perform pgq._check_moved();
        return null;
    end if;
    return v_job;
end
$$;
comment on function pgq._find_mine(bigint, text) is
'pgq._find for a queue on which the caller has a privilege';

create function pgq._mask(p_tokens bigint[])
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_lanes constant integer[] := array(
        select l from unnest(pgq._lanes(p_tokens)) l where pgq._may_lane(l, 'consume')
    );
begin
    return array(
        select case when ((t >> 3) & 65535)::integer = any (v_lanes) then t else -1 end
          from unnest(p_tokens) with ordinality u (t, n) order by n
    );
end
$$;
comment on function pgq._mask(bigint[]) is
'the tokens, with those of queues that the caller may not consume from made bad';

create function pgq._check_may(p_verb text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('max_prepared_transactions') = '0' then
        unlisten pgq_nobody;
    else
        perform pgq._check_restricted();
    end if;
    if not ((session_user = current_user and current_setting('role') = 'none') or pgq._may(null, p_verb)) then
        raise exception 'permission denied'
            using errcode = 'insufficient_privilege',
                  detail = format('Role "%s" needs the privilege "%s" on all queues.',
                                  pgq._caller(), p_verb),
                  hint = 'Somebody who has it can give it with pgq_grant, for the queue ''*''.';
    end if;
end
$$;
comment on function pgq._check_may(text) is 'raises 42501 without a privilege on all queues';

/*
 * The statements on jobs, each once per slot on the slot itself: a plan over pgq.job would lock all
 * slots, and one that is being truncated must not be touched by anybody who has no business there.
 *
 * The settings pin the plans: they are cached, some are made while a slot is empty or was
 * truncated a moment ago, and must be index scans then, too.
 *
 * Claimable is a job that nobody leases, or whose lease has expired and that has an attempt left
 * (p_max is the queue's max_attempts); pgq._maintain buries the others. Parked jobs are looked at
 * in the order in which they fell due, a thousand at a time, and of these the lowest ids come
 * first.
 */

-- Of a lane "l".
-- The same for those that look for active jobs, too.
-- Asked once per statement, which spares it the beginning of index scans. Sound: it has locked the
-- slot, which keeps it from being truncated, before it took its snapshot.

-- pgq._due adds up to 4095 microseconds.

create function pgq._peek(
    p_slot smallint, p_lane integer, p_after bigint, p_until bigint, p_now timestamptz,
    p_max integer, p_tick boolean
)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_lane alias for p_lane; v_now alias for p_now; v_max alias for p_max; v_tick alias for p_tick;
    v_id bigint;
begin
    case p_slot
    when 0 then
        select i.id
          into v_id
          from pgq.job_0 i
         where i.lane = p_lane and i.id > p_after and i.id < p_until
           and i.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_0 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0)
           and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
         order by i.id
         limit 1;
    when 1 then
        select i.id
          into v_id
          from pgq.job_1 i
         where i.lane = p_lane and i.id > p_after and i.id < p_until
           and i.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_1 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0)
           and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
         order by i.id
         limit 1;
    when 2 then
        select i.id
          into v_id
          from pgq.job_2 i
         where i.lane = p_lane and i.id > p_after and i.id < p_until
           and i.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_2 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0)
           and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
         order by i.id
         limit 1;
    when 3 then
        select i.id
          into v_id
          from pgq.job_3 i
         where i.lane = p_lane and i.id > p_after and i.id < p_until
           and i.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_3 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0)
           and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
         order by i.id
         limit 1;
    end case;
    return v_id;
end
$$;
comment on function
    pgq._peek(smallint, integer, bigint, bigint, timestamptz, integer, boolean) is
'the lowest claimable id between p_after and p_until in a lane of a slot of the ring, or null; '
'locks nothing. p_tick: starts at the base, where expired leases are, not at the floor';

create function pgq._window(
    p_slot smallint, p_lane integer, p_after bigint, p_until bigint, p_limit integer,
    p_now timestamptz, p_max integer, p_tick boolean
)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
declare
    v_lane alias for p_lane; v_now alias for p_now; v_max alias for p_max; v_tick alias for p_tick;
    v_us constant bigint := pgq._us(p_now);
    v_ids bigint[];
begin
    case p_slot
    when 4 then
        v_ids := array(
            select w.id
              from (
                       select i.id from pgq.job_4 i
                        where i.lane = v_lane and i.due <= v_us + 4095 and i.due > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_4 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0)
                   and (i.run_at is null or i.run_at <= v_now) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max))) and i.id > p_after and i.id < p_until
                        order by i.due limit p_limit
                   ) w
             order by w.id
        );
    when 5 then
        v_ids := array(
            select w.id
              from (
                       select i.id from pgq.job_5 i
                        where i.lane = v_lane and i.due <= v_us + 4095 and i.due > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_5 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0)
                   and (i.run_at is null or i.run_at <= v_now) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max))) and i.id > p_after and i.id < p_until
                        order by i.due limit p_limit
                   ) w
             order by w.id
        );
    end case;
    return v_ids;
end
$$;
comment on function
    pgq._window(smallint, integer, bigint, bigint, integer, timestamptz, integer, boolean) is
'the ids of those claimable jobs in a lane of a parked slot that fell due first, sorted';

create function pgq._oldest(
    p_slot smallint, p_lane integer, p_now timestamptz, p_max integer, p_tick boolean
)
returns timestamptz
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
declare
    v_lane alias for p_lane; v_now alias for p_now; v_max alias for p_max; v_tick alias for p_tick;
    v_us constant bigint := pgq._us(p_now);
    v_since timestamptz;
begin
    case p_slot
    when 0 then
        select i.enqueued_at
          into v_since
          from pgq.job_0 i
         where i.lane = p_lane and i.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_0 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
         order by i.id
         limit 1;
    when 1 then
        select i.enqueued_at
          into v_since
          from pgq.job_1 i
         where i.lane = p_lane and i.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_1 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
         order by i.id
         limit 1;
    when 2 then
        select i.enqueued_at
          into v_since
          from pgq.job_2 i
         where i.lane = p_lane and i.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_2 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
         order by i.id
         limit 1;
    when 3 then
        select i.enqueued_at
          into v_since
          from pgq.job_3 i
         where i.lane = p_lane and i.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_3 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
         order by i.id
         limit 1;
    when 4 then
        select coalesce(i.run_at, i.enqueued_at)
          into v_since
          from pgq.job_4 i where i.lane = v_lane and i.due <= v_us + 4095 and i.due > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_4 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0)
                   and (i.run_at is null or i.run_at <= v_now) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max))) order by i.due limit 1;
    when 5 then
        select coalesce(i.run_at, i.enqueued_at)
          into v_since
          from pgq.job_5 i where i.lane = v_lane and i.due <= v_us + 4095 and i.due > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_5 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0)
                   and (i.run_at is null or i.run_at <= v_now) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max))) order by i.due limit 1;
    end case;
    return v_since;
end
$$;
comment on function pgq._oldest(smallint, integer, timestamptz, integer, boolean) is
'since when the oldest claimable job in a lane of a slot could be claimed, or null; locks no row. '
'p_tick: as in pgq._peek';


-- What raising costs against what it costs to pass claimed entries meanwhile: after about 32 claims
-- of one job, 10 claims of ten, 3 claims of a hundred.

create function pgq._claim(
    p_slot smallint, p_lane integer, p_after bigint, p_until bigint, p_batch integer,
    p_now timestamptz, p_max integer, p_tick boolean, p_lease_ms integer, p_worker text,
    p_keep boolean, p_ids bigint[] default null
)
returns setof pgq.job
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_lane alias for p_lane; v_after alias for p_after; v_until alias for p_until;
    v_left alias for p_batch; v_now alias for p_now; v_max alias for p_max;
    v_tick alias for p_tick; v_lease_ms alias for p_lease_ms; v_worker alias for p_worker;
    v_expiry constant timestamptz := p_now + p_lease_ms * interval '1 millisecond';
    v_place constant bigint := ((p_keep::integer << 19) | (p_lane << 3) | p_slot)::bigint;
    v_count integer;
begin
    case p_slot
    when 0 then
        return query
        update pgq.job_0 j
           set token = (nextval('pgq.token') << 20) | v_place
                       | (case when j.group_id is null then 0 else 524288 end),
               attempt = j.attempt + 1, claimed_at = v_now, lease_expires_at = v_expiry,
               lease_ms = v_lease_ms, worker = v_worker, pid = pg_backend_pid()
          from (
                   select i.ctid from pgq.job_0 i
                    where i.lane = v_lane and i.id > v_after and i.id < v_until
                      and i.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_0 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
                    order by i.id limit v_left for update skip locked
               ) f
         where j.ctid = f.ctid
        returning j.*;
    when 1 then
        return query
        update pgq.job_1 j
           set token = (nextval('pgq.token') << 20) | v_place
                       | (case when j.group_id is null then 0 else 524288 end),
               attempt = j.attempt + 1, claimed_at = v_now, lease_expires_at = v_expiry,
               lease_ms = v_lease_ms, worker = v_worker, pid = pg_backend_pid()
          from (
                   select i.ctid from pgq.job_1 i
                    where i.lane = v_lane and i.id > v_after and i.id < v_until
                      and i.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_1 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
                    order by i.id limit v_left for update skip locked
               ) f
         where j.ctid = f.ctid
        returning j.*;
    when 2 then
        return query
        update pgq.job_2 j
           set token = (nextval('pgq.token') << 20) | v_place
                       | (case when j.group_id is null then 0 else 524288 end),
               attempt = j.attempt + 1, claimed_at = v_now, lease_expires_at = v_expiry,
               lease_ms = v_lease_ms, worker = v_worker, pid = pg_backend_pid()
          from (
                   select i.ctid from pgq.job_2 i
                    where i.lane = v_lane and i.id > v_after and i.id < v_until
                      and i.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_2 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
                    order by i.id limit v_left for update skip locked
               ) f
         where j.ctid = f.ctid
        returning j.*;
    when 3 then
        return query
        update pgq.job_3 j
           set token = (nextval('pgq.token') << 20) | v_place
                       | (case when j.group_id is null then 0 else 524288 end),
               attempt = j.attempt + 1, claimed_at = v_now, lease_expires_at = v_expiry,
               lease_ms = v_lease_ms, worker = v_worker, pid = pg_backend_pid()
          from (
                   select i.ctid from pgq.job_3 i
                    where i.lane = v_lane and i.id > v_after and i.id < v_until
                      and i.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_3 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
                    order by i.id limit v_left for update skip locked
               ) f
         where j.ctid = f.ctid
        returning j.*;
    when 4 then
        return query
        update pgq.job_4 j
           set token = (nextval('pgq.token') << 20) | v_place
                       | (case when j.group_id is null then 0 else 524288 end),
               attempt = j.attempt + 1, claimed_at = v_now, lease_expires_at = v_expiry,
               lease_ms = v_lease_ms, worker = v_worker, pid = pg_backend_pid()
          from (
                   select l.ctid from unnest(p_ids) w (id), lateral (
                       select i.ctid from pgq.job_4 i
                        where i.lane = v_lane and i.id = w.id
                          and (i.run_at is null or i.run_at <= v_now) and i.wait is null
                          and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
                          for update skip locked
                   ) l where w.id > v_after and w.id < v_until limit v_left
               ) f
         where j.ctid = f.ctid
        returning j.*;
    when 5 then
        return query
        update pgq.job_5 j
           set token = (nextval('pgq.token') << 20) | v_place
                       | (case when j.group_id is null then 0 else 524288 end),
               attempt = j.attempt + 1, claimed_at = v_now, lease_expires_at = v_expiry,
               lease_ms = v_lease_ms, worker = v_worker, pid = pg_backend_pid()
          from (
                   select l.ctid from unnest(p_ids) w (id), lateral (
                       select i.ctid from pgq.job_5 i
                        where i.lane = v_lane and i.id = w.id
                          and (i.run_at is null or i.run_at <= v_now) and i.wait is null
                          and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
                          for update skip locked
                   ) l where w.id > v_after and w.id < v_until limit v_left
               ) f
         where j.ctid = f.ctid
        returning j.*;
    end case;
    get diagnostics v_count = row_count;
    if random() * 32 < sqrt(v_count) and pgq._read_committed() then
        perform pgq._raise_floor(p_slot, p_lane);
    end if;
end
$$;
comment on function
    pgq._claim(
        smallint, integer, bigint, bigint, integer, timestamptz, integer, boolean, integer, text,
        boolean, bigint[]
    ) is
'leases up to p_batch claimable jobs with p_after < id < p_until in a lane of a slot and returns '
'them in id order, passing by those that others have locked; in a parked slot, of the sorted p_ids';

create function pgq._remove(p_slot smallint, p_lane integer, p_ids bigint[])
returns setof pgq.job
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    case p_slot
    when 0 then
        return query
        delete from pgq.job_0 j
         using unnest(p_ids) r (id), lateral (
                   select i.ctid from pgq.job_0 i
                    where i.lane = p_lane and i.id = r.id offset 0
               ) i
         where j.ctid = i.ctid
        returning j.*;
    when 1 then
        return query
        delete from pgq.job_1 j
         using unnest(p_ids) r (id), lateral (
                   select i.ctid from pgq.job_1 i
                    where i.lane = p_lane and i.id = r.id offset 0
               ) i
         where j.ctid = i.ctid
        returning j.*;
    when 2 then
        return query
        delete from pgq.job_2 j
         using unnest(p_ids) r (id), lateral (
                   select i.ctid from pgq.job_2 i
                    where i.lane = p_lane and i.id = r.id offset 0
               ) i
         where j.ctid = i.ctid
        returning j.*;
    when 3 then
        return query
        delete from pgq.job_3 j
         using unnest(p_ids) r (id), lateral (
                   select i.ctid from pgq.job_3 i
                    where i.lane = p_lane and i.id = r.id offset 0
               ) i
         where j.ctid = i.ctid
        returning j.*;
    when 4 then
        return query
        delete from pgq.job_4 j
         using unnest(p_ids) r (id), lateral (
                   select i.ctid from pgq.job_4 i
                    where i.lane = p_lane and i.id = r.id offset 0
               ) i
         where j.ctid = i.ctid
        returning j.*;
    when 5 then
        return query
        delete from pgq.job_5 j
         using unnest(p_ids) r (id), lateral (
                   select i.ctid from pgq.job_5 i
                    where i.lane = p_lane and i.id = r.id offset 0
               ) i
         where j.ctid = i.ctid
        returning j.*;
    end case;
end
$$;
comment on function pgq._remove(smallint, integer, bigint[]) is
'deletes and returns jobs that this session has locked';

/*
 * Claim positions. Without them every claim would walk past the dead index entries of all jobs that
 * finished since the slot was last truncated, and a held xmin horizon keeps those entries.
 *
 * A floor is sound when nothing below it can become claimable unless by way of a parked slot:
 *   - A row that a running transaction claims or completes is still ready in the snapshot that
 *     computes the floor, so the floor stays below it, and a rollback finds it above.
 *   - An id below the floor that is not visible yet: enqueue assigns its transaction id before it
 *     draws the job's id. Let "mark" be the last id drawn, and let a transaction id be drawn after
 *     that was read: all ids up to mark belong to transactions below it, and are decided once none
 *     of these is running. The id that is drawn is the row's own, it is inserted in a
 *     subtransaction. (The xmax of a snapshot would not do, running transactions may be above it.)
 *     The same holds for due in the parked slots, where the mark is the clock; see pgq._admit.
 * Transactions that are open for longer than a second or two (those below pgq.xid_old) are not
 * waited for, or any long transaction in the cluster would stop the floors. What they commit below
 * a floor is found by pgq._adjust_floors. The base waits for all. Only a tick may raise it to a
 * mark older than a second, if no older transaction has written to the slot (see pgq._raise_base):
 * one that drew an id below that mark would hold its lock by now.
 * Under REPEATABLE READ the snapshot is older than the mark: no floor is raised there.
 */

create function pgq._full_xid(p_xid xid, p_near bigint)
returns bigint
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_distance constant bigint := (p_xid::text::bigint - p_near) & 4294967295;
begin
    return p_near + v_distance - case when v_distance < 2147483648 then 0 else 4294967296 end;
end
$$;
comment on function pgq._full_xid(xid, bigint) is
'the full transaction id of a row''s xmin, which lies less than two billion from p_near';

create function pgq._snapshot(out xmin bigint, out xmax bigint, out running bigint[])
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_snapshot constant pg_snapshot := pg_current_snapshot();
begin
    xmin := pg_snapshot_xmin(v_snapshot)::text::bigint;
    xmax := pg_snapshot_xmax(v_snapshot)::text::bigint;
    running := array(select x::text::bigint from pg_snapshot_xip(v_snapshot) x);
end
$$;
comment on function pgq._snapshot() is 'the snapshot of the calling statement, in numbers';

create function pgq._raise_floor(p_slot smallint, p_lane integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_old constant bigint := coalesce(pg_sequence_last_value('pgq.xid_old'), 0);
    v_mark constant bigint := case when p_slot >= 4 then pgq._us(v_now)
                                   else coalesce(pg_sequence_last_value('pgq.job_id'), 0) end;
begin
    case p_slot
    when 0 then
        insert into pgq.floor_0 (n, lane, floor, base, mark)
        select nextval('pgq.floor_n'), p_lane,
               case when f.n is null then 0
                    else greatest(f.floor, least(f.mark, ready.key - 1)) end,
               case when f.n is null then 0
                    when s.xmin < f.xid then f.base
                    else greatest(f.base, least(f.mark, live.key - 1)) end,
               v_mark
          from pgq._snapshot() s
          left join lateral (
                  select f.*, coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax)) as xid
                    from pgq.floor_0 f where f.lane = p_lane order by f.n desc limit 1
               ) f on true
          left join lateral (
                  select j.id from pgq.job_0 j
                   where j.lane = p_lane and j.id > f.floor
                     and (j.lease_expires_at is null or j.lease_expires_at <= v_now)
                   order by j.id limit 1
               ) ready (key) on true
          left join lateral (
                  select j.id from pgq.job_0 j
                   where j.lane = p_lane and j.id > f.base and s.xmin >= f.xid
                   order by j.id limit 1
               ) live (key) on true
         where f.n is null
            or (s.xmax >= f.xid and v_mark >= f.mark and not exists (
                   select from unnest(s.running) x where x < f.xid and x >= v_old
               ));
    when 1 then
        insert into pgq.floor_1 (n, lane, floor, base, mark)
        select nextval('pgq.floor_n'), p_lane,
               case when f.n is null then 0
                    else greatest(f.floor, least(f.mark, ready.key - 1)) end,
               case when f.n is null then 0
                    when s.xmin < f.xid then f.base
                    else greatest(f.base, least(f.mark, live.key - 1)) end,
               v_mark
          from pgq._snapshot() s
          left join lateral (
                  select f.*, coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax)) as xid
                    from pgq.floor_1 f where f.lane = p_lane order by f.n desc limit 1
               ) f on true
          left join lateral (
                  select j.id from pgq.job_1 j
                   where j.lane = p_lane and j.id > f.floor
                     and (j.lease_expires_at is null or j.lease_expires_at <= v_now)
                   order by j.id limit 1
               ) ready (key) on true
          left join lateral (
                  select j.id from pgq.job_1 j
                   where j.lane = p_lane and j.id > f.base and s.xmin >= f.xid
                   order by j.id limit 1
               ) live (key) on true
         where f.n is null
            or (s.xmax >= f.xid and v_mark >= f.mark and not exists (
                   select from unnest(s.running) x where x < f.xid and x >= v_old
               ));
    when 2 then
        insert into pgq.floor_2 (n, lane, floor, base, mark)
        select nextval('pgq.floor_n'), p_lane,
               case when f.n is null then 0
                    else greatest(f.floor, least(f.mark, ready.key - 1)) end,
               case when f.n is null then 0
                    when s.xmin < f.xid then f.base
                    else greatest(f.base, least(f.mark, live.key - 1)) end,
               v_mark
          from pgq._snapshot() s
          left join lateral (
                  select f.*, coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax)) as xid
                    from pgq.floor_2 f where f.lane = p_lane order by f.n desc limit 1
               ) f on true
          left join lateral (
                  select j.id from pgq.job_2 j
                   where j.lane = p_lane and j.id > f.floor
                     and (j.lease_expires_at is null or j.lease_expires_at <= v_now)
                   order by j.id limit 1
               ) ready (key) on true
          left join lateral (
                  select j.id from pgq.job_2 j
                   where j.lane = p_lane and j.id > f.base and s.xmin >= f.xid
                   order by j.id limit 1
               ) live (key) on true
         where f.n is null
            or (s.xmax >= f.xid and v_mark >= f.mark and not exists (
                   select from unnest(s.running) x where x < f.xid and x >= v_old
               ));
    when 3 then
        insert into pgq.floor_3 (n, lane, floor, base, mark)
        select nextval('pgq.floor_n'), p_lane,
               case when f.n is null then 0
                    else greatest(f.floor, least(f.mark, ready.key - 1)) end,
               case when f.n is null then 0
                    when s.xmin < f.xid then f.base
                    else greatest(f.base, least(f.mark, live.key - 1)) end,
               v_mark
          from pgq._snapshot() s
          left join lateral (
                  select f.*, coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax)) as xid
                    from pgq.floor_3 f where f.lane = p_lane order by f.n desc limit 1
               ) f on true
          left join lateral (
                  select j.id from pgq.job_3 j
                   where j.lane = p_lane and j.id > f.floor
                     and (j.lease_expires_at is null or j.lease_expires_at <= v_now)
                   order by j.id limit 1
               ) ready (key) on true
          left join lateral (
                  select j.id from pgq.job_3 j
                   where j.lane = p_lane and j.id > f.base and s.xmin >= f.xid
                   order by j.id limit 1
               ) live (key) on true
         where f.n is null
            or (s.xmax >= f.xid and v_mark >= f.mark and not exists (
                   select from unnest(s.running) x where x < f.xid and x >= v_old
               ));
    when 4 then
        insert into pgq.floor_4 (n, lane, floor, base, mark)
        select nextval('pgq.floor_n'), p_lane,
               case when f.n is null then 0
                    else greatest(f.floor, least(f.mark, ready.key - 1)) end,
               case when f.n is null then 0
                    when s.xmin < f.xid then f.base
                    else greatest(f.base, least(f.mark, live.key - 1)) end,
               v_mark
          from pgq._snapshot() s
          left join lateral (
                  select f.*, coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax)) as xid
                    from pgq.floor_4 f where f.lane = p_lane order by f.n desc limit 1
               ) f on true
          left join lateral (
                  select j.due from pgq.job_4 j
                   where j.lane = p_lane and j.due > f.floor
                     and (j.lease_expires_at is null or j.lease_expires_at <= v_now)
                   order by j.due limit 1
               ) ready (key) on true
          left join lateral (
                  select j.due from pgq.job_4 j
                   where j.lane = p_lane and j.due > f.base and s.xmin >= f.xid
                   order by j.due limit 1
               ) live (key) on true
         where f.n is null
            or (s.xmax >= f.xid and v_mark >= f.mark and not exists (
                   select from unnest(s.running) x where x < f.xid and x >= v_old
               ));
    when 5 then
        insert into pgq.floor_5 (n, lane, floor, base, mark)
        select nextval('pgq.floor_n'), p_lane,
               case when f.n is null then 0
                    else greatest(f.floor, least(f.mark, ready.key - 1)) end,
               case when f.n is null then 0
                    when s.xmin < f.xid then f.base
                    else greatest(f.base, least(f.mark, live.key - 1)) end,
               v_mark
          from pgq._snapshot() s
          left join lateral (
                  select f.*, coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax)) as xid
                    from pgq.floor_5 f where f.lane = p_lane order by f.n desc limit 1
               ) f on true
          left join lateral (
                  select j.due from pgq.job_5 j
                   where j.lane = p_lane and j.due > f.floor
                     and (j.lease_expires_at is null or j.lease_expires_at <= v_now)
                   order by j.due limit 1
               ) ready (key) on true
          left join lateral (
                  select j.due from pgq.job_5 j
                   where j.lane = p_lane and j.due > f.base and s.xmin >= f.xid
                   order by j.due limit 1
               ) live (key) on true
         where f.n is null
            or (s.xmax >= f.xid and v_mark >= f.mark and not exists (
                   select from unnest(s.running) x where x < f.xid and x >= v_old
               ));
    end case;
exception
    -- The block is for its subtransaction. A floor can be done without.
    when lock_not_available then
        return;
end
$$;
comment on function pgq._raise_floor(smallint, integer) is
'appends the highest sound claim position of a lane in a slot, unless it is not decided yet';

create function pgq._admit(p_slot smallint, p_lane integer, p_due bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
begin
    case p_slot
    when 4 then
        insert into pgq.floor_4 (n, lane, floor, base, mark)
        select nextval('pgq.floor_n'), p_lane, least(f.floor, p_due - 1), least(f.base, p_due - 1),
               least(f.base, p_due - 1)
          from (
              select f.* from pgq.floor_4 f where f.lane = p_lane order by f.n desc limit 1
          ) f
         where f.mark >= p_due;
    when 5 then
        insert into pgq.floor_5 (n, lane, floor, base, mark)
        select nextval('pgq.floor_n'), p_lane, least(f.floor, p_due - 1), least(f.base, p_due - 1),
               least(f.base, p_due - 1)
          from (
              select f.* from pgq.floor_5 f where f.lane = p_lane order by f.n desc limit 1
          ) f
         where f.mark >= p_due;
    end case;
end
$$;
comment on function pgq._admit(smallint, integer, bigint) is
'called with a job that is put into a parked slot: it lies above the marks there, unless the clock '
'has been set back; then the floor is lowered with it';

create function pgq._adjust_floors(p_slot smallint, p_now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    case p_slot
    when 0 then
        insert into pgq.floor_0 (n, lane, floor, base, mark, mark_xid)
        select nextval('pgq.floor_n'), f.lane, j.key - 1, f.base, f.mark,
               coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax))
          from pgq._snapshot() s,
               pgq.lane l
          join pgq.queue q on q.id = l.queue_id,
               lateral (
                   select f.*, f.xmin from pgq.floor_0 f
                    where f.lane = l.id order by f.n desc limit 1
               ) f,
               lateral (
                   select j.id
                     from pgq.job_0 j
                    where j.lane = l.id and j.id > f.base and j.id <= f.floor
                      and (j.lease_expires_at is null
                           or (j.lease_expires_at <= p_now and j.cancel_requested is null
                               and j.attempt < coalesce(j.max_attempts, q.max_attempts)))
                    order by j.id
                    limit 1
               ) j (key);
        perform pgq._raise_floor(0::smallint, l.id)
           from pgq.lane l,
                lateral (
                    select j.lease_expires_at from pgq.job_0 j
                     where j.lane = l.id and j.id > coalesce((
                                  select f.floor from pgq.floor_0 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                     order by j.id limit 1
                ) j
          where j.lease_expires_at > p_now;
    when 1 then
        insert into pgq.floor_1 (n, lane, floor, base, mark, mark_xid)
        select nextval('pgq.floor_n'), f.lane, j.key - 1, f.base, f.mark,
               coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax))
          from pgq._snapshot() s,
               pgq.lane l
          join pgq.queue q on q.id = l.queue_id,
               lateral (
                   select f.*, f.xmin from pgq.floor_1 f
                    where f.lane = l.id order by f.n desc limit 1
               ) f,
               lateral (
                   select j.id
                     from pgq.job_1 j
                    where j.lane = l.id and j.id > f.base and j.id <= f.floor
                      and (j.lease_expires_at is null
                           or (j.lease_expires_at <= p_now and j.cancel_requested is null
                               and j.attempt < coalesce(j.max_attempts, q.max_attempts)))
                    order by j.id
                    limit 1
               ) j (key);
        perform pgq._raise_floor(1::smallint, l.id)
           from pgq.lane l,
                lateral (
                    select j.lease_expires_at from pgq.job_1 j
                     where j.lane = l.id and j.id > coalesce((
                                  select f.floor from pgq.floor_1 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                     order by j.id limit 1
                ) j
          where j.lease_expires_at > p_now;
    when 2 then
        insert into pgq.floor_2 (n, lane, floor, base, mark, mark_xid)
        select nextval('pgq.floor_n'), f.lane, j.key - 1, f.base, f.mark,
               coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax))
          from pgq._snapshot() s,
               pgq.lane l
          join pgq.queue q on q.id = l.queue_id,
               lateral (
                   select f.*, f.xmin from pgq.floor_2 f
                    where f.lane = l.id order by f.n desc limit 1
               ) f,
               lateral (
                   select j.id
                     from pgq.job_2 j
                    where j.lane = l.id and j.id > f.base and j.id <= f.floor
                      and (j.lease_expires_at is null
                           or (j.lease_expires_at <= p_now and j.cancel_requested is null
                               and j.attempt < coalesce(j.max_attempts, q.max_attempts)))
                    order by j.id
                    limit 1
               ) j (key);
        perform pgq._raise_floor(2::smallint, l.id)
           from pgq.lane l,
                lateral (
                    select j.lease_expires_at from pgq.job_2 j
                     where j.lane = l.id and j.id > coalesce((
                                  select f.floor from pgq.floor_2 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                     order by j.id limit 1
                ) j
          where j.lease_expires_at > p_now;
    when 3 then
        insert into pgq.floor_3 (n, lane, floor, base, mark, mark_xid)
        select nextval('pgq.floor_n'), f.lane, j.key - 1, f.base, f.mark,
               coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax))
          from pgq._snapshot() s,
               pgq.lane l
          join pgq.queue q on q.id = l.queue_id,
               lateral (
                   select f.*, f.xmin from pgq.floor_3 f
                    where f.lane = l.id order by f.n desc limit 1
               ) f,
               lateral (
                   select j.id
                     from pgq.job_3 j
                    where j.lane = l.id and j.id > f.base and j.id <= f.floor
                      and (j.lease_expires_at is null
                           or (j.lease_expires_at <= p_now and j.cancel_requested is null
                               and j.attempt < coalesce(j.max_attempts, q.max_attempts)))
                    order by j.id
                    limit 1
               ) j (key);
        perform pgq._raise_floor(3::smallint, l.id)
           from pgq.lane l,
                lateral (
                    select j.lease_expires_at from pgq.job_3 j
                     where j.lane = l.id and j.id > coalesce((
                                  select f.floor from pgq.floor_3 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                     order by j.id limit 1
                ) j
          where j.lease_expires_at > p_now;
    when 4 then
        insert into pgq.floor_4 (n, lane, floor, base, mark, mark_xid)
        select nextval('pgq.floor_n'), f.lane, j.key - 1, f.base, f.mark,
               coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax))
          from pgq._snapshot() s,
               pgq.lane l
          join pgq.queue q on q.id = l.queue_id,
               lateral (
                   select f.*, f.xmin from pgq.floor_4 f
                    where f.lane = l.id order by f.n desc limit 1
               ) f,
               lateral (
                   select j.due
                     from pgq.job_4 j
                    where j.lane = l.id and j.due > f.base and j.due <= f.floor
                      and (j.lease_expires_at is null
                           or (j.lease_expires_at <= p_now and j.cancel_requested is null
                               and j.attempt < coalesce(j.max_attempts, q.max_attempts)))
                    order by j.due
                    limit 1
               ) j (key);
        perform pgq._raise_floor(4::smallint, l.id)
           from pgq.lane l,
                lateral (
                    select j.lease_expires_at from pgq.job_4 j
                     where j.lane = l.id and j.due > coalesce((
                                  select f.floor from pgq.floor_4 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                     order by j.due limit 1
                ) j
          where j.lease_expires_at > p_now;
    when 5 then
        insert into pgq.floor_5 (n, lane, floor, base, mark, mark_xid)
        select nextval('pgq.floor_n'), f.lane, j.key - 1, f.base, f.mark,
               coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax))
          from pgq._snapshot() s,
               pgq.lane l
          join pgq.queue q on q.id = l.queue_id,
               lateral (
                   select f.*, f.xmin from pgq.floor_5 f
                    where f.lane = l.id order by f.n desc limit 1
               ) f,
               lateral (
                   select j.due
                     from pgq.job_5 j
                    where j.lane = l.id and j.due > f.base and j.due <= f.floor
                      and (j.lease_expires_at is null
                           or (j.lease_expires_at <= p_now and j.cancel_requested is null
                               and j.attempt < coalesce(j.max_attempts, q.max_attempts)))
                    order by j.due
                    limit 1
               ) j (key);
        perform pgq._raise_floor(5::smallint, l.id)
           from pgq.lane l,
                lateral (
                    select j.lease_expires_at from pgq.job_5 j
                     where j.lane = l.id and j.due > coalesce((
                                  select f.floor from pgq.floor_5 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                     order by j.due limit 1
                ) j
          where j.lease_expires_at > p_now;
    end case;
end
$$;
comment on function pgq._adjust_floors(smallint, timestamptz) is
'makes claims see again what has become claimable below a floor: expired leases, and late commits; '
'and pass over what is leased above it, if no claim in this slot has come to do so';

create function pgq._oldest_writers()
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_near constant bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
begin
    return array(
        select w.xid
          from generate_series(0, 5) slot
          left join (
                  select t.relation, min(pgq._full_xid(x.transactionid, v_near)) as xid
                    from pg_locks t
                    join pg_locks x on x.virtualtransaction = t.virtualtransaction
                   where t.locktype = 'relation' and t.mode = 'RowExclusiveLock'
                     and t.database = (select d.oid from pg_database d
                                        where d.datname = current_database())
                     and x.locktype = 'transactionid' and x.mode = 'ExclusiveLock'
                   group by t.relation
               ) w on w.relation = format('pgq.job_%s', slot)::regclass
         order by slot
    );
end
$$;
comment on function pgq._oldest_writers() is
'per slot the id of the oldest running or prepared transaction that has written to it, or waits to '
'do so, or null';

create function pgq._raise_base(p_slot smallint, p_before bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
begin
    case p_slot
    when 0 then
        insert into pgq.floor_0 (n, lane, floor, base, mark, mark_xid)
        select nextval('pgq.floor_n'), f.lane, f.floor, b.base, f.mark,
               coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax))
          from pgq._snapshot() s,
               pgq.lane l,
               lateral (
                   select f.*, f.xmin from pgq.floor_0 f
                    where f.lane = l.id order by f.n desc limit 1
               ) f,
               lateral (
                   select f.mark from pgq.floor_0 f
                    where f.lane = l.id
                      and coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax)) < p_before
                    order by f.n desc limit 1
               ) o
          left join lateral (
                  select j.id from pgq.job_0 j
                   where j.lane = l.id and j.id > f.base order by j.id limit 1
               ) live (key) on true,
               lateral (select least(o.mark, f.floor, live.key - 1) as base offset 0) b
         where b.base > f.base;
    when 1 then
        insert into pgq.floor_1 (n, lane, floor, base, mark, mark_xid)
        select nextval('pgq.floor_n'), f.lane, f.floor, b.base, f.mark,
               coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax))
          from pgq._snapshot() s,
               pgq.lane l,
               lateral (
                   select f.*, f.xmin from pgq.floor_1 f
                    where f.lane = l.id order by f.n desc limit 1
               ) f,
               lateral (
                   select f.mark from pgq.floor_1 f
                    where f.lane = l.id
                      and coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax)) < p_before
                    order by f.n desc limit 1
               ) o
          left join lateral (
                  select j.id from pgq.job_1 j
                   where j.lane = l.id and j.id > f.base order by j.id limit 1
               ) live (key) on true,
               lateral (select least(o.mark, f.floor, live.key - 1) as base offset 0) b
         where b.base > f.base;
    when 2 then
        insert into pgq.floor_2 (n, lane, floor, base, mark, mark_xid)
        select nextval('pgq.floor_n'), f.lane, f.floor, b.base, f.mark,
               coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax))
          from pgq._snapshot() s,
               pgq.lane l,
               lateral (
                   select f.*, f.xmin from pgq.floor_2 f
                    where f.lane = l.id order by f.n desc limit 1
               ) f,
               lateral (
                   select f.mark from pgq.floor_2 f
                    where f.lane = l.id
                      and coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax)) < p_before
                    order by f.n desc limit 1
               ) o
          left join lateral (
                  select j.id from pgq.job_2 j
                   where j.lane = l.id and j.id > f.base order by j.id limit 1
               ) live (key) on true,
               lateral (select least(o.mark, f.floor, live.key - 1) as base offset 0) b
         where b.base > f.base;
    when 3 then
        insert into pgq.floor_3 (n, lane, floor, base, mark, mark_xid)
        select nextval('pgq.floor_n'), f.lane, f.floor, b.base, f.mark,
               coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax))
          from pgq._snapshot() s,
               pgq.lane l,
               lateral (
                   select f.*, f.xmin from pgq.floor_3 f
                    where f.lane = l.id order by f.n desc limit 1
               ) f,
               lateral (
                   select f.mark from pgq.floor_3 f
                    where f.lane = l.id
                      and coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax)) < p_before
                    order by f.n desc limit 1
               ) o
          left join lateral (
                  select j.id from pgq.job_3 j
                   where j.lane = l.id and j.id > f.base order by j.id limit 1
               ) live (key) on true,
               lateral (select least(o.mark, f.floor, live.key - 1) as base offset 0) b
         where b.base > f.base;
    when 4 then
        insert into pgq.floor_4 (n, lane, floor, base, mark, mark_xid)
        select nextval('pgq.floor_n'), f.lane, f.floor, b.base, f.mark,
               coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax))
          from pgq._snapshot() s,
               pgq.lane l,
               lateral (
                   select f.*, f.xmin from pgq.floor_4 f
                    where f.lane = l.id order by f.n desc limit 1
               ) f,
               lateral (
                   select f.mark from pgq.floor_4 f
                    where f.lane = l.id
                      and coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax)) < p_before
                    order by f.n desc limit 1
               ) o
          left join lateral (
                  select j.due from pgq.job_4 j
                   where j.lane = l.id and j.due > f.base order by j.due limit 1
               ) live (key) on true,
               lateral (select least(o.mark, f.floor, live.key - 1) as base offset 0) b
         where b.base > f.base;
    when 5 then
        insert into pgq.floor_5 (n, lane, floor, base, mark, mark_xid)
        select nextval('pgq.floor_n'), f.lane, f.floor, b.base, f.mark,
               coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax))
          from pgq._snapshot() s,
               pgq.lane l,
               lateral (
                   select f.*, f.xmin from pgq.floor_5 f
                    where f.lane = l.id order by f.n desc limit 1
               ) f,
               lateral (
                   select f.mark from pgq.floor_5 f
                    where f.lane = l.id
                      and coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax)) < p_before
                    order by f.n desc limit 1
               ) o
          left join lateral (
                  select j.due from pgq.job_5 j
                   where j.lane = l.id and j.due > f.base order by j.due limit 1
               ) live (key) on true,
               lateral (select least(o.mark, f.floor, live.key - 1) as base offset 0) b
         where b.base > f.base;
    end case;
end
$$;
comment on function pgq._raise_base(smallint, bigint) is
'raises the bases of a slot though old transactions are running, if those that have written to it '
'are not older than p_before';

create function pgq._raise_bases()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_old constant bigint := coalesce(pg_sequence_last_value('pgq.xid_old'), 0);
    v_writers bigint[];
    v_slot smallint;
begin
    if pg_snapshot_xmin(pg_current_snapshot())::text::bigint < v_old then
        -- Before the snapshots in which the slots are looked at.
        v_writers := pgq._oldest_writers();
        foreach v_slot in array pgq._slots() loop
            perform pgq._raise_base(v_slot, least(v_old, v_writers[v_slot + 1]));
        end loop;
    end if;
end
$$;
comment on function pgq._raise_bases() is
'called by each tick: claims cannot raise the bases while an old transaction is running anywhere';

/*
 * The claim. A priority of a queue may have jobs in several slots; they are merged in id order
 * without ever locking a job that is not then given to the caller: take from the slot with the
 * lowest id all ids below the next slot's lowest, look for what is its lowest now, and again.
 * The slots of the ring are opened one after another, as far as the batch needs: whoever keeps
 * the transaction open keeps the slots that were looked at from being truncated.
 */

create function pgq._skip_lost_tokens()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_key constant bigint := hashtextextended('pgq._skip_lost_tokens', 0);
begin
    -- Not until the end of the transaction: it may stay open, and the sequences show it at once.
    perform pg_advisory_lock(v_key);
    if coalesce(pg_sequence_last_value('pgq.next_tick'), 0) = 0 then
        perform setval(
            'pgq.token', ((coalesce(pg_sequence_last_value('pgq.token'), 0) >> 24) + 2) << 24
        );
        perform setval('pgq.next_tick', 1);
    end if;
    perform pg_advisory_unlock(v_key);
    -- Or the next crash would undo this, too.
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'local', true);
    end if;
end
$$;
comment on function pgq._skip_lost_tokens() is
'called before the first claim after a crash or a promotion: the sequence may have fallen back '
'behind tokens of claims that committed asynchronously, or had not reached the standby. At most 16 '
'million of them are passed: else an old receipt could be good again';

create function pgq._wants_tick(p_lease_ms integer)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant bigint := pgq._ms(pgq._now());
    v_next constant bigint := coalesce(pg_sequence_last_value('pgq.next_tick'), 0);
begin
    if v_next = 0 then
        perform pgq._skip_lost_tokens();
    end if;
    if not pgq._read_committed() then
        return true;
    end if;
    -- Not if the tick that was due failed or was rolled back, nor if the clock has been set back.
    if v_now < v_next and v_next <= v_now + 500
        and v_now - coalesce(pg_sequence_last_value('pgq.last_tick'), 0) < 2500
    then
        -- A lease that expires before is looked for when it does, the others within half a second.
        if v_now + p_lease_ms + 5 < v_next then
            perform setval('pgq.next_tick', v_now + p_lease_ms + 5);
        end if;
        return false;
    end if;
    perform setval('pgq.next_tick', v_now + least(p_lease_ms, 500));
    insert into pgq.chore default values;
    return true;
end
$$;
comment on function pgq._wants_tick(integer) is
'true about twice a second for all sessions together: the call then looks for expired leases, too, '
'and maintenance runs at its commit (pgq._maintain). Under REPEATABLE READ always true, and there '
'is no maintenance';

create function pgq._has_spent_slots()
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select r.ready <> r.live from pgq.ring r order by r.gen desc limit 1);
end
$$;
comment on function pgq._has_spent_slots() is
'whether there are slots of the ring into which only ticks look: see pgq._ready_slots';

create function pgq._parked_sources(
    p_lanes integer[], p_slots smallint[], p_after bigint, p_until bigint, p_batch integer,
    p_now timestamptz, p_max integer, p_tick boolean
)
returns pgq.source[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_source pgq.source;
    v_sources pgq.source[] := array[]::pgq.source[];
    v_lane integer;
    v_slot smallint;
    v_ids bigint[];
begin
    foreach v_lane in array p_lanes loop
        foreach v_slot in array p_slots loop
            if p_until = p_after + 2 then
                v_ids := array[p_after + 1];
            else
                v_ids := pgq._window(
                    v_slot, v_lane, p_after, p_until, greatest(p_batch, 1000), p_now, p_max, p_tick
                );
            end if;
            if cardinality(v_ids) > 0 then
                v_source := (v_slot, v_lane, v_ids[1], v_ids);
                v_sources := v_sources || v_source;
            end if;
        end loop;
    end loop;
    if cardinality(v_sources) > 1 then
        v_sources := array(select s from unnest(v_sources) s order by s.head);
    end if;
    return v_sources;
end
$$;
comment on function
    pgq._parked_sources(
        integer[], smallint[], bigint, bigint, integer, timestamptz, integer, boolean
    ) is
'where in these lanes and parked slots there are claimable jobs; locks no row';

create function pgq._gather(
    p_lanes integer[], p_live smallint[], p_parked smallint[], p_firsts bigint[], p_after bigint,
    p_until bigint, p_batch integer, p_now timestamptz, p_max integer, p_tick boolean,
    p_lease_ms integer, p_worker text, p_keep boolean
)
returns setof pgq.job
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_sources pgq.source[] := pgq._parked_sources(
        p_lanes, p_parked, p_after, p_until, p_batch, p_now, p_max, p_tick
    );
    v_source pgq.source;
    v_next integer := 1;
    v_first bigint;
    v_until bigint;
    v_left integer := p_batch;
    v_count integer;
begin
    loop
        -- Null when all slots are open. Any job in this slot and the next ones has a higher id.
        v_first := p_firsts[p_live[v_next] + 1];
        if v_next <= cardinality(p_live)
            and (cardinality(v_sources) = 0 or v_first < (v_sources[1]).head)
        then
            v_sources := array(
                select row(p_live[v_next], l, p_after + 1, null)::pgq.source from unnest(p_lanes) l
            ) || v_sources;
            v_next := v_next + 1;
            continue;
        end if;
        exit when cardinality(v_sources) = 0;
        v_source := v_sources[1];
        v_sources := v_sources[2:];
        -- Two heads can be equal: a bound, not an id, or a job moved between the two looks.
        v_until := greatest(least((v_sources[1]).head, v_first + 1, p_until), v_source.head + 1);
        return query
        select c.*
          from pgq._claim(
                   v_source.slot, v_source.lane, v_source.head - 1, v_until, v_left, p_now, p_max,
                   p_tick, p_lease_ms, p_worker, p_keep, v_source.ids
               ) c;
        get diagnostics v_count = row_count;
        v_left := v_left - v_count;
        exit when v_left = 0 or (cardinality(v_sources) = 0 and v_next > cardinality(p_live));
        -- What this source still has below v_until is locked by others.
        if v_source.ids is null then
            v_source.head := pgq._peek(
                v_source.slot, v_source.lane, v_until - 1, p_until, p_now, p_max, p_tick
            );
        else
            v_source.head := (select min(i) from unnest(v_source.ids) i where i >= v_until);
        end if;
        if v_source.head is not null then
            v_sources := array(select s from unnest(v_sources || v_source) s order by s.head);
        end if;
    end loop;
end
$$;
comment on function
    pgq._gather(
        integer[], smallint[], smallint[], bigint[], bigint, bigint, integer, timestamptz, integer,
        boolean, integer, text, boolean
    ) is
'leases up to p_batch jobs of one priority of a queue with p_after < id < p_until, in id order';

/*
 * The claim in one queue, priority by priority: what pgq_dequeue does not do by itself.
 */


create function pgq._age_bonus(
    p_queue pgq.queue, p_lanes integer[], p_slots smallint[], p_now timestamptz, p_tick boolean
)
returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_since timestamptz;
begin
    if p_queue.priority_ageing = '0' then
        return 0;
    end if;
    select min(pgq._oldest(s, l, p_now, p_queue.max_attempts, p_tick)) into v_since
      from unnest(p_lanes) l, unnest(p_slots) s;
    -- Intervals of years and days with opposite signs may be above zero and have no seconds.
    return least(65536, floor(coalesce(greatest(
        extract(epoch from p_now - v_since)
            / nullif(extract(epoch from p_queue.priority_ageing), 0), 0
    ), 0)))::integer;
end
$$;
comment on function pgq._age_bonus(pgq.queue, integer[], smallint[], timestamptz, boolean) is
'by how much a priority is raised because its oldest job has been ready for long';

create function pgq._grab(
    p_queue text, p_batch integer, p_lease_ms integer, p_worker text, p_tick boolean default null,
    p_after bigint default 0, p_until bigint default 9223372036854775807,
    p_priority integer default null, p_permitted boolean default false
)
returns setof @extschema@.pgq_job
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_left integer := p_batch; v_count integer;
    v_queue record;
begin
    if current_setting('max_prepared_transactions') = '0' then
        unlisten pgq_nobody;
    else
        perform pgq._check_restricted();
    end if;
    -- One row per priority; more than one lane only if two sessions used it first at the same time.
    for v_queue in
        select q.max_attempts, q.paused, q.is_limited, q as row, l.priority::integer as priority,
               l.lanes, l.expiring, r.live, r.ready, r.parked, r.firsts,
               greatest(q.keep_completed, q.dedupe_for) > '0' as keep
          from pgq.queue q,
               lateral (select o.* from pgq.ring o order by o.gen desc limit 1) r,
               lateral (
                   select o.priority, array_agg(o.id) as lanes, bool_or(o.expiring) as expiring
                     from pgq.lane o
                    where o.queue_id = q.id and (p_priority is null or o.priority = p_priority)
                    group by o.priority
               ) l
         where q.name = p_queue and ((session_user = current_user and current_setting('role') = 'none') or pgq._may(q.id, 'consume'))
         order by l.priority + pgq._age_bonus(
                      q, l.lanes, r.live || r.parked, v_now, coalesce(p_tick, false)
                  ) desc, l.priority desc
    loop
        p_tick := coalesce(p_tick, pgq._wants_tick(p_lease_ms));
        exit when v_left = 0 or v_queue.paused;
        if v_queue.is_limited and not p_permitted then
            return query
            select g.* from pgq._grab_limited(
                       v_queue.row, p_batch, p_lease_ms, p_worker, p_tick, p_after, p_until
                   ) g;
            return;
        end if;
        if v_queue.expiring then
            return query select c.id, c.token, p_queue, v_queue.priority, 'active', c.attempt::integer,
                   coalesce(c.max_attempts, v_queue.max_attempts), c.payload, c.headers,
                   c.group_key, c.dedupe_key, c.worker, c.enqueued_at,
                   coalesce(c.run_at, c.enqueued_at), c.claimed_at, c.lease_expires_at,
                   c.last_error, false, c.checkpoint from pgq._gather_in_time(
                       v_queue.lanes, case when p_tick then v_queue.live else v_queue.ready end,
                       v_queue.parked, v_queue.firsts, p_after, p_until, v_left, v_now,
                       v_queue.max_attempts, p_tick, p_lease_ms, p_worker, v_queue.keep
                   ) c;
        else
            return query select c.id, c.token, p_queue, v_queue.priority, 'active', c.attempt::integer,
                   coalesce(c.max_attempts, v_queue.max_attempts), c.payload, c.headers,
                   c.group_key, c.dedupe_key, c.worker, c.enqueued_at,
                   coalesce(c.run_at, c.enqueued_at), c.claimed_at, c.lease_expires_at,
                   c.last_error, false, c.checkpoint from pgq._gather(
                       v_queue.lanes, case when p_tick then v_queue.live else v_queue.ready end,
                       v_queue.parked, v_queue.firsts, p_after, p_until, v_left, v_now,
                       v_queue.max_attempts, p_tick, p_lease_ms, p_worker, v_queue.keep
                   ) c;
        end if;
        get diagnostics v_count = row_count;
        v_left := v_left - v_count;
    end loop;
    perform pgq._raise_unknown_queue(p_queue, 'consume') where not found;
    perform pgq._check_moved() where v_left > 0;
end
$$;
comment on function
    pgq._grab(text, integer, integer, text, boolean, bigint, bigint, integer, boolean) is
'leases up to p_batch jobs of a queue, or of one priority of it, with p_after < id < p_until, '
'highest priority first, then in id order. p_permitted: the permits for a queue with limits have '
'been taken';

/*
 * Limits of a queue: how many of its jobs are active, and how many start in a time.
 *
 * Both are rows of pgq.permit, which a claim locks, with SKIP LOCKED: who has the lock may use the
 * permit, and nobody waits. The row is never changed. That a permit is in use once the claim has
 * committed is told by a row that the claim appends, and is looked for in a snapshot taken after
 * the lock: so none is used twice, and a claim that is rolled back has used none.
 *
 * A permit to be active is in use while the job that took it lives with the token of that claim. It
 * comes back with the job when that completes, fails, is released, cancelled, or claimed again
 * after its lease has expired. Ticks take all expired leases of such queues back.
 *
 * Permits to start are the rate limit as a token bucket. The time is divided into moments of
 * rate_interval / rate_limit each; every moment that begins gives one start, which is good until
 * the bucket of rate_burst starts is full without it: for rate_burst moments.
 */

create function pgq._held_permits(p_queue_id integer, p_permits integer[])
returns integer[]
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    -- Maintenance may open a parked slot, and move jobs there, after this look at the ring.
    v_slots constant smallint[] := pgq._slots() || '{4,5}'::smallint[];
    v_held integer[];
begin
    v_held := array(
        select p from unnest(p_permits) p
         where false
            or (0 = any (v_slots) and exists (
                   select
                     from (
                              select h.lane, h.id, h.token from pgq.hold_0 h
                               where h.queue_id = p_queue_id and h.permit = p
                               order by h.token desc limit 1
                          ) h
                     join pgq.job_0 j on j.lane = h.lane and j.id = h.id and j.token = h.token
               ))
            or (1 = any (v_slots) and exists (
                   select
                     from (
                              select h.lane, h.id, h.token from pgq.hold_1 h
                               where h.queue_id = p_queue_id and h.permit = p
                               order by h.token desc limit 1
                          ) h
                     join pgq.job_1 j on j.lane = h.lane and j.id = h.id and j.token = h.token
               ))
            or (2 = any (v_slots) and exists (
                   select
                     from (
                              select h.lane, h.id, h.token from pgq.hold_2 h
                               where h.queue_id = p_queue_id and h.permit = p
                               order by h.token desc limit 1
                          ) h
                     join pgq.job_2 j on j.lane = h.lane and j.id = h.id and j.token = h.token
               ))
            or (3 = any (v_slots) and exists (
                   select
                     from (
                              select h.lane, h.id, h.token from pgq.hold_3 h
                               where h.queue_id = p_queue_id and h.permit = p
                               order by h.token desc limit 1
                          ) h
                     join pgq.job_3 j on j.lane = h.lane and j.id = h.id and j.token = h.token
               ))
            or (4 = any (v_slots) and exists (
                   select
                     from (
                              select h.lane, h.id, h.token from pgq.hold_4 h
                               where h.queue_id = p_queue_id and h.permit = p
                               order by h.token desc limit 1
                          ) h
                     join pgq.job_4 j on j.lane = h.lane and j.id = h.id and j.token = h.token
               ))
            or (5 = any (v_slots) and exists (
                   select
                     from (
                              select h.lane, h.id, h.token from pgq.hold_5 h
                               where h.queue_id = p_queue_id and h.permit = p
                               order by h.token desc limit 1
                          ) h
                     join pgq.job_5 j on j.lane = h.lane and j.id = h.id and j.token = h.token
               ))
    );
    -- As in pgq._live_keys.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return v_held;
end
$$;
comment on function pgq._held_permits(integer, integer[]) is
'those of these permits that are in use by jobs';

create function pgq._take_permits(p_queue pgq.queue, p_number integer)
returns integer[]
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_mergejoin = off
as $$
declare
    v_all constant integer[] := array(
        select p.n from pgq.permit p where p.queue_id = p_queue.id and p.kind = 'a' order by p.n
    );
    v_held constant integer[] := pgq._held_permits(p_queue.id, v_all);
    -- After max_active was lowered: so many of the first ones as leave room for those above.
    v_max integer := p_queue.max_active;
    v_free integer[];
    v_locked integer[];
    v_taken integer[] := array[]::integer[];
begin
    if exists (select from unnest(v_held) h where h > v_max) then
        select coalesce(max(k), 0) into v_max
          from generate_series(0, v_max) k
         where k + (select count(*) from unnest(v_held) h where h > k) <= v_max;
    end if;
    v_free := array(
        select a from unnest(v_all) a where a <= v_max except select h from unnest(v_held) h
         order by 1
    );
    loop
        v_locked := array(
            select f
              from unnest(v_free) f, lateral (
                  select from pgq.permit p
                   where p.queue_id = p_queue.id and p.kind = 'a' and p.n = f
                     for update skip locked
              ) p
             limit p_number - cardinality(v_taken)
        );
        exit when v_locked = '{}';
        -- With a snapshot taken after the locks.
        v_taken := v_taken || array(
            select l from unnest(v_locked) l
            except
            select h from unnest(pgq._held_permits(p_queue.id, v_locked)) h
             order by 1
        );
        exit when cardinality(v_taken) = p_number;
        v_free := array(
            select f from unnest(v_free) f where f > v_locked[cardinality(v_locked)] order by f
        );
    end loop;
    return v_taken;
end
$$;
comment on function pgq._take_permits(pgq.queue, integer) is
'locks up to that many permits to be active which are not in use';

create function pgq._moment(p_queue pgq.queue, p_at timestamptz)
returns bigint
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return div(
        extract(epoch from p_at) * p_queue.rate_limit, extract(epoch from p_queue.rate_interval)
    )::bigint;
end
$$;
comment on function pgq._moment(pgq.queue, timestamptz) is
'the number of that moment of a rate limit, counted from 1970';

create function pgq._burst(p_queue pgq.queue)
returns integer
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return coalesce(nullif(p_queue.rate_burst, 0), p_queue.rate_limit);
end
$$;
comment on function pgq._burst(pgq.queue) is 'how many starts the bucket of a queue holds';

create function pgq._take_starts(p_queue pgq.queue, p_number integer, p_now timestamptz)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_last constant bigint := pgq._moment(p_queue, p_now);
    v_burst constant integer := pgq._burst(p_queue);
    v_locked bigint[];
    v_taken bigint[] := array[]::bigint[];
begin
    -- "offset 0" makes it one look at the index for each: a plan made while the table was empty
    -- would compare all with all. Tries: another one may use what is free until it is locked.
    for v_try in 1..3 loop
        v_locked := array(
            select g.n
              from (
                       select n from generate_series(v_last - v_burst + 1, v_last) n
                        where n <> all (v_taken) and not exists (
                                  select from pgq.start s
                                   where s.queue_id = p_queue.id and s.moment = n offset 0
                              )
                       offset 0
                   ) g,
                   lateral (
                       select from pgq.permit p
                        where p.queue_id = p_queue.id and p.kind = 'r' and p.n = g.n % v_burst
                          for update skip locked
                   ) p
             limit p_number - cardinality(v_taken)
        );
        -- With a snapshot taken after the locks.
        v_taken := v_taken || array(
            select l from unnest(v_locked) l where not exists (
                select from pgq.start s where s.queue_id = p_queue.id and s.moment = l
            )
        );
        exit when v_locked = '{}' or cardinality(v_taken) = p_number;
    end loop;
    return v_taken;
end
$$;
comment on function pgq._take_starts(pgq.queue, integer, timestamptz) is
'locks up to that many starts that the rate limit of a queue allows now, oldest first';

create function pgq._use_permits(
    p_queue_id integer, p_jobs @extschema@.pgq_job[], p_permits integer[], p_starts bigint[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgq.hold (slot, queue_id, permit, token, lane, id)
    select (j.token & 7)::smallint, p_queue_id, p_permits[j.n], j.token,
           ((j.token >> 3) & 65535)::integer, j.id
      from (select u.*, row_number() over () as n from unnest(p_jobs) u) j
     where p_permits is not null;
    insert into pgq.start (queue_id, moment, token)
    select p_queue_id, p_starts[j.n], j.token
      from (select u.*, row_number() over () as n from unnest(p_jobs) u) j
     where p_starts is not null;
end
$$;
comment on function pgq._use_permits(integer, @extschema@.pgq_job[], integer[], bigint[]) is
'notes which permits jobs that have just been claimed use (null: none of that kind)';

create function pgq._raise_at_limit(p_queue text, p_id bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'job % cannot start now: queue "%" is at its limit', p_id, p_queue
        using errcode = 'object_not_in_prerequisite_state',
              hint = 'Try again when another of its jobs has ended, or later.';
end
$$;
comment on function pgq._raise_at_limit(text, bigint) is 'raises 55000';

create function pgq._grab_limited(
    p_queue pgq.queue, p_batch integer, p_lease_ms integer, p_worker text, p_tick boolean,
    p_after bigint, p_until bigint
)
returns setof @extschema@.pgq_job
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_number integer := p_batch;
    v_permits integer[]; v_starts bigint[];
    v_jobs @extschema@.pgq_job[];
begin
    if not pgq._read_committed() then
        raise exception 'queue "%" has limits, which need READ COMMITTED', p_queue.name
            using errcode = 'active_sql_transaction',
                  detail = 'An older snapshot does not show all of its active jobs.';
    end if;
    while v_number > 0 loop
        begin
            if p_queue.max_active > 0 then
                v_permits := pgq._take_permits(p_queue, v_number);
                v_number := cardinality(v_permits);
            end if;
            if p_queue.rate_limit > 0 then
                v_starts := pgq._take_starts(p_queue, v_number, pgq._now());
                v_number := cardinality(v_starts);
            end if;
            if v_number = 0 and p_until = p_after + 2 then
                perform pgq._raise_at_limit(p_queue.name, p_after + 1);
            end if;
            v_jobs := array(
                select g
                  from pgq._grab(
                           p_queue.name, v_number, p_lease_ms, p_worker, p_tick, p_after, p_until,
                           null, true
                       ) g
                 where v_number > 0
            );
            v_number := cardinality(v_jobs);
            if greatest(cardinality(v_permits), cardinality(v_starts)) = v_number then
                perform pgq._use_permits(p_queue.id, v_jobs, v_permits, v_starts);
                return query select j.* from unnest(v_jobs) j;
                return;
            end if;
            -- The rest of the permits would stay locked while the transaction is open. Without
            -- this block they are not; and again, with as many as are used.
            raise exception using errcode = 'PQ000';
        exception
            when sqlstate 'PQ000' then
                null;
        end;
    end loop;
end
$$;
comment on function
    pgq._grab_limited(pgq.queue, integer, integer, text, boolean, bigint, bigint) is
'pgq._grab for a queue with limits: as many jobs as permits can be had. Raises 25001; 55000 if it '
'is about one job, and none can be had';

/*
 * What keeps the permits of 33_limits.sql in order: at ticks, and when settings change.
 */

create function pgq._note_active(p_queue_id integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_count integer;
begin
    -- Newer rows about jobs that have ended would count instead.
    delete from pgq.hold h where h.queue_id = p_queue_id;
    insert into pgq.hold (slot, queue_id, permit, token, lane, id)
    select j.slot, p_queue_id, row_number() over (order by j.id), j.token, j.lane, j.id
      from pgq.lane l join pgq.job j on j.lane = l.id
     where l.queue_id = p_queue_id and j.token is not null
     order by j.id
     limit 10000;
    get diagnostics v_count = row_count;
    insert into pgq.permit (queue_id, kind, n)
    select p_queue_id, 'a', n from generate_series(1, v_count) n
    on conflict on constraint permit_pkey do nothing;
end
$$;
comment on function pgq._note_active(integer) is
'when a queue gets a max_active: gives its active jobs permits, at most 10000 of them';

create function pgq._save_permits(p_old pgq.queue, p_new pgq.queue)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgq.permit (queue_id, kind, n)
    select p_new.id, 'a', n from generate_series(1, p_new.max_active) n
     union all
    select p_new.id, 'r', n
      from generate_series(0, pgq._burst(p_new) - 1) n
     where p_new.rate_limit > 0
    on conflict on constraint permit_pkey do nothing;
    perform pgq._note_active(p_new.id) where p_old.max_active = 0 and p_new.max_active > 0;
    -- Their moments have other numbers.
    delete from pgq.start s
     where s.queue_id = p_new.id
       and (p_new.rate_limit, p_new.rate_interval) <> (p_old.rate_limit, p_old.rate_interval);
end
$$;
comment on function pgq._save_permits(pgq.queue, pgq.queue) is
'makes the permits that new settings of a queue need; its row is locked';

create function pgq._forget_starts(p_now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    -- Nearly always only those of late: under a held horizon the entries of older ones pile up.
    v_since constant timestamptz := case
        when random() < 0.99 then p_now - interval '10 seconds' else 'epoch' end;
begin
    delete from pgq.start s
     where s.ctid = any (array(
               select o.ctid
                 from pgq.queue q,
                      lateral (select pgq._burst(q) as burst offset 0) b,
                      lateral (
                          select s.ctid from pgq.start s
                           where s.queue_id = q.id
                             and s.moment > pgq._moment(q, v_since) - b.burst
                             and s.moment <= pgq._moment(q, p_now) - b.burst
                             for update skip locked
                      ) o
                where q.rate_limit > 0
           ));
end
$$;
comment on function pgq._forget_starts(timestamptz) is
'for ticks: deletes starts that no claim looks at any more';

create function pgq._drop_permits()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgq.queue;
    v_free integer[];
begin
    -- The lock keeps max_active as it is.
    for v_queue in
        select q.* from pgq.queue q
         where q.max_active > 0 and exists (
                   select from pgq.permit p
                    where p.queue_id = q.id and p.kind = 'a' and p.n > q.max_active
               )
           for no key update skip locked
    loop
        v_free := array(
            select p.n from pgq.permit p
             where p.queue_id = v_queue.id and p.kind = 'a' and p.n > v_queue.max_active
             order by p.n desc limit 1000 for update skip locked
        );
        v_free := array(
            select f from unnest(v_free) f
            except
            select h from unnest(pgq._held_permits(v_queue.id, v_free)) h
        );
        delete from pgq.permit p
         where p.queue_id = v_queue.id and p.kind = 'a' and p.n = any (v_free);
    end loop;
end
$$;
comment on function pgq._drop_permits() is
'for ticks: after max_active was lowered, drops the permits above it that have come back, as each '
'claim looks at all of them';

/*
 * Finding, locking and moving single jobs; what happens to them after a receipt was good, or has
 * expired.
 */

create function pgq._slots()
returns smallint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select r.live || r.parked || r.closing || r.parked_closing
              from pgq.ring r order by r.gen desc limit 1);
end
$$;
comment on function pgq._slots() is 'the slots that may hold jobs';

create function pgq._check_moved()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- TRUNCATE is seen by all snapshots at once, what maintenance moved before it only by new ones.
    if not pgq._read_committed() and exists (
        select from pg_class c join pg_inherits i on i.inhrelid = c.oid
         where i.inhparent = 'pgq.job'::regclass
           and c.relfilenode <> pg_relation_filenode(c.oid)
    ) then
        raise exception 'could not serialize access: jobs were moved by maintenance'
            using errcode = 'serialization_failure',
                  hint = 'The transaction might succeed if retried.';
    end if;
end
$$;
comment on function pgq._check_moved() is
'raises 40001 if an old snapshot cannot tell whether a job that it does not see was moved';

create function pgq._find(p_id bigint, out job pgq.job)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_slot smallint;
begin
    foreach v_slot in array pgq._slots() loop
        case v_slot
        when 0 then
            select j.* into job from pgq.lane l, lateral (
                select j.* from pgq.job_0 j where j.lane = l.id and j.id = p_id offset 0
            ) j;
        when 1 then
            select j.* into job from pgq.lane l, lateral (
                select j.* from pgq.job_1 j where j.lane = l.id and j.id = p_id offset 0
            ) j;
        when 2 then
            select j.* into job from pgq.lane l, lateral (
                select j.* from pgq.job_2 j where j.lane = l.id and j.id = p_id offset 0
            ) j;
        when 3 then
            select j.* into job from pgq.lane l, lateral (
                select j.* from pgq.job_3 j where j.lane = l.id and j.id = p_id offset 0
            ) j;
        when 4 then
            select j.* into job from pgq.lane l, lateral (
                select j.* from pgq.job_4 j where j.lane = l.id and j.id = p_id offset 0
            ) j;
        when 5 then
            select j.* into job from pgq.lane l, lateral (
                select j.* from pgq.job_5 j where j.lane = l.id and j.id = p_id offset 0
            ) j;
        end case;
        if job.id is not null then
            return;
        end if;
    end loop;
    perform pgq._check_moved();
end
$$;
comment on function pgq._find(bigint) is
'the live job of that id, unlocked, or null; looks slot by slot so that it leaves no lock on the '
'others. Raises 40001 if an old snapshot cannot tell';

create function pgq._lock(
    p_slot smallint, p_lane integer, p_id bigint, p_skip boolean, out job pgq.job
)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
    case p_slot
    when 0 then
        if p_skip then
            select j.* into job
              from pgq.job_0 j where j.lane = p_lane and j.id = p_id for update skip locked;
        else
            select j.* into job
              from pgq.job_0 j where j.lane = p_lane and j.id = p_id for update;
        end if;
    when 1 then
        if p_skip then
            select j.* into job
              from pgq.job_1 j where j.lane = p_lane and j.id = p_id for update skip locked;
        else
            select j.* into job
              from pgq.job_1 j where j.lane = p_lane and j.id = p_id for update;
        end if;
    when 2 then
        if p_skip then
            select j.* into job
              from pgq.job_2 j where j.lane = p_lane and j.id = p_id for update skip locked;
        else
            select j.* into job
              from pgq.job_2 j where j.lane = p_lane and j.id = p_id for update;
        end if;
    when 3 then
        if p_skip then
            select j.* into job
              from pgq.job_3 j where j.lane = p_lane and j.id = p_id for update skip locked;
        else
            select j.* into job
              from pgq.job_3 j where j.lane = p_lane and j.id = p_id for update;
        end if;
    when 4 then
        if p_skip then
            select j.* into job
              from pgq.job_4 j where j.lane = p_lane and j.id = p_id for update skip locked;
        else
            select j.* into job
              from pgq.job_4 j where j.lane = p_lane and j.id = p_id for update;
        end if;
    when 5 then
        if p_skip then
            select j.* into job
              from pgq.job_5 j where j.lane = p_lane and j.id = p_id for update skip locked;
        else
            select j.* into job
              from pgq.job_5 j where j.lane = p_lane and j.id = p_id for update;
        end if;
    end case;
end
$$;
comment on function pgq._lock(smallint, integer, bigint, boolean) is
'locks one job; null if it has gone or, with p_skip, is locked';

create function pgq._find_and_lock(p_id bigint, p_active boolean, out job pgq.job)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    loop
        job := pgq._find(p_id);
        exit when job.id is null or (job.token is not null and not p_active);
        job := pgq._lock(job.slot, job.lane, job.id, false);
        -- Null if it has gone meanwhile: ended, or moved to another slot by maintenance.
        exit when job.id is not null;
    end loop;
end
$$;
comment on function pgq._find_and_lock(bigint, boolean) is
'the live job of that id, wherever it is moved to, or null; locked, but an active one only with '
'p_active: else it may come back unlocked. Waits for whoever has it locked';

create function pgq._take_expired(
    p_slot smallint, p_queue_id integer, p_batch integer, p_window integer, p_now timestamptz,
    p_exhausted boolean
)
returns table (lane integer, id bigint)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    case p_slot
    when 0 then
        return query
        with expired as materialized (
            select l.id as lane, w.id
              from pgq.lane l
              join pgq.queue q on q.id = l.queue_id,
                   lateral (
                       select j.id, j.lease_expires_at, j.attempt, j.max_attempts,
                              j.cancel_requested
                         from pgq.job_0 j
                        where j.lane = l.id and j.id > coalesce((
                                  select f.base from pgq.floor_0 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                        order by j.id
                        limit p_window
                   ) w
             where (p_queue_id is null or l.queue_id = p_queue_id)
               and w.lease_expires_at <= p_now
               and (not p_exhausted or q.max_active > 0 or w.cancel_requested
                    or w.attempt >= coalesce(w.max_attempts, q.max_attempts))
             order by l.id, w.id
        )
        select j.lane, j.id
          from expired e, lateral (
              select j.lane, j.id from pgq.job_0 j
               where j.lane = e.lane and j.id = e.id and j.lease_expires_at <= p_now
                 for update skip locked
          ) j
         limit p_batch;
    when 1 then
        return query
        with expired as materialized (
            select l.id as lane, w.id
              from pgq.lane l
              join pgq.queue q on q.id = l.queue_id,
                   lateral (
                       select j.id, j.lease_expires_at, j.attempt, j.max_attempts,
                              j.cancel_requested
                         from pgq.job_1 j
                        where j.lane = l.id and j.id > coalesce((
                                  select f.base from pgq.floor_1 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                        order by j.id
                        limit p_window
                   ) w
             where (p_queue_id is null or l.queue_id = p_queue_id)
               and w.lease_expires_at <= p_now
               and (not p_exhausted or q.max_active > 0 or w.cancel_requested
                    or w.attempt >= coalesce(w.max_attempts, q.max_attempts))
             order by l.id, w.id
        )
        select j.lane, j.id
          from expired e, lateral (
              select j.lane, j.id from pgq.job_1 j
               where j.lane = e.lane and j.id = e.id and j.lease_expires_at <= p_now
                 for update skip locked
          ) j
         limit p_batch;
    when 2 then
        return query
        with expired as materialized (
            select l.id as lane, w.id
              from pgq.lane l
              join pgq.queue q on q.id = l.queue_id,
                   lateral (
                       select j.id, j.lease_expires_at, j.attempt, j.max_attempts,
                              j.cancel_requested
                         from pgq.job_2 j
                        where j.lane = l.id and j.id > coalesce((
                                  select f.base from pgq.floor_2 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                        order by j.id
                        limit p_window
                   ) w
             where (p_queue_id is null or l.queue_id = p_queue_id)
               and w.lease_expires_at <= p_now
               and (not p_exhausted or q.max_active > 0 or w.cancel_requested
                    or w.attempt >= coalesce(w.max_attempts, q.max_attempts))
             order by l.id, w.id
        )
        select j.lane, j.id
          from expired e, lateral (
              select j.lane, j.id from pgq.job_2 j
               where j.lane = e.lane and j.id = e.id and j.lease_expires_at <= p_now
                 for update skip locked
          ) j
         limit p_batch;
    when 3 then
        return query
        with expired as materialized (
            select l.id as lane, w.id
              from pgq.lane l
              join pgq.queue q on q.id = l.queue_id,
                   lateral (
                       select j.id, j.lease_expires_at, j.attempt, j.max_attempts,
                              j.cancel_requested
                         from pgq.job_3 j
                        where j.lane = l.id and j.id > coalesce((
                                  select f.base from pgq.floor_3 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                        order by j.id
                        limit p_window
                   ) w
             where (p_queue_id is null or l.queue_id = p_queue_id)
               and w.lease_expires_at <= p_now
               and (not p_exhausted or q.max_active > 0 or w.cancel_requested
                    or w.attempt >= coalesce(w.max_attempts, q.max_attempts))
             order by l.id, w.id
        )
        select j.lane, j.id
          from expired e, lateral (
              select j.lane, j.id from pgq.job_3 j
               where j.lane = e.lane and j.id = e.id and j.lease_expires_at <= p_now
                 for update skip locked
          ) j
         limit p_batch;
    when 4 then
        return query
        with expired as materialized (
            select l.id as lane, w.id
              from pgq.lane l
              join pgq.queue q on q.id = l.queue_id,
                   lateral (
                       select j.id, j.lease_expires_at, j.attempt, j.max_attempts,
                              j.cancel_requested
                         from pgq.job_4 j
                        where j.lane = l.id and j.due > coalesce((
                                  select f.base from pgq.floor_4 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                        order by j.due
                        limit p_window
                   ) w
             where (p_queue_id is null or l.queue_id = p_queue_id)
               and w.lease_expires_at <= p_now
               and (not p_exhausted or q.max_active > 0 or w.cancel_requested
                    or w.attempt >= coalesce(w.max_attempts, q.max_attempts))
             order by l.id, w.id
        )
        select j.lane, j.id
          from expired e, lateral (
              select j.lane, j.id from pgq.job_4 j
               where j.lane = e.lane and j.id = e.id and j.lease_expires_at <= p_now
                 for update skip locked
          ) j
         limit p_batch;
    when 5 then
        return query
        with expired as materialized (
            select l.id as lane, w.id
              from pgq.lane l
              join pgq.queue q on q.id = l.queue_id,
                   lateral (
                       select j.id, j.lease_expires_at, j.attempt, j.max_attempts,
                              j.cancel_requested
                         from pgq.job_5 j
                        where j.lane = l.id and j.due > coalesce((
                                  select f.base from pgq.floor_5 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                        order by j.due
                        limit p_window
                   ) w
             where (p_queue_id is null or l.queue_id = p_queue_id)
               and w.lease_expires_at <= p_now
               and (not p_exhausted or q.max_active > 0 or w.cancel_requested
                    or w.attempt >= coalesce(w.max_attempts, q.max_attempts))
             order by l.id, w.id
        )
        select j.lane, j.id
          from expired e, lateral (
              select j.lane, j.id from pgq.job_5 j
               where j.lane = e.lane and j.id = e.id and j.lease_expires_at <= p_now
                 for update skip locked
          ) j
         limit p_batch;
    end case;
end
$$;
comment on function
    pgq._take_expired(smallint, integer, integer, integer, timestamptz, boolean) is
'locks up to p_batch jobs in a slot whose leases have expired, of one queue or (null) of all; '
'looks at the first p_window live jobs of each lane (null: at all); p_exhausted: takes only those '
'that were to be cancelled, have no attempt left, or keep a permit of max_active';

create function pgq._open_slot(p_slot smallint)
returns timestamptz
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    case p_slot
    when 0 then
        lock table pgq.job_0 in row exclusive mode;
    when 1 then
        lock table pgq.job_1 in row exclusive mode;
    when 2 then
        lock table pgq.job_2 in row exclusive mode;
    when 3 then
        lock table pgq.job_3 in row exclusive mode;
    when 4 then
        lock table pgq.job_4 in row exclusive mode;
    when 5 then
        lock table pgq.job_5 in row exclusive mode;
    end case;
    return pgq._now();
end
$$;
comment on function pgq._open_slot(smallint) is
'locks a slot for writing, and returns the time from when on jobs may fall due there';

create function pgq._park(p_job pgq.job, p_run_at timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    select r.parked[cardinality(r.parked)] into p_job.slot
      from pgq.ring r order by r.gen desc limit 1;
    p_job.run_at := p_run_at;
    p_job.due := pgq._due(greatest(p_run_at, pgq._open_slot(p_job.slot)), p_job.id);
    p_job.token := null;
    p_job.claimed_at := null;
    p_job.lease_expires_at := null;
    p_job.lease_ms := null;
    p_job.worker := null;
    insert into pgq.job select p_job.*;
    perform pgq._admit(p_job.slot, p_job.lane, p_job.due);
    perform pgq._wake_lane(p_job.lane, p_run_at);
end
$$;
comment on function pgq._park(pgq.job, timestamptz) is
'puts a job back that has just been deleted from pgq.job or pgq.archive: ready, or scheduled';

create function pgq._backoff(p_job pgq.job)
returns interval
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgq.queue;
    v_tries constant integer := greatest(p_job.attempt - 1, 0);
    v_seconds double precision;
begin
    select q.* into v_queue
      from pgq.lane l join pgq.queue q on q.id = l.queue_id where l.id = p_job.lane;
    v_seconds := extract(epoch from v_queue.backoff_max)::double precision;
    -- In logarithms first: the power overflows long before attempts run out.
    if v_queue.backoff_base = '0' then
        v_seconds := 0;
    elsif ln(extract(epoch from v_queue.backoff_base)::double precision)
            + v_tries * ln(v_queue.backoff_factor) < ln(v_seconds)
    then
        v_seconds := extract(epoch from v_queue.backoff_base)::double precision
            * power(v_queue.backoff_factor, v_tries);
    end if;
    return make_interval(secs => v_seconds * (0.5 + random() / 2));
end
$$;
comment on function pgq._backoff(pgq.job) is
'the wait before the next try: base * factor ^ (attempt - 1), at most backoff_max, of that a '
'random share between a half and all ("equal jitter")';

create function pgq._put_back(p_job pgq.job, p_delay interval, p_error text, p_retryable boolean)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_max integer;
begin
    p_job.last_error := coalesce(p_error, p_job.last_error);
    if p_job.cancel_requested then
        perform pgq._keep(array[p_job], 'cancelled', null), pgq._note_ended(array[p_job]);
        return 'cancelled';
    end if;
    select coalesce(p_job.max_attempts, q.max_attempts) into v_max
      from pgq.lane l join pgq.queue q on q.id = l.queue_id where l.id = p_job.lane;
    perform pgq._count_ends(p_job.lane, 0, 1);
    if p_retryable and p_job.attempt < v_max then
        p_job.start_by := null;
        perform pgq._park(p_job, pgq._now() + coalesce(p_delay, pgq._backoff(p_job)));
        return 'scheduled';
    end if;
    perform pgq._keep(array[p_job], 'dead', null);
    perform pgq._note_ended(array[p_job]);
    insert into pgq.group_block (group_id, queue_id, job_id)
    select p_job.group_id, q.id, p_job.id
      from pgq.lane l join pgq.queue q on q.id = l.queue_id
     where l.id = p_job.lane and p_job.group_id is not null and q.group_on_dead = 'block';
    return 'dead';
end
$$;
comment on function pgq._put_back(pgq.job, interval, text, boolean) is
'the end of a failed attempt: the next try after p_delay (null: the queue''s backoff), or dead, or '
'cancelled, if that was asked for';

/*
 * Finished jobs: into the archive, and out of it by whole partitions. See pgq.archive.
 */

create function pgq._archive_bucket(p_expires_at timestamptz, p_keep interval)
returns smallint
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_seconds constant bigint := floor(extract(epoch from p_expires_at))::bigint;
begin
    return case when p_keep <= '1 hour' then v_seconds / 600 % 8
                when p_keep <= '24 hours' then 8 + v_seconds / 10800 % 10
                when p_keep <= '32 days' then 18 + v_seconds / 345600 % 10
                when p_keep <= '369 days' then 28 + v_seconds / 3542400 % 11
                else 39 end::smallint;
end
$$;
comment on function pgq._archive_bucket(timestamptz, interval) is
'the archive partition for rows that expire then, p_keep (days, hours) from now: windows of 10 '
'minutes, 3 hours, 4 days and 41 days, for up to 6, 8, 8 and 9 windows ahead. There are at least '
'two partitions more than that in each class, so the window that passed last is not in use and can '
'be truncated. More than 369 days: kept';

create function pgq._keep(p_jobs pgq.job[], p_state text, p_results jsonb[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_now constant timestamptz := pgq._now();
begin
    insert into pgq.archive (
        id, enqueued_at, finished_at, expires_at, run_at, claimed_at, token, bucket, priority,
        attempt, max_attempts, state, queue, worker, payload, headers, last_error, dedupe_key,
        group_key, checkpoint, result
    )
    select j.id, j.enqueued_at, v_now, v_now + k.keep, j.run_at, j.claimed_at, j.token,
           pgq._archive_bucket(v_now + k.keep, v_now + k.keep - v_now), l.priority, j.attempt,
           j.max_attempts, p_state, q.name, j.worker, j.payload, j.headers, j.last_error,
           j.dedupe_key, j.group_key, j.checkpoint, p_results[j.ordinality::integer]
      from unnest(p_jobs) with ordinality j
      join pgq.lane l on l.id = j.lane
      join pgq.queue q on q.id = l.queue_id,
           lateral (
               select case when p_state <> 'completed' then q.keep_dead
                           when j.dedupe_key is null then q.keep_completed
                           else greatest(q.keep_completed, q.dedupe_for) end
           ) k (keep)
     where k.keep > '0';
end
$$;
comment on function pgq._keep(pgq.job[], text, jsonb[]) is
'writes jobs that have just been deleted from pgq.job to the archive, if their queue keeps such '
'jobs; completed ones with a dedupe key for dedupe_for at least. p_results: in the order of the '
'jobs, or null';

create function pgq._expire_archive(p_now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_seconds constant bigint := floor(extract(epoch from p_now))::bigint;
    v_bucket bigint;
    v_name text;
begin
    -- In each class the window that passed last; see pgq._archive_bucket.
    foreach v_bucket in array array[
        (v_seconds / 600 - 1) % 8,
        8 + (v_seconds / 10800 - 1) % 10,
        18 + (v_seconds / 345600 - 1) % 10,
        28 + (v_seconds / 3542400 - 1) % 11
    ] loop
        begin
            v_name := format('archive_%s', v_bucket);
            execute format('lock table pgq.%I in access share mode nowait', v_name);
            if pg_relation_size(format('pgq.%I', v_name)::regclass) > 0
                and not pgq._is_dumped()
            then
                execute format('lock table pgq.%I in access exclusive mode nowait', v_name);
                execute format('truncate pgq.%I', v_name);
            end if;
        exception when lock_not_available or object_in_use then
            continue;
        end;
    end loop;
end
$$;
comment on function pgq._expire_archive(timestamptz) is
'truncates archive partitions whose window has passed';

/*
 * Bounds: how many jobs may be ready in a queue, how long a payload may be, and until when a job
 * may start.
 *
 * Jobs with such a time are on lanes of their own: claims of other jobs need not look at it.
 */

create function pgq._count_ready(p_queue_id integer, p_limit integer)
returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_us constant bigint := pgq._us(v_now);
    v_max constant integer := 0;
    v_tick constant boolean := false;
    v_slots constant smallint[] := pgq._slots();
    v_lane integer;
    v_left integer := p_limit;
begin
    for v_lane in select l.id from pgq.lane l where l.queue_id = p_queue_id loop
        if 0 = any (v_slots) then
            v_left := v_left - (select count(*) from (
                select from pgq.job_0 i
                 where i.lane = v_lane and i.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_0 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
                 limit v_left
            ) r)::integer;
        end if;
        if 1 = any (v_slots) then
            v_left := v_left - (select count(*) from (
                select from pgq.job_1 i
                 where i.lane = v_lane and i.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_1 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
                 limit v_left
            ) r)::integer;
        end if;
        if 2 = any (v_slots) then
            v_left := v_left - (select count(*) from (
                select from pgq.job_2 i
                 where i.lane = v_lane and i.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_2 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
                 limit v_left
            ) r)::integer;
        end if;
        if 3 = any (v_slots) then
            v_left := v_left - (select count(*) from (
                select from pgq.job_3 i
                 where i.lane = v_lane and i.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_3 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
                 limit v_left
            ) r)::integer;
        end if;
        if 4 = any (v_slots) then
            v_left := v_left - (select count(*) from (
                select from pgq.job_4 i where i.lane = v_lane and i.due <= v_us + 4095 and i.due > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_4 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0)
                   and (i.run_at is null or i.run_at <= v_now) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max))) limit v_left
            ) r)::integer;
        end if;
        if 5 = any (v_slots) then
            v_left := v_left - (select count(*) from (
                select from pgq.job_5 i where i.lane = v_lane and i.due <= v_us + 4095 and i.due > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_5 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0)
                   and (i.run_at is null or i.run_at <= v_now) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max))) limit v_left
            ) r)::integer;
        end if;
    end loop;
    -- As in pgq._live_keys.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return p_limit - v_left;
end
$$;
comment on function pgq._count_ready(integer, integer) is
'how many ready jobs a queue has, at most p_limit; leaves no lock on a slot';

create function pgq._check_bounds(p_queue_id integer, p_payloads jsonb[], p_number integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgq.queue;
    v_size integer;
begin
    select q.* into v_queue from pgq.queue q where q.id = p_queue_id;
    if v_queue.max_payload > 0 then
        select max(octet_length(p::text)) into v_size from unnest(p_payloads) p;
        if v_size > v_queue.max_payload then
            raise exception 'a payload of % bytes is too long for queue "%"', v_size, v_queue.name
                using errcode = 'program_limit_exceeded',
                      detail = format('Its max_payload is %s bytes.', v_queue.max_payload),
                      hint = 'Store the data elsewhere, and where it is in the payload.';
        end if;
    end if;
    -- To count up to a thousand takes a third of a millisecond: the larger, the less often.
    if v_queue.max_ready > 0 and p_number > 0
        and random() * v_queue.max_ready < 1000.0 * p_number
        and pgq._count_ready(p_queue_id, v_queue.max_ready) > v_queue.max_ready - p_number
    then
        raise exception 'queue "%" is full', v_queue.name
            using errcode = 'configuration_limit_exceeded',
                  detail = format('It may have %s ready jobs.', v_queue.max_ready),
                  hint = 'Try again when its workers have caught up, or raise its max_ready.';
    end if;
end
$$;
comment on function pgq._check_bounds(integer, jsonb[], integer) is
'raises 54000 for a payload that is too long and 53400 if p_number more ready jobs are too many; '
'a max_ready above a thousand is looked at for a part of the calls, a thousandth of it apart';

-- Others have started in time, and their leases have expired since.

create function pgq._drop_overdue(p_jobs pgq.job[])
returns setof pgq.job
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_job pgq.job;
begin
    for v_job in select j.* from unnest(p_jobs) j where j.start_by <= v_now and j.attempt = 1 loop
        perform from pgq._remove(v_job.slot, v_job.lane, array[v_job.id]);
        v_job.attempt := (v_job.attempt - 1)::smallint;
        v_job.claimed_at := null;
        v_job.worker := null;
        perform pgq._put_back(v_job, null, 'expired', false);
    end loop;
    return query select j.* from unnest(p_jobs) j where (j.start_by <= v_now and j.attempt = 1) is not true;
end
$$;
comment on function pgq._drop_overdue(pgq.job[]) is
'of jobs that have just been claimed those that may start; the others are dead';

create function pgq._gather_in_time(
    p_lanes integer[], p_live smallint[], p_parked smallint[], p_firsts bigint[], p_after bigint,
    p_until bigint, p_batch integer, p_now timestamptz, p_max integer, p_tick boolean,
    p_lease_ms integer, p_worker text, p_keep boolean
)
returns setof pgq.job
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_jobs pgq.job[];
    v_left integer := p_batch;
    v_count integer;
begin
    loop
        v_jobs := array(
            select g
              from pgq._gather(
                       p_lanes, p_live, p_parked, p_firsts, p_after, p_until, v_left, p_now, p_max,
                       p_tick, p_lease_ms, p_worker, p_keep
                   ) g
        );
        return query select d.* from pgq._drop_overdue(v_jobs) d;
        get diagnostics v_count = row_count;
        exit when v_count = v_left or cardinality(v_jobs) < v_left;
        v_left := v_left - v_count;
    end loop;
end
$$;
comment on function
    pgq._gather_in_time(
        integer[], smallint[], smallint[], bigint[], bigint, bigint, integer, timestamptz, integer,
        boolean, integer, text, boolean
    ) is
'pgq._gather without those that may not start any more, which are dead then';

create function pgq._find_overdue(p_slot smallint, p_now timestamptz)
returns setof pgq.job
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    case p_slot
    when 0 then
        return query
        select r.*
          from pgq.lane l,
               lateral (
                   select j.id, j.start_by from pgq.job_0 j
                    where j.lane = l.id and j.id > coalesce((
                                  select f.floor from pgq.floor_0 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                      and j.lease_expires_at is null and j.wait is null and j.attempt = 0
                    order by j.id
                    limit 1000
               ) o,
               lateral (
                   select j.* from pgq.job_0 j
                    where j.lane = l.id and j.id = o.id and j.lease_expires_at is null
                      for update skip locked
               ) r
         where l.expiring and o.start_by <= p_now;
    when 1 then
        return query
        select r.*
          from pgq.lane l,
               lateral (
                   select j.id, j.start_by from pgq.job_1 j
                    where j.lane = l.id and j.id > coalesce((
                                  select f.floor from pgq.floor_1 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                      and j.lease_expires_at is null and j.wait is null and j.attempt = 0
                    order by j.id
                    limit 1000
               ) o,
               lateral (
                   select j.* from pgq.job_1 j
                    where j.lane = l.id and j.id = o.id and j.lease_expires_at is null
                      for update skip locked
               ) r
         where l.expiring and o.start_by <= p_now;
    when 2 then
        return query
        select r.*
          from pgq.lane l,
               lateral (
                   select j.id, j.start_by from pgq.job_2 j
                    where j.lane = l.id and j.id > coalesce((
                                  select f.floor from pgq.floor_2 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                      and j.lease_expires_at is null and j.wait is null and j.attempt = 0
                    order by j.id
                    limit 1000
               ) o,
               lateral (
                   select j.* from pgq.job_2 j
                    where j.lane = l.id and j.id = o.id and j.lease_expires_at is null
                      for update skip locked
               ) r
         where l.expiring and o.start_by <= p_now;
    when 3 then
        return query
        select r.*
          from pgq.lane l,
               lateral (
                   select j.id, j.start_by from pgq.job_3 j
                    where j.lane = l.id and j.id > coalesce((
                                  select f.floor from pgq.floor_3 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                      and j.lease_expires_at is null and j.wait is null and j.attempt = 0
                    order by j.id
                    limit 1000
               ) o,
               lateral (
                   select j.* from pgq.job_3 j
                    where j.lane = l.id and j.id = o.id and j.lease_expires_at is null
                      for update skip locked
               ) r
         where l.expiring and o.start_by <= p_now;
    when 4 then
        return query
        select r.*
          from pgq.lane l,
               lateral (
                   select j.id, j.start_by from pgq.job_4 j
                    where j.lane = l.id and j.due > coalesce((
                                  select f.floor from pgq.floor_4 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                      and j.lease_expires_at is null and j.wait is null and j.attempt = 0
                    order by j.due
                    limit 1000
               ) o,
               lateral (
                   select j.* from pgq.job_4 j
                    where j.lane = l.id and j.id = o.id and j.lease_expires_at is null
                      for update skip locked
               ) r
         where l.expiring and o.start_by <= p_now;
    when 5 then
        return query
        select r.*
          from pgq.lane l,
               lateral (
                   select j.id, j.start_by from pgq.job_5 j
                    where j.lane = l.id and j.due > coalesce((
                                  select f.floor from pgq.floor_5 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                      and j.lease_expires_at is null and j.wait is null and j.attempt = 0
                    order by j.due
                    limit 1000
               ) o,
               lateral (
                   select j.* from pgq.job_5 j
                    where j.lane = l.id and j.id = o.id and j.lease_expires_at is null
                      for update skip locked
               ) r
         where l.expiring and o.start_by <= p_now;
    end case;
end
$$;
comment on function pgq._find_overdue(smallint, timestamptz) is
'locks jobs in a slot that have not started in time, of the first thousand ready ones of each lane';

create function pgq._bury_overdue(p_now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slot smallint;
    v_job pgq.job;
begin
    if not exists (select from pgq.lane l where l.expiring) then
        return;
    end if;
    foreach v_slot in array pgq._slots() loop
        for v_job in select o.* from pgq._find_overdue(v_slot, p_now) o loop
            perform from pgq._remove(v_slot, v_job.lane, array[v_job.id]);
            perform pgq._put_back(v_job, null, 'expired', false);
        end loop;
    end loop;
end
$$;
comment on function pgq._bury_overdue(timestamptz) is
'for ticks: makes jobs dead that have not started in time';

/*
 * Receipts. A receipt is looked up in the slot that its token names. If it is not there it is
 * either stale, or maintenance has moved the job to a parked slot, perhaps this very moment: each
 * look is a statement of its own, with a new snapshot, and the parked slots are looked at until a
 * job that is being moved from one to the other cannot have been missed.
 */


create function pgq._lanes(p_tokens bigint[])
returns integer[]
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return array(select distinct ((t >> 3) & 65535)::integer from unnest(p_tokens) t order by 1);
end
$$;
comment on function pgq._lanes(bigint[]) is 'the lanes that these tokens name';

create function pgq._finish(
    p_slot smallint, p_lane integer, p_ids bigint[], p_tokens bigint[]
)
returns setof pgq.job
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    -- A row that is updated meanwhile is checked for the token again. It may be left out, if the
    -- place of the version that was found is checked again, too; pgq._settle looks once more then.
    case p_slot
    when 0 then
        return query
        delete from pgq.job_0 j
         where j.ctid = any (array(
                   select i.ctid from unnest(p_ids, p_tokens) r (id, token), lateral (
                       select i.ctid from pgq.job_0 i
                        where i.lane = p_lane and i.id = r.id and i.token = r.token offset 0
                   ) i
               ))
           and j.token = any (p_tokens)
        returning j.*;
    when 1 then
        return query
        delete from pgq.job_1 j
         where j.ctid = any (array(
                   select i.ctid from unnest(p_ids, p_tokens) r (id, token), lateral (
                       select i.ctid from pgq.job_1 i
                        where i.lane = p_lane and i.id = r.id and i.token = r.token offset 0
                   ) i
               ))
           and j.token = any (p_tokens)
        returning j.*;
    when 2 then
        return query
        delete from pgq.job_2 j
         where j.ctid = any (array(
                   select i.ctid from unnest(p_ids, p_tokens) r (id, token), lateral (
                       select i.ctid from pgq.job_2 i
                        where i.lane = p_lane and i.id = r.id and i.token = r.token offset 0
                   ) i
               ))
           and j.token = any (p_tokens)
        returning j.*;
    when 3 then
        return query
        delete from pgq.job_3 j
         where j.ctid = any (array(
                   select i.ctid from unnest(p_ids, p_tokens) r (id, token), lateral (
                       select i.ctid from pgq.job_3 i
                        where i.lane = p_lane and i.id = r.id and i.token = r.token offset 0
                   ) i
               ))
           and j.token = any (p_tokens)
        returning j.*;
    when 4 then
        return query
        delete from pgq.job_4 j
         where j.ctid = any (array(
                   select i.ctid from unnest(p_ids, p_tokens) r (id, token), lateral (
                       select i.ctid from pgq.job_4 i
                        where i.lane = p_lane and i.id = r.id and i.token = r.token offset 0
                   ) i
               ))
           and j.token = any (p_tokens)
        returning j.*;
    when 5 then
        return query
        delete from pgq.job_5 j
         where j.ctid = any (array(
                   select i.ctid from unnest(p_ids, p_tokens) r (id, token), lateral (
                       select i.ctid from pgq.job_5 i
                        where i.lane = p_lane and i.id = r.id and i.token = r.token offset 0
                   ) i
               ))
           and j.token = any (p_tokens)
        returning j.*;
    end case;
end
$$;
comment on function pgq._finish(smallint, integer, bigint[], bigint[]) is
'deletes and returns the jobs of those receipts that are good in a lane of a slot; waits for '
'another session with the same receipt. Each job is compared with all receipts: a thousand at most';

create function pgq._renew(
    p_slot smallint, p_lane integer, p_ids bigint[], p_tokens bigint[], p_lease_ms integer,
    p_now timestamptz, p_checkpoints jsonb[]
)
returns setof pgq.renewal
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    case p_slot
    when 0 then
        return query
        update pgq.job_0 j
           set lease_expires_at
                   = p_now + coalesce(p_lease_ms, j.lease_ms) * interval '1 millisecond',
               checkpoint
                   = coalesce(p_checkpoints[array_position(p_tokens, j.token)], j.checkpoint)
         where j.ctid = any (array(
                   select i.ctid from unnest(p_ids, p_tokens) r (id, token), lateral (
                       select i.ctid from pgq.job_0 i
                        where i.lane = p_lane and i.id = r.id and i.token = r.token offset 0
                   ) i
               ))
           and j.token = any (p_tokens)
        returning j.id, j.token, j.lease_expires_at, coalesce(j.cancel_requested, false);
    when 1 then
        return query
        update pgq.job_1 j
           set lease_expires_at
                   = p_now + coalesce(p_lease_ms, j.lease_ms) * interval '1 millisecond',
               checkpoint
                   = coalesce(p_checkpoints[array_position(p_tokens, j.token)], j.checkpoint)
         where j.ctid = any (array(
                   select i.ctid from unnest(p_ids, p_tokens) r (id, token), lateral (
                       select i.ctid from pgq.job_1 i
                        where i.lane = p_lane and i.id = r.id and i.token = r.token offset 0
                   ) i
               ))
           and j.token = any (p_tokens)
        returning j.id, j.token, j.lease_expires_at, coalesce(j.cancel_requested, false);
    when 2 then
        return query
        update pgq.job_2 j
           set lease_expires_at
                   = p_now + coalesce(p_lease_ms, j.lease_ms) * interval '1 millisecond',
               checkpoint
                   = coalesce(p_checkpoints[array_position(p_tokens, j.token)], j.checkpoint)
         where j.ctid = any (array(
                   select i.ctid from unnest(p_ids, p_tokens) r (id, token), lateral (
                       select i.ctid from pgq.job_2 i
                        where i.lane = p_lane and i.id = r.id and i.token = r.token offset 0
                   ) i
               ))
           and j.token = any (p_tokens)
        returning j.id, j.token, j.lease_expires_at, coalesce(j.cancel_requested, false);
    when 3 then
        return query
        update pgq.job_3 j
           set lease_expires_at
                   = p_now + coalesce(p_lease_ms, j.lease_ms) * interval '1 millisecond',
               checkpoint
                   = coalesce(p_checkpoints[array_position(p_tokens, j.token)], j.checkpoint)
         where j.ctid = any (array(
                   select i.ctid from unnest(p_ids, p_tokens) r (id, token), lateral (
                       select i.ctid from pgq.job_3 i
                        where i.lane = p_lane and i.id = r.id and i.token = r.token offset 0
                   ) i
               ))
           and j.token = any (p_tokens)
        returning j.id, j.token, j.lease_expires_at, coalesce(j.cancel_requested, false);
    when 4 then
        return query
        update pgq.job_4 j
           set lease_expires_at
                   = p_now + coalesce(p_lease_ms, j.lease_ms) * interval '1 millisecond',
               checkpoint
                   = coalesce(p_checkpoints[array_position(p_tokens, j.token)], j.checkpoint)
         where j.ctid = any (array(
                   select i.ctid from unnest(p_ids, p_tokens) r (id, token), lateral (
                       select i.ctid from pgq.job_4 i
                        where i.lane = p_lane and i.id = r.id and i.token = r.token offset 0
                   ) i
               ))
           and j.token = any (p_tokens)
        returning j.id, j.token, j.lease_expires_at, coalesce(j.cancel_requested, false);
    when 5 then
        return query
        update pgq.job_5 j
           set lease_expires_at
                   = p_now + coalesce(p_lease_ms, j.lease_ms) * interval '1 millisecond',
               checkpoint
                   = coalesce(p_checkpoints[array_position(p_tokens, j.token)], j.checkpoint)
         where j.ctid = any (array(
                   select i.ctid from unnest(p_ids, p_tokens) r (id, token), lateral (
                       select i.ctid from pgq.job_5 i
                        where i.lane = p_lane and i.id = r.id and i.token = r.token offset 0
                   ) i
               ))
           and j.token = any (p_tokens)
        returning j.id, j.token, j.lease_expires_at, coalesce(j.cancel_requested, false);
    end case;
end
$$;
comment on function
    pgq._renew(
        smallint, integer, bigint[], bigint[], integer, timestamptz, jsonb[]
    ) is
'renews the leases of those receipts, a thousand at most, that are good in a lane of a slot';

create function pgq._looks(p_tokens bigint[])
returns smallint[]
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slots constant smallint[] := array(
        select distinct (t.token & 7)::smallint
          from unnest(p_tokens) t (token) where t.token & 7 <= 5 order by 1
    ) || '{4,5}'::smallint[];
begin
    return v_slots || v_slots || v_slots;
end
$$;
comment on function pgq._looks(bigint[]) is
'the slots in which to look for receipts, in this order, which is the lock order';

create function pgq._settle(p_ids bigint[], p_tokens bigint[], p_done integer default 0)
returns setof pgq.job
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slot smallint := (p_tokens[1] & 7)::smallint;
    v_lane integer := ((p_tokens[1] >> 3) & 65535)::integer;
    v_lanes integer[] := array[v_lane];
    v_looks smallint[];
    v_left integer := cardinality(p_ids);
    v_count integer;
    v_one_lane boolean;
begin
    if v_left > 1 then
        select array_agg(r.id), array_agg(r.token), count(*)::integer, min(r.token & 7)::smallint,
               bool_and((r.token >> 3) & 65535 = v_lane)
          into p_ids, p_tokens, v_left, v_slot, v_one_lane
          from (select distinct r.id, r.token from unnest(p_ids, p_tokens) r (id, token)
                 order by r.id, r.token) r;
        if not v_one_lane then
            v_lanes := pgq._lanes(p_tokens);
        end if;
    end if;
    v_left := v_left - p_done;
    if v_left = 0 then
        return;
    end if;
    -- Nearly always the first look finds all.
    v_looks := array[v_slot];
    for v_round in 1..2 loop
        foreach v_slot in array v_looks loop
            continue when v_slot > 5;
            foreach v_lane in array v_lanes loop
                for v_from in 1..cardinality(p_ids) by 1000 loop
                    return query
                    select f.*
                      from pgq._finish(
                               v_slot, v_lane, p_ids[v_from:v_from + 999],
                               p_tokens[v_from:v_from + 999]
                           ) f;
                    get diagnostics v_count = row_count;
                    v_left := v_left - v_count;
                end loop;
            end loop;
            if v_left = 0 then
                return;
            end if;
        end loop;
        v_looks := pgq._looks(p_tokens);
    end loop;
    perform pgq._check_moved();
end
$$;
comment on function pgq._settle(bigint[], bigint[], integer) is
'deletes and returns the jobs whose receipts are good; waits while another session settles the '
'same receipt. p_done: how many of them the caller has deleted already';

create function pgq._settle_one(p_id bigint, p_token bigint, out job pgq.job)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null('id', p_id is null);
    perform pgq._check_not_null('token', p_token is null);
    if current_setting('max_prepared_transactions') = '0' then
        unlisten pgq_nobody;
    else
        perform pgq._check_restricted();
    end if;
    if not (session_user = current_user and current_setting('role') = 'none') then
        p_token := (pgq._mask(array[p_token]))[1];
    end if;
    select s.* into job from pgq._settle(array[p_id], array[p_token]) s;
end
$$;
comment on function pgq._settle_one(bigint, bigint) is
'the same for one receipt; null if it is stale';

create function pgq._results_of(
    p_jobs pgq.job[], p_ids bigint[], p_tokens bigint[], p_results jsonb[]
)
returns jsonb[]
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
set enable_nestloop = off
set enable_hashjoin = on
as $$
begin
    return array(
        select r.result
          from unnest(p_jobs) with ordinality j
          left join (
                   select distinct on (u.id, u.token) u.id, u.token, u.result
                     from unnest(p_ids, p_tokens, p_results)
                          with ordinality u (id, token, result, n)
                    where u.result is not null
                    order by u.id, u.token, u.n
               ) r on r.id = j.id and r.token = j.token
         order by j.ordinality
    );
end
$$;
comment on function pgq._results_of(pgq.job[], bigint[], bigint[], jsonb[]) is
'the results given with receipts, in the order of the jobs; of a receipt that is given twice the '
'first one that is not null';

create function pgq._complete(
    p_ids bigint[], p_tokens bigint[], p_results jsonb[], p_done integer default 0
)
returns setof bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_bits bigint := p_tokens[1];
    v_jobs pgq.job[];
    v_sample integer;
begin
    if cardinality(p_tokens) > 1 then
        v_bits := (select bit_or(t) from unnest(p_tokens) t);
    end if;
    -- A bit of the token says that the queue kept completed jobs when it was claimed, or that it
    -- has a group.
    v_jobs := array(select s from pgq._settle(p_ids, p_tokens, p_done) s);
    perform pgq._note_ended(v_jobs, true);
    if v_bits & 524288 <> 0 and v_jobs <> '{}' then
        select max(q.sample) into v_sample
          from pgq.lane l join pgq.queue q on q.id = l.queue_id
         where l.id = any (pgq._lanes(p_tokens))
           and (q.keep_completed > '0' or q.dedupe_for > '0');
        if v_sample is not null then
            if cardinality(p_results) > 1 then
                p_results := pgq._results_of(v_jobs, p_ids, p_tokens, p_results);
            end if;
            perform pgq._keep(v_jobs, 'completed', p_results);
        end if;
        if random() * v_sample < 1 then
            perform pgq._count_ends(d.lane, d.completed * v_sample, 0)
               from (select j.lane, count(*) as completed from unnest(v_jobs) j group by j.lane) d;
        end if;
    end if;
    return query select j.id from unnest(v_jobs) j;
end
$$;
comment on function pgq._complete(bigint[], bigint[], jsonb[], integer) is
'completes and returns the ids; p_results: one for each receipt, or null; p_done: as in '
'pgq._settle';

/*
 * How many jobs of a queue complete and fail, for its last minute and hour. Of completions only
 * those are counted that go to the archive.
 *
 * A call that completes jobs adds a row, always while few do, and one of pgq.queue.sample calls
 * otherwise, which then stands for so many. Each tick fits that number to some 60 rows a second.
 * Each failure adds a row.
 * Three tables are written by turns, a minute each, so that the oldest can be summed up and
 * truncated.
 */

create function pgq._count_ends(p_lane integer, p_completed bigint, p_failed bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_now constant timestamptz := pgq._now();
begin
    case extract(epoch from v_now)::bigint / 60 % 3
    when 0 then
        insert into pgq.stat_0 (n, queue_id, at, completed, failed)
        select nextval('pgq.stat_n'), l.queue_id, v_now, p_completed, p_failed
          from pgq.lane l where l.id = p_lane;
    when 1 then
        insert into pgq.stat_1 (n, queue_id, at, completed, failed)
        select nextval('pgq.stat_n'), l.queue_id, v_now, p_completed, p_failed
          from pgq.lane l where l.id = p_lane;
    when 2 then
        insert into pgq.stat_2 (n, queue_id, at, completed, failed)
        select nextval('pgq.stat_n'), l.queue_id, v_now, p_completed, p_failed
          from pgq.lane l where l.id = p_lane;
    end case;
end
$$;
comment on function pgq._count_ends(integer, bigint, bigint) is 'notes ends of jobs';

create function pgq._fit_samples()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_seen constant bigint := coalesce(pg_sequence_last_value('pgq.stat_seen'), 0);
    v_last constant bigint := coalesce(pg_sequence_last_value('pgq.stat_n'), 0);
begin
    update pgq.queue q
       set sample = f.sample
      from (
               select o.id,
                      case when c.rows > 60 then least(o.sample * c.rows / 30, 1000000)
                           when coalesce(c.rows, 0) < 8 then greatest(o.sample / 2, 1)
                           else o.sample end::integer as sample
                 from (select i.id, i.sample from pgq.queue i for no key update skip locked) o
                 left join (
                         select s.queue_id, count(*) as rows
                           from (
                                    select r.queue_id from pgq.stat_0 r
                                     where r.n > v_seen and r.completed > 0
                                    union all
                                    select r.queue_id from pgq.stat_1 r
                                     where r.n > v_seen and r.completed > 0
                                    union all
                                    select r.queue_id from pgq.stat_2 r
                                     where r.n > v_seen and r.completed > 0
                                    union all
                                    select null where false
                                ) s
                          group by s.queue_id
                      ) c on c.queue_id = o.id
                where o.sample > 1 or c.rows > 60
           ) f
     where q.id = f.id and q.sample <> f.sample;
    perform setval('pgq.stat_seen', greatest(v_last, 1));
end
$$;
comment on function pgq._fit_samples() is
'for ticks: lets about 60 rows a second be written for each queue';

create function pgq._sum_up(p_now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Not the one of this minute, nor the last one, in which a transaction may be about to write.
    case (extract(epoch from p_now)::bigint / 60 + 1) % 3
    when 0 then
        if pg_relation_size('pgq.stat_0') > 0 then
            lock table pgq.stat_0 in access exclusive mode nowait;
            insert into pgq.stat (queue_id, at, completed, failed)
            select s.queue_id, date_trunc('minute', s.at), sum(s.completed), sum(s.failed)
              from pgq.stat_0 s group by 1, 2;
            truncate pgq.stat_0;
            delete from pgq.stat s where s.at < p_now - interval '61 minutes';
        end if;
    when 1 then
        if pg_relation_size('pgq.stat_1') > 0 then
            lock table pgq.stat_1 in access exclusive mode nowait;
            insert into pgq.stat (queue_id, at, completed, failed)
            select s.queue_id, date_trunc('minute', s.at), sum(s.completed), sum(s.failed)
              from pgq.stat_1 s group by 1, 2;
            truncate pgq.stat_1;
            delete from pgq.stat s where s.at < p_now - interval '61 minutes';
        end if;
    when 2 then
        if pg_relation_size('pgq.stat_2') > 0 then
            lock table pgq.stat_2 in access exclusive mode nowait;
            insert into pgq.stat (queue_id, at, completed, failed)
            select s.queue_id, date_trunc('minute', s.at), sum(s.completed), sum(s.failed)
              from pgq.stat_2 s group by 1, 2;
            truncate pgq.stat_2;
            delete from pgq.stat s where s.at < p_now - interval '61 minutes';
        end if;
    end case;
exception
    when lock_not_available or object_in_use then
        return;
end
$$;
comment on function pgq._sum_up(timestamptz) is
'for ticks: makes the rows of the minute before the last one a row per queue';

create function pgq._ends(p_now timestamptz)
returns table (
    queue_id integer, completed_last_minute bigint, failed_last_minute bigint,
    completed_last_hour bigint, failed_last_hour bigint
)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return query
    select s.queue_id,
           (sum(s.completed) filter (where s.at > p_now - interval '1 minute'))::bigint,
           (sum(s.failed) filter (where s.at > p_now - interval '1 minute'))::bigint,
           sum(s.completed)::bigint, sum(s.failed)::bigint
      from (
               select r.queue_id, r.at, r.completed, r.failed from pgq.stat_0 r
                union all
               select r.queue_id, r.at, r.completed, r.failed from pgq.stat_1 r
                union all
               select r.queue_id, r.at, r.completed, r.failed from pgq.stat_2 r
                union all
               select r.queue_id, r.at, r.completed, r.failed from pgq.stat r
           ) s
     where s.at > p_now - interval '1 hour'
     group by s.queue_id;
end
$$;
comment on function pgq._ends(timestamptz) is
'how many jobs of each queue have completed and how many attempts failed, if any';

/*
 * Dedupe keys: unique among the live jobs of a queue, and those it has completed within dedupe_for.
 *
 * The key is a column of the job, so that to complete it costs nothing and what is left of it goes
 * with its slot. No index spans the slots: whoever wants a key locks the bucket of all keys with
 * its hash, until the end of the transaction, and then looks into all slots with one snapshot. Jobs
 * move between slots without that lock; in one snapshot each is in one place.
 *
 * Lock order: buckets in id order, before everything else.
 */

create function pgq._lock_keys(p_queue_id integer, p_keys text[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    if p_keys is null then
        return;
    end if;
    perform
       from (
                select distinct
                       (hashtextextended(k collate "C", p_queue_id) & 16383)::integer as id
                  from unnest(p_keys) k order by 1
            ) h,
            lateral (select from pgq.bucket b where b.id = h.id for update) b;
end
$$;
comment on function pgq._lock_keys(integer, text[]) is
'keeps others from using these dedupe keys of a queue; waits for transactions that are using one '
'of them, or one of the same hash: one in 16384';

create function pgq._probe_keys(p_queue_id integer, p_keys text[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set lock_timeout = '200ms'
as $$
begin
    insert into pgq.job_0 (
        id, enqueued_at, lane, slot, payload, dedupe_key, dedupe_queue_id
    )
    select nextval('pgq.job_id'), '-infinity', 0, 0, 'null', k, p_queue_id
      from (select distinct k collate "C" from unnest(p_keys) k) k (k)
        on conflict (dedupe_queue_id, dedupe_key) where dedupe_key is not null do nothing;
    insert into pgq.job_1 (
        id, enqueued_at, lane, slot, payload, dedupe_key, dedupe_queue_id
    )
    select nextval('pgq.job_id'), '-infinity', 0, 1, 'null', k, p_queue_id
      from (select distinct k collate "C" from unnest(p_keys) k) k (k)
        on conflict (dedupe_queue_id, dedupe_key) where dedupe_key is not null do nothing;
    insert into pgq.job_2 (
        id, enqueued_at, lane, slot, payload, dedupe_key, dedupe_queue_id
    )
    select nextval('pgq.job_id'), '-infinity', 0, 2, 'null', k, p_queue_id
      from (select distinct k collate "C" from unnest(p_keys) k) k (k)
        on conflict (dedupe_queue_id, dedupe_key) where dedupe_key is not null do nothing;
    insert into pgq.job_3 (
        id, enqueued_at, lane, slot, payload, dedupe_key, dedupe_queue_id
    )
    select nextval('pgq.job_id'), '-infinity', 0, 3, 'null', k, p_queue_id
      from (select distinct k collate "C" from unnest(p_keys) k) k (k)
        on conflict (dedupe_queue_id, dedupe_key) where dedupe_key is not null do nothing;
    insert into pgq.job_4 (
        id, enqueued_at, lane, slot, payload, dedupe_key, dedupe_queue_id
    )
    select nextval('pgq.job_id'), '-infinity', 0, 4, 'null', k, p_queue_id
      from (select distinct k collate "C" from unnest(p_keys) k) k (k)
        on conflict (dedupe_queue_id, dedupe_key) where dedupe_key is not null do nothing;
    insert into pgq.job_5 (
        id, enqueued_at, lane, slot, payload, dedupe_key, dedupe_queue_id
    )
    select nextval('pgq.job_id'), '-infinity', 0, 5, 'null', k, p_queue_id
      from (select distinct k collate "C" from unnest(p_keys) k) k (k)
        on conflict (dedupe_queue_id, dedupe_key) where dedupe_key is not null do nothing;
exception
    -- It is about to be freed, or moved.
    when lock_not_available then
        raise exception 'could not serialize access: a job with the dedupe key is being changed'
            using errcode = 'serialization_failure',
                  hint = 'The transaction might succeed if retried.';
end
$$;
comment on function pgq._probe_keys(integer, text[]) is
'raises 40001 if one of these dedupe keys, which the snapshot shows as free, has been taken since: '
'the unique indexes know. The caller takes it back';

create function pgq._live_keys(p_queue_id integer, p_keys text[])
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_ids bigint[];
begin
    v_ids := array(
        select l.id
          from unnest(p_keys) with ordinality k (key, n)
          left join lateral (
                  select null::bigint as id where false
                  union all
                  select j.id from pgq.job_0 j
                   where j.dedupe_queue_id = p_queue_id
                     and j.dedupe_key = k.key collate "C"
                  union all
                  select j.id from pgq.job_1 j
                   where j.dedupe_queue_id = p_queue_id
                     and j.dedupe_key = k.key collate "C"
                  union all
                  select j.id from pgq.job_2 j
                   where j.dedupe_queue_id = p_queue_id
                     and j.dedupe_key = k.key collate "C"
                  union all
                  select j.id from pgq.job_3 j
                   where j.dedupe_queue_id = p_queue_id
                     and j.dedupe_key = k.key collate "C"
                  union all
                  select j.id from pgq.job_4 j
                   where j.dedupe_queue_id = p_queue_id
                     and j.dedupe_key = k.key collate "C"
                  union all
                  select j.id from pgq.job_5 j
                   where j.dedupe_queue_id = p_queue_id
                     and j.dedupe_key = k.key collate "C"
                  limit 1
               ) l on true
         order by k.n
    );
    perform pgq._probe_keys(
        p_queue_id,
        array(select k.key from unnest(p_keys, v_ids) k (key, id) where k.id is null)
    ) where not pgq._read_committed();
    -- Rolls back to here, so that no lock on a slot remains.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return v_ids;
end
$$;
comment on function pgq._live_keys(integer, text[]) is
'the live jobs that have these dedupe keys, or null, in the order of the keys; the caller has '
'locked them. 40001 if an old snapshot cannot tell';

create function pgq._held_keys(p_queue_id integer, p_keys text[], p_live bigint[])
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_queue pgq.queue;
    v_since timestamptz;
    v_ids bigint[] := p_live;
begin
    select q.* into v_queue from pgq.queue q where q.id = p_queue_id;
    if v_queue.dedupe_for = '0' then
        return p_live;
    end if;
    if not pgq._read_committed() then
        raise exception 'queue "%" holds dedupe keys, which needs READ COMMITTED', v_queue.name
            using errcode = 'active_sql_transaction',
                  detail = 'An older snapshot may not show what has completed.';
    end if;
    v_since := greatest(pgq._now() - v_queue.dedupe_for, v_queue.created_at);
    v_ids := array(
        select coalesce(k.id, a.id)
          from unnest(p_live, p_keys) with ordinality k (id, key, n)
          left join lateral (
                  select a.id from pgq.archive a
                   where k.id is null and a.queue = v_queue.name
                     and a.dedupe_key = k.key collate "C" and a.state = 'completed'
                     and a.finished_at > v_since
                   limit 1
               ) a on true
         order by k.n
    );
    -- As in pgq._live_keys.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return v_ids;
end
$$;
comment on function pgq._held_keys(integer, text[], bigint[]) is
'p_live (from pgq._live_keys), and in the place of null the jobs with these keys that completed '
'within dedupe_for. Looks after the live ones: a job that completes in between is found here';

create function pgq._replace(p_id bigint, p_payload jsonb, p_run_at timestamptz)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_job pgq.job := pgq._find_and_lock(p_id, false);
begin
    if v_job.id is null or v_job.token is not null then
        return v_job.id is not null;
    end if;
    select r.* into v_job from pgq._remove(v_job.slot, v_job.lane, array[v_job.id]) r;
    v_job.payload := p_payload;
    if not pgq._is_waiting(v_job) then
        perform pgq._park(v_job, coalesce(p_run_at, pgq._now()));
    else
        v_job.run_at := p_run_at;
        if v_job.wait is null and p_run_at is not null then
            perform pgq._wait(v_job);
        else
            insert into pgq.job select v_job.*;
        end if;
    end if;
    return true;
end
$$;
comment on function pgq._replace(bigint, jsonb, timestamptz) is
'gives a job that is not active another payload and time (null: now); waits for whoever is about '
'to claim or cancel it. false: it has ended';

create function pgq._replace_live(p_payloads jsonb[], p_run_at timestamptz, p_live bigint[])
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_old record;
begin
    for v_old in
        select distinct on (g.id) g.id, g.payload
          from unnest(p_live, p_payloads) with ordinality g (id, payload, n)
         where g.id is not null order by g.id, g.n desc
    loop
        if not pgq._replace(v_old.id, v_old.payload, p_run_at) then
            p_live := array_replace(p_live, v_old.id, null);
        end if;
    end loop;
    return p_live;
end
$$;
comment on function pgq._replace_live(jsonb[], timestamptz, bigint[]) is
'pgq._replace for live jobs, each with the last payload for it; null for those that have ended';

create function pgq._raise_duplicate(
    p_queue text, p_keys text[], p_taken bigint[], p_ids bigint[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_old record;
begin
    select g.id, g.key into v_old
      from (
               select u.*, min(u.n) over (partition by u.id) as first
                 from unnest(p_keys, p_taken, p_ids) with ordinality u (key, taken, id, n)
           ) g
     where g.taken is not null or g.n > g.first
     order by g.n
     limit 1;
    if found then
        raise exception 'queue "%" has a job with the dedupe key "%"', p_queue, v_old.key
            using errcode = 'unique_violation',
                  detail = format('It is job %s.', v_old.id);
    end if;
end
$$;
comment on function pgq._raise_duplicate(text, text[], bigint[], bigint[]) is
'raises 23505 if a key was taken (p_taken) or is there twice';

/*
 * Waking workers that sleep. A NOTIFY takes a lock at commit that all who notify share, so none is
 * sent unless somebody sleeps; see 38_sleep.sql.
 *
 * Who sleeps holds an advisory lock on the queue, in share mode (pgq_wait). Who adds a job tries to
 * take it in exclusive mode, and gives it back at once. That is only tried while awaited_until of
 * the lane, which is read anyway, lies in the future, or in a snapshot that may be old.
 *
 * A transaction that looked before the sleeper had the lock, and commits when it sleeps, holds a
 * lock on the slot that it has written to, or on the queues or schedules: pgq_wait looks for such,
 * and lets its caller come back soon while one that was there when it began to wait still is.
 */

-- The first key of the advisory locks of those who sleep; the second is the queue.

create function pgq._wake(p_queue_id integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- More than once: another session may be trying the same, which takes it a microsecond.
    for v_try in 1..3 loop
        if pg_try_advisory_lock(1885826917, p_queue_id) then
            perform pg_advisory_unlock(1885826917, p_queue_id);
            return;
        end if;
    end loop;
    -- A transaction that has notified cannot be prepared: at commit it is known whether it is.
    if current_setting('max_prepared_transactions') = '0'
        or current_setting('session_replication_role') = 'replica'
    then
        perform pg_notify(format('pgq_%s', p_queue_id), '');
    else
        insert into pgq.chore (wake) values (p_queue_id);
    end if;
end
$$;
comment on function pgq._wake(integer) is
'notifies those who sleep for jobs of a queue, if there are any, when the transaction commits';

create function pgq._wake_lane(p_lane integer, p_run_at timestamptz default null)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
begin
    perform pgq._wake(l.queue_id)
       from pgq.lane l
      where l.id = p_lane and (l.awaited_until > v_now or not pgq._read_committed())
        and coalesce(p_run_at < v_now + interval '1 minute', true);
end
$$;
comment on function pgq._wake_lane(integer, timestamptz) is
'pgq._wake for a job that has come (back) to a lane; also if it falls due before sleepers look by '
'themselves, so that they set their alarm';

/*
 * Follow-up work: jobs that wait until others have completed.
 *
 * pgq.dependency has a row for each pair. The job that is waited for is marked (is_awaited), so
 * that the completion of others costs nothing: theirs deletes the rows and notes who waited. When
 * the transaction commits, those of whom no row is left become ready, like the heads of groups (see
 * 38_group.sql) and by the same trigger: under a lock on a bucket, with a snapshot taken after it.
 * So the last of many that complete at once sees that it is the last.
 *
 * What waits is stored as in a group, with "wait" set, and has no group.
 */

create function pgq._check_after(p_after bigint[], p_on_dead text, p_group_keys text[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint;
begin
    if p_after is null then
        return;
    end if;
    perform pgq._check_array('after', p_after),
            pgq._check_not_null('after_on_dead', p_on_dead is null);
    if p_on_dead not in ('die', 'wait') then
        raise exception '"after_on_dead" must be die or wait, not "%"', p_on_dead
            using errcode = 'invalid_parameter_value';
    end if;
    if p_group_keys is not null then
        raise exception 'a job cannot have both "after" and a group key'
            using errcode = 'feature_not_supported',
                  hint = 'The order in a group is the order of the ids.';
    end if;
    if not pgq._read_committed() then
        raise exception '"after" needs the isolation level READ COMMITTED'
            using errcode = 'active_sql_transaction',
                  detail = 'An older snapshot does not show which jobs have ended.';
    end if;
    select a into v_id
      from unnest(p_after) a
     where a < 1 or a > coalesce(pg_sequence_last_value('pgq.job_id'), 0);
    if found then
        raise exception 'there is no job %', v_id
            using errcode = 'no_data_found';
    end if;
end
$$;
comment on function pgq._check_after(bigint[], text, text[]) is
'raises 22004, 22023, 0A000, 25001 or P0002; a null array passes';

create function pgq._mark_awaited(p_slot smallint, p_lane integer, p_id bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
    case p_slot
    when 0 then
        update pgq.job_0 j set is_awaited = true where j.lane = p_lane and j.id = p_id;
    when 1 then
        update pgq.job_1 j set is_awaited = true where j.lane = p_lane and j.id = p_id;
    when 2 then
        update pgq.job_2 j set is_awaited = true where j.lane = p_lane and j.id = p_id;
    when 3 then
        update pgq.job_3 j set is_awaited = true where j.lane = p_lane and j.id = p_id;
    when 4 then
        update pgq.job_4 j set is_awaited = true where j.lane = p_lane and j.id = p_id;
    when 5 then
        update pgq.job_5 j set is_awaited = true where j.lane = p_lane and j.id = p_id;
    end case;
end
$$;
comment on function pgq._mark_awaited(smallint, integer, bigint) is
'lets the end of a job, which this session has locked, look for those that wait for it';

create function pgq._may_await(p_id bigint)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_job constant pgq.job := pgq._find(p_id);
begin
    if v_job.id is not null then
        return pgq._may_lane(v_job.lane, 'enqueue');
    end if;
    return not exists (
        select from pgq.archive a left join pgq.queue q on q.name = a.queue
         where a.id = p_id and not pgq._may(q.id, 'enqueue')
    );
end
$$;
comment on function pgq._may_await(bigint) is
'whether the caller may know of a job, or there is none';

create function pgq._find_for_waiter(p_id bigint, out job pgq.job)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    loop
        job := pgq._find_and_lock(p_id, true);
        exit when job.id is not null;
        if exists (select from pgq.archive a where a.id = p_id and a.state <> 'completed') then
            -- Somebody may be about to retry it.
            select a.id into job.id
              from pgq.archive a where a.id = p_id and a.state <> 'completed' for key share;
            exit when job.id is not null;
        else
            -- Or has just done so.
            exit when (pgq._find(p_id)).id is null;
        end if;
    end loop;
end
$$;
comment on function pgq._find_for_waiter(bigint) is
'a live job, locked; the id alone of one that is dead or cancelled, which cannot be retried until '
'the transaction ends; null if it has completed or is not known';

create function pgq._await(p_after bigint[], out open bigint[], out is_hopeless boolean)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint;
    v_job pgq.job;
begin
    open := array[]::bigint[];
    is_hopeless := false;
    for v_id in select distinct a from unnest(p_after) a order by 1 loop
        continue when not ((session_user = current_user and current_setting('role') = 'none') or pgq._may_await(v_id));
        v_job := pgq._find_for_waiter(v_id);
        continue when v_job.id is null;
        perform pgq._mark_awaited(v_job.slot, v_job.lane, v_id)
          where v_job.slot is not null and v_job.is_awaited is null;
        open := open || v_id;
        is_hopeless := is_hopeless or v_job.slot is null;
    end loop;
end
$$;
comment on function pgq._await(bigint[]) is
'those of these jobs that have not completed, marked as awaited; waits for whoever is about to '
'claim or end one. Those of queues that the caller may not enqueue into are not known. '
'is_hopeless: one of them is dead';

create function pgq._note_waiters(p_job_ids bigint[], p_lanes integer[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_noted constant text := nullif(current_setting('pgq.waiters', true), '');
begin
    if p_job_ids is null then
        return;
    end if;
    if length(v_noted) > 1000000 then
        insert into pgq.waiter_hint (job_id, lane) select * from unnest(p_job_ids, p_lanes);
        return;
    end if;
    perform set_config(
        'pgq.waiters',
        concat_ws(',', v_noted, (
            select string_agg(w.id || ',' || w.lane, ',')
              from unnest(p_job_ids, p_lanes) w (id, lane)
        )),
        true
    );
    perform pgq._queue_event() where v_noted is null;
end
$$;
comment on function pgq._note_waiters(bigint[], integer[]) is
'called with jobs that waited for one which has completed or (with a minus) died: they are looked '
'at when the transaction commits';

create function pgq._add_dependencies(
    p_job_ids bigint[], p_lane integer, p_open bigint[], p_is_hopeless boolean, p_on_dead text
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgq.dependency (on_id, job_id, lane, on_dead)
    select o, j, p_lane, p_on_dead from unnest(p_job_ids) j, unnest(p_open) o;
    perform pgq._note_waiters(array_agg(-j), array_agg(p_lane))
       from unnest(p_job_ids) j where p_is_hopeless and p_on_dead = 'die';
end
$$;
comment on function
    pgq._add_dependencies(bigint[], integer, bigint[], boolean, text) is
'lets jobs that have just been added, waiting, wait for those that pgq._await has returned';

/*
 * What happens to waiting jobs when one that they wait for has ended: see 38_after.sql.
 *
 * Nobody waits for an open transaction: rows of pgq.dependency that others have locked are left
 * alone. If the other one completes the job that was waited for, it deletes the row. If it cancels
 * the job that waits, the row is looked at again by the ticks, until it is gone.
 */

create function pgq._release_waiters(p_ids bigint[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_waiters bigint[]; v_lanes integer[];
begin
    with done as (
        delete from pgq.dependency d
         where d.ctid = any (array(
                   select o.ctid from pgq.dependency o
                    where o.on_id = any (p_ids) for update skip locked
               ))
        returning d.job_id, d.lane
    )
    select array_agg(d.job_id), array_agg(d.lane) into v_waiters, v_lanes
      from (select distinct d.job_id, d.lane from done d) d;
    perform pgq._note_waiters(v_waiters, v_lanes);
    insert into pgq.waiter_hint (job_id, lane)
    select i, 0 from unnest(p_ids) i
     where exists (select from pgq.dependency d where d.on_id = i);
end
$$;
comment on function pgq._release_waiters(bigint[]) is
'notes those who wait for jobs that have completed, and that they wait for those no more';

create function pgq._forsake_waiters(p_ids bigint[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
    perform pgq._note_waiters(array_agg(-d.job_id), array_agg(d.lane))
       from (select distinct d.job_id, d.lane from pgq.dependency d
              where d.on_id = any (p_ids) and d.on_dead = 'die') d;
end
$$;
comment on function pgq._forsake_waiters(bigint[]) is
'notes those who do not want to wait for jobs that are dead';

create function pgq._drop_dependencies(p_job_ids bigint[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
    delete from pgq.dependency d
     where d.ctid = any (array(
               select o.ctid from pgq.dependency o
                where o.job_id = any (p_job_ids) for update skip locked
           ));
end
$$;
comment on function pgq._drop_dependencies(bigint[]) is 'these jobs wait for nobody any more';

create function pgq._note_awaited(p_jobs pgq.job[], p_completed boolean)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_awaited constant bigint[] := array(select j.id from unnest(p_jobs) j where j.is_awaited);
begin
    perform pgq._drop_dependencies(array(
        select j.id from unnest(p_jobs) j where j.wait is not null and j.group_id is null
    ));
    if v_awaited = '{}' then
        return;
    end if;
    if not pgq._read_committed() then
        -- The snapshot may not show all who wait.
        insert into pgq.waiter_hint (job_id, lane)
        select case when p_completed then a else -a end, 0 from unnest(v_awaited) a;
    elsif p_completed then
        perform pgq._release_waiters(v_awaited);
    else
        perform pgq._forsake_waiters(v_awaited);
    end if;
end
$$;
comment on function pgq._note_awaited(pgq.job[], boolean) is
'called with jobs that have ended: whoever waited for one is noted, and they wait for nobody';

create function pgq._kill_waiter(p_job_id bigint, p_lane integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_slot smallint;
    v_job pgq.job := pgq._find(p_job_id);
begin
    if v_job.wait is null or v_job.group_id is not null then
        perform pgq._drop_dependencies(array[p_job_id]);
        return;
    end if;
    -- Anybody may write the setting that notes them, and the dead one may have been retried since.
    if v_job.lane <> p_lane or not exists (
        select from pgq.dependency d
         where d.job_id = p_job_id and d.on_dead = 'die' and (pgq._find(d.on_id)).id is null
    ) then
        return;
    end if;
    v_slot := v_job.slot;
    v_job := pgq._lock(v_slot, p_lane, p_job_id, true);
    if v_job.id is null then
        insert into pgq.waiter_hint (job_id, lane) values (-p_job_id, p_lane);
        return;
    end if;
    perform from pgq._remove(v_slot, p_lane, array[p_job_id]);
    perform pgq._put_back(v_job, null, 'a job that it was to run after is dead', false);
end
$$;
comment on function pgq._kill_waiter(bigint, integer) is
'makes a waiting job dead, now or (somebody has it locked) at the next tick';

create function pgq._turn_waiters(p_job_ids bigint[], p_lanes integer[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_ids bigint[]; v_lanes integer[];
    v_now timestamptz;
    v_ready record;
begin
    perform pgq._kill_waiter(-w.id, w.lane)
       from (select distinct w.* from unnest(p_job_ids, p_lanes) w (id, lane) where w.id < 0) w;
    select array_agg(w.id), array_agg(w.lane)
      into v_ids, v_lanes
      from (select distinct w.* from unnest(p_job_ids, p_lanes) w (id, lane)) w
     where w.id > 0 and not exists (select from pgq.dependency d where d.job_id = w.id);
    v_now := pgq._open_slot(4::smallint);
    for v_ready in with ready as (
        update pgq.job_4 j
           set wait = null, due = pgq._due(greatest(j.run_at, v_now), j.id)
         where j.ctid = any (array(
                   select i.ctid from unnest(v_ids, v_lanes) w (id, lane), lateral (
                       select o.ctid from pgq.job_4 o
                        where o.lane = w.lane and o.id = w.id and o.wait is not null
                          and o.group_id is null
                          for update skip locked
                   ) i
               ))
        returning j.lane, j.due
    )
    select r.lane, min(r.due) as due from ready r group by r.lane
    loop
        perform pgq._admit(4::smallint, v_ready.lane, v_ready.due);
        perform pgq._wake_lane(v_ready.lane);
    end loop;
    v_now := pgq._open_slot(5::smallint);
    for v_ready in with ready as (
        update pgq.job_5 j
           set wait = null, due = pgq._due(greatest(j.run_at, v_now), j.id)
         where j.ctid = any (array(
                   select i.ctid from unnest(v_ids, v_lanes) w (id, lane), lateral (
                       select o.ctid from pgq.job_5 o
                        where o.lane = w.lane and o.id = w.id and o.wait is not null
                          and o.group_id is null
                          for update skip locked
                   ) i
               ))
        returning j.lane, j.due
    )
    select r.lane, min(r.due) as due from ready r group by r.lane
    loop
        perform pgq._admit(5::smallint, v_ready.lane, v_ready.due);
        perform pgq._wake_lane(v_ready.lane);
    end loop;
    -- Somebody is about to cancel, replace or move them.
    insert into pgq.waiter_hint (job_id, lane)
    select w.id, w.lane
      from unnest(v_ids, v_lanes) w (id, lane), lateral (
               select j.id from pgq.job_4 j
                where j.lane = w.lane and j.id = w.id and j.wait is not null
                  and j.group_id is null
               union all
               select j.id from pgq.job_5 j
                where j.lane = w.lane and j.id = w.id and j.wait is not null
                  and j.group_id is null
               union all
               select null where false
           ) j;
end
$$;
comment on function pgq._turn_waiters(bigint[], integer[]) is
'makes those of these waiting jobs ready, or dead, of which it is time; their buckets are locked';

create function pgq._take_waiter_hints()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_locked bigint[];
    v_ids bigint[]; v_lanes integer[];
begin
    v_locked := array(
        select l from pgq._lock_groups(
            array(select distinct abs(h.job_id) from pgq.waiter_hint h limit 1000), true
        ) l
    );
    if v_locked = '{}' then
        return;
    end if;
    with taken as (
        delete from pgq.waiter_hint h where abs(h.job_id) = any (v_locked) returning h.*
    )
    select array_agg(t.job_id), array_agg(t.lane) into v_ids, v_lanes from taken t;
    perform pgq._turn_waiters(
        array_agg(w.id) filter (where w.lane <> 0), array_agg(w.lane) filter (where w.lane <> 0)
    ) from unnest(v_ids, v_lanes) w (id, lane);
    perform pgq._release_waiters(array(
        select w.id from unnest(v_ids, v_lanes) w (id, lane) where w.lane = 0 and w.id > 0
    ));
    perform pgq._forsake_waiters(array(
        select -w.id from unnest(v_ids, v_lanes) w (id, lane) where w.lane = 0 and w.id < 0
    ));
end
$$;
comment on function pgq._take_waiter_hints() is
'for ticks: waiting jobs that could not be looked at when a transaction committed';

/*
 * Groups: at most group_concurrency jobs of a group may be claimed at a time, in id order.
 *
 * Those that may be are its heads: jobs like any other. The followers wait in a parked slot, where
 * no claim looks. Whether a job is a head is decided at COMMIT, for those that enqueue as for those
 * that complete, under a lock on the group's bucket: so it is held for no longer than a commit
 * takes, each decision sees those before it, and neither waits for anybody's open transaction.
 *
 * A transaction notes the groups of the jobs that it adds and of the heads that it ends. The first
 * note queues the event of a deferred trigger, which locks the buckets of all, in one order. Where
 * that cannot be (PREPARE TRANSACTION, REPEATABLE READ, a second round in one transaction, very
 * many groups) a hint is left for the next tick.
 *
 * How a job of a group (group_id is not null) is stored:
 *   waiting  "wait" is set: its place in the group, the id unless it came late
 *   new      lease_expires_at is infinity, due is the id of the transaction that enqueues it; in
 *            the ring, until the commit
 *   head     otherwise
 */

create function pgq._group_id(p_queue_id integer, p_group_key text)
returns bigint
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return hashtextextended(p_group_key collate "C", p_queue_id);
end
$$;
comment on function pgq._group_id(integer, text) is
'what stands for a group; two groups with the same hash take turns';

create function pgq._is_waiting(p_job pgq.job)
returns boolean
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return p_job.wait is not null or coalesce(p_job.lease_expires_at = 'infinity', false);
end
$$;
comment on function pgq._is_waiting(pgq.job) is 'whether a job of a group is new or waiting';

-- Of the queue of p_at. A lane in which nothing was claimed has none: then it is 0.

create function pgq._idle_groups(p_at pgq.target, p_group_ids bigint[])
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_idle bigint[] := p_group_ids;
begin
    case p_at.parked
    when 4 then
        v_idle := array(
            select g from unnest(v_idle) g
             where (
                       select j.id from pgq.job_4 j
                        where j.group_id = g and j.wait is null and j.due > (select min(coalesce((
                                  select f.base from pgq.floor_4 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)) from pgq.lane l where l.queue_id = p_at.queue_id)
                        order by j.due desc limit 1
                   ) is null
        );
    when 5 then
        v_idle := array(
            select g from unnest(v_idle) g
             where (
                       select j.id from pgq.job_5 j
                        where j.group_id = g and j.wait is null and j.due > (select min(coalesce((
                                  select f.base from pgq.floor_5 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)) from pgq.lane l where l.queue_id = p_at.queue_id)
                        order by j.due desc limit 1
                   ) is null
        );
    end case;
    if v_idle = '{}' then
        return v_idle;
    end if;
    case p_at.slot
    when 0 then
        v_idle := array(
            select g from unnest(v_idle) g
             where (
                       select j.id from pgq.job_0 j
                        where j.group_id = g and j.id > (select min(coalesce((
                                  select f.base from pgq.floor_0 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)) from pgq.lane l where l.queue_id = p_at.queue_id) order by j.id desc limit 1
                   ) is null
        );
    when 1 then
        v_idle := array(
            select g from unnest(v_idle) g
             where (
                       select j.id from pgq.job_1 j
                        where j.group_id = g and j.id > (select min(coalesce((
                                  select f.base from pgq.floor_1 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)) from pgq.lane l where l.queue_id = p_at.queue_id) order by j.id desc limit 1
                   ) is null
        );
    when 2 then
        v_idle := array(
            select g from unnest(v_idle) g
             where (
                       select j.id from pgq.job_2 j
                        where j.group_id = g and j.id > (select min(coalesce((
                                  select f.base from pgq.floor_2 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)) from pgq.lane l where l.queue_id = p_at.queue_id) order by j.id desc limit 1
                   ) is null
        );
    when 3 then
        v_idle := array(
            select g from unnest(v_idle) g
             where (
                       select j.id from pgq.job_3 j
                        where j.group_id = g and j.id > (select min(coalesce((
                                  select f.base from pgq.floor_3 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)) from pgq.lane l where l.queue_id = p_at.queue_id) order by j.id desc limit 1
                   ) is null
        );
    end case;
    if v_idle = '{}' then
        return v_idle;
    end if;
    case p_at.parked  -- last, because of the dead entries of all that have waited
    when 4 then
        v_idle := array(
            select g from unnest(v_idle) g
             where (
                       select j.id from pgq.job_4 j
                        where j.group_id = g and j.wait is not null order by j.wait desc limit 1
                   ) is null
        );
    when 5 then
        v_idle := array(
            select g from unnest(v_idle) g
             where (
                       select j.id from pgq.job_5 j
                        where j.group_id = g and j.wait is not null order by j.wait desc limit 1
                   ) is null
        );
    end case;
    return v_idle;
end
$$;
comment on function pgq._idle_groups(pgq.target, bigint[]) is
'those of these groups that have no live job in the slots to which this transaction writes anyway. '
'It says where a new one is put, not what becomes of it: in a group that is busy elsewhere one job '
'is moved at its commit, and is seen then';

create function pgq._queue_event()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if extract(epoch from clock_timestamp())::bigint / 10 % 2 = 0 then
        insert into pgq.group_event_0 default values;
    else
        insert into pgq.group_event_1 default values;
    end if;
end
$$;
comment on function pgq._queue_event() is
'queues pgq._at_group_commit for the commit of this transaction';

create function pgq._note_groups(
    p_group_ids bigint[], p_places bigint[], p_slots smallint[], p_lanes integer[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_noted constant text := nullif(current_setting('pgq.groups', true), '');
begin
    if p_group_ids is null then
        return;
    end if;
    if length(v_noted) > 1000000 then
        insert into pgq.group_hint (group_id, id) select * from unnest(p_group_ids, p_places);
        return;
    end if;
    perform set_config(
        'pgq.groups',
        concat_ws(
            ';', v_noted,
            concat_ws('|', array_to_string(p_group_ids, ','), array_to_string(p_places, ','),
                      array_to_string(p_slots, ','), array_to_string(p_lanes, ','))
        ),
        true
    );
    perform pgq._queue_event() where v_noted is null;
end
$$;
comment on function pgq._note_groups(bigint[], bigint[], smallint[], integer[]) is
'called with groups that are to be looked at when the transaction commits, each once: to which '
'jobs were added, from which place on, and where the first one is if it is new (-2: they wait); or '
'(slot -1) of which a head has ended, and its id';

create function pgq._note_ended(p_jobs pgq.job[], p_completed boolean default false)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_groups bigint[]; v_places bigint[]; v_slots smallint[]; v_lanes integer[];
    v_awaited boolean;
begin
    select array_agg(g.group_id) filter (where g.group_id is not null),
           array_agg(g.id) filter (where g.group_id is not null),
           array_agg(smallint '-1') filter (where g.group_id is not null),
           array_agg(0) filter (where g.group_id is not null), bool_or(g.awaited)
      into v_groups, v_places, v_slots, v_lanes, v_awaited
      from (select j.group_id, min(j.id) as id,
                   bool_or(j.is_awaited or j.wait is not null) as awaited
              from unnest(p_jobs) j group by j.group_id) g;
    if v_groups is not null then
        perform pgq._note_groups(v_groups, v_places, v_slots, v_lanes);
    end if;
    if v_awaited then
        perform pgq._note_awaited(p_jobs, p_completed);
    end if;
end
$$;
comment on function pgq._note_ended(pgq.job[], boolean) is
'called with jobs that have ended, or wait now: notes their groups and those that wait for them';

create function pgq._lift_blocks(p_job_ids bigint[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_group bigint;
    v_groups bigint[];
begin
    for v_group in
        delete from pgq.group_block b where b.job_id = any (p_job_ids) returning b.group_id
    loop
        v_groups := v_groups || v_group;
    end loop;
    perform pgq._note_groups(
                array_agg(g), array_agg(bigint '0'), array_agg(smallint '-1'), array_agg(0)
            )
       from (select distinct g from unnest(v_groups) g) g (g);
end
$$;
comment on function pgq._lift_blocks(bigint[]) is
'lets groups go on that were blocked by these dead jobs';

create function pgq._wait(p_job pgq.job)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    select r.parked[cardinality(r.parked)] into p_job.slot
      from pgq.ring r order by r.gen desc limit 1;
    p_job.wait := p_job.id;
    p_job.due := null;
    p_job.lease_expires_at := null;
    insert into pgq.job select p_job.*;
end
$$;
comment on function pgq._wait(pgq.job) is
'puts a job that has just been deleted from pgq.job or pgq.archive behind those of its group';

/*
 * Looking at, and changing, the jobs of groups, of which the buckets are locked.
 */

create function pgq._waiting(
    p_group_ids bigint[], p_places bigint[], p_slots smallint[], p_lanes integer[]
)
returns setof pgq.turn
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    return query
    select g.id, g.place, g.slot, case when g.slot < 0 then w.slot else g.slot end,
           case when g.slot < 0 then w.lane else g.lane end,
           case when g.slot < 0 then w.id else g.place end,
           case when g.slot < 0 then w.at else g.place end, w.id is not null
      from unnest(p_group_ids, p_places, p_slots, p_lanes) g (id, place, slot, lane)
      left join lateral (
               select u.*
                 from (
                          (select 4::smallint as slot, j.lane, j.id, j.wait as at
                             from pgq.job_4 j
                            where j.group_id = g.id and j.wait >= g.place
                            order by j.wait, j.id limit 1)
                          union all
                          (select 5::smallint as slot, j.lane, j.id, j.wait as at
                             from pgq.job_5 j
                            where j.group_id = g.id and j.wait >= g.place
                            order by j.wait, j.id limit 1)
                          union all
                          select null, null, null, null where false
                      ) u
                order by u.at, u.id limit 1
           ) w on true
     where g.slot >= 0
        or (w.id is not null and (g.slot <> -2 or (
               select j.id from pgq.job_4 j
                where j.group_id = g.id and j.wait < g.place order by j.wait desc, j.id desc limit 1
           ) is null and (
               select j.id from pgq.job_5 j
                where j.group_id = g.id and j.wait < g.place order by j.wait desc, j.id desc limit 1
           ) is null and (
               select null
           ) is null));
end
$$;
comment on function pgq._waiting(bigint[], bigint[], smallint[], integer[]) is
'those of these groups to which a new job was added, or in which jobs wait in a place from '
'p_places on: before it may lie the dead index entries of thousands. Where only jobs were added '
'that wait (p_slots: -2) behind another one, nothing is to be done';

create function pgq._heads(p_queue_id integer, p_group_ids bigint[])
returns table (group_id bigint, heads bigint, last bigint, hint bigint)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    -- In one snapshot, taken when all slots are locked: heads are moved meanwhile.
    return query
    select g.id, h.*, (select min(o.id) from pgq.group_hint o where o.group_id = g.id)
      from (
               select 0
                      , (
                          select min(coalesce((
                                  select f.base from pgq.floor_0 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)) from pgq.lane l where l.queue_id = p_queue_id
                      ) as base_0
                      , (
                          select min(coalesce((
                                  select f.base from pgq.floor_1 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)) from pgq.lane l where l.queue_id = p_queue_id
                      ) as base_1
                      , (
                          select min(coalesce((
                                  select f.base from pgq.floor_2 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)) from pgq.lane l where l.queue_id = p_queue_id
                      ) as base_2
                      , (
                          select min(coalesce((
                                  select f.base from pgq.floor_3 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)) from pgq.lane l where l.queue_id = p_queue_id
                      ) as base_3
                      , (
                          select min(coalesce((
                                  select f.base from pgq.floor_4 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)) from pgq.lane l where l.queue_id = p_queue_id
                      ) as base_4
                      , (
                          select min(coalesce((
                                  select f.base from pgq.floor_5 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)) from pgq.lane l where l.queue_id = p_queue_id
                      ) as base_5
           ) b,
           unnest(p_group_ids) g (id), lateral (
               select count(*), max(j.id)
                 from (
                          select j.id from pgq.job_0 j
                           where j.group_id = g.id and j.id > b.base_0
                             and j.lease_expires_at is distinct from 'infinity' and (select pg_relation_size('pgq.job_0') > 0)
                          union all
                          select j.id from pgq.job_1 j
                           where j.group_id = g.id and j.id > b.base_1
                             and j.lease_expires_at is distinct from 'infinity' and (select pg_relation_size('pgq.job_1') > 0)
                          union all
                          select j.id from pgq.job_2 j
                           where j.group_id = g.id and j.id > b.base_2
                             and j.lease_expires_at is distinct from 'infinity' and (select pg_relation_size('pgq.job_2') > 0)
                          union all
                          select j.id from pgq.job_3 j
                           where j.group_id = g.id and j.id > b.base_3
                             and j.lease_expires_at is distinct from 'infinity' and (select pg_relation_size('pgq.job_3') > 0)
                          union all
                          select j.id from pgq.job_4 j
                           where j.group_id = g.id and j.wait is null and j.due > b.base_4
                             and (select pg_relation_size('pgq.job_4') > 0)
                          union all
                          select j.id from pgq.job_5 j
                           where j.group_id = g.id and j.wait is null and j.due > b.base_5
                             and (select pg_relation_size('pgq.job_5') > 0)
                          union all
                          select null where false
                      ) j
           ) h;
end
$$;
comment on function pgq._heads(integer, bigint[]) is
'how many heads each of these groups of a queue has, and the highest id of them. hint: from which '
'place on somebody has left the group to the next tick, who may have ended a head';

create function pgq._next_heads(
    p_group_ids bigint[], p_places bigint[], p_slots smallint[], p_lanes integer[]
)
returns table (
    group_id bigint, place bigint, slot smallint, lane integer, id bigint, is_next boolean
)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
declare
    v_turns constant pgq.turn[] := array(
        select w from pgq._waiting(p_group_ids, p_places, p_slots, p_lanes) w
    );
begin
    if v_turns = '{}' then
        return;
    end if;
    return query
    with turn as materialized (
        select t.*, l.queue_id
          from unnest(v_turns) t left join pgq.lane l on l.id = t.lane
    ), decided as (
        select t.*, h.heads, coalesce(h.last, 0) as last, h.hint,
               case when exists (select from pgq.group_block b where b.group_id = t.group_id)
                    then 0 else q.group_concurrency end as most
          from turn t
          left join (
                   select h.*
                     from (
                              select o.queue_id, array_agg(o.group_id) as ids
                                from turn o where o.noted < 4 group by o.queue_id
                          ) o, pgq._heads(o.queue_id, o.ids) h
               ) h on h.group_id = t.group_id
          left join pgq.queue q on q.id = t.queue_id
    )
    select d.group_id, least(d.place, d.hint), d.slot, d.lane, d.id,
           d.noted < 4 and d.hint is null and d.at >= d.last
           and (d.heads = d.most - 1 or (d.heads < d.most and not d.is_followed))
      from decided d
     where d.noted >= 0 or d.heads < d.most or d.at < d.last or d.hint is not null;
end
$$;
comment on function pgq._next_heads(bigint[], bigint[], smallint[], integer[]) is
'those of these groups in which something is to be done, with the job that is next; is_next: it '
'can be claimed, and nothing else is to be done';

create function pgq._follower(
    p_group_id bigint, p_from bigint, p_new_first boolean, out slot smallint, out lane integer,
    out id bigint, out place bigint, out by_xid bigint
)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    select f.* into slot, lane, id, place, by_xid
      from (
               select 0::smallint, j.lane, j.id, j.id as place, j.due from pgq.job_0 j
                where j.group_id = p_group_id and j.lease_expires_at = 'infinity'
               union all
               select 1::smallint, j.lane, j.id, j.id as place, j.due from pgq.job_1 j
                where j.group_id = p_group_id and j.lease_expires_at = 'infinity'
               union all
               select 2::smallint, j.lane, j.id, j.id as place, j.due from pgq.job_2 j
                where j.group_id = p_group_id and j.lease_expires_at = 'infinity'
               union all
               select 3::smallint, j.lane, j.id, j.id as place, j.due from pgq.job_3 j
                where j.group_id = p_group_id and j.lease_expires_at = 'infinity'
               union all
               (select 4::smallint, j.lane, j.id, j.wait as place, null from pgq.job_4 j
                 where j.group_id = p_group_id and j.wait >= p_from order by j.wait, j.id limit 1)
               union all
               (select 5::smallint, j.lane, j.id, j.wait as place, null from pgq.job_5 j
                 where j.group_id = p_group_id and j.wait >= p_from order by j.wait, j.id limit 1)
               union all
               select null, null, null, null, null where false
           ) f
     order by p_new_first and f.due is null, f.place, f.id
     limit 1;
end
$$;
comment on function pgq._follower(bigint, bigint, boolean) is
'the new or waiting job of a group that is next; of the waiting ones, in a place from p_from on: '
'before it may lie the dead index entries of thousands. p_new_first: if there is a new one, that. '
'by_xid: who enqueues it, if it is new';

create function pgq._make_heads(p_slot smallint, p_lane integer, p_ids bigint[])
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_xid constant bigint := pg_current_xact_id()::text::bigint;
    v_ids bigint[];
    v_due bigint;
begin
    case p_slot
    when 0 then
        with made as (
            update pgq.job_0 j set due = null, lease_expires_at = null
              from unnest(p_ids) n (id), lateral (
                       select i.ctid from pgq.job_0 i
                        where i.lane = p_lane and i.id = n.id
                          and i.lease_expires_at = 'infinity' and i.due = v_xid
                          for update skip locked
                   ) i
             where j.ctid = i.ctid
            returning j.id
        )
        select array_agg(m.id) into v_ids from made m;
    when 1 then
        with made as (
            update pgq.job_1 j set due = null, lease_expires_at = null
              from unnest(p_ids) n (id), lateral (
                       select i.ctid from pgq.job_1 i
                        where i.lane = p_lane and i.id = n.id
                          and i.lease_expires_at = 'infinity' and i.due = v_xid
                          for update skip locked
                   ) i
             where j.ctid = i.ctid
            returning j.id
        )
        select array_agg(m.id) into v_ids from made m;
    when 2 then
        with made as (
            update pgq.job_2 j set due = null, lease_expires_at = null
              from unnest(p_ids) n (id), lateral (
                       select i.ctid from pgq.job_2 i
                        where i.lane = p_lane and i.id = n.id
                          and i.lease_expires_at = 'infinity' and i.due = v_xid
                          for update skip locked
                   ) i
             where j.ctid = i.ctid
            returning j.id
        )
        select array_agg(m.id) into v_ids from made m;
    when 3 then
        with made as (
            update pgq.job_3 j set due = null, lease_expires_at = null
              from unnest(p_ids) n (id), lateral (
                       select i.ctid from pgq.job_3 i
                        where i.lane = p_lane and i.id = n.id
                          and i.lease_expires_at = 'infinity' and i.due = v_xid
                          for update skip locked
                   ) i
             where j.ctid = i.ctid
            returning j.id
        )
        select array_agg(m.id) into v_ids from made m;
    when 4 then
        -- A condition from which no plan can tell that the partial index on wait will do.
        with made as (
            update pgq.job_4 j
               set wait = null, lease_expires_at = null,
                   due = pgq._due(greatest(j.run_at, pgq._now()), j.id)
              from unnest(p_ids) n (id), lateral (
                       select i.ctid from pgq.job_4 i
                        where i.lane = p_lane and i.id = n.id and coalesce(i.wait, -1) >= 0
                          for update skip locked
                   ) i
             where j.ctid = i.ctid
            returning j.id, j.due
        )
        select array_agg(m.id), min(m.due) into v_ids, v_due from made m;
        perform pgq._admit(4::smallint, p_lane, v_due), pgq._wake_lane(p_lane)
          where v_due is not null;
    when 5 then
        -- A condition from which no plan can tell that the partial index on wait will do.
        with made as (
            update pgq.job_5 j
               set wait = null, lease_expires_at = null,
                   due = pgq._due(greatest(j.run_at, pgq._now()), j.id)
              from unnest(p_ids) n (id), lateral (
                       select i.ctid from pgq.job_5 i
                        where i.lane = p_lane and i.id = n.id and coalesce(i.wait, -1) >= 0
                          for update skip locked
                   ) i
             where j.ctid = i.ctid
            returning j.id, j.due
        )
        select array_agg(m.id), min(m.due) into v_ids, v_due from made m;
        perform pgq._admit(5::smallint, p_lane, v_due), pgq._wake_lane(p_lane)
          where v_due is not null;
    end case;
    return coalesce(v_ids, '{}');
end
$$;
comment on function pgq._make_heads(smallint, integer, bigint[]) is
'lets jobs be claimed that wait, or are new and of this transaction, which is looked at (anybody '
'may write the setting that notes them), and returns those that nobody is about to cancel or '
'replace';

create function pgq._come_late(p_group_id bigint, p_from bigint, p_place bigint)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
    update pgq.job_4 j set wait = p_place
     where j.ctid = any (array(
               select i.ctid from pgq.job_4 i
                where i.group_id = p_group_id and i.wait >= p_from and i.wait < p_place
                  for update skip locked
           ));
    update pgq.job_5 j set wait = p_place
     where j.ctid = any (array(
               select i.ctid from pgq.job_5 i
                where i.group_id = p_group_id and i.wait >= p_from and i.wait < p_place
                  for update skip locked
           ));
    return not exists (
        select
          from (
                   select j.id from pgq.job_4 j
                    where j.group_id = p_group_id and j.wait >= p_from and j.wait < p_place
                   union all
                   select j.id from pgq.job_5 j
                    where j.group_id = p_group_id and j.wait >= p_from and j.wait < p_place
                   union all
                   select null where false
               ) r
    );
end
$$;
comment on function pgq._come_late(bigint, bigint, bigint) is
'moves waiting jobs from before a place to it: whoever ends a head looks from its id on. false: '
'somebody is about to cancel or replace one of them';

/*
 * How a session goes to sleep. State between calls is in settings of the session: pgq.idle, since
 * when it has had nothing to do in each queue; pgq.waiting, the queues on which it holds the
 * advisory lock; pgq.writers, for whom it still waits (0 ends the list, so that none is not all).
 *
 * Who had something to do a moment ago lingers: it sleeps in naps, without the lock, and looks for
 * jobs after each. So while jobs keep coming nobody notifies, although consumers that keep up have
 * nothing to do again and again. The lock comes first and the look after it, as ever, so nothing
 * is lost when lingering ends.
 */

create function pgq._has_writers()
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_before constant integer[] := string_to_array(
        nullif(current_setting('pgq.writers', true), ''), ','
    )::integer[];
    -- To a slot; or they have resumed a queue or made a schedule.
    v_writers constant integer[] := array(
        -- Those of prepared transactions have no pid.
        select distinct coalesce(l.pid, -1)
          from pg_locks l
         where l.locktype = 'relation' and l.mode = 'RowExclusiveLock'
           and l.pid is distinct from pg_backend_pid()
           and l.database = (select d.oid from pg_database d where d.datname = current_database())
           and (l.relation in ('pgq.queue'::regclass, 'pgq.schedule'::regclass)
                or l.relation in (select i.inhrelid from pg_inherits i
                                   where i.inhparent = 'pgq.job'::regclass))
           and (v_before is null or coalesce(l.pid, -1) = any (v_before))
    );
begin
    perform set_config('pgq.writers', array_to_string(v_writers || array[0], ','), false);
    return v_writers <> '{}';
end
$$;
comment on function pgq._has_writers() is
'whether a session that was writing when others had just noticed that this one waits is not done';


-- In milliseconds: how long a session lingers, and how long it sleeps at a time meanwhile.

-- Jobs have been ready in the last calls, and could not be claimed. See pgq._pause_ms.

create function pgq._linger(p_queue_ids integer[], p_now timestamptz)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant bigint := pgq._ms(p_now);
    v_before constant jsonb := nullif(current_setting('pgq.idle', true), '')::jsonb;
    v_is_stuck constant boolean := (current_setting('pgq.ready', true) <> ''
     and current_setting('pgq.round', true)::integer > 12) is true;
    v_since constant bigint[] := array(
        select case when v_before is null then 0
                    else coalesce((v_before ->> u.id::text)::bigint, v_now) end
          from unnest(p_queue_ids) with ordinality u (id, n) order by u.n
    );
begin
    perform set_config(
        'pgq.idle', jsonb_object(p_queue_ids::text[], v_since::text[])::text, false
    );
    return array(
        select case when v_now - u.since between 0 and 40 - 1 and not v_is_stuck
                    then v_now - u.since end
          from unnest(v_since) with ordinality u (since, n) order by u.n
    );
end
$$;
comment on function pgq._linger(integer[], timestamptz) is
'for each of these queues, for how many milliseconds the session has had nothing to do there: '
'since the first call with it after pgq_wake, or after one without it. null: it need not linger, '
'because that is long, or it has not called pgq_wake yet, or it is stuck at a limit';

create function pgq._begin_wait(p_queue_ids integer[], p_now timestamptz)
returns timestamptz
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ids constant text := array_to_string(p_queue_ids, ',');
    v_noticed boolean;
begin
    if current_setting('pgq.waiting', true) is distinct from v_ids then
        perform set_config('pgq.waiting', '', false), set_config('pgq.writers', '', false);
        -- Also those of a call that failed, which has left its locks, not the setting.
        perform pg_advisory_unlock_shared(1885826917, l.objid::bigint::integer)
           from pg_locks l
          where l.locktype = 'advisory' and l.classid = 1885826917 and l.objsubid = 2
            and l.mode = 'ShareLock' and l.pid = pg_backend_pid()
            and l.database = (select d.oid from pg_database d where d.datname = current_database());
        perform pg_advisory_lock_shared(1885826917, i) from unnest(p_queue_ids) i;
        perform set_config('pgq.waiting', v_ids, false);
    end if;
    if p_queue_ids = '{}' then
        return null;
    end if;
    v_noticed := not exists (
        select from pgq.lane l
         where l.queue_id = any (p_queue_ids) and not coalesce(l.awaited_until > p_now, false)
    );
    -- Who writes meanwhile may not have noticed either.
    if not v_noticed then
        perform set_config('pgq.writers', '', false);
    end if;
    -- Seldom: to those who look for writers, this session is one then.
    if exists (select from pgq.lane l where l.queue_id = any (p_queue_ids) and not coalesce(l.awaited_until > p_now + interval '2 minutes', false)) then
        update pgq.lane l set awaited_until = p_now + interval '3 minutes'
         where l.ctid = any (array(
                   select l.ctid from pgq.lane l
                    where l.queue_id = any (p_queue_ids) and not coalesce(l.awaited_until > p_now + interval '2 minutes', false)
                      for no key update skip locked
               ));
    end if;
    return (
        select min(l.awaited_until) from pgq.lane l
         where l.queue_id = any (p_queue_ids) and v_noticed
    );
end
$$;
comment on function pgq._begin_wait(integer[], timestamptz) is
'lets others know that this session is going to sleep, and returns until when they look; null: '
'they may not yet';

/*
 * Which jobs of a group may be claimed: decided at COMMIT, see 38_group.sql.
 */

create function pgq._room(
    p_group_id bigint, p_lane integer, out size bigint, out heads bigint, out last bigint,
    out hint bigint
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    select q.group_concurrency::bigint, h.heads, coalesce(h.last, 0), h.hint
      into size, heads, last, hint
      from pgq.lane l
      join pgq.queue q on q.id = l.queue_id, pgq._heads(q.id, array[p_group_id]) h
     where l.id = p_lane;
    if exists (select from pgq.group_block b where b.group_id = p_group_id) then
        heads := size;
    end if;
end
$$;
comment on function pgq._room(bigint, integer) is
'how many heads a group may have, and pgq._heads; a blocked one is full';

create function pgq._turn_group(p_group_id bigint, p_from bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_xid constant bigint := pg_current_xact_id()::text::bigint;
    v_from bigint := p_from;
    v_is_full boolean := false;
    v_room record;
    v_job record;
begin
    loop
        v_job := pgq._follower(p_group_id, v_from, v_is_full);
        exit when v_job.id is null;
        -- One that was new when its transaction committed may lie below a floor.
        if v_job.by_xid <> v_xid
            and (pgq._lock(v_job.slot, v_job.lane, v_job.id, true)).id is null
        then
            insert into pgq.group_hint (group_id, id)
            values (p_group_id, least(v_from, v_job.place));
            exit;
        end if;
        if v_room is null then
            v_room := pgq._room(p_group_id, v_job.lane);
            -- Left since the bucket was locked, by one who has not locked it.
            if v_room.hint < v_from then
                v_from := v_room.hint;
                continue;
            end if;
        end if;
        if v_job.by_xid <> v_xid or (v_job.by_xid is not null and v_room.heads >= v_room.size) then
            perform pgq._wait(r)
               from pgq._remove(v_job.slot, v_job.lane, array[v_job.id]) r;
            v_from := least(v_from, v_job.id);
        elsif v_room.heads < v_room.size then
            if pgq._make_heads(v_job.slot, v_job.lane, array[v_job.id]) <> '{}' then
                v_room.heads := v_room.heads + 1;
                v_room.last := greatest(v_room.last, v_job.id);
            else
                -- Its followers wait with it for whoever is about to cancel or replace it.
                insert into pgq.group_hint (group_id, id) values (p_group_id, v_job.place);
                exit;
            end if;
        elsif not v_is_full then
            v_is_full := true;
        else
            if v_job.place < v_room.last
                and not pgq._come_late(p_group_id, v_from, v_room.last)
            then
                insert into pgq.group_hint (group_id, id) values (p_group_id, v_from);
            end if;
            exit;
        end if;
    end loop;
end
$$;
comment on function pgq._turn_group(bigint, bigint) is
'lets as many jobs of a group be claimed as may be, and new ones for which there is no room wait; '
'its bucket is locked. p_from: of the waiting jobs none lies before it';

create function pgq._lock_groups(p_group_ids bigint[], p_skip boolean)
returns setof bigint
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    if p_skip then
        return query
        select g.id
          from (select id, 16384 + (id & 16383)::integer as bucket from unnest(p_group_ids) id
                 order by 2) g,
               lateral (
                   select from pgq.bucket b where b.id = g.bucket for update skip locked
               ) b;
    else
        return query
        select g.id
          from (select id, 16384 + (id & 16383)::integer as bucket from unnest(p_group_ids) id
                 order by 2) g,
               lateral (select from pgq.bucket b where b.id = g.bucket for update) b;
    end if;
end
$$;
comment on function pgq._lock_groups(bigint[], boolean) is
'locks the buckets of groups and returns the groups; p_skip: those that can be had at once';

/*
 * All groups that a transaction has changed, at its commit; and those that are left to the ticks.
 */

create function pgq._turn_groups(
    p_group_ids bigint[], p_places bigint[], p_slots smallint[], p_lanes integer[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
declare
    v_next record;
    v_made bigint[];
begin
    for v_next in
        select n.is_next, n.slot, n.lane, array_agg(n.id) as ids,
               array_agg(n.group_id) as groups, array_agg(n.place) as places
          from pgq._next_heads(p_group_ids, p_places, p_slots, p_lanes) n
         group by n.is_next, n.slot, n.lane
    loop
        v_made := '{}';
        if v_next.is_next then
            v_made := pgq._make_heads(v_next.slot, v_next.lane, v_next.ids);
            continue when cardinality(v_made) = cardinality(v_next.ids);
        end if;
        perform pgq._turn_group(g.id, g.place)
           from unnest(v_next.groups, v_next.places, v_next.ids) g (id, place, job_id)
          where g.job_id <> all (v_made);
    end loop;
end
$$;
comment on function pgq._turn_groups(bigint[], bigint[], smallint[], integer[]) is
'pgq._turn_group for many groups: all at once where one job is next, one by one where more is to '
'be done';

create function pgq._merge_hints(
    p_group_ids bigint[], inout p_places bigint[], inout p_slots smallint[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_hint pgq.group_hint;
    v_n integer;
begin
    if not exists (select from pgq.group_hint) then
        return;
    end if;
    for v_hint in
        delete from pgq.group_hint h where h.group_id = any (p_group_ids) returning h.*
    loop
        v_n := array_position(p_group_ids, v_hint.group_id);
        p_places[v_n] := least(p_places[v_n], v_hint.id);
        p_slots[v_n] := greatest(p_slots[v_n], smallint '6');
    end loop;
end
$$;
comment on function pgq._merge_hints(bigint[], bigint[], smallint[]) is
'takes the hints for these groups, of which the buckets are locked: their places, if those are '
'lower, and that there may be a new job anywhere';

create function pgq._noted_groups(
    p_noted text, out ids bigint[], out places bigint[], out slots smallint[], out lanes integer[]
)
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_note constant text[] := string_to_array(p_noted, '|');
begin
    if strpos(p_noted, ';') = 0 then
        ids := string_to_array(v_note[1], ',')::bigint[];
        places := string_to_array(v_note[2], ',')::bigint[];
        slots := string_to_array(v_note[3], ',')::smallint[];
        lanes := string_to_array(v_note[4], ',')::integer[];
        return;
    end if;
    -- Noted more than once: each group once, from its lowest place, and with no new job known.
    select array_agg(g.id), array_agg(g.place), array_agg(smallint '6'), array_agg(0)
      into ids, places, slots, lanes
      from (
               select n.id, min(n.place) as place
                 from unnest(string_to_array(p_noted, ';')) o (note),
                      unnest(
                          string_to_array(split_part(o.note, '|', 1), ',')::bigint[],
                          string_to_array(split_part(o.note, '|', 2), ',')::bigint[]
                      ) n (id, place)
                group by n.id
           ) g;
end
$$;
comment on function pgq._noted_groups(text) is 'what pgq._note_groups has noted';

create function pgq._turn_noted()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_xid constant text := pg_current_xact_id()::text;
    v_noted constant text := nullif(current_setting('pgq.groups', true), '');
    v_noted_waiters constant text := nullif(current_setting('pgq.waiters', true), '');
    v_groups bigint[]; v_places bigint[]; v_slots smallint[]; v_lanes integer[];
    v_waiters bigint[]; v_waiter_lanes integer[];
begin
    if coalesce(v_noted, v_noted_waiters) is null then
        return;
    end if;
    perform set_config('pgq.groups', '', true), set_config('pgq.waiters', '', true);
    if v_noted is not null then
        select n.ids, n.places, n.slots, n.lanes into v_groups, v_places, v_slots, v_lanes
          from pgq._noted_groups(v_noted) n;
    end if;
    if v_noted_waiters is not null then
        select array_agg(w) filter (where n % 2 = 1), array_agg(w::integer) filter (where n % 2 = 0)
          into v_waiters, v_waiter_lanes
          from unnest(string_to_array(v_noted_waiters, ',')::bigint[]) with ordinality w (w, n);
    end if;
    if not pgq._read_committed() or pgq._is_preparing() or pg_trigger_depth() > 1
        or current_setting('pgq.grouped', true) is not distinct from v_xid
    then
        insert into pgq.group_hint (group_id, id)
        select g.id, g.place from unnest(v_groups, v_places) g (id, place);
        insert into pgq.waiter_hint (job_id, lane)
        select w.id, w.lane from unnest(v_waiters, v_waiter_lanes) w (id, lane);
        return;
    end if;
    perform set_config('pgq.grouped', v_xid, true);
    perform pgq._lock_groups(v_groups || array(select abs(w) from unnest(v_waiters) w), false);
    if v_groups is not null then
        perform pgq._turn_groups(v_groups, m.p_places, m.p_slots, v_lanes)
           from pgq._merge_hints(v_groups, v_places, v_slots) m;
    end if;
    if v_waiters is not null then
        perform pgq._turn_waiters(v_waiters, v_waiter_lanes);
    end if;
end
$$;
comment on function pgq._turn_noted() is
'decides which jobs may be claimed in the groups that this transaction has changed, and which of '
'those that waited for jobs which it has ended';

create function pgq._at_group_commit()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    -- As in pgq._at_commit: behind the deferred triggers of others, which may wait for somebody.
    if new.last then
        perform pgq._turn_noted();
    elsif tg_table_name = 'group_event_0' then
        insert into pgq.group_event_0 (last) values (true);
    else
        insert into pgq.group_event_1 (last) values (true);
    end if;
    return null;
end
$$;
comment on function pgq._at_group_commit() is 'runs pgq._turn_noted as the last deferred trigger';

create constraint trigger group_event_0_at_commit after insert on pgq.group_event_0
    deferrable initially deferred
    for each row execute function pgq._at_group_commit();
create constraint trigger group_event_1_at_commit after insert on pgq.group_event_1
    deferrable initially deferred
    for each row execute function pgq._at_group_commit();

-- Also for what a subscription applies.
alter table pgq.group_event_0 enable always trigger group_event_0_at_commit;
alter table pgq.group_event_1 enable always trigger group_event_1_at_commit;

create function pgq._clear_group_events()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if extract(epoch from clock_timestamp())::bigint / 10 % 2 = 1 then
        if pg_relation_size('pgq.group_event_0') > 0 then
            lock table pgq.group_event_0 in access exclusive mode nowait;
            truncate pgq.group_event_0;
        end if;
    elsif pg_relation_size('pgq.group_event_1') > 0 then
        lock table pgq.group_event_1 in access exclusive mode nowait;
        truncate pgq.group_event_1;
    end if;
exception
    when lock_not_available or object_in_use then
        return;
end
$$;
comment on function pgq._clear_group_events() is
'truncates that of the two tables of events that is not written these ten seconds';

create function pgq._take_hints()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_groups bigint[];
    v_hint record;
begin
    v_groups := array(
        select g from pgq._lock_groups(
            array(select distinct h.group_id from pgq.group_hint h limit 1000), true
        ) g
    );
    if v_groups = '{}' then
        return;
    end if;
    -- With a snapshot taken after the locks.
    for v_hint in
        with taken as (
            delete from pgq.group_hint h where h.group_id = any (v_groups) returning h.*
        )
        select t.group_id, min(t.id) as id from taken t group by t.group_id
    loop
        perform pgq._turn_group(v_hint.group_id, v_hint.id);
    end loop;
end
$$;
comment on function pgq._take_hints() is 'for ticks: groups that could not be turned at a commit';

/*
 * Enqueue with dedupe or group keys.
 */

create function pgq._check_keys(p_name text, p_keys text[], p_payloads jsonb[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_key text;
begin
    if p_keys is null then
        return;
    end if;
    perform pgq._check_array(p_name, p_keys);
    perform pgq._check_lengths(p_name, cardinality(p_keys), 'payloads', cardinality(p_payloads));
    select k into v_key from unnest(p_keys) k where length(k) not between 1 and 250;
    if found then
        raise exception 'a key in "%" must have 1 to 250 characters, not %', p_name, length(v_key)
            using errcode = 'invalid_parameter_value',
                  hint = 'A long key can be hashed, for example with sha256().';
    end if;
end
$$;
comment on function pgq._check_keys(text, text[], jsonb[]) is
'raises 22004 and 22023; a null array passes';

create function pgq._check_on_duplicate(p_value text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null('on_duplicate', p_value is null);
    if p_value not in ('keep', 'replace', 'error') then
        raise exception '"on_duplicate" must be keep, replace or error, not "%"', p_value
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
comment on function pgq._check_on_duplicate(text) is 'raises 22004 and 22023';

create function pgq._draw_ids(p_at pgq.target, p_number integer, p_grouped boolean)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._open_slot(p_at.slot);
    perform pgq._open_slot(p_at.parked) where p_grouped;
    return array(select nextval('pgq.job_id') from generate_series(1, p_number));
end
$$;
comment on function pgq._draw_ids(pgq.target, integer, boolean) is
'ids of jobs that are about to be inserted there; the slots are locked for writing first, for '
'p_grouped the parked one, too';

create function pgq._note_added(
    p_at pgq.target, p_ids bigint[], p_group_ids bigint[], p_waiting bigint[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._note_groups(
                array_agg(n.group_id), array_agg(n.id),
                array_agg(case when w.id is null then p_at.slot else smallint '-2' end),
                array_agg(p_at.lane)
            )
       from (select g.group_id, min(g.id) as id
               from unnest(p_group_ids, p_ids) g (group_id, id)
              where g.group_id is not null group by g.group_id) n
       left join unnest(p_waiting) w (id) on w.id = n.id;
end
$$;
comment on function pgq._note_added(pgq.target, bigint[], bigint[], bigint[]) is
'pgq._note_groups for jobs that have just been added, of which some wait';

create function pgq._add_keyed(
    p_at pgq.target, p_ids bigint[], p_payloads jsonb[], p_dedupe_keys text[], p_group_keys text[],
    p_max_attempts integer, p_headers jsonb, p_start_by timestamptz, p_after boolean
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_xid constant bigint := pg_current_xact_id()::text::bigint;
    v_waits constant boolean := p_at.run_at is not null or not pgq._read_committed();
    v_group_ids constant bigint[] := case when p_group_keys is not null then array(
        select pgq._group_id(p_at.queue_id, k) from unnest(p_group_keys) k
    ) end;
    v_idle bigint[];
    v_waiting bigint[];
begin
    if v_group_ids is not null and not v_waits then
        v_idle := pgq._idle_groups(p_at, array(select distinct g from unnest(v_group_ids) g));
    end if;
    v_waiting := array(
        select g.id
          from (select u.*, row_number() over (partition by u.group_id order by u.id) > 1 as later
                  from unnest(p_ids, v_group_ids) u (id, group_id)) g
          left join unnest(v_idle) i (id) on i.id = g.group_id
         where p_after or (g.group_id is not null and (i.id is null or g.later))
    );
    insert into pgq.job (
        id, enqueued_at, lane, slot, max_attempts, run_at, due, lease_expires_at, payload, headers,
        dedupe_key, dedupe_queue_id, group_key, group_id, wait, start_by
    )
    select g.id, v_now, p_at.lane, case when w.id is null then p_at.slot else p_at.parked end,
           p_max_attempts, p_at.run_at,
           case when w.id is not null then null
                when g.group_id is not null then v_xid
                when p_at.run_at is not null
                then pgq._due(greatest(p_at.run_at, v_now), g.id) end,
           case when g.group_id is not null and w.id is null then timestamptz 'infinity' end,
           g.payload, p_headers, g.key, case when g.key is not null then p_at.queue_id end,
           g.group_key, g.group_id, w.id, p_start_by
      from unnest(p_ids, p_payloads, p_dedupe_keys, p_group_keys, v_group_ids)
           g (id, payload, key, group_key, group_id)
      left join unnest(v_waiting) w (id) on w.id = g.id;
    perform pgq._note_added(p_at, p_ids, v_group_ids, v_waiting);
    perform pgq._wake_lane(p_at.lane, p_at.run_at)
      where p_at.is_awaited and not p_after and p_ids <> '{}';
end
$$;
comment on function
    pgq._add_keyed(
        pgq.target, bigint[], jsonb[], text[], text[], integer, jsonb, timestamptz, boolean
    ) is
'inserts jobs with drawn ids where pgq._target says (p_at); notes their groups. p_after: they wait '
'for jobs';

create function pgq._enqueue_grouped(p_at pgq.target, p_payloads jsonb[], p_group_keys text[])
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_hashjoin = on
set enable_mergejoin = on
as $$
declare
    v_ids bigint[];
begin
    perform pgq._check_keys('group_keys', p_group_keys, p_payloads);
    v_ids := pgq._draw_ids(p_at, cardinality(p_payloads), true);
    perform pgq._add_keyed(p_at, v_ids, p_payloads, null, p_group_keys, null, null, null, false);
    return v_ids;
end
$$;
comment on function pgq._enqueue_grouped(pgq.target, jsonb[], text[]) is
'enqueues jobs that have group keys and are plain otherwise, and returns their ids';

create function pgq._pick_free(
    p_payloads jsonb[], p_dedupe_keys text[], p_group_keys text[], p_taken bigint[],
    p_last boolean, out payloads jsonb[], out dedupe_keys text[], out group_keys text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    select array_agg(g.payload order by g.n), array_agg(g.key order by g.n),
           array_agg(g.group_key order by g.n) filter (where g.group_key is not null)
      into payloads, dedupe_keys, group_keys
      from (
               select distinct on (u.key collate "C") u.*
                 from unnest(p_payloads, p_dedupe_keys, p_group_keys, p_taken)
                      with ordinality u (payload, key, group_key, taken, n)
                where u.taken is null
                order by u.key collate "C", case when p_last then -u.n else u.n end
           ) g;
end
$$;
comment on function pgq._pick_free(jsonb[], text[], text[], bigint[], boolean) is
'of each dedupe key that is not taken the first payload, or the last one';

create function pgq._add_jobs(
    p_at pgq.target, p_payloads jsonb[], p_dedupe_keys text[], p_group_keys text[],
    p_max_attempts integer, p_headers jsonb, p_start_by timestamptz, p_after bigint[],
    p_on_dead text, p_is_hopeless boolean
)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_number constant integer := coalesce(cardinality(p_payloads), 0);
    v_after constant boolean := p_after <> '{}';
    v_ids bigint[];
begin
    perform pgq._check_bounds(p_at.queue_id, null, v_number)
      where p_at.is_bounded and p_at.run_at is null and not v_after;
    v_ids := pgq._draw_ids(p_at, v_number, p_group_keys is not null or v_after);
    perform pgq._add_keyed(
        p_at, v_ids, p_payloads, p_dedupe_keys, p_group_keys, p_max_attempts, p_headers, p_start_by,
        v_after
    );
    perform pgq._add_dependencies(v_ids, p_at.lane, p_after, p_is_hopeless, p_on_dead);
    return v_ids;
end
$$;
comment on function
    pgq._add_jobs(
        pgq.target, jsonb[], text[], text[], integer, jsonb, timestamptz, bigint[], text, boolean
    ) is
'adds jobs that wait for those in p_after (from pgq._await), if there are any; returns their ids';

create function pgq._check_keyed(
    p_queue_id integer, p_payloads jsonb[], p_dedupe_keys text[], p_group_keys text[],
    p_on_duplicate text, p_expires_at timestamptz, p_after bigint[], p_after_on_dead text
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_keys('dedupe_keys', p_dedupe_keys, p_payloads),
            pgq._check_keys('group_keys', p_group_keys, p_payloads),
            pgq._check_on_duplicate(p_on_duplicate),
            pgq._check_after(p_after, p_after_on_dead, p_group_keys);
    if not isfinite(p_expires_at) then
        raise exception '"expires_at" must be finite'
            using errcode = 'invalid_parameter_value';
    end if;
    perform pgq._check_bounds(p_queue_id, p_payloads, 0);
end
$$;
comment on function
    pgq._check_keyed(
        integer, jsonb[], text[], text[], text, timestamptz, bigint[], text
    ) is
'raises what pgq_enqueue says of the arguments that plain jobs do not have';

create function pgq._enqueue_keyed(
    p_payloads jsonb[], p_queue text, p_priority integer, p_run_at timestamptz,
    p_dedupe_keys text[], p_group_keys text[], p_max_attempts integer, p_headers jsonb,
    p_on_duplicate text, p_expires_at timestamptz, p_after bigint[], p_after_on_dead text
)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = on
set enable_mergejoin = on
as $$
declare
    v_queue_id constant integer := (select q.id from pgq.queue q where q.name = p_queue);
    v_at pgq.target; v_after bigint[]; v_is_hopeless boolean;
    v_taken bigint[]; v_ids bigint[]; v_free record;
begin
    perform pgq._check_keyed(
                v_queue_id, p_payloads, p_dedupe_keys, p_group_keys, p_on_duplicate, p_expires_at,
                p_after, p_after_on_dead
            ), pgq._lock_keys(v_queue_id, p_dedupe_keys);
    select a.open, a.is_hopeless into v_after, v_is_hopeless from pgq._await(p_after) a;
    v_at := pgq._target(
        p_queue, p_priority, p_run_at, p_max_attempts, p_headers, p_expires_at is not null
    );
    if p_dedupe_keys is null then
        return pgq._add_jobs(
            v_at, p_payloads, null, p_group_keys, p_max_attempts, p_headers, p_expires_at, v_after,
            p_after_on_dead, v_is_hopeless
        );
    end if;
    v_taken := pgq._live_keys(v_queue_id, p_dedupe_keys);
    if p_on_duplicate = 'replace' then
        v_taken := pgq._replace_live(p_payloads, v_at.run_at, v_taken);
    end if;
    v_taken := pgq._held_keys(v_queue_id, p_dedupe_keys, v_taken);
    v_free := pgq._pick_free(
        p_payloads, p_dedupe_keys, p_group_keys, v_taken, p_on_duplicate = 'replace'
    );
    v_ids := pgq._add_jobs(
        v_at, v_free.payloads, v_free.dedupe_keys, v_free.group_keys, p_max_attempts, p_headers,
        p_expires_at, v_after, p_after_on_dead, v_is_hopeless
    );
    v_ids := array(
        select coalesce(g.taken, f.id)
          from unnest(p_dedupe_keys, v_taken) with ordinality g (key, taken, n)
          left join unnest(v_free.dedupe_keys, v_ids) f (key, id) on f.key = g.key collate "C"
         order by g.n
    );
    perform pgq._raise_duplicate(p_queue, p_dedupe_keys, v_taken, v_ids)
      where p_on_duplicate = 'error';
    return v_ids;
end
$$;
comment on function
    pgq._enqueue_keyed(
        jsonb[], text, integer, timestamptz, text[], text[], integer, jsonb, text, timestamptz,
        bigint[], text
    ) is
'enqueues jobs with dedupe keys, group keys, a time to start by or jobs to wait for (null: '
'without); returns for each the id of the job that has the dedupe key now';

/*
 * Enqueue where it is not the ordinary case: see 40_produce.sql.
 */

create function pgq._check_settings_of_job(
    p_priority integer, p_run_at timestamptz, p_max_attempts integer, p_headers jsonb
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null('priority', p_priority is null);
    if p_priority not between -32768 and 32767 then
        raise exception '"priority" must be between -32768 and 32767, not %', p_priority
            using errcode = 'numeric_value_out_of_range';
    end if;
    if not isfinite(p_run_at) then
        raise exception '"run_at" must be finite'
            using errcode = 'invalid_parameter_value';
    end if;
    if p_run_at > pgq._now() + interval '1000 years' then
        raise exception '"run_at" must be within 1000 years, not %', p_run_at
            using errcode = 'invalid_parameter_value';
    end if;
    if p_max_attempts not between 1 and 32767 then
        raise exception '"max_attempts" must be between 1 and 32767, not %', p_max_attempts
            using errcode = 'invalid_parameter_value';
    end if;
    if jsonb_typeof(p_headers) <> 'object' then
        raise exception '"headers" must be a JSON object, not %', jsonb_typeof(p_headers)
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
comment on function pgq._check_settings_of_job(integer, timestamptz, integer, jsonb) is
'raises 22004, 22003 or 22023 for bad settings of a job; null passes, but for the priority';

create function pgq._target(
    p_queue text, p_priority integer, p_run_at timestamptz, p_max_attempts integer,
    p_headers jsonb, p_expiring boolean default false
)
returns pgq.target
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_at pgq.target;
begin
    perform pg_current_xact_id();
    if p_priority is null or p_priority not between -32768 and 32767
        or p_max_attempts not between 1 and 32767 or p_headers is not null or p_run_at is not null
    then
        perform pgq._check_settings_of_job(p_priority, p_run_at, p_max_attempts, p_headers);
        if p_run_at > pgq._now() then
            v_at.run_at := p_run_at;
        end if;
    end if;
    select q.id, l.id, r.live[cardinality(r.live)], r.parked[cardinality(r.parked)], q.is_bounded,
           l.id is null or l.awaited_until > pgq._now() or not pgq._read_committed()
      into v_at.queue_id, v_at.lane, v_at.slot, v_at.parked, v_at.is_bounded, v_at.is_awaited
      from pgq.queue q
      left join lateral (
              select l.id, l.awaited_until from pgq.lane l
               where l.queue_id = q.id and l.priority = p_priority and l.expiring = p_expiring
               order by l.priority, l.id limit 1
           ) l on true,
           lateral (select r.live, r.parked from pgq.ring r order by r.gen desc limit 1) r
     where q.name = p_queue;
    if not found then
        perform pgq._raise_unknown_queue(p_queue, 'enqueue');
    end if;
    -- An old snapshot may show a queue that has been dropped; locking its row tells (40001).
    if not pgq._read_committed() then
        perform from pgq.queue q where q.id = v_at.queue_id for key share;
    end if;
    if v_at.lane is null then
        v_at.lane := pgq._add_lane(v_at.queue_id, p_priority::smallint, p_expiring);
    end if;
    if v_at.run_at is not null then
        v_at.slot := v_at.parked;
        perform pgq._admit(v_at.slot, v_at.lane, pgq._us(v_at.run_at));
    end if;
    return v_at;
end
$$;
comment on function pgq._target(text, integer, timestamptz, integer, jsonb, boolean) is
'checks what both forms of enqueue share and says where the jobs go; run_at comes back null for '
'now. p_expiring: they are to start by a time';

create function pgq._enqueue_many(
    p_payloads jsonb[], p_queue text, p_priority integer, p_run_at timestamptz,
    p_dedupe_keys text[], p_group_keys text[], p_max_attempts integer, p_headers jsonb,
    p_on_duplicate text, p_expires_at timestamptz, p_after bigint[], p_after_on_dead text
)
returns setof bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_at pgq.target;
    v_now constant timestamptz := pgq._now();
    v_opened timestamptz;
begin
    perform pgq._queue_id(p_queue, 'enqueue');
    if num_nonnulls(p_dedupe_keys, p_group_keys, p_expires_at, p_after) > 0 then
        return query select unnest(pgq._enqueue_keyed(
            p_payloads, p_queue, p_priority, p_run_at, p_dedupe_keys, p_group_keys,
            p_max_attempts, p_headers, p_on_duplicate, p_expires_at, p_after, p_after_on_dead
        ));
        return;
    end if;
    v_at := pgq._target(p_queue, p_priority, p_run_at, p_max_attempts, p_headers);
    if v_at.is_bounded then
        perform pgq._check_bounds(
            v_at.queue_id, p_payloads,
            case when v_at.run_at is null then cardinality(p_payloads) else 0 end
        );
    end if;
    v_opened := pgq._open_slot(v_at.slot);
    return query
    insert into pgq.job as j (
        id, enqueued_at, lane, slot, max_attempts, run_at, due, payload, headers
    )
    select n.id, v_now, v_at.lane, v_at.slot, p_max_attempts, v_at.run_at,
           case when v_at.run_at is not null
                then pgq._due(greatest(v_at.run_at, v_opened), n.id) end,
           n.payload, p_headers
      from (select nextval('pgq.job_id'), p from unnest(p_payloads) p) n (id, payload)
    returning j.id;
    perform pgq._wake_lane(v_at.lane, v_at.run_at) where v_at.is_awaited;
end
$$;
comment on function
    pgq._enqueue_many(
        jsonb[], text, integer, timestamptz, text[], text[], integer, jsonb, text, timestamptz,
        bigint[], text
    ) is
'pgq_enqueue_many where it is not the ordinary case';

/*
 * Public: pgq_enqueue, pgq_enqueue_many.
 *
 * The transaction id is assigned before an id is drawn: pgq._raise_floor relies on it. So is the
 * lock on the slot (by pgq._open_slot, or a statement that writes to that slot alone), and a place
 * in a parked slot is not before the time at which that lock was had: see pgq._raise_base.
 */

-- Of two lanes either will do. Leaves the slot null where it is not the ordinary case.


-- As in pgq._wake, without a call while nobody sleeps.

create function @extschema@.pgq_enqueue(
    payload jsonb,
    queue text default 'default',
    priority integer default 0,
    run_at timestamptz default null,
    dedupe_key text default null,
    group_key text default null,
    max_attempts integer default null,
    headers jsonb default null,
    on_duplicate text default 'keep',
    expires_at timestamptz default null,
    after bigint[] default null,
    after_on_dead text default 'die'
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_queue alias for queue; v_priority alias for priority; v_queue_id integer;
    v_id bigint; v_lane integer; v_slot smallint; v_parked smallint; v_awaited timestamptz;
begin
    if current_setting('max_prepared_transactions') = '0' then
        unlisten pgq_nobody;
    else
        perform pgq._check_restricted();
    end if;
    -- The ordinary case, in two statements; pgq._enqueue_many does the rest, and says what is bad.
    if payload is not null and (group_key is null or on_duplicate = 'keep')
        and num_nonnulls(run_at, headers, max_attempts, dedupe_key, expires_at, after) = 0
    then
        select l.id, r.live[cardinality(r.live)], r.parked[cardinality(r.parked)], l.awaited_until,
               l.queue_id
          into v_lane, v_slot, v_parked, v_awaited, v_queue_id
          from pgq.lane l,
               lateral (select o.live, o.parked from pgq.ring o order by o.gen desc limit 1) r
         where l.queue = v_queue and l.priority = v_priority
           and not (l.expiring or l.is_bounded)
           and ((session_user = current_user and current_setting('role') = 'none') or pgq._may(l.queue_id, 'enqueue'))
           and pg_current_xact_id() is not null
           and current_setting('transaction_isolation') = 'read committed'
         limit 1;
        if group_key is not null and v_slot is not null then
            return (pgq._enqueue_grouped(row(
            v_queue_id, v_lane, v_slot, v_parked, null, false, v_awaited > pgq._now()
        )::pgq.target, array[payload], array[group_key]))[1];
        end if;
    end if;
    case v_slot
    when 0 then
        insert into pgq.job_0 as j (id, enqueued_at, lane, slot, payload)
        values (nextval('pgq.job_id'), pgq._now(), v_lane, v_slot, pgq_enqueue.payload)
        returning j.id into v_id;
    when 1 then
        insert into pgq.job_1 as j (id, enqueued_at, lane, slot, payload)
        values (nextval('pgq.job_id'), pgq._now(), v_lane, v_slot, pgq_enqueue.payload)
        returning j.id into v_id;
    when 2 then
        insert into pgq.job_2 as j (id, enqueued_at, lane, slot, payload)
        values (nextval('pgq.job_id'), pgq._now(), v_lane, v_slot, pgq_enqueue.payload)
        returning j.id into v_id;
    when 3 then
        insert into pgq.job_3 as j (id, enqueued_at, lane, slot, payload)
        values (nextval('pgq.job_id'), pgq._now(), v_lane, v_slot, pgq_enqueue.payload)
        returning j.id into v_id;
    else
        perform pgq._check_not_null('payload', payload is null);
        return (select e from pgq._enqueue_many(
            array[payload], queue, priority, run_at,
            case when dedupe_key is not null then array[dedupe_key] end,
            case when group_key is not null then array[group_key] end, max_attempts, headers,
            on_duplicate, expires_at, after, after_on_dead
        ) e);
    end case;
    if v_awaited > pgq._now()
        and not (pg_try_advisory_lock(1885826917, v_queue_id)
                 and pg_advisory_unlock(1885826917, v_queue_id))
    then
        perform pgq._wake(v_queue_id);
    end if;
    return v_id;
end
$$;
revoke all on function
    @extschema@.pgq_enqueue(
        jsonb, text, integer, timestamptz, text, text, integer, jsonb, text, timestamptz, bigint[],
        text
    ) from public;
comment on function
    @extschema@.pgq_enqueue(
        jsonb, text, integer, timestamptz, text, text, integer, jsonb, text, timestamptz, bigint[],
        text
    ) is
'Adds a job in the caller''s transaction and returns its id. priority: -32768 to 32767, higher '
'first. run_at: not before then; null or past: now. max_attempts: default the queue''s. headers: '
'a JSON object that travels with the job. dedupe_key (1 to 250 characters): if a live job of the '
'queue has it, or one that completed within its dedupe_for, nothing is added and its id returned; '
'waits for a transaction that is enqueueing with the same key. on_duplicate: ''keep'' leaves that '
'job as it is; ''replace'' gives it this payload and run_at, unless it is active; ''error'' raises '
'23505. group_key (1 to 250 characters): of the queue''s jobs with the same one at most '
'group_concurrency are active at a time, in id order, retries included. expires_at: if it has not '
'started by then it is dead, with the error ''expired'', and does not run. after: ids of jobs; it '
'waits until all of them have completed, where a job that is not known any more counts as '
'completed; after_on_dead: if one of them dies or is cancelled, it is dead, too (''die''), or '
'waits until that one is retried (''wait''). Errors: 42704 unknown queue; 22004 null payload, '
'queue or priority; 22003 priority; 22023 other values; 23505; 40001; 53400 the queue has '
'max_ready jobs; 54000 the payload is longer than its max_payload; 0A000 after with a group_key.';

create function @extschema@.pgq_enqueue_many(
    payloads jsonb[],
    queue text default 'default',
    priority integer default 0,
    run_at timestamptz default null,
    dedupe_keys text[] default null,
    group_keys text[] default null,
    max_attempts integer default null,
    headers jsonb default null,
    on_duplicate text default 'keep',
    expires_at timestamptz default null,
    after bigint[] default null,
    after_on_dead text default 'die'
)
returns setof bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_queue alias for queue; v_queue_id integer; v_lane integer; v_slot smallint; v_parked smallint;
    v_priority alias for priority; v_now constant timestamptz := pgq._now(); v_awaited timestamptz;
begin
    if current_setting('max_prepared_transactions') = '0' then
        unlisten pgq_nobody;
    else
        perform pgq._check_restricted();
    end if;
    perform pgq._check_array('payloads', payloads);
    if num_nonnulls(run_at, headers, max_attempts, dedupe_keys, expires_at, after) = 0
        and (group_keys is null or on_duplicate = 'keep')
    then
        select l.id, r.live[cardinality(r.live)], r.parked[cardinality(r.parked)], l.awaited_until,
               l.queue_id
          into v_lane, v_slot, v_parked, v_awaited, v_queue_id
          from pgq.lane l,
               lateral (select o.live, o.parked from pgq.ring o order by o.gen desc limit 1) r
         where l.queue = v_queue and l.priority = v_priority
           and not (l.expiring or l.is_bounded)
           and ((session_user = current_user and current_setting('role') = 'none') or pgq._may(l.queue_id, 'enqueue'))
           and pg_current_xact_id() is not null
           and current_setting('transaction_isolation') = 'read committed'
         limit 1;
        if group_keys is not null and v_slot is not null then
            return query select unnest(pgq._enqueue_grouped(row(
            v_queue_id, v_lane, v_slot, v_parked, null, false, v_awaited > pgq._now()
        )::pgq.target, payloads, group_keys));
            return;
        end if;
    end if;
    case v_slot
    when 0 then
        return query
        insert into pgq.job_0 as j (id, enqueued_at, lane, slot, payload)
        select nextval('pgq.job_id'), v_now, v_lane, v_slot, p from unnest(payloads) p
        returning j.id;
    when 1 then
        return query
        insert into pgq.job_1 as j (id, enqueued_at, lane, slot, payload)
        select nextval('pgq.job_id'), v_now, v_lane, v_slot, p from unnest(payloads) p
        returning j.id;
    when 2 then
        return query
        insert into pgq.job_2 as j (id, enqueued_at, lane, slot, payload)
        select nextval('pgq.job_id'), v_now, v_lane, v_slot, p from unnest(payloads) p
        returning j.id;
    when 3 then
        return query
        insert into pgq.job_3 as j (id, enqueued_at, lane, slot, payload)
        select nextval('pgq.job_id'), v_now, v_lane, v_slot, p from unnest(payloads) p
        returning j.id;
    else
        return query
        select e from pgq._enqueue_many(
            payloads, queue, priority, run_at, dedupe_keys, group_keys, max_attempts, headers,
            on_duplicate, expires_at, after, after_on_dead
        ) e;
        return;
    end case;
    if v_awaited > pgq._now()
        and not (pg_try_advisory_lock(1885826917, v_queue_id)
                 and pg_advisory_unlock(1885826917, v_queue_id))
    then
        perform pgq._wake(v_queue_id);
    end if;
end
$$;
revoke all on function
    @extschema@.pgq_enqueue_many(
        jsonb[], text, integer, timestamptz, text[], text[], integer, jsonb, text, timestamptz,
        bigint[], text
    ) from public;
comment on function
    @extschema@.pgq_enqueue_many(
        jsonb[], text, integer, timestamptz, text[], text[], integer, jsonb, text, timestamptz,
        bigint[], text
    ) is
'Adds one job per payload, with the same settings, and returns their ids in the order of the '
'payloads. Arguments and errors as in pgq_enqueue; 22004 also for a null element, 22023 for keys '
'that are not as many as the payloads. Of payloads with the same dedupe key the first is added, '
'with ''replace'' the last. Nothing is added if one is bad.';

/*
 * Public: pgq_dequeue, pgq_pop.
 */

/*
 * The ordinary case in three statements: the queue has one priority, nothing is parked that could
 * be claimed now, and all jobs are in the oldest slot of the ring that is not spent, up to the
 * first id of the next. pgq._grab does the rest.
 */

-- False if pgq._wants_tick needs not even be asked.



-- Not "exists", which would drop the order: with it, and without sorts, only one index will do.


-- Jobs that have come back since must not follow those that have been returned already.

create function @extschema@.pgq_dequeue(
    batch integer default 1,
    timeout interval default '30 seconds',
    queue text default 'default',
    worker text default null
)
returns setof @extschema@.pgq_job
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_us constant bigint := (extract(epoch from v_now) * 1000000)::bigint;
    v_worker alias for worker; v_slot smallint; v_first smallint; v_more boolean;
    v_lease_ms integer; v_max integer; v_tick boolean; v_simple boolean; v_parkeds smallint[];
    v_lane integer; v_priority integer; v_place bigint; v_expiry timestamptz;
    v_after constant bigint := bigint '0'; v_until bigint; v_left integer := batch; v_count integer;
begin
    if batch >= 1 and extract(epoch from timeout) between 0.001 and 86400 then
        v_lease_ms := ceil(extract(epoch from timeout) * 1000)::integer;
    else
        perform pgq._check_batch('batch', batch);
        perform pgq._check_not_null('timeout', timeout is null);
        v_lease_ms := pgq._lease_ms(timeout);
    end if;
    if current_setting('max_prepared_transactions') = '0' then
        unlisten pgq_nobody;
    else
        perform pgq._check_restricted();
    end if;
    select q.max_attempts, (
               pg_sequence_last_value('pgq.next_tick') > v_us / 1000
               and pg_sequence_last_value('pgq.next_tick') <= v_us / 1000 + 500
               and pg_sequence_last_value('pgq.next_tick') <= v_us / 1000 + v_lease_ms
               and pg_sequence_last_value('pgq.last_tick') > v_us / 1000 - 2500
               and current_setting('transaction_isolation') = 'read committed'
           ) is not true,
           l.lanes = 1 and not q.is_special, r.parked, r.ready[1], cardinality(r.ready) > 1,
           coalesce(r.firsts[r.ready[2] + 1] + 1, 9223372036854775807),
           l.lane, l.priority,
           (((greatest(q.keep_completed, q.dedupe_for) > '0')::integer << 19) | (l.lane << 3)
            | r.ready[1])::bigint
      into v_max, v_tick, v_simple, v_parkeds, v_first, v_more, v_until, v_lane, v_priority, v_place
      from pgq.queue q,
           lateral (select o.* from pgq.ring o order by o.gen desc limit 1) r,
           lateral (
               select max(o.id) as lane, max(o.priority)::integer as priority, count(*) as lanes
                 from pgq.lane o where o.queue_id = q.id
           ) l
     where q.name = pgq_dequeue.queue and ((session_user = current_user and current_setting('role') = 'none') or pgq._may(q.id, 'consume'));
    if found and v_tick then
        v_tick := pgq._wants_tick(v_lease_ms);
        v_simple := v_simple and not (v_tick and pgq._has_spent_slots());
    end if;
    foreach v_slot in array case when v_simple then v_parkeds else '{}' end loop
        case v_slot
        when 4 then v_simple := v_simple and (
                select i.id from pgq.job_4 i
                 where i.lane = v_lane and i.due <= v_us + 4095 and i.due > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_4 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0)
                   and (i.run_at is null or i.run_at <= v_now) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max))) order by i.due limit 1
            ) is null;
        when 5 then v_simple := v_simple and (
                select i.id from pgq.job_5 i
                 where i.lane = v_lane and i.due <= v_us + 4095 and i.due > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_5 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0)
                   and (i.run_at is null or i.run_at <= v_now) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max))) order by i.due limit 1
            ) is null;
        end case;
    end loop;
    if v_simple is not true then
        return query select g.* from pgq._grab(queue, batch, v_lease_ms, worker, v_tick) g;
        return;
    end if;
    v_expiry := v_now + v_lease_ms * interval '1 millisecond';
    case v_first
    when 0 then return query update pgq.job_0 j
           set token = (nextval('pgq.token') << 20) | v_place
                       | (case when j.group_id is null then 0 else 524288 end),
               attempt = j.attempt + 1, claimed_at = v_now, lease_expires_at = v_expiry,
               lease_ms = v_lease_ms, worker = v_worker, pid = pg_backend_pid()
              from (
                       select i.ctid from pgq.job_0 i
                    where i.lane = v_lane and i.id > v_after and i.id < v_until
                      and i.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_0 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
                    order by i.id limit v_left for update skip locked
                   ) f
             where j.ctid = f.ctid
            returning j.id, j.token, pgq_dequeue.queue, v_priority, 'active', j.attempt::integer,
                   coalesce(j.max_attempts, v_max), j.payload, j.headers, j.group_key, j.dedupe_key,
                   j.worker, j.enqueued_at, coalesce(j.run_at, j.enqueued_at), j.claimed_at,
                   j.lease_expires_at, j.last_error, false, j.checkpoint;
    when 1 then return query update pgq.job_1 j
           set token = (nextval('pgq.token') << 20) | v_place
                       | (case when j.group_id is null then 0 else 524288 end),
               attempt = j.attempt + 1, claimed_at = v_now, lease_expires_at = v_expiry,
               lease_ms = v_lease_ms, worker = v_worker, pid = pg_backend_pid()
              from (
                       select i.ctid from pgq.job_1 i
                    where i.lane = v_lane and i.id > v_after and i.id < v_until
                      and i.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_1 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
                    order by i.id limit v_left for update skip locked
                   ) f
             where j.ctid = f.ctid
            returning j.id, j.token, pgq_dequeue.queue, v_priority, 'active', j.attempt::integer,
                   coalesce(j.max_attempts, v_max), j.payload, j.headers, j.group_key, j.dedupe_key,
                   j.worker, j.enqueued_at, coalesce(j.run_at, j.enqueued_at), j.claimed_at,
                   j.lease_expires_at, j.last_error, false, j.checkpoint;
    when 2 then return query update pgq.job_2 j
           set token = (nextval('pgq.token') << 20) | v_place
                       | (case when j.group_id is null then 0 else 524288 end),
               attempt = j.attempt + 1, claimed_at = v_now, lease_expires_at = v_expiry,
               lease_ms = v_lease_ms, worker = v_worker, pid = pg_backend_pid()
              from (
                       select i.ctid from pgq.job_2 i
                    where i.lane = v_lane and i.id > v_after and i.id < v_until
                      and i.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_2 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
                    order by i.id limit v_left for update skip locked
                   ) f
             where j.ctid = f.ctid
            returning j.id, j.token, pgq_dequeue.queue, v_priority, 'active', j.attempt::integer,
                   coalesce(j.max_attempts, v_max), j.payload, j.headers, j.group_key, j.dedupe_key,
                   j.worker, j.enqueued_at, coalesce(j.run_at, j.enqueued_at), j.claimed_at,
                   j.lease_expires_at, j.last_error, false, j.checkpoint;
    when 3 then return query update pgq.job_3 j
           set token = (nextval('pgq.token') << 20) | v_place
                       | (case when j.group_id is null then 0 else 524288 end),
               attempt = j.attempt + 1, claimed_at = v_now, lease_expires_at = v_expiry,
               lease_ms = v_lease_ms, worker = v_worker, pid = pg_backend_pid()
              from (
                       select i.ctid from pgq.job_3 i
                    where i.lane = v_lane and i.id > v_after and i.id < v_until
                      and i.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_3 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0) and (i.lease_expires_at is null
                    or (i.lease_expires_at <= v_now and i.cancel_requested is null
                        and i.attempt < coalesce(i.max_attempts, v_max)))
                    order by i.id limit v_left for update skip locked
                   ) f
             where j.ctid = f.ctid
            returning j.id, j.token, pgq_dequeue.queue, v_priority, 'active', j.attempt::integer,
                   coalesce(j.max_attempts, v_max), j.payload, j.headers, j.group_key, j.dedupe_key,
                   j.worker, j.enqueued_at, coalesce(j.run_at, j.enqueued_at), j.claimed_at,
                   j.lease_expires_at, j.last_error, false, j.checkpoint;
    end case;
    get diagnostics v_count = row_count;
    if random() * 32 < sqrt(v_count) and pgq._read_committed() then
        perform pgq._raise_floor(v_first, v_lane);
    end if;
    v_left := v_left - v_count;
    if v_left > 0 and v_more then
        return query
        select g.* from pgq._grab(
                   queue, v_left, v_lease_ms, worker, v_tick, v_until - 1, p_priority => v_priority
               ) g;
    elsif v_left > 0 and v_tick then
        perform pgq._check_moved();
    end if;
end
$$;
revoke all on function @extschema@.pgq_dequeue(integer, interval, text, text) from public;
comment on function @extschema@.pgq_dequeue(integer, interval, text, text) is
'Claims up to batch jobs of a queue, highest priority first, then in id order, and leases them '
'for timeout (up to 24 days; renew with pgq_heartbeat). Takes fresh jobs and those whose lease '
'has expired. Never waits: an empty result means that there is nothing to do now. worker: a name '
'for the operator. Errors: 42704 unknown queue; 22004 null argument; 22023 batch or timeout out '
'of range.';

create function @extschema@.pgq_dequeue(
    batch integer,
    timeout interval,
    queues text[],
    worker text default null
)
returns setof @extschema@.pgq_job
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_lease_ms integer;
    v_tick boolean;
    v_queue text;
    v_left integer := batch;
    v_count integer;
begin
    perform pgq._check_batch('batch', batch);
    perform pgq._check_not_null('timeout', timeout is null);
    perform pgq._check_array('queues', queues);
    v_lease_ms := pgq._lease_ms(timeout);
    v_tick := pgq._wants_tick(v_lease_ms);
    foreach v_queue in array queues loop
        perform pgq._queue_id(v_queue, 'consume');
    end loop;
    foreach v_queue in array queues loop
        exit when v_left = 0;
        return query
        select g.* from pgq._grab(v_queue, v_left, v_lease_ms, worker, v_tick) g;
        get diagnostics v_count = row_count;
        v_left := v_left - v_count;
    end loop;
end
$$;
revoke all on function @extschema@.pgq_dequeue(integer, interval, text[], text) from public;
comment on function @extschema@.pgq_dequeue(integer, interval, text[], text) is
'Claims up to batch jobs from several queues: all that the first one has, then the second, and '
'so on. Otherwise as pgq_dequeue of one queue.';

create function @extschema@.pgq_pop(
    batch integer default 1,
    queue text default 'default'
)
returns setof @extschema@.pgq_job
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_jobs @extschema@.pgq_job[];
begin
    perform pgq._check_batch('batch', batch);
    -- A claim and its completion in one transaction: nobody else ever sees the lease.
    v_jobs := array(
        select g from pgq._grab(queue, batch, 30000, null) g
    );
    perform from pgq._complete(
        array(select j.id from unnest(v_jobs) j), array(select j.token from unnest(v_jobs) j), null
    );
    return query
    select j.id, null::bigint, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.payload,
           j.headers, j.group_key, j.dedupe_key, j.worker, j.enqueued_at, j.run_at, j.claimed_at,
           null::timestamptz, j.last_error, false, j.checkpoint
      from unnest(v_jobs) j;
end
$$;
revoke all on function @extschema@.pgq_pop(integer, text) from public;
comment on function @extschema@.pgq_pop(integer, text) is
'Removes up to batch jobs in the caller''s transaction: done when it commits, back at once when '
'it rolls back or its connection dies, locked while it is prepared. There is no lease and no '
'receipt (token is null), and a rolled back try is not counted. The queue''s keep_completed '
'applies. Errors as pgq_dequeue.';

/*
 * Public: pgq_claim.
 */

create function pgq._raise_held(p_id bigint, p_detail text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'job % is held by another consumer', p_id
        using errcode = 'lock_not_available',
              detail = p_detail,
              hint = 'Try another job, or this one later.';
end
$$;
comment on function pgq._raise_held(bigint, text) is 'raises 55P03';

create function pgq._check_claimable(p_job pgq.job, p_queue pgq.queue)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
begin
    if pgq._is_waiting(p_job) then
        raise exception 'job % waits for other jobs', p_job.id
            using errcode = 'object_not_in_prerequisite_state',
                  detail = coalesce(format('Its group is "%s".', p_job.group_key),
                                    'They were named when it was enqueued.');
    end if;
    if p_job.start_by <= v_now and p_job.attempt = 0 then
        raise exception 'job % has expired', p_job.id
            using errcode = 'object_not_in_prerequisite_state',
                  detail = format('It was to start by %s.', p_job.start_by);
    end if;
    if p_job.lease_expires_at > v_now then
        perform pgq._raise_held(
            p_job.id,
            format('It is leased%s until %s.', ' to "' || p_job.worker || '"',
                   p_job.lease_expires_at)
        );
    end if;
    if p_job.run_at > v_now and p_job.token is null then
        raise exception 'job % is scheduled', p_job.id
            using errcode = 'object_not_in_prerequisite_state',
                  detail = format('It is due at %s.', p_job.run_at);
    end if;
    if p_queue.paused then
        raise exception 'job % is in queue "%", which is paused', p_job.id, p_queue.name
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Use pgq_resume to let its jobs run.';
    end if;
    if p_job.cancel_requested then
        raise exception 'job % is to be cancelled', p_job.id
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    if p_job.lease_expires_at is not null
        and p_job.attempt >= coalesce(p_job.max_attempts, p_queue.max_attempts)
    then
        raise exception 'job % has no attempt left', p_job.id
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'pgq_reclaim or the next maintenance makes it dead; '
                         'pgq_retry brings it back.';
    end if;
end
$$;
comment on function pgq._check_claimable(pgq.job, pgq.queue) is
'raises 55P03 for a job that is held, 55000 for one that cannot be claimed now';

create function @extschema@.pgq_claim(
    id bigint,
    timeout interval default '30 seconds',
    worker text default null
)
returns @extschema@.pgq_job
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_lease_ms integer;
    v_job pgq.job;
    v_queue pgq.queue;
    v_result @extschema@.pgq_job;
begin
    perform pgq._check_not_null('id', id is null);
    v_lease_ms := pgq._lease_ms(timeout);
    perform pgq._check_not_null('timeout', timeout is null);
    perform pgq._wants_tick(v_lease_ms);
    v_job := pgq._find_mine(id, 'consume');
    if v_job.id is null then
        raise exception 'there is no live job %', id
            using errcode = 'no_data_found',
                  hint = 'It does not exist, or has completed, died or been cancelled.';
    end if;
    select q.* into v_queue
      from pgq.lane l join pgq.queue q on q.id = l.queue_id where l.id = v_job.lane;
    perform pgq._check_claimable(v_job, v_queue);
    select g.* into v_result
      from pgq._grab(v_queue.name, 1, v_lease_ms, worker, true, id - 1, id + 1) g;
    if not found then
        perform pgq._raise_held(id, 'It is being claimed or settled just now.');
    end if;
    return v_result;
end
$$;
revoke all on function @extschema@.pgq_claim(bigint, interval, text) from public;
comment on function @extschema@.pgq_claim(bigint, interval, text) is
'Claims one given job, ready or with an expired lease, and leases it for timeout. Errors: 55P03 '
'at once when another consumer holds it, and the detail says which one until when; P0002 unknown '
'or finished; 55000 scheduled, waiting for its group, in a paused queue or without an attempt '
'left; 22004 and 22023 as pgq_dequeue.';

/*
 * Public: pgq_heartbeat.
 */

create function @extschema@.pgq_heartbeat(
    ids bigint[],
    tokens bigint[],
    timeout interval default null,
    checkpoints jsonb[] default null
)
returns table (id bigint, lease_expires_at timestamptz, cancel_requested boolean)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slot smallint;
    v_lease_ms integer;
    v_now constant timestamptz := pgq._now();
    v_lanes integer[];
    v_renewed pgq.renewal[];
    v_left integer;
begin
    perform pgq._check_receipts(ids, tokens);
    perform pgq._check_lengths('checkpoints', cardinality(checkpoints), 'ids', cardinality(ids))
      where checkpoints is not null;
    v_lease_ms := pgq._lease_ms(timeout);
    if current_setting('max_prepared_transactions') = '0' then
        unlisten pgq_nobody;
    else
        perform pgq._check_restricted();
    end if;
    perform pgq._wants_tick(v_lease_ms);
    select array_agg(r.id), array_agg(r.token), array_agg(r.checkpoint), count(*)::integer
      into ids, tokens, checkpoints, v_left
      from (select distinct on (r.id, r.token) r.*
              from unnest(ids, case when (session_user = current_user and current_setting('role') = 'none') then tokens else pgq._mask(tokens) end,
                          checkpoints) r (id, token, checkpoint)
             order by r.id, r.token, r.checkpoint is null) r;
    v_lanes := pgq._lanes(tokens);
    foreach v_slot in array pgq._looks(tokens) loop
        v_renewed := array(
            select r
              from (select l, f from unnest(v_lanes) l, generate_series(1, v_left, 1000) f
                     order by l, f) o,
                   pgq._renew(
                       v_slot, l, ids[f:f + 999], tokens[f:f + 999], v_lease_ms, v_now,
                       checkpoints[f:f + 999]
                   ) r
        );
        return query
        select r.id, r.lease_expires_at, r.cancel_requested from unnest(v_renewed) r;
        v_left := v_left - cardinality(v_renewed);
        exit when v_left = 0;
        select array_agg(r.id order by r.id), array_agg(r.token order by r.id),
               array_agg(r.checkpoint order by r.id)
          into ids, tokens, checkpoints
          from unnest(ids, tokens, checkpoints) r (id, token, checkpoint)
          left join unnest(v_renewed) d on d.token = r.token and d.id = r.id
         where d.id is null;
    end loop;
    if v_left > 0 then
        perform pgq._check_moved();
    end if;
end
$$;
revoke all on function @extschema@.pgq_heartbeat(bigint[], bigint[], interval, jsonb[]) from public;
comment on function @extschema@.pgq_heartbeat(bigint[], bigint[], interval, jsonb[]) is
'Renews leases from now on for timeout, or for as long as each claim asked for, and returns the '
'new expiry of each once, and whether pgq_cancel was called for it; receipts whose lease is lost '
'are left out. checkpoints: one for each receipt, null to leave it; kept with the job for its next '
'attempt. Errors: 22004 null array, id or token; 22023 different lengths or timeout out of range; '
'40001.';

create function @extschema@.pgq_heartbeat(
    id bigint,
    token bigint,
    timeout interval default null,
    checkpoint jsonb default null
)
returns timestamptz
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null('id', id is null);
    perform pgq._check_not_null('token', token is null);
    return (select h.lease_expires_at
              from @extschema@.pgq_heartbeat(
                       array[id], array[token], timeout, array[checkpoint]
                   ) h);
end
$$;
revoke all on function @extschema@.pgq_heartbeat(bigint, bigint, interval, jsonb) from public;
comment on function @extschema@.pgq_heartbeat(bigint, bigint, interval, jsonb) is
'Renews a lease from now on for timeout, or for as long as the claim asked for, and returns its '
'new expiry. null: the lease is lost. An expired lease that nobody has taken is still good. '
'checkpoint: how far the job has come; kept with it for its next attempt (null: as before). '
'Errors: 22004 null receipt; 22023 timeout out of range; 40001.';

/*
 * Public: how the holder of a lease ends it with its receipt: pgq_complete,
 * pgq_complete_and_dequeue, pgq_fail, pgq_release. See pgq._settle.
 */

create function @extschema@.pgq_complete(
    id bigint,
    token bigint,
    result jsonb default null
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
    if id is null or token is null then
        perform pgq._check_not_null('id', id is null);
        perform pgq._check_not_null('token', token is null);
    end if;
    if current_setting('max_prepared_transactions') = '0' then
        unlisten pgq_nobody;
    else
        perform pgq._check_restricted();
    end if;
    if not (session_user = current_user and current_setting('role') = 'none') then
        token := (pgq._mask(array[token]))[1];
    end if;
    -- The ordinary case of a queue that keeps no completed jobs.
    if token & 524288 = 0 then
        case token & 7
        when 0 then
            delete from pgq.job_0 j
             where j.lane = (pgq_complete.token >> 3) & 65535 and j.id = pgq_complete.id
               and j.token = pgq_complete.token and j.is_awaited is null;
        when 1 then
            delete from pgq.job_1 j
             where j.lane = (pgq_complete.token >> 3) & 65535 and j.id = pgq_complete.id
               and j.token = pgq_complete.token and j.is_awaited is null;
        when 2 then
            delete from pgq.job_2 j
             where j.lane = (pgq_complete.token >> 3) & 65535 and j.id = pgq_complete.id
               and j.token = pgq_complete.token and j.is_awaited is null;
        when 3 then
            delete from pgq.job_3 j
             where j.lane = (pgq_complete.token >> 3) & 65535 and j.id = pgq_complete.id
               and j.token = pgq_complete.token and j.is_awaited is null;
        when 4 then
            delete from pgq.job_4 j
             where j.lane = (pgq_complete.token >> 3) & 65535 and j.id = pgq_complete.id
               and j.token = pgq_complete.token and j.is_awaited is null;
        when 5 then
            delete from pgq.job_5 j
             where j.lane = (pgq_complete.token >> 3) & 65535 and j.id = pgq_complete.id
               and j.token = pgq_complete.token and j.is_awaited is null;
        else
        end case;
        if found then
            return true;
        end if;
    end if;
    perform pgq._complete(
        array[id], array[token], case when result is not null then array[result] end
    );
    return found;
end
$$;
revoke all on function @extschema@.pgq_complete(bigint, bigint, jsonb) from public;
comment on function @extschema@.pgq_complete(bigint, bigint, jsonb) is
'Ends a job in the caller''s transaction. false: the lease is lost, nothing was changed. result '
'is kept with the job for the queue''s keep_completed. A second session with the same receipt '
'waits for the first one''s transaction. Errors: 22004 null receipt; 40001 under REPEATABLE READ '
'and SERIALIZABLE.';

-- All in one lane of one slot, and their queue keeps none. Before PostgreSQL 17 a plan for
-- id = any (ids) may look for the lane alone. Each job is compared with all ids: 200 at most.

create function @extschema@.pgq_complete(
    ids bigint[],
    tokens bigint[],
    results jsonb[] default null
)
returns setof bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_count integer := 0;
begin
    perform pgq._check_receipts(ids, tokens);
    if array_lower(ids, 1) <> 1 or array_lower(tokens, 1) <> 1 then
        ids := ids[:];
        tokens := tokens[:];
    end if;
    if results is not null then
        perform pgq._check_array('results', results, true),
                pgq._check_lengths('results', cardinality(results), 'ids', cardinality(ids));
        results := results[:];
    end if;
    if current_setting('max_prepared_transactions') = '0' then
        unlisten pgq_nobody;
    else
        perform pgq._check_restricted();
    end if;
    if not (session_user = current_user and current_setting('role') = 'none') then
        tokens := pgq._mask(tokens);
    end if;
    if tokens[1] & 524288 = 0 and cardinality(ids) <= 200
        and current_setting('server_version_num')::integer >= 170000 then
        case tokens[1] & 7
        when 0 then
            return query
            delete from pgq.job_0 j
             where j.lane = (tokens[1] >> 3) & 65535 and j.id = any (ids)
               and j.token = tokens[array_position(ids, j.id)] and j.is_awaited is null
               and (select bool_and(t & 1048575 = tokens[1] & 1048575) from unnest(tokens) t)
            returning j.id;
            get diagnostics v_count = row_count;
        when 1 then
            return query
            delete from pgq.job_1 j
             where j.lane = (tokens[1] >> 3) & 65535 and j.id = any (ids)
               and j.token = tokens[array_position(ids, j.id)] and j.is_awaited is null
               and (select bool_and(t & 1048575 = tokens[1] & 1048575) from unnest(tokens) t)
            returning j.id;
            get diagnostics v_count = row_count;
        when 2 then
            return query
            delete from pgq.job_2 j
             where j.lane = (tokens[1] >> 3) & 65535 and j.id = any (ids)
               and j.token = tokens[array_position(ids, j.id)] and j.is_awaited is null
               and (select bool_and(t & 1048575 = tokens[1] & 1048575) from unnest(tokens) t)
            returning j.id;
            get diagnostics v_count = row_count;
        when 3 then
            return query
            delete from pgq.job_3 j
             where j.lane = (tokens[1] >> 3) & 65535 and j.id = any (ids)
               and j.token = tokens[array_position(ids, j.id)] and j.is_awaited is null
               and (select bool_and(t & 1048575 = tokens[1] & 1048575) from unnest(tokens) t)
            returning j.id;
            get diagnostics v_count = row_count;
        when 4 then
            return query
            delete from pgq.job_4 j
             where j.lane = (tokens[1] >> 3) & 65535 and j.id = any (ids)
               and j.token = tokens[array_position(ids, j.id)] and j.is_awaited is null
               and (select bool_and(t & 1048575 = tokens[1] & 1048575) from unnest(tokens) t)
            returning j.id;
            get diagnostics v_count = row_count;
        when 5 then
            return query
            delete from pgq.job_5 j
             where j.lane = (tokens[1] >> 3) & 65535 and j.id = any (ids)
               and j.token = tokens[array_position(ids, j.id)] and j.is_awaited is null
               and (select bool_and(t & 1048575 = tokens[1] & 1048575) from unnest(tokens) t)
            returning j.id;
            get diagnostics v_count = row_count;
        else
        end case;
    end if;
    if v_count < cardinality(ids) then
        return query select c.* from pgq._complete(ids, tokens, results, v_count) c;
    end if;
end
$$;
revoke all on function @extschema@.pgq_complete(bigint[], bigint[], jsonb[]) from public;
comment on function @extschema@.pgq_complete(bigint[], bigint[], jsonb[]) is
'Ends jobs in the caller''s transaction and returns the ids of those that were completed, each '
'once; receipts whose lease is lost are left out. results: one for each receipt, null for none, '
'kept as by pgq_complete(id, token, result); of a receipt that is given twice the first one that '
'is not null. Errors: 22004 null array of ids or tokens, null id or token; 22023 different '
'lengths; 40001.';

create function @extschema@.pgq_complete_and_dequeue(
    ids bigint[],
    tokens bigint[],
    batch integer default 1,
    timeout interval default '30 seconds',
    queue text default 'default',
    worker text default null
)
returns setof @extschema@.pgq_job
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_done bigint[];
    v_lost bigint[];
begin
    if cardinality(ids) = 1 and cardinality(tokens) = 1 and ids[1] is not null
        and tokens[1] is not null
        -- All arguments: a function of somebody else with two would make it ambiguous.
        and @extschema@.pgq_complete(ids[1], tokens[1], null::jsonb)
    then
        v_done := ids;
    else
        v_done := array(select c from @extschema@.pgq_complete(ids, tokens, null::jsonb[]) c);
    end if;
    if cardinality(v_done) < cardinality(ids) then
        v_lost := array(
            select r.id from unnest(ids, tokens) r (id, token)
             group by r.id having count(distinct r.token) > (r.id = any (v_done))::integer
             order by r.id
        );
        if v_lost <> '{}' then
            raise exception 'the leases of % of % jobs are lost', cardinality(v_lost),
                    cardinality(ids)
                using errcode = 'PQ001',
                      detail = format('Lost are those of %s. Nothing was done.', v_lost),
                      hint = 'pgq_complete completes the others, and tells which.';
        end if;
    end if;
    return query select d.* from @extschema@.pgq_dequeue(batch, timeout, queue, worker) d;
end
$$;
revoke all on function
    @extschema@.pgq_complete_and_dequeue(bigint[], bigint[], integer, interval, text, text)
    from public;
comment on function
    @extschema@.pgq_complete_and_dequeue(bigint[], bigint[], integer, interval, text, text) is
'Ends the jobs of the last batch, as pgq_complete, and claims the next one, as pgq_dequeue, in '
'one transaction: one round trip and one flush to disk instead of two. The arrays may be empty. '
'Errors: PQ001 a lease is lost: then nothing is completed and nothing is claimed; those of '
'pgq_complete and pgq_dequeue.';

create function @extschema@.pgq_fail(
    id bigint,
    token bigint,
    error text default null,
    retry_in interval default null,
    retryable boolean default true,
    cancel boolean default false
)
returns text
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_job pgq.job;
begin
    perform pgq._check_interval('retry_in', retry_in, true);
    perform pgq._check_not_null('retryable', retryable is null);
    perform pgq._check_not_null('cancel', cancel is null);
    if cancel and retry_in is not null then
        raise exception 'a job that is cancelled is not tried again'
            using errcode = 'invalid_parameter_value',
                  hint = 'Give either "cancel" or "retry_in".';
    end if;
    v_job := pgq._settle_one(id, token);
    if v_job.id is null then
        return null;
    end if;
    v_job.cancel_requested := v_job.cancel_requested or cancel;
    return pgq._put_back(v_job, retry_in, error, retryable);
end
$$;
revoke all on function @extschema@.pgq_fail(bigint, bigint, text, interval, boolean, boolean)
    from public;
comment on function @extschema@.pgq_fail(bigint, bigint, text, interval, boolean, boolean) is
'Ends an attempt in the caller''s transaction. ''scheduled'': the job is tried again after '
'retry_in, or after the queue''s backoff with jitter. ''dead'': it had no attempt left, or '
'retryable is false; it is kept with its payload and last error, and pgq_retry brings it back. '
'''cancelled'': pgq_cancel was called for it, or cancel is true: then it ends as if pgq_cancel had '
'ended it, whatever attempts are left, and error says why. null: the lease is lost, nothing was '
'changed. Errors: 22004 null receipt, retryable or cancel; 22023 negative or infinite retry_in, '
'retry_in together with cancel; 40001.';

create function @extschema@.pgq_release(
    id bigint,
    token bigint,
    delay interval default '0'
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_job pgq.job;
begin
    perform pgq._check_not_null('delay', delay is null);
    perform pgq._check_interval('delay', delay, true);
    v_job := pgq._settle_one(id, token);
    if v_job.id is null then
        return false;
    end if;
    if v_job.cancel_requested then
        perform pgq._put_back(v_job, null, null, false);
    else
        v_job.attempt := (v_job.attempt - 1)::smallint;
        perform pgq._park(v_job, pgq._now() + delay);
    end if;
    return true;
end
$$;
revoke all on function @extschema@.pgq_release(bigint, bigint, interval) from public;
comment on function @extschema@.pgq_release(bigint, bigint, interval) is
'Gives a job back in the caller''s transaction: ready at once, or after delay; the attempt does '
'not count. If pgq_cancel was called for it, it is cancelled. false: the lease is lost, nothing '
'was changed. Errors: 22004 null receipt or delay; 22023 negative or infinite delay; 40001.';

/*
 * Public: pgq_reclaim.
 */

create function pgq._reclaim(
    p_queue_id integer, p_batch integer, p_window integer, p_exhausted boolean
)
returns setof bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_left integer := p_batch;
    v_slot smallint;
    v_expired record;
    v_job pgq.job;
begin
    foreach v_slot in array pgq._slots() loop
        for v_expired in
            select e.*
              from pgq._take_expired(v_slot, p_queue_id, v_left, p_window, v_now, p_exhausted) e
        loop
            select r.* into v_job
              from pgq._remove(v_slot, v_expired.lane, array[v_expired.id]) r;
            perform pgq._put_back(
                v_job, '0',
                format('lease expired at %s (attempt %s, worker %s)', v_job.lease_expires_at,
                       v_job.attempt, coalesce(v_job.worker, 'unnamed')),
                true
            );
            v_left := v_left - 1;
            return next v_job.id;
        end loop;
        exit when v_left = 0;
    end loop;
end
$$;
comment on function pgq._reclaim(integer, integer, integer, boolean) is
'takes back expired leases (see pgq._take_expired): the jobs are ready again, or dead; returns '
'their ids';

create function @extschema@.pgq_reclaim(
    queue text default null,
    max integer default 1000
)
returns setof bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_left integer := max;
    v_queue_id integer;
    v_count integer;
begin
    perform pgq._check_batch('max', max);
    perform pgq._check_moved();
    if queue is not null or pgq._may(null, 'consume') then
        return query
        select r.*
          from pgq._reclaim(
                   case when queue is not null then pgq._queue_id(queue, 'consume') end, max, null,
                   false
               ) r;
    else
        for v_queue_id in select q.id from pgq.queue q where pgq._may(q.id, 'consume') loop
            exit when v_left = 0;
            return query select r.* from pgq._reclaim(v_queue_id, v_left, null, false) r;
            get diagnostics v_count = row_count;
            v_left := v_left - v_count;
        end loop;
    end if;
end
$$;
revoke all on function @extschema@.pgq_reclaim(text, integer) from public;
comment on function @extschema@.pgq_reclaim(text, integer) is
'Takes back up to max expired leases of a queue, or of all, and returns the ids of the jobs: '
'each is ready again or, without an attempt left, dead. Not needed for progress: pgq_dequeue '
'claims expired jobs by itself. Errors: 42704 unknown queue; 22004 and 22023 max.';

/*
 * Public: pgq_drop_queue, pgq_pause, pgq_resume, pgq_unblock.
 */

create function pgq._set_paused(p_queue text, p_paused boolean)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id constant integer := pgq._queue_id(p_queue, 'manage');
begin
    update pgq.queue q set paused = p_paused where q.id = v_id;
    perform pgq._wake(v_id) where not p_paused;
end
$$;
comment on function pgq._set_paused(text, boolean) is 'for pgq_pause and pgq_resume';

create function @extschema@.pgq_pause(queue text)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._set_paused(queue, true);
end
$$;
revoke all on function @extschema@.pgq_pause(text) from public;
comment on function @extschema@.pgq_pause(text) is
'Lets no more jobs of a queue be claimed; running ones go on, and enqueue works. Errors: 42704 '
'unknown queue.';

create function @extschema@.pgq_resume(queue text)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._set_paused(queue, false);
end
$$;
revoke all on function @extschema@.pgq_resume(text) from public;
comment on function @extschema@.pgq_resume(text) is
'Lets the jobs of a paused queue be claimed again. Errors: 42704 unknown queue.';

create function @extschema@.pgq_unblock(queue text, group_key text)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue_id integer;
    v_group_id bigint;
begin
    perform pgq._check_not_null('group_key', group_key is null);
    v_queue_id := pgq._queue_id(queue, 'manage');
    v_group_id := pgq._group_id(v_queue_id, group_key);
    delete from pgq.group_block b where b.group_id = v_group_id and b.queue_id = v_queue_id;
    if not found then
        return false;
    end if;
    insert into pgq.group_hint (group_id, id) values (v_group_id, 0);
    insert into pgq.chore default values;
    return true;
end
$$;
revoke all on function @extschema@.pgq_unblock(text, text) from public;
comment on function @extschema@.pgq_unblock(text, text) is
'Lets a group go on that waits because one of its jobs has died, where group_on_dead is block; the '
'dead job stays dead. false: the group is not blocked. Errors: 42704 unknown queue; 22004.';

create function pgq._check_may_drop(p_queue text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._queue_id(p_queue, 'manage');
    -- As in pgq._live_keys.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return;
end
$$;
comment on function pgq._check_may_drop(text) is
'raises what pgq._queue_id does; leaves no lock, which could not be raised then';

-- Foreign keys would see to it, too, but a parallel pg_restore fills the tables in any order.
create function pgq._delete_queue(p_id integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgq.start s where s.queue_id = p_id;
    delete from pgq.permit p where p.queue_id = p_id;
    delete from pgq.group_block b where b.queue_id = p_id;
    delete from pgq.schedule s where s.queue_id = p_id;
    delete from pgq.lane l where l.queue_id = p_id;
    delete from pgq.queue q where q.id = p_id;
end
$$;
comment on function pgq._delete_queue(integer) is
'deletes a queue without jobs and grants; the caller holds pgq.queue and pgq.lane';

create function @extschema@.pgq_drop_queue(
    name text,
    force boolean default false
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '200ms'
as $$
declare
    v_id integer;
begin
    perform pgq._check_not_null('name', name is null);
    perform pgq._check_not_null('force', force is null);
    if not pgq._read_committed() then
        raise exception 'a queue can be dropped under READ COMMITTED only'
            using errcode = 'active_sql_transaction',
                  detail = 'An older snapshot may not show all of its jobs.';
    end if;
    perform pgq._check_may_drop(name);
    -- Every enqueue reads the lanes, so that none is under way once the locks are had.
    begin
        lock table pgq.queue, pgq.lane in access exclusive mode;
    exception when lock_not_available then
        raise exception 'queue "%" cannot be dropped while a transaction is open that has used pgq',
                name
            using errcode = 'lock_not_available',
                  hint = 'Try again; pg_stat_activity shows transactions that stay open.';
    end;
    v_id := pgq._queue_id(name, 'manage');
    if not force and (
        exists (select from pgq.lane l join pgq.job j on j.lane = l.id where l.queue_id = v_id)
        or exists (
            select from pgq.archive a
             where a.queue = name and a.state = 'dead' and a.expires_at > pgq._now()
        )
    ) then
        raise exception 'queue "%" holds jobs', name
            using errcode = 'object_in_use',
                  hint = 'Drop it with "force" to delete its live and dead jobs, too.';
    end if;
    perform pgq._note_ended(array_agg(j))
       from pgq.lane l join pgq.job j on j.lane = l.id
      where l.queue_id = v_id and (j.is_awaited or j.wait is not null);
    -- A delete that waits for a transaction which moves a job does not see where to.
    while exists (
        select from pgq.lane l join pgq.job j on j.lane = l.id where l.queue_id = v_id
    ) loop
        delete from pgq.job j using pgq.lane l where j.lane = l.id and l.queue_id = v_id;
    end loop;
    delete from pgq.archive a where a.queue = name and a.state = 'dead';
    perform pgq._drop_grants(v_id);
    perform pgq._delete_queue(v_id);
    perform pgq._use_pg_cron();
end
$$;
revoke all on function @extschema@.pgq_drop_queue(text, boolean) from public;
comment on function @extschema@.pgq_drop_queue(text, boolean) is
'Drops a queue. force: also if it holds live or dead jobs, which are deleted. Completed jobs stay '
'in the archive until they expire. Until its transaction ends, all calls of others wait: commit at '
'once. Errors: 42704 unknown queue; 55006 it holds jobs; 55P03 some transaction that has used pgq '
'stayed open for 200 ms; 25001 under REPEATABLE READ and SERIALIZABLE.';

/*
 * Public: pgq_create_queue, pgq_configure_queue.
 */

create function pgq._check_range(p_name text, p_value bigint, p_min bigint, p_max bigint)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_value not between p_min and p_max then
        raise exception '"%" must be between % and %, not %', p_name, p_min, p_max, p_value
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
comment on function pgq._check_range(text, bigint, bigint, bigint) is 'raises 22023; null passes';

create function pgq._check_limits(p_queue pgq.queue)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_range('max_active', p_queue.max_active, 0, 10000),
            pgq._check_range('rate_limit', p_queue.rate_limit, 0, 1000000),
            pgq._check_interval('rate_interval', p_queue.rate_interval, false),
            pgq._check_range('rate_burst', p_queue.rate_burst, 0, 10000),
            pgq._check_interval('priority_ageing', p_queue.priority_ageing, true),
            pgq._check_range('max_ready', p_queue.max_ready, 0, 2147483647),
            pgq._check_range('max_payload', p_queue.max_payload, 0, 1073741824);
    -- Or the numbers of moments outgrow bigint, see pgq._moment.
    if extract(epoch from p_queue.rate_interval) < 0.001 then
        raise exception '"rate_interval" must be at least a millisecond, not %',
                p_queue.rate_interval
            using errcode = 'invalid_parameter_value';
    end if;
    if p_queue.rate_burst = 0 and p_queue.rate_limit > 10000 then
        raise exception '"rate_burst" must be set for a "rate_limit" above 10000'
            using errcode = 'invalid_parameter_value',
                  detail = 'Without it as many jobs may start at once, and the most is 10000.';
    end if;
end
$$;
comment on function pgq._check_limits(pgq.queue) is 'raises 22023 for bad limits';

create function pgq._check_settings(p_queue pgq.queue)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_range('max_attempts', p_queue.max_attempts, 1, 32767);
    if not p_queue.backoff_factor between 1 and 1000 then
        raise exception '"backoff_factor" must be between 1 and 1000, not %',
                p_queue.backoff_factor
            using errcode = 'invalid_parameter_value';
    end if;
    perform pgq._check_interval('backoff_base', p_queue.backoff_base, true);
    perform pgq._check_interval('backoff_max', p_queue.backoff_max, true);
    if p_queue.backoff_max < p_queue.backoff_base then
        raise exception '"backoff_max" must not be shorter than "backoff_base"'
            using errcode = 'invalid_parameter_value',
                  detail = format(
                      'They are %s and %s.', p_queue.backoff_max, p_queue.backoff_base
                  );
    end if;
    perform pgq._check_interval('keep_completed', p_queue.keep_completed, true);
    perform pgq._check_interval('keep_dead', p_queue.keep_dead, true);
    perform pgq._check_interval('dedupe_for', p_queue.dedupe_for, true);
    perform pgq._check_range(
        'group_concurrency', p_queue.group_concurrency, 1, 2147483647
    );
    if p_queue.group_on_dead not in ('continue', 'block') then
        raise exception '"group_on_dead" must be continue or block, not "%"', p_queue.group_on_dead
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
comment on function pgq._check_settings(pgq.queue) is 'raises 22023 for bad settings';

create function pgq._save_settings(p_old pgq.queue, p_new pgq.queue)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_settings(p_new), pgq._check_limits(p_new);
    update pgq.queue q
       set max_attempts = p_new.max_attempts, backoff_base = p_new.backoff_base,
           backoff_factor = p_new.backoff_factor, backoff_max = p_new.backoff_max,
           keep_completed = p_new.keep_completed, keep_dead = p_new.keep_dead,
           dedupe_for = p_new.dedupe_for, group_concurrency = p_new.group_concurrency,
           group_on_dead = p_new.group_on_dead, max_active = p_new.max_active,
           rate_limit = p_new.rate_limit, rate_interval = p_new.rate_interval,
           rate_burst = p_new.rate_burst, priority_ageing = p_new.priority_ageing,
           max_ready = p_new.max_ready, max_payload = p_new.max_payload
     where q.id = p_new.id;
    update pgq.lane l set is_bounded = q.is_bounded
      from pgq.queue q
     where q.id = p_new.id and l.queue_id = q.id and l.is_bounded <> q.is_bounded;
    perform pgq._save_permits(p_old, p_new), pgq._wake(p_new.id);
    if p_new.group_concurrency <> p_old.group_concurrency then
        insert into pgq.group_hint (group_id, id)
        select distinct j.group_id, 0
          from pgq.lane l join pgq.job j on j.lane = l.id
         where l.queue_id = p_new.id and j.wait is not null;
        insert into pgq.chore default values;
    end if;
end
$$;
comment on function pgq._save_settings(pgq.queue, pgq.queue) is
'checks and stores the settings of a queue, and does what follows from them; raises 22023';

create function @extschema@.pgq_configure_queue(
    name text,
    max_attempts integer default null,
    backoff_base interval default null,
    backoff_factor double precision default null,
    backoff_max interval default null,
    keep_completed interval default null,
    keep_dead interval default null,
    max_active integer default null,
    dedupe_for interval default null,
    group_concurrency integer default null,
    group_on_dead text default null,
    rate_limit integer default null,
    rate_interval interval default null,
    rate_burst integer default null,
    priority_ageing interval default null,
    max_ready integer default null,
    max_payload integer default null
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id integer;
    v_old pgq.queue;
    v_new pgq.queue;
begin
    perform pgq._check_not_null('name', name is null);
    v_id := pgq._queue_id(name, 'manage');
    select q.* into v_old from pgq.queue q where q.id = v_id for no key update;
    v_new := v_old;
    v_new.max_attempts := coalesce(max_attempts, v_old.max_attempts);
    v_new.backoff_base := coalesce(backoff_base, v_old.backoff_base);
    v_new.backoff_factor := coalesce(backoff_factor, v_old.backoff_factor);
    v_new.backoff_max := coalesce(backoff_max, v_old.backoff_max);
    v_new.keep_completed := coalesce(keep_completed, v_old.keep_completed);
    v_new.keep_dead := coalesce(keep_dead, v_old.keep_dead);
    v_new.max_active := coalesce(max_active, v_old.max_active);
    v_new.dedupe_for := coalesce(dedupe_for, v_old.dedupe_for);
    v_new.group_concurrency := coalesce(group_concurrency, v_old.group_concurrency);
    v_new.group_on_dead := coalesce(group_on_dead, v_old.group_on_dead);
    v_new.rate_limit := coalesce(rate_limit, v_old.rate_limit);
    v_new.rate_interval := coalesce(rate_interval, v_old.rate_interval);
    v_new.rate_burst := coalesce(rate_burst, v_old.rate_burst);
    v_new.priority_ageing := coalesce(priority_ageing, v_old.priority_ageing);
    v_new.max_ready := coalesce(max_ready, v_old.max_ready);
    v_new.max_payload := coalesce(max_payload, v_old.max_payload);
    perform pgq._save_settings(v_old, v_new);
end
$$;
revoke all on function
    @extschema@.pgq_configure_queue(
        text, integer, interval, double precision, interval, interval, interval, integer, interval,
        integer, text, integer, interval, integer, interval, integer, integer
    ) from public;
comment on function
    @extschema@.pgq_configure_queue(
        text, integer, interval, double precision, interval, interval, interval, integer, interval,
        integer, text, integer, interval, integer, interval, integer, integer
    ) is
'Changes those settings of a queue that are given (see pgq_create_queue). Retention counts for '
'jobs that finish from then on; if the queue kept no completed jobs, for those claimed from then '
'on; a lower group_concurrency for a group when its jobs end; max_active also for jobs that are '
'running (for 10000 of them if there was no limit), so that a lower one is reached as they end; '
'another rate_limit or rate_interval begins with all starts; other limits for what is enqueued or '
'claimed from then on. Claims that are not committed yet go by the old settings. Errors: 42704 '
'unknown queue; 22004; 22023.';

create function pgq._check_queue_name(p_name text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null('name', p_name is null);
    if length(p_name) not between 1 and 200 then
        raise exception 'a queue''s name must have 1 to 200 characters, not %', length(p_name)
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
comment on function pgq._check_queue_name(text) is 'raises 22004 for null, 22023 for a bad name';

create function @extschema@.pgq_create_queue(
    name text,
    max_attempts integer default 20,
    backoff_base interval default '1 second',
    backoff_factor double precision default 2,
    backoff_max interval default '1 hour',
    keep_completed interval default '1 day',
    keep_dead interval default '30 days',
    max_active integer default 0,
    dedupe_for interval default '0',
    group_concurrency integer default 1,
    group_on_dead text default 'continue',
    rate_limit integer default 0,
    rate_interval interval default '1 second',
    rate_burst integer default 0,
    priority_ageing interval default '0',
    max_ready integer default 0,
    max_payload integer default 0,
    if_not_exists boolean default false
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id integer;
begin
    perform pgq._check_may('manage'), pgq._check_queue_name(name);
    if num_nulls(
        max_attempts, backoff_base, backoff_factor, backoff_max, keep_completed, keep_dead,
        max_active, dedupe_for, group_concurrency, group_on_dead, rate_limit, rate_interval,
        rate_burst, priority_ageing, max_ready, max_payload, if_not_exists
    ) > 0 then
        raise exception 'settings must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Leave an argument out for its default.';
    end if;
    insert into pgq.queue as q (name)
    select pgq_create_queue.name
     where not exists (select from pgq.queue o where o.name = pgq_create_queue.name)
    on conflict on constraint queue_name_key do nothing
    returning q.id into v_id;
    if v_id is null and if_not_exists then
        return false;
    elsif v_id is null then
        raise exception 'queue "%" exists already', name
            using errcode = 'duplicate_object',
                  hint = 'Use pgq_configure_queue to change its settings.';
    end if;
    perform pgq._add_lane(v_id, 0::smallint, false);
    perform @extschema@.pgq_configure_queue(
        name, max_attempts, backoff_base, backoff_factor, backoff_max, keep_completed, keep_dead,
        max_active, dedupe_for, group_concurrency, group_on_dead, rate_limit, rate_interval,
        rate_burst, priority_ageing, max_ready, max_payload
    );
    return true;
end
$$;
revoke all on function
    @extschema@.pgq_create_queue(
        text, integer, interval, double precision, interval, interval, interval, integer, interval,
        integer, text, integer, interval, integer, interval, integer, integer, boolean
    ) from public;
comment on function
    @extschema@.pgq_create_queue(
        text, integer, interval, double precision, interval, interval, interval, integer, interval,
        integer, text, integer, interval, integer, interval, integer, integer, boolean
    ) is
'Creates a queue. max_attempts: tries before a job is dead (1 to 32767). The wait before the '
'next try is backoff_base * backoff_factor ^ (attempt - 1), at most backoff_max, of that a '
'random share between a half and all. keep_completed, keep_dead: how long finished jobs stay in '
'the archive (0: not at all). max_active: how many of its jobs may be active at a time, over all '
'workers (0: no limit; up to 10000). dedupe_for: how long a dedupe key stays taken after its job '
'has completed; such jobs stay in the archive for that long at least. group_concurrency: how many '
'jobs of a group may be active at a time. group_on_dead: when a job of a group dies the next one '
'runs (continue), or waits until it is retried or pgq_unblock is called (block). rate_limit: how '
'many jobs may start per rate_interval (0: no limit), after a pause rate_burst at once (0: as '
'many as rate_limit; up to 10000), a token bucket; a rolled back claim has used no start, any '
'other try has. Both limits need READ COMMITTED. priority_ageing: for each such time that its '
'oldest job has been ready a priority counts as one higher (0: never). max_ready: with so many '
'ready jobs enqueue fails (0: no bound). max_payload: bytes of a payload as text (0: no bound). '
'if_not_exists: a queue of that name stays as it is, whatever its settings, and the answer is '
'false. Errors: 42710 exists already; 22004; 22023.';

/*
 * Public: pgq_cancel, pgq_cancel_key, pgq_cancel_all.
 */

create function pgq._request_cancel(p_slot smallint, p_lane integer, p_id bigint, p_token bigint)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
    case p_slot
    when 0 then
        update pgq.job_0 j set cancel_requested = true
         where j.lane = p_lane and j.id = p_id and j.token = p_token;
    when 1 then
        update pgq.job_1 j set cancel_requested = true
         where j.lane = p_lane and j.id = p_id and j.token = p_token;
    when 2 then
        update pgq.job_2 j set cancel_requested = true
         where j.lane = p_lane and j.id = p_id and j.token = p_token;
    when 3 then
        update pgq.job_3 j set cancel_requested = true
         where j.lane = p_lane and j.id = p_id and j.token = p_token;
    when 4 then
        update pgq.job_4 j set cancel_requested = true
         where j.lane = p_lane and j.id = p_id and j.token = p_token;
    when 5 then
        update pgq.job_5 j set cancel_requested = true
         where j.lane = p_lane and j.id = p_id and j.token = p_token;
    end case;
    return found;
end
$$;
comment on function pgq._request_cancel(smallint, integer, bigint, bigint) is
'leaves word for the holder of a lease; false if it has ended meanwhile';

create function @extschema@.pgq_cancel(
    id bigint,
    force boolean default false
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_job pgq.job;
begin
    perform pgq._check_not_null('id', id is null), pgq._check_not_null('force', force is null);
    if (pgq._find_mine(id, 'manage')).id is null then
        return false;
    end if;
    loop
        v_job := pgq._find_and_lock(id, force);
        exit when v_job.id is null or v_job.token is null or force;
        if pgq._request_cancel(v_job.slot, v_job.lane, v_job.id, v_job.token) then
            return false;
        end if;
    end loop;
    if v_job.id is null then
        return false;
    end if;
    select r.* into v_job from pgq._remove(v_job.slot, v_job.lane, array[v_job.id]) r;
    perform pgq._keep(array[v_job], 'cancelled', null), pgq._note_ended(array[v_job]);
    return true;
end
$$;
revoke all on function @extschema@.pgq_cancel(bigint, boolean) from public;
comment on function @extschema@.pgq_cancel(bigint, boolean) is
'Cancels a ready, scheduled or waiting job in the caller''s transaction; it is kept in the archive '
'for the queue''s keep_dead. false: it is finished or unknown, or it is active: then its worker is '
'told at its next heartbeat, and there is no other attempt. force: an active job is cancelled, '
'too, and its receipt is good for nothing any more. Waits for a transaction that is about to '
'claim, pop or end it. Errors: 22004 null argument; 40001.';

create function @extschema@.pgq_cancel_key(
    queue text,
    dedupe_key text,
    force boolean default false
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint;
begin
    perform pgq._check_not_null('dedupe_key', dedupe_key is null);
    v_id := (pgq._live_keys(pgq._queue_id(queue, 'manage'), array[dedupe_key]))[1];
    return v_id is not null and @extschema@.pgq_cancel(v_id, force);
end
$$;
revoke all on function @extschema@.pgq_cancel_key(text, text, boolean) from public;
comment on function @extschema@.pgq_cancel_key(text, text, boolean) is
'Cancels the live job with a dedupe key, as pgq_cancel(id). Errors: 42704 unknown queue; 22004; '
'40001.';

create function @extschema@.pgq_cancel_all(
    queue text,
    force boolean default false
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue_id constant integer := pgq._queue_id(queue, 'manage');
    v_id bigint;
    v_count bigint := bigint '0';
begin
    perform pgq._check_not_null('force', force is null), pgq._check_moved();
    for v_id in
        select j.id from pgq.job j
         where j.lane in (select l.id from pgq.lane l where l.queue_id = v_queue_id) order by j.id
    loop
        if @extschema@.pgq_cancel(v_id, force) then
            v_count := v_count + 1;
        end if;
    end loop;
    return v_count;
end
$$;
revoke all on function @extschema@.pgq_cancel_all(text, boolean) from public;
comment on function @extschema@.pgq_cancel_all(text, boolean) is
'pgq_cancel for all live jobs of a queue; returns how many were cancelled. The workers of the '
'others are told. Errors: 42704 unknown queue; 22004; 40001.';

/*
 * Public: pgq_retry, pgq_retry_dead, pgq_purge.
 */

create function pgq._revive(p_ids bigint[], p_skip boolean)
returns setof bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_dead pgq.archive;
    v_job pgq.job;
    v_queue_id integer;
begin
    perform pgq._lock_keys(q.id, k.keys)
       from (
                select a.queue, array_agg(a.dedupe_key) as keys from pgq.archive a
                 where a.id = any (p_ids) and a.dedupe_key is not null group by a.queue
            ) k
       join pgq.queue q on q.name = k.queue;
    for v_dead in
        select a.* from pgq.archive a
         where a.id = any (p_ids) and a.state = 'dead' and a.expires_at > pgq._now()
         order by a.id
    loop
        select q.id into v_queue_id from pgq.queue q where q.name = v_dead.queue;
        continue when v_dead.dedupe_key is not null
            and (pgq._live_keys(v_queue_id, array[v_dead.dedupe_key]))[1] is not null;
        if p_skip then
            perform from pgq.archive a
              where a.bucket = v_dead.bucket and a.id = v_dead.id for update skip locked;
            continue when not found;
        end if;
        delete from pgq.archive a where a.bucket = v_dead.bucket and a.id = v_dead.id;
        continue when not found;
        select v_dead.id, v_dead.enqueued_at, l.id, 0::smallint, v_dead.max_attempts,
               v_dead.payload, v_dead.headers, v_dead.last_error, v_dead.dedupe_key,
               case when v_dead.dedupe_key is not null then v_queue_id end, v_dead.group_key,
               pgq._group_id(v_queue_id, v_dead.group_key), v_dead.checkpoint,
               case when not pgq._read_committed()
                         or exists (select from pgq.dependency d where d.on_id = v_dead.id)
                    then true end
          into v_job.id, v_job.enqueued_at, v_job.lane, v_job.attempt, v_job.max_attempts,
               v_job.payload, v_job.headers, v_job.last_error, v_job.dedupe_key,
               v_job.dedupe_queue_id, v_job.group_key, v_job.group_id, v_job.checkpoint,
               v_job.is_awaited
          from pgq.lane l
         where l.queue_id = v_queue_id and l.priority = v_dead.priority
         order by l.id
         limit 1;
        if v_job.group_id is null then
            perform pgq._park(v_job, pgq._now());
        else
            perform pgq._wait(v_job);
            perform pgq._note_ended(array[v_job]);
            perform pgq._lift_blocks(array[v_dead.id]);
        end if;
        return next v_dead.id;
    end loop;
end
$$;
comment on function pgq._revive(bigint[], boolean) is
'puts dead jobs back as ready with all their attempts, unless a live one has their dedupe key; '
'returns the ids. p_skip: leaves out those that somebody else is about to put back or purge';

create function @extschema@.pgq_retry(id bigint)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null('id', id is null);
    if not exists (
        select from pgq.archive a join pgq.queue q on q.name = a.queue
         where a.id = pgq_retry.id and pgq._may(q.id, 'manage')
    ) then
        return false;
    end if;
    perform pgq._revive(array[id], false);
    if found then
        return true;
    end if;
    if exists (
        select from pgq.archive a
         where a.id = pgq_retry.id and a.state = 'dead' and a.expires_at > pgq._now()
    ) then
        raise exception 'a live job has the dedupe key of job %', id
            using errcode = 'unique_violation',
                  hint = 'Retry it when that one has ended, or cancel that one.';
    end if;
    return false;
end
$$;
revoke all on function @extschema@.pgq_retry(bigint) from public;
comment on function @extschema@.pgq_retry(bigint) is
'Makes a dead job ready again, with all its attempts, in the caller''s transaction. false: there '
'is no dead job of that id. Errors: 22004 null id; 23505 a live job has its dedupe key.';

create function @extschema@.pgq_retry_dead(
    queue text,
    max integer default 1000
)
returns setof bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_batch('max', max);
    perform pgq._queue_id(queue, 'manage');
    return query
    select r.*
      from pgq._revive(array(
               select a.id
                 from pgq.archive a
                where a.queue = pgq_retry_dead.queue and a.state = 'dead'
                  and a.expires_at > pgq._now()
                order by a.id
                limit max
           ), true) r
     order by 1;
end
$$;
revoke all on function @extschema@.pgq_retry_dead(text, integer) from public;
comment on function @extschema@.pgq_retry_dead(text, integer) is
'Makes up to max dead jobs of a queue ready again, oldest first, and returns their ids; those '
'whose dedupe key a live job has stay dead. Errors: 42704 unknown queue; 22004 and 22023 max.';

create function @extschema@.pgq_purge(
    queue text,
    states text[] default '{ready,scheduled,waiting}'
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_queue_id constant integer := pgq._queue_id(queue, 'manage');
    v_state text;
    v_live bigint;
    v_dead bigint;
begin
    perform pgq._check_array('states', states);
    perform pgq._check_moved();
    foreach v_state in array states loop
        if v_state not in ('ready', 'scheduled', 'waiting', 'dead') then
            raise exception 'jobs in state "%" cannot be purged', v_state
                using errcode = 'invalid_parameter_value',
                      hint = 'The states are ready, scheduled, waiting and dead.';
        end if;
    end loop;
    with doomed as (
        select j.slot, j.lane, j.id
          from pgq.job j
         where j.lane in (select l.id from pgq.lane l where l.queue_id = v_queue_id)
           and j.token is null
           and case when pgq._is_waiting(j) then 'waiting'
                    when j.run_at > v_now then 'scheduled'
                    else 'ready' end = any (states)
           for update skip locked
    ), gone as (
        delete from pgq.job j
         using doomed d where j.slot = d.slot and j.lane = d.lane and j.id = d.id
        returning j as job, j.group_id
    ), noted as (
        select pgq._note_ended(array_agg(g.job)) from gone g
         where g.group_id is not null or (g.job).is_awaited or (g.job).wait is not null
    )
    select count(*) into v_live from gone left join noted on true;
    with gone as (
        delete from pgq.archive a
         where 'dead' = any (states) and a.queue = pgq_purge.queue and a.state = 'dead'
        returning a.id
    ), lifted as (
        select pgq._lift_blocks(array_agg(g.id)) from gone g
    )
    select count(*) into v_dead from gone left join lifted on true;
    return v_live + v_dead;
end
$$;
revoke all on function @extschema@.pgq_purge(text, text[]) from public;
comment on function @extschema@.pgq_purge(text, text[]) is
'Deletes the jobs of a queue that are in one of the states ready, scheduled, waiting or dead, '
'and returns their number. Active jobs stay, and so do jobs that another transaction is about to '
'claim. Errors: 42704 unknown queue; 22004; 22023 another state.';

/*
 * Cron expressions: the five fields of Vixie cron (minute, hour, day of month, month, day of week),
 * with lists, ranges, steps, names and the @-words, see crontab(5). As there, when both day fields
 * are restricted, a day matches if either does.
 *
 * Times are local times of a time zone. One that a change of the clock skips counts as it would be
 * without the change; of one that comes twice the first counts, unless the hour is "*" or "*" with
 * a step: then the schedule goes on in real time.
 */

create function pgq._raise_cron(p_cron text, p_name text, p_part text, p_reason text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'bad cron expression "%"', p_cron
        using errcode = 'invalid_parameter_value',
              detail = format('In the field "%s", "%s" %s.', p_name, p_part, p_reason),
              hint = 'The fields are minute, hour, day of month, month and day of week, '
                     'for example "30 9 * * mon-fri".';
end
$$;
comment on function pgq._raise_cron(text, text, text, text) is 'raises 22023';

create function pgq._cron_number(
    p_cron text, p_name text, p_part text, p_min integer, p_max integer, p_names text[]
)
returns integer
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_number integer := array_position(p_names, lower(p_part collate "C")) - 1 + p_min;
begin
    if v_number is null and p_part ~ '^[0-9]{1,3}$' then
        v_number := p_part::integer;
    end if;
    if v_number is null then
        perform pgq._raise_cron(p_cron, p_name, p_part, 'is not known');
    elsif v_number not between p_min and p_max then
        perform pgq._raise_cron(
            p_cron, p_name, p_part, format('is not between %s and %s', p_min, p_max)
        );
    end if;
    return v_number;
end
$$;
comment on function pgq._cron_number(text, text, text, integer, integer, text[]) is
'the number of one value in a field; raises 22023';

create function pgq._cron_field(
    p_cron text, p_name text, p_field text, p_min integer, p_max integer, p_names text[]
)
returns integer[]
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_part text; v_range text[]; v_first integer; v_last integer; v_step integer;
    v_numbers integer[] := array[]::integer[];
begin
    foreach v_part in array string_to_array(p_field, ',') loop
        v_range := regexp_match(
            v_part, '^(?:([*])|([[:alnum:]]+)(?:-([[:alnum:]]+))?)(?:/([0-9]{1,3}))?$'
        );
        if v_range is null or (v_range[4] is not null and v_range[1] is null and v_range[3] is null)
        then
            perform pgq._raise_cron(p_cron, p_name, v_part, 'is not a value, range or step');
        end if;
        v_step := coalesce(v_range[4], '1')::integer;
        if v_range[1] = '*' then
            v_first := p_min;
            v_last := p_max;
        else
            v_first := pgq._cron_number(p_cron, p_name, v_range[2], p_min, p_max, p_names);
            v_last := pgq._cron_number(
                p_cron, p_name, coalesce(v_range[3], v_range[2]), p_min, p_max, p_names
            );
        end if;
        if v_step = 0 or v_first > v_last then
            perform pgq._raise_cron(p_cron, p_name, v_part, 'is empty');
        end if;
        v_numbers := v_numbers || array(select generate_series(v_first, v_last, v_step));
    end loop;
    return v_numbers;
end
$$;
comment on function pgq._cron_field(text, text, text, integer, integer, text[]) is
'the numbers that one field of a cron expression stands for; raises 22023';

create type pgq.cron as (
    minutes integer[],
    hours integer[],
    days integer[],
    months integer[],
    weekdays integer[],
    any_hour boolean,
    any_day boolean
);
comment on type pgq.cron is
'a cron expression; weekdays: 0 or 7 is Sunday; any_hour: the hour is not restricted by values; '
'any_day: both day fields must match';

create function pgq._parse_cron(p_cron text)
returns pgq.cron
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_word constant text := lower(btrim(p_cron, E' \t') collate "C");
    v_fields constant text[] := regexp_split_to_array(btrim(case v_word
        when '@yearly' then '0 0 1 1 *'
        when '@annually' then '0 0 1 1 *'
        when '@monthly' then '0 0 1 * *'
        when '@weekly' then '0 0 * * 0'
        when '@daily' then '0 0 * * *'
        when '@midnight' then '0 0 * * *'
        when '@hourly' then '0 * * * *'
        else p_cron
    end, E' \t'), E'[ \t]+');
    v_cron pgq.cron;
begin
    if cardinality(v_fields) <> 5 then
        perform pgq._raise_cron(
            p_cron, 'all', p_cron, format('has %s fields, not 5', cardinality(v_fields))
        );
    end if;
    v_cron.minutes := pgq._cron_field(p_cron, 'minute', v_fields[1], 0, 59, null);
    v_cron.hours := pgq._cron_field(p_cron, 'hour', v_fields[2], 0, 23, null);
    v_cron.days := pgq._cron_field(p_cron, 'day of month', v_fields[3], 1, 31, null);
    v_cron.months := pgq._cron_field(
        p_cron, 'month', v_fields[4], 1, 12,
        '{jan,feb,mar,apr,may,jun,jul,aug,sep,oct,nov,dec}'
    );
    v_cron.weekdays := pgq._cron_field(
        p_cron, 'day of week', v_fields[5], 0, 7, '{sun,mon,tue,wed,thu,fri,sat}'
    );
    v_cron.any_hour := v_fields[2] like '*%';
    v_cron.any_day := v_fields[3] like '*%' or v_fields[5] like '*%';
    return v_cron;
end
$$;
comment on function pgq._parse_cron(text) is 'raises 22023 with the field that is bad';

create function pgq._instants(p_local timestamp, p_timezone text, p_both boolean)
returns setof timestamptz
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    -- Of two it is the second, of none the one by the clock before the change.
    v_at constant timestamptz := p_local at time zone p_timezone;
    v_first timestamptz := v_at;
    v_shift interval;
begin
    foreach v_shift in array '{30 minutes,1 hour,2 hours}'::interval[] loop
        if (v_at - v_shift) at time zone p_timezone = p_local then
            v_first := v_at - v_shift;
        end if;
    end loop;
    return next v_first;
    if p_both and v_first <> v_at then
        return next v_at;
    end if;
end
$$;
comment on function pgq._instants(timestamp, text, boolean) is
'when a clock in a time zone shows a local time: the first time, or both';

create function pgq._next_tick_of(p_cron text, p_timezone text, p_after timestamptz)
returns timestamptz
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_cron constant pgq.cron := pgq._parse_cron(p_cron);
    v_day timestamp := date_trunc('day', p_after at time zone p_timezone) - interval '1 day';
    v_end constant timestamp := v_day + interval '41 years';
    v_weekday integer;
    v_on_day boolean;
    v_on_weekday boolean;
    v_next timestamptz;
begin
    -- The 29th of February falls on a certain weekday after 40 years at the latest.
    while v_day < v_end loop
        if extract(month from v_day)::integer <> all (v_cron.months) then
            v_day := date_trunc('month', v_day) + interval '1 month';
            continue;
        end if;
        v_weekday := extract(dow from v_day)::integer;
        v_on_day := extract(day from v_day)::integer = any (v_cron.days);
        v_on_weekday := v_weekday = any (v_cron.weekdays)
            or (v_weekday = 0 and 7 = any (v_cron.weekdays));
        if (v_on_day and v_on_weekday) or (not v_cron.any_day and (v_on_day or v_on_weekday)) then
            select min(i) into v_next
              from unnest(v_cron.hours) h, unnest(v_cron.minutes) m,
                   pgq._instants(
                       v_day + make_interval(hours => h, mins => m), p_timezone, v_cron.any_hour
                   ) i
             where i > p_after;
            if v_next is not null then
                return v_next;
            end if;
        end if;
        v_day := v_day + interval '1 day';
    end loop;
    perform pgq._raise_cron(p_cron, 'day of month', p_cron, 'never comes');
    return null;
end
$$;
comment on function pgq._next_tick_of(text, text, timestamptz) is
'the first time after that which a cron expression names; raises 22023 for a bad expression or '
'time zone';

/*
 * Public: pgq_grant, pgq_revoke.
 */

create function pgq._verb_of(p_function name)
returns text
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return case
        when p_function in (
            'pgq_enqueue', 'pgq_enqueue_many', 'pgq_watch', 'pgq_unwatch', 'pgq_check_watch',
            'pgq_enqueue_row'
        ) then 'enqueue'
        when p_function in (
            'pgq_dequeue', 'pgq_heartbeat', 'pgq_complete', 'pgq_complete_and_dequeue', 'pgq_fail',
            'pgq_release', 'pgq_reclaim', 'pgq_pop', 'pgq_claim', 'pgq_channel', 'pgq_wait',
            'pgq_wake'
        ) then 'consume'
        when p_function = 'pgq_get' then 'observe'
        when p_function = 'pgq_version' then null
        else 'manage'
    end;
end
$$;
comment on function pgq._verb_of(name) is
'the privilege that a public function needs; null: any of them';

create function pgq._role_id(p_role name)
returns oid
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return case when p_role = 'public' then 0::oid
                else (select r.oid from pg_roles r where r.rolname = p_role) end;
end
$$;
comment on function pgq._role_id(name) is '0 for public, null for a role that does not exist';

create function pgq._set_usage(p_role name, p_wanted boolean)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if not p_wanted then
        delete from pgq.privilege p where p.role = pgq._role_id(p_role) and p.verb = 'usage';
        if found then
            execute format('revoke usage on schema %s from %I', '@extschema@', p_role);
        end if;
    elsif not has_schema_privilege(p_role, '@extschema@'::regnamespace, 'usage') then
        insert into pgq.privilege (role, queue_id, verb)
        values (pgq._role_id(p_role), null, 'usage') on conflict do nothing;
        execute format('grant usage on schema %s to %I', '@extschema@', p_role);
    end if;
end
$$;
comment on function pgq._set_usage(name, boolean) is
'lets a role find the public functions, and takes that back unless it could without';

create function pgq._set_grants(p_role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_verbs constant text[] := array(
        select distinct p.verb from pgq.privilege p
         where p.role = pgq._role_id(p_role) and p.verb <> 'usage'
    );
    v_function record;
    v_view record;
begin
    -- What the owner has comes from nobody; the functions run with it.
    if p_role = current_user then
        return;
    end if;
    perform pgq._set_usage(p_role, v_verbs <> '{}');
    for v_function in
        select p.oid::regprocedure as name,
               case when p.pronamespace = 'pgq'::regnamespace then 'observe'
                    else pgq._verb_of(p.proname) end as verb
          from pg_proc p
         where (p.pronamespace = '@extschema@'::regnamespace and p.proname ~ '^pgq_')
            or (p.pronamespace = 'pgq'::regnamespace
                and p.proname in ('_queues', '_workers', '_health', '_locks'))
    loop
        if v_function.verb = any (v_verbs) or (v_function.verb is null and v_verbs <> '{}') then
            execute format('grant execute on function %s to %I', v_function.name, p_role);
        else
            execute format('revoke execute on function %s from %I', v_function.name, p_role);
        end if;
    end loop;
    for v_view in
        select c.oid::regclass as name
          from pg_class c
         where c.relnamespace = '@extschema@'::regnamespace and c.relkind = 'v'
           and c.relname ~ '^pgq_'
    loop
        if 'observe' = any (v_verbs) then
            execute format('grant select on %s to %I', v_view.name, p_role);
        else
            execute format('revoke select on %s from %I', v_view.name, p_role);
        end if;
    end loop;
end
$$;
comment on function pgq._set_grants(name) is
'lets a role call those functions and read those views that its privileges are for, and no others';

create function pgq._drop_grants(p_queue_id integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_roles oid[];
begin
    lock table pgq.privilege in share update exclusive mode;
    with gone as (
        delete from pgq.privilege p where p.queue_id = p_queue_id returning p.role
    )
    select array_agg(distinct g.role::oid) into v_roles from gone g;
    perform pgq._set_grants('public') where 0::oid = any (v_roles);
    perform pgq._set_grants(r.rolname) from pg_roles r where r.oid = any (v_roles);
end
$$;
comment on function pgq._drop_grants(integer) is 'takes back what was granted on a queue';

create function pgq._check_grant(p_queue text, p_role name, p_privileges text[])
returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_verb text;
    v_queue_id integer;
begin
    perform pgq._check_not_null('queue', p_queue is null),
            pgq._check_not_null('role', p_role is null),
            pgq._check_array('privileges', p_privileges);
    select v into v_verb
      from unnest(p_privileges) v where v not in ('enqueue', 'consume', 'observe', 'manage');
    if found then
        raise exception 'there is no privilege "%"', v_verb
            using errcode = 'invalid_parameter_value',
                  hint = 'The privileges are enqueue, consume, observe and manage.';
    end if;
    if p_queue = '*' then
        perform pgq._check_may('manage');
    else
        v_queue_id := pgq._queue_id(p_queue, 'manage');
    end if;
    -- What a role may call follows from all that it has.
    lock table pgq.privilege in share update exclusive mode;
    return v_queue_id;
end
$$;
comment on function pgq._check_grant(text, name, text[]) is
'the id of the queue, null for all; raises 22004, 22023, 42501, 42704. From now on nobody else '
'grants';

create function @extschema@.pgq_grant(
    queue text,
    role name,
    privileges text[]
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue_id constant integer := pgq._check_grant(queue, role, privileges);
begin
    if pgq._role_id(role) is null then
        raise exception 'role "%" does not exist', role
            using errcode = 'undefined_object';
    end if;
    insert into pgq.privilege (role, queue_id, verb)
    select pgq._role_id(pgq_grant.role), v_queue_id, v from unnest(privileges) v
    on conflict do nothing;
    perform pgq._set_grants(role);
    delete from pgq.privilege p
     where p.role <> 0::oid and not exists (select from pg_roles r where r.oid = p.role);
end
$$;
revoke all on function @extschema@.pgq_grant(text, name, text[]) from public;
comment on function @extschema@.pgq_grant(text, name, text[]) is
'Gives a role (or public: everybody) privileges on a queue, or on all queues (''*''), those that '
'are created later included. enqueue: add jobs; consume: claim them and end them; observe: see the '
'queue and its jobs in the views; manage: everything else, this function included. manage on ''*'' '
'is needed to create queues. What a role may not touch does not exist for it. A function with '
'SECURITY DEFINER that calls pgq does so with the privileges of the session''s role. Errors: 42704 '
'unknown queue or role; 42501; 22004; 22023 unknown privilege.';

create function @extschema@.pgq_revoke(
    queue text,
    role name,
    privileges text[] default '{enqueue,consume,observe,manage}'
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue_id constant integer := pgq._check_grant(queue, role, privileges);
begin
    delete from pgq.privilege p
     where p.role = pgq._role_id(pgq_revoke.role) and p.queue_id is not distinct from v_queue_id
       and p.verb = any (privileges);
    perform pgq._set_grants(role) where pgq._role_id(role) is not null;
end
$$;
revoke all on function @extschema@.pgq_revoke(text, name, text[]) from public;
comment on function @extschema@.pgq_revoke(text, name, text[]) is
'Takes back what pgq_grant gave for that queue, or for ''*''; a privilege on all queues is not '
'taken back for one. Errors: as pgq_grant, but the role may have been dropped.';

/*
 * Public: pgq_channel, pgq_wait, pgq_wake. See 37_wake.sql and 38_sleep.sql.
 */

create function @extschema@.pgq_channel(queue text)
returns text
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return format('pgq_%s', pgq._queue_id(queue, 'consume'));
end
$$;
revoke all on function @extschema@.pgq_channel(text) from public;
comment on function @extschema@.pgq_channel(text) is
'The channel to LISTEN on for jobs of a queue, while the session sleeps as pgq_wait told. A '
'notification has no payload and means: call pgq_dequeue now. Errors: 42704 unknown queue; 22004; '
'42501.';

create function @extschema@.pgq_wake()
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_waiting constant text := coalesce(current_setting('pgq.waiting', true), '');
begin
    perform pg_advisory_unlock_shared(1885826917, i)
       from unnest(string_to_array(v_waiting, ',')::integer[]) i;
    perform set_config('pgq.waiting', '', false), set_config('pgq.writers', '', false),
            set_config('pgq.idle', '{}', false);
end
$$;
revoke all on function @extschema@.pgq_wake() from public;
comment on function @extschema@.pgq_wake() is
'Ends what pgq_wait began: others need not notify this session any more. Call it before '
'pgq_dequeue after each sleep; the end of the session does the same.';

create function pgq._next_event(p_queue_id integer, p_now timestamptz, p_lingers boolean)
returns timestamptz
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
declare
    v_us constant bigint := pgq._us(p_now);
    v_tick constant boolean := true;
    v_slots constant smallint[] := pgq._slots();
    v_queue pgq.queue;
    v_lane integer;
    v_at timestamptz;
    v_next timestamptz;
begin
    select q.* into v_queue from pgq.queue q where q.id = p_queue_id;
    for v_lane in
        select l.id from pgq.lane l where l.queue_id = p_queue_id and not v_queue.paused
    loop
        if 0 = any (v_slots) then
            v_at := pgq._oldest(0::smallint, v_lane, p_now, v_queue.max_attempts, false);
            v_next := least(v_next, v_at);
            -- Leases that will expire: from the base on.
            select min(j.lease_expires_at) into v_at
              from (
                       select j.lease_expires_at from pgq.job_0 j
                        where j.lane = v_lane and j.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_0 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0)
                        order by j.id
                        limit 1000
                   ) j
             where j.lease_expires_at < 'infinity' and not p_lingers;
            v_next := least(v_next, v_at);
        end if;
        if 1 = any (v_slots) then
            v_at := pgq._oldest(1::smallint, v_lane, p_now, v_queue.max_attempts, false);
            v_next := least(v_next, v_at);
            -- Leases that will expire: from the base on.
            select min(j.lease_expires_at) into v_at
              from (
                       select j.lease_expires_at from pgq.job_1 j
                        where j.lane = v_lane and j.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_1 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0)
                        order by j.id
                        limit 1000
                   ) j
             where j.lease_expires_at < 'infinity' and not p_lingers;
            v_next := least(v_next, v_at);
        end if;
        if 2 = any (v_slots) then
            v_at := pgq._oldest(2::smallint, v_lane, p_now, v_queue.max_attempts, false);
            v_next := least(v_next, v_at);
            -- Leases that will expire: from the base on.
            select min(j.lease_expires_at) into v_at
              from (
                       select j.lease_expires_at from pgq.job_2 j
                        where j.lane = v_lane and j.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_2 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0)
                        order by j.id
                        limit 1000
                   ) j
             where j.lease_expires_at < 'infinity' and not p_lingers;
            v_next := least(v_next, v_at);
        end if;
        if 3 = any (v_slots) then
            v_at := pgq._oldest(3::smallint, v_lane, p_now, v_queue.max_attempts, false);
            v_next := least(v_next, v_at);
            -- Leases that will expire: from the base on.
            select min(j.lease_expires_at) into v_at
              from (
                       select j.lease_expires_at from pgq.job_3 j
                        where j.lane = v_lane and j.id > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_3 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0)
                        order by j.id
                        limit 1000
                   ) j
             where j.lease_expires_at < 'infinity' and not p_lingers;
            v_next := least(v_next, v_at);
        end if;
        if 4 = any (v_slots) then
            v_at := pgq._oldest(4::smallint, v_lane, p_now, v_queue.max_attempts, false);
            v_next := least(v_next, v_at);
            -- Leases that will expire: from the base on.
            select min(j.lease_expires_at) into v_at
              from (
                       select j.lease_expires_at from pgq.job_4 j
                        where j.lane = v_lane and j.due > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_4 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0)
                        order by j.due
                        limit 1000
                   ) j
             where j.lease_expires_at < 'infinity' and not p_lingers;
            v_next := least(v_next, v_at);
        end if;
        if 5 = any (v_slots) then
            v_at := pgq._oldest(5::smallint, v_lane, p_now, v_queue.max_attempts, false);
            v_next := least(v_next, v_at);
            -- Leases that will expire: from the base on.
            select min(j.lease_expires_at) into v_at
              from (
                       select j.lease_expires_at from pgq.job_5 j
                        where j.lane = v_lane and j.due > coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_5 f where f.lane = v_lane order by f.n desc limit 1
                   ), 0)
                        order by j.due
                        limit 1000
                   ) j
             where j.lease_expires_at < 'infinity' and not p_lingers;
            v_next := least(v_next, v_at);
        end if;
        if 4 = any (v_slots) then
            select greatest(j.run_at, timestamptz 'epoch' + j.due * interval '1 microsecond')
              into v_at
              from pgq.job_4 j
             where j.lane = v_lane and j.due > v_us and j.lease_expires_at is null
             order by j.due limit 1;
            v_next := least(v_next, v_at);
        end if;
        if 5 = any (v_slots) then
            select greatest(j.run_at, timestamptz 'epoch' + j.due * interval '1 microsecond')
              into v_at
              from pgq.job_5 j
             where j.lane = v_lane and j.due > v_us and j.lease_expires_at is null
             order by j.due limit 1;
            v_next := least(v_next, v_at);
        end if;
    end loop;
    -- As in pgq._live_keys.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return v_next;
end
$$;
comment on function pgq._next_event(integer, timestamptz, boolean) is
'when there may be something to claim in a queue: long ago if there is now, when the next job '
'falls due or the next of a thousand leases expires, or null. p_lingers: leases are not looked at';

create function pgq._pause_ms(p_ready text, p_is_soon boolean, p_lingers boolean)
returns double precision
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_before constant text := coalesce(current_setting('pgq.ready', true), '');
    v_round integer := coalesce(nullif(current_setting('pgq.round', true), ''), '0')::integer;
begin
    if p_ready <> v_before then
        v_round := case when v_before = '' or p_lingers then 0
                        else least(v_round, 6 + v_round % 2) end;
    end if;
    perform set_config('pgq.ready', p_ready, false),
            set_config('pgq.round', case when not p_is_soon then 0 when v_round = 31 then 30
                                         else v_round + 1 end::text, false);
    return case when p_ready <> '' and v_round % 2 = 0 then 0
                else least(power(2, v_round / case when p_ready = '' then 1 else 2 end), 1000) end;
end
$$;
comment on function pgq._pause_ms(text, boolean, boolean) is
'how many milliseconds to sleep if somebody must look again soon: the longer, the more often that '
'has been so. p_ready: since when there are jobs; each other time 0, to claim them, and while '
'they change at most 8, or always 0 to one that lingers, which has just slept';

create function @extschema@.pgq_wait(
    queues text[],
    max_wait interval default '30 seconds'
)
returns interval
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_ids integer[];
    v_idle_ms bigint[];
    v_asleep integer[];
    v_until timestamptz;
    v_events timestamptz[];
    v_ready text;
    v_is_soon boolean; v_ms double precision;
begin
    perform pgq._check_array('queues', queues),
            pgq._check_not_null('max_wait', max_wait is null),
            pgq._check_interval('max_wait', max_wait, true);
    v_ids := array(
        select distinct pgq._queue_id(q, 'consume') as id from unnest(queues) q order by id
    );
    v_idle_ms := pgq._linger(v_ids, v_now);
    v_asleep := array(select u.i from unnest(v_ids, v_idle_ms) u (i, ms) where u.ms is null);
    v_until := pgq._begin_wait(v_asleep, v_now);
    -- At the beginning of a first nap nothing is looked for: what comes meanwhile is one batch.
    if 0 = all (v_idle_ms) and v_ids <> '{}' then
        return least(max_wait, interval '10 ms');
    end if;
    -- An old snapshot tells nothing of what has come meanwhile.
    v_is_soon := case when not pgq._read_committed() then true
                      when v_asleep = v_ids then v_until is null or pgq._has_writers()
                      else false end;
    v_events := array(
        select least(
                   pgq._next_event(u.i, v_now, u.ms is not null),
                   (select min(s.next_at) from pgq.schedule s
                     where s.queue_id = u.i and not s.paused)
               )
          from unnest(v_ids, v_idle_ms) u (i, ms)
         where u.ms is distinct from 0
    );
    v_ready := (select coalesce(string_agg(e::text, ','), '') from unnest(v_events) e
                 where e <= v_now);
    v_is_soon := v_is_soon or v_ready <> '';
    v_ms := pgq._pause_ms(v_ready, v_is_soon, v_asleep <> v_ids);
    return (
        select least(max_wait, interval '1 minute', v_until - v_now,
                     case when v_is_soon then v_ms * interval '1 millisecond' end,
                     case when v_asleep <> v_ids then interval '10 ms' end,
                     min(e) - v_now)
          from (select e from unnest(v_events) e where e > v_now
                 union all select null) e
    );
end
$$;
revoke all on function @extschema@.pgq_wait(text[], interval) from public;
comment on function @extschema@.pgq_wait(text[], interval) is
'For a session that listens on pgq_channel of these queues and has nothing to do: how long it may '
'sleep, at most max_wait and a minute, until a notification. 0: call pgq_dequeue now. If none has '
'come by then, call pgq_wait again; after a notification, or 0, pgq_wake. Before it, nobody '
'notifies the session, nor for 40 ms after pgq_wake, when each call returns 10 ms at most: jobs '
'that follow one another need not be announced. It is woken for new jobs and those that come back, '
'and wakes by itself when the next one falls due or a lease expires; once a second while a queue '
'is at a limit. Not inside a transaction block. Errors: 42704 unknown queue; 22004; 22023; 42501.';

/*
 * Public: pgq_schedule, pgq_unschedule, pgq_pause_schedule, pgq_resume_schedule.
 *
 * Ticks fire what is due, under a lock on its row: each time gives one job. Where pg_cron is
 * installed in the database, it calls pgq_maintain every minute, so that schedules fire when nobody
 * calls pgq.
 */

create function pgq._use_pg_cron()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_schema text;
begin
    -- Functions of the extension, not of anybody who has made a schema of that name.
    select n.nspname::text into v_schema
      from pg_extension e
      join pg_depend d on d.refclassid = 'pg_extension'::regclass and d.refobjid = e.oid
                      and d.deptype = 'e' and d.classid = 'pg_proc'::regclass
      join pg_proc p on p.oid = d.objid and p.proname = 'unschedule'
                    and p.proargtypes = '20'::oidvector
      join pg_namespace n on n.oid = p.pronamespace
     where e.extname = 'pg_cron';
    if not found then
        return;
    end if;
    if exists (select from pgq.schedule s where not s.paused) then
        execute format('select %I.schedule($1, $2, $3)', v_schema)
          using 'pgq', '* * * * *', 'select @extschema@.pgq_maintain()';
    else
        execute format(
            'select %I.unschedule(j.jobid) from %1$I.job j'
            ' where j.jobname = $1 and j.username = current_user', v_schema
        ) using 'pgq';
    end if;
end
$$;
comment on function pgq._use_pg_cron() is
'lets pg_cron, if it is there, call pgq_maintain while there are schedules';

create function pgq._fire(p_schedule pgq.schedule, p_queue text, p_at timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_at pgq.target
        := pgq._target(p_queue, p_schedule.priority, null, p_schedule.max_attempts, null);
begin
    -- Without a look at max_ready: that would fail the commit of a stranger.
    perform pgq._add_keyed(
        v_at, pgq._draw_ids(v_at, 1, false), array[p_schedule.payload], null, null,
        p_schedule.max_attempts,
        coalesce(p_schedule.headers, '{}')
            || jsonb_build_object('pgq_schedule', p_schedule.name, 'pgq_scheduled_at', p_at),
        null, false
    );
end
$$;
comment on function pgq._fire(pgq.schedule, text, timestamptz) is
'adds the job of a schedule for one of its times';

create function pgq._next_tick_if_any(p_schedule pgq.schedule, p_after timestamptz)
returns timestamptz
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgq._next_tick_of(p_schedule.cron, p_schedule.timezone, p_after);
exception
    when invalid_parameter_value then
        raise warning 'schedule "%" is paused: %', p_schedule.name, sqlerrm
            using errcode = '01000',
                  hint = 'An update of the server may have taken its time zone away.';
        return null;
end
$$;
comment on function pgq._next_tick_if_any(pgq.schedule, timestamptz) is
'pgq._next_tick_of; null with a warning if it fails: that must not fail the commit of a stranger';

create function pgq._fire_schedules(p_now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_schedule pgq.schedule;
    v_due record;
    v_at timestamptz;
    v_next timestamptz;
begin
    for v_due in
        select s as schedule, q.name as queue
          from pgq.schedule s join pgq.queue q on q.id = s.queue_id
         where s.next_at <= p_now and not s.paused
         order by s.next_at limit 100 for update of s skip locked
    loop
        v_schedule := v_due.schedule;
        v_at := case when v_schedule.missed <> 'skip' then v_schedule.next_at
                     else pgq._next_tick_if_any(v_schedule, p_now - interval '1 minute') end;
        if v_at <= p_now then
            perform pgq._fire(v_schedule, v_due.queue, v_at);
        end if;
        -- One of the times that were missed per tick, or all at once.
        v_next := pgq._next_tick_if_any(
            v_schedule, case when v_schedule.missed = 'all' then v_at else p_now end
        );
        update pgq.schedule s
           set last_at = case when v_at <= p_now then v_at else s.last_at end,
               next_at = coalesce(v_next, s.next_at), paused = v_next is null
         where s.name = v_schedule.name;
    end loop;
end
$$;
comment on function pgq._fire_schedules(timestamptz) is
'for ticks: adds the jobs of schedules that are due';

create function @extschema@.pgq_schedule(
    name text,
    cron text,
    payload jsonb default '{}',
    queue text default 'default',
    timezone text default 'UTC',
    priority integer default 0,
    max_attempts integer default null,
    headers jsonb default null,
    missed text default 'once'
)
returns timestamptz
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_at pgq.target;
    v_next timestamptz;
begin
    perform pgq._check_not_null('name', name is null), pgq._check_not_null('cron', cron is null),
            pgq._check_not_null('payload', payload is null),
            pgq._check_not_null('timezone', timezone is null),
            pgq._check_not_null('missed', missed is null);
    if length(name) not between 1 and 200 or missed not in ('skip', 'once', 'all') then
        raise exception '"name" must have 1 to 200 characters, and "missed" be skip, once or all'
            using errcode = 'invalid_parameter_value';
    end if;
    perform pgq._queue_id(queue, 'manage');
    v_at := pgq._target(queue, priority, null, max_attempts, headers);
    perform from pgq.queue q where q.id = v_at.queue_id for key share;  -- it may be dropped since
    perform pgq._check_bounds(v_at.queue_id, array[payload], 0);
    v_next := pgq._next_tick_of(cron, timezone, pgq._now());
    insert into pgq.schedule as s (
        name, queue_id, cron, timezone, payload, priority, max_attempts, headers, missed, next_at
    )
    values (
        pgq_schedule.name, v_at.queue_id, pgq_schedule.cron, pgq_schedule.timezone,
        pgq_schedule.payload, pgq_schedule.priority, pgq_schedule.max_attempts,
        pgq_schedule.headers, pgq_schedule.missed, v_next
    )
    on conflict on constraint schedule_pkey do update
       set queue_id = excluded.queue_id, cron = excluded.cron, timezone = excluded.timezone,
           payload = excluded.payload, priority = excluded.priority,
           max_attempts = excluded.max_attempts, headers = excluded.headers,
           missed = excluded.missed,
           next_at = case when (s.cron, s.timezone) = (excluded.cron, excluded.timezone)
                          then s.next_at else excluded.next_at end
     where pgq._may(s.queue_id, 'manage')
    returning s.next_at into v_next;
    if not found then
        raise exception 'permission denied for schedule "%"', name
            using errcode = 'insufficient_privilege',
                  detail = 'There is one of that name, of a queue that you do not manage.';
    end if;
    perform pgq._use_pg_cron(), pgq._wake(v_at.queue_id);
    return v_next;
end
$$;
revoke all on function
    @extschema@.pgq_schedule(text, text, jsonb, text, text, integer, integer, jsonb, text)
    from public;
comment on function
    @extschema@.pgq_schedule(text, text, jsonb, text, text, integer, integer, jsonb, text) is
'Adds a job at the times that a cron expression names (the five fields of crontab(5), or @hourly '
'and the like), in a time zone, and returns the first one. A schedule of that name is replaced; if '
'it was paused it stays so, and if expression and time zone are the same, a time that was missed '
'is not forgotten. The job''s headers tell pgq_schedule, the name, and pgq_scheduled_at. '
'missed: what becomes of times at which nobody called pgq: ''once'', one job for all of them; '
'''all'', one for each; ''skip'', none if it is more than a minute late. Each time gives one job, '
'whoever calls. Errors: 22023 a bad expression (the detail names the field), time zone or other '
'argument; 42704 unknown queue; 22004; 22003 priority; 54000 the payload is too long; 42501.';

create function pgq._pause_schedule(p_name text, p_paused boolean)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue_id integer;
begin
    perform pgq._check_not_null('name', p_name is null);
    update pgq.schedule s
       set paused = p_paused,
           next_at = case when s.paused then pgq._next_tick_of(s.cron, s.timezone, pgq._now())
                          else s.next_at end
     where s.name = p_name and pgq._may(s.queue_id, 'manage')
    returning s.queue_id into v_queue_id;
    if not found then
        return false;
    end if;
    perform pgq._use_pg_cron(), pgq._wake(v_queue_id);
    return true;
end
$$;
comment on function pgq._pause_schedule(text, boolean) is
'for pgq_pause_schedule and pgq_resume_schedule';

create function @extschema@.pgq_pause_schedule(name text)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgq._pause_schedule(name, true);
end
$$;
revoke all on function @extschema@.pgq_pause_schedule(text) from public;
comment on function @extschema@.pgq_pause_schedule(text) is
'Lets a schedule add no more jobs until pgq_resume_schedule. false: there is no such schedule. '
'Errors: 22004.';

create function @extschema@.pgq_resume_schedule(name text)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgq._pause_schedule(name, false);
end
$$;
revoke all on function @extschema@.pgq_resume_schedule(text) from public;
comment on function @extschema@.pgq_resume_schedule(text) is
'Lets a paused schedule go on with its next time; those in between were not missed. false: there '
'is no such schedule. Errors: 22004.';

create function @extschema@.pgq_unschedule(name text)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null('name', name is null);
    delete from pgq.schedule s
     where s.name = pgq_unschedule.name and pgq._may(s.queue_id, 'manage');
    if not found then
        return false;
    end if;
    perform pgq._use_pg_cron();
    return true;
end
$$;
revoke all on function @extschema@.pgq_unschedule(text) from public;
comment on function @extschema@.pgq_unschedule(text) is
'Removes a schedule; jobs that it has added stay. false: there is no such schedule. Errors: 22004.';

/*
 * Public: pgq_watch, pgq_unwatch, and what they need: pgq_check_watch, pgq_enqueue_row.
 *
 * A watched table has a trigger that adds a job for each row, in the transaction that writes it. It
 * does so on behalf of the owner of the table, who needs the privilege to enqueue; whoever writes
 * the row needs none. pgq_watch itself runs with the rights of its caller, who creates the trigger.
 * So the right to create triggers on a table is the right to enqueue on behalf of its owner.
 */

create function pgq._check_watch(p_relation oid, p_queue text)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_owner name;
    v_id integer;
begin
    select pg_get_userbyid(c.relowner) into v_owner from pg_class c where c.oid = p_relation;
    select q.id into v_id from pgq.queue q where q.name = p_queue;
    if v_id is null or not pgq._may_role(v_owner, v_id, 'enqueue') then
        raise exception 'permission denied for queue "%"', p_queue
            using errcode = 'insufficient_privilege',
                  detail = format('Role "%s", the owner of table "%s", needs the privilege '
                                  '"enqueue".', v_owner, p_relation::regclass),
                  hint = 'Somebody who manages the queue can give it with pgq_grant.';
    end if;
end
$$;
comment on function pgq._check_watch(oid, text) is
'raises 42501 unless the owner of a table may enqueue into a queue';

create function @extschema@.pgq_check_watch(relation regclass, queue text)
returns text
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null('relation', relation is null);
    perform pgq._queue_id(queue, 'enqueue'), pgq._check_watch(relation, queue);
    -- The same if the queue is dropped and created again: the trigger knows it by its name, too.
    return 'pgq_watch_' || case when octet_length(queue) <= 50 then queue
                                else left(encode(sha256(convert_to(queue, 'utf8')), 'hex'), 50) end;
end
$$;
revoke all on function @extschema@.pgq_check_watch(regclass, text) from public;
comment on function @extschema@.pgq_check_watch(regclass, text) is
'The name of the trigger with which pgq_watch lets a table feed a queue. Errors: 42501 the caller '
'or the owner of the table may not enqueue; 42704 unknown queue; 22004.';

create function pgq._is_builtin(p_type oid)
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type oid := p_type;
    v_base oid := p_type;
begin
    while v_base <> 0 loop
        v_type := v_base;
        select t.typbasetype into v_base from pg_type t where t.oid = v_type;
    end loop;
    return v_type < 16384;
end
$$;
comment on function pgq._is_builtin(oid) is
'whether a type, or what a domain is made of, comes with PostgreSQL';

create function pgq._key_columns(p_relation oid, p_columns text[])
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The conversion of other types to JSON may be anybody's function, run with the owner's rights.
    return (
        select string_agg(quote_literal(c) || format(
                   case when a.attname is null then ', null'
                        when pgq._is_builtin(a.atttypid) then ', ($1).%I'
                        else ', format(''%%s'', ($1).%I)' end,
                   a.attname
               ), ', ')
          from unnest(p_columns) c
          left join pg_attribute a
            on a.attrelid = p_relation and a.attname = c and a.attnum > 0 and not a.attisdropped
    );
end
$$;
comment on function pgq._key_columns(oid, text[]) is
'SQL for the names and values of columns of a row; text for types that do not come with PostgreSQL';

create function @extschema@.pgq_enqueue_row()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_key jsonb;
begin
    perform pgq._check_watch(tg_relid, tg_argv[0]);
    execute format('select jsonb_build_object(%s)', pgq._key_columns(tg_relid, tg_argv[3:]))
       into v_key using new;
    perform pgq._enqueue_keyed(
        array[jsonb_build_object('table', tg_argv[1], 'operation', tg_op, 'key', v_key)],
        tg_argv[0], 0, null,
        case when tg_argv[2] = 'dedupe' then array[encode(sha256(convert_to(
            concat_ws(':', tg_argv[1], v_key), 'utf8'
        )), 'hex')] end,
        null, null, null, 'keep', null, null, null
    );
    return null;
end
$$;
revoke all on function @extschema@.pgq_enqueue_row() from public;
comment on function @extschema@.pgq_enqueue_row() is
'The trigger function of pgq_watch. Arguments: queue, table, whether to dedupe, the columns of the '
'key. Errors: 42501 the owner of the table may not enqueue any more; those of pgq_enqueue.';

create function @extschema@.pgq_watch(
    relation regclass,
    queue text default 'default',
    condition text default null,
    events text[] default '{insert}',
    dedupe boolean default false
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_trigger constant name := @extschema@.pgq_check_watch(relation, queue)::name;
    v_columns text;
begin
    if events is null or events = '{}' or not events <@ '{insert,update}'::text[]
        or num_nulls(relation, dedupe) > 0
    then
        raise exception '"events" must be insert, update or both, and no argument null'
            using errcode = 'invalid_parameter_value';
    end if;
    select string_agg(quote_literal(a.attname), ', ' order by k.n) into v_columns
      from pg_index i, unnest(i.indkey) with ordinality k (attnum, n)
      join pg_attribute a on a.attrelid = relation and a.attnum = k.attnum
     where i.indrelid = relation and i.indisprimary;
    if v_columns is null then
        raise exception 'table "%" has no primary key', relation
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'The payload of a job is the key of the row.';
    end if;
    execute format(
        'create or replace trigger %I after %s on %s for each row %s execute function '
        '%s.pgq_enqueue_row(%s, %s, %s, %s)',
        v_trigger, array_to_string(events, ' or '), relation, 'when (' || condition || ')',
        '@extschema@',
        quote_literal(queue), quote_literal(relation::text),
        case when dedupe then 'dedupe' else 'each' end, v_columns
    );
end
$$;
revoke all on function
    @extschema@.pgq_watch(regclass, text, text, text[], boolean) from public;
comment on function
    @extschema@.pgq_watch(regclass, text, text, text[], boolean) is
'Lets each row that is inserted into a table (events: or updated) add a job, in the same '
'transaction. Its payload: {"table": ..., "operation": "INSERT" or "UPDATE", "key": the columns of '
'the primary key}. condition: SQL that may name NEW and, for updates alone, OLD, with functions '
'qualified by their schema. dedupe: none while one for the same row lives. Needs the right to '
'create triggers on the table; its owner needs the privilege to enqueue. Replaces what the same '
'call did before. Errors: 42501; 42704 unknown queue; 55000 no primary key; 22023; 22004.';

create function @extschema@.pgq_unwatch(relation regclass, queue text default 'default')
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_trigger constant name := @extschema@.pgq_check_watch(relation, queue)::name;
begin
    if not exists (
        select from pg_trigger t where t.tgrelid = relation and t.tgname = v_trigger
    ) then
        return false;
    end if;
    execute format('drop trigger %I on %s', v_trigger, relation);
    return true;
end
$$;
revoke all on function @extschema@.pgq_unwatch(regclass, text) from public;
comment on function @extschema@.pgq_unwatch(regclass, text) is
'Ends what pgq_watch began. false: the table was not watched for that queue. Errors: as pgq_watch.';

/*
 * What the views show of queues and workers, counted without waiting for anybody: tables that are
 * small are read as a whole, of others the first thousand jobs of each lane and a sample of pages.
 *
 * The functions run with the rights of the owner, for the views below, and show what the caller may
 * observe. No lock on a slot outlives them. A slot that somebody has locked against readers is left
 * out: maintenance does so for the moment in which it empties one.
 */

create function pgq._try_read(p_relation regclass)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('lock table %s in access share mode nowait', p_relation);
    return true;
exception
    when lock_not_available then
        return false;
end
$$;
comment on function pgq._try_read(regclass) is
'locks a table for reading; false if it would have to wait';

create function pgq._readable_slots()
returns smallint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        select s from unnest(pgq._slots()) s
         where pgq._try_read(format('pgq.job_%s', s)::regclass)
           and pgq._try_read(format('pgq.floor_%s', s)::regclass)
    );
end
$$;
comment on function pgq._readable_slots() is
'locks the slots that may hold jobs for reading and returns them; of those, which can be had at '
'once';

create function pgq._size_of(p_relation regclass)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_size bigint;
begin
    if pgq._try_read(p_relation) then
        v_size := case when pg_relation_size(p_relation) > 0
                       then pg_total_relation_size(p_relation) else 0 end;
    end if;
    -- As in pgq._live_keys.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return v_size;
end
$$;
comment on function pgq._size_of(regclass) is
'bytes of a table with its indexes, 0 if it has no rows; null if somebody has locked it against '
'readers';

create function pgq._may_observe(p_queue_id integer)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('max_prepared_transactions') = '0' then
        unlisten pgq_nobody;
    else
        perform pgq._check_restricted();
    end if;
    return (session_user = current_user and current_setting('role') = 'none') or pgq._may(p_queue_id, 'observe');
end
$$;
comment on function pgq._may_observe(integer) is
'whether the caller may see a queue, or (null) all of them';


create type pgq.tally as (
    lane integer,
    state text,
    jobs bigint,
    estimated boolean
);
comment on type pgq.tally is 'how many jobs of a lane are in a state';

create function pgq._tally_all(p_slot smallint, p_now timestamptz, p_percent real)
returns setof pgq.tally
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    case p_slot
    when 0 then
        return query
        select j.lane, case when j.token is not null then 'active'
                             when j.wait is not null or j.lease_expires_at = 'infinity'
                             then 'waiting'
                             when j.run_at > p_now then 'scheduled'
                             else 'ready' end as state, (count(*) * 100 / p_percent)::bigint, p_percent < 100
          from pgq.job_0 j tablesample system (p_percent) repeatable (1)
         group by 1, 2;
    when 1 then
        return query
        select j.lane, case when j.token is not null then 'active'
                             when j.wait is not null or j.lease_expires_at = 'infinity'
                             then 'waiting'
                             when j.run_at > p_now then 'scheduled'
                             else 'ready' end as state, (count(*) * 100 / p_percent)::bigint, p_percent < 100
          from pgq.job_1 j tablesample system (p_percent) repeatable (1)
         group by 1, 2;
    when 2 then
        return query
        select j.lane, case when j.token is not null then 'active'
                             when j.wait is not null or j.lease_expires_at = 'infinity'
                             then 'waiting'
                             when j.run_at > p_now then 'scheduled'
                             else 'ready' end as state, (count(*) * 100 / p_percent)::bigint, p_percent < 100
          from pgq.job_2 j tablesample system (p_percent) repeatable (1)
         group by 1, 2;
    when 3 then
        return query
        select j.lane, case when j.token is not null then 'active'
                             when j.wait is not null or j.lease_expires_at = 'infinity'
                             then 'waiting'
                             when j.run_at > p_now then 'scheduled'
                             else 'ready' end as state, (count(*) * 100 / p_percent)::bigint, p_percent < 100
          from pgq.job_3 j tablesample system (p_percent) repeatable (1)
         group by 1, 2;
    when 4 then
        return query
        select j.lane, case when j.token is not null then 'active'
                             when j.wait is not null or j.lease_expires_at = 'infinity'
                             then 'waiting'
                             when j.run_at > p_now then 'scheduled'
                             else 'ready' end as state, (count(*) * 100 / p_percent)::bigint, p_percent < 100
          from pgq.job_4 j tablesample system (p_percent) repeatable (1)
         group by 1, 2;
    when 5 then
        return query
        select j.lane, case when j.token is not null then 'active'
                             when j.wait is not null or j.lease_expires_at = 'infinity'
                             then 'waiting'
                             when j.run_at > p_now then 'scheduled'
                             else 'ready' end as state, (count(*) * 100 / p_percent)::bigint, p_percent < 100
          from pgq.job_5 j tablesample system (p_percent) repeatable (1)
         group by 1, 2;
    end case;
end
$$;
comment on function pgq._tally_all(smallint, timestamptz, real) is
'the jobs of a slot, from a share of its pages';

create function pgq._tally_first(p_slot smallint, p_now timestamptz)
returns setof pgq.tally
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
    case p_slot
    when 0 then
        return query
        select l.id, f.state, count(*), false
          from pgq.lane l,
               lateral (
                   select case when j.token is not null then 'active'
                             when j.wait is not null or j.lease_expires_at = 'infinity'
                             then 'waiting'
                             when j.run_at > p_now then 'scheduled'
                             else 'ready' end as state
                     from pgq.job_0 j
                    where j.lane = l.id and j.id > coalesce((
                                  select f.base from pgq.floor_0 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                    order by j.id
                    limit 1000
               ) f
         group by l.id, f.state;
    when 1 then
        return query
        select l.id, f.state, count(*), false
          from pgq.lane l,
               lateral (
                   select case when j.token is not null then 'active'
                             when j.wait is not null or j.lease_expires_at = 'infinity'
                             then 'waiting'
                             when j.run_at > p_now then 'scheduled'
                             else 'ready' end as state
                     from pgq.job_1 j
                    where j.lane = l.id and j.id > coalesce((
                                  select f.base from pgq.floor_1 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                    order by j.id
                    limit 1000
               ) f
         group by l.id, f.state;
    when 2 then
        return query
        select l.id, f.state, count(*), false
          from pgq.lane l,
               lateral (
                   select case when j.token is not null then 'active'
                             when j.wait is not null or j.lease_expires_at = 'infinity'
                             then 'waiting'
                             when j.run_at > p_now then 'scheduled'
                             else 'ready' end as state
                     from pgq.job_2 j
                    where j.lane = l.id and j.id > coalesce((
                                  select f.base from pgq.floor_2 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                    order by j.id
                    limit 1000
               ) f
         group by l.id, f.state;
    when 3 then
        return query
        select l.id, f.state, count(*), false
          from pgq.lane l,
               lateral (
                   select case when j.token is not null then 'active'
                             when j.wait is not null or j.lease_expires_at = 'infinity'
                             then 'waiting'
                             when j.run_at > p_now then 'scheduled'
                             else 'ready' end as state
                     from pgq.job_3 j
                    where j.lane = l.id and j.id > coalesce((
                                  select f.base from pgq.floor_3 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                    order by j.id
                    limit 1000
               ) f
         group by l.id, f.state;
    when 4 then
        return query
        select l.id, f.state, count(*), false
          from pgq.lane l,
               lateral (
                   select case when j.token is not null then 'active'
                             when j.wait is not null or j.lease_expires_at = 'infinity'
                             then 'waiting'
                             when j.run_at > p_now then 'scheduled'
                             else 'ready' end as state
                     from pgq.job_4 j
                    where j.lane = l.id and j.due > coalesce((
                                  select f.base from pgq.floor_4 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                    order by j.due
                    limit 1000
               ) f
         group by l.id, f.state;
    when 5 then
        return query
        select l.id, f.state, count(*), false
          from pgq.lane l,
               lateral (
                   select case when j.token is not null then 'active'
                             when j.wait is not null or j.lease_expires_at = 'infinity'
                             then 'waiting'
                             when j.run_at > p_now then 'scheduled'
                             else 'ready' end as state
                     from pgq.job_5 j
                    where j.lane = l.id and j.due > coalesce((
                                  select f.base from pgq.floor_5 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                    order by j.due
                    limit 1000
               ) f
         group by l.id, f.state;
    end case;
end
$$;
comment on function pgq._tally_first(smallint, timestamptz) is
'the first thousand jobs of each lane in a slot; waiting ones in parked slots are not among them';

create function pgq._tally_few(p_slot smallint, p_now timestamptz)
returns setof pgq.tally
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
    case p_slot
    when 4 then
        return query
        select t.lane, t.state, t.jobs, false
          from (
                   select l.id as lane, f.state, count(*) as jobs,
                          sum(count(*)) over (partition by l.id) as all_jobs
                     from pgq.lane l,
                          lateral (
                              select case when j.token is not null then 'active'
                             when j.wait is not null or j.lease_expires_at = 'infinity'
                             then 'waiting'
                             when j.run_at > p_now then 'scheduled'
                             else 'ready' end as state
                                from pgq.job_4 j where j.lane = l.id order by j.id limit 1000
                          ) f
                    group by l.id, f.state
               ) t
         where t.all_jobs < 1000;
    when 5 then
        return query
        select t.lane, t.state, t.jobs, false
          from (
                   select l.id as lane, f.state, count(*) as jobs,
                          sum(count(*)) over (partition by l.id) as all_jobs
                     from pgq.lane l,
                          lateral (
                              select case when j.token is not null then 'active'
                             when j.wait is not null or j.lease_expires_at = 'infinity'
                             then 'waiting'
                             when j.run_at > p_now then 'scheduled'
                             else 'ready' end as state
                                from pgq.job_5 j where j.lane = l.id order by j.id limit 1000
                          ) f
                    group by l.id, f.state
               ) t
         where t.all_jobs < 1000;
    else
    end case;
end
$$;
comment on function pgq._tally_few(smallint, timestamptz) is
'all jobs of each lane in a parked slot that has less than a thousand there';

create function pgq._tally_slot(p_slot smallint, p_now timestamptz)
returns setof pgq.tally
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_pages constant bigint := pg_relation_size(format('pgq.job_%s', p_slot)::regclass) / 8192;
begin
    if v_pages <= 512 then
        return query select t.* from pgq._tally_all(p_slot, p_now, 100) t;
        return;
    end if;
    -- Who has less than a thousand jobs is counted. Active ones come first.
    return query
    with few as materialized (
        select t.* from pgq._tally_few(p_slot, p_now) t
    ), sampled as (
        select t.* from pgq._tally_all(p_slot, p_now, (100.0 * 256 / v_pages)::real) t
         where not exists (select from few o where o.lane = t.lane)
    ), first as (
        select t.*, o.all_jobs >= 1000 and (t.state <> 'active' or t.jobs = o.all_jobs) as more,
               o.all_jobs >= 1000 as cut
          from (
                   select f.*, sum(f.jobs) over (partition by f.lane) as all_jobs
                     from pgq._tally_first(p_slot, p_now) f
                    where not exists (select from few o where o.lane = f.lane)
               ) o, lateral (select o.lane, o.state, o.jobs) t
    )
    select t.* from few t
     union all
    select coalesce(f.lane, s.lane), coalesce(f.state, s.state),
           case when f.more then greatest(f.jobs, s.jobs) else coalesce(f.jobs, s.jobs) end,
           coalesce(f.more, true)
      from first f
      full join sampled s on s.lane = f.lane and s.state = f.state
     where f.lane is not null or s.state = 'waiting'
        or exists (select from first o where o.lane = s.lane and o.cut and s.state <> 'active');
end
$$;
comment on function pgq._tally_slot(smallint, timestamptz) is 'the jobs of a slot';

create function pgq._tally(p_now timestamptz)
returns setof pgq.tally
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slots smallint[];
    v_tallies pgq.tally[];
begin
    v_slots := pgq._readable_slots();
    v_tallies := array(
        select t from unnest(v_slots) s, pgq._tally_slot(s, p_now) t
         union all
        select row(l.id, 'ready', 0, true)::pgq.tally from pgq.lane l
         where cardinality(v_slots) < cardinality(pgq._slots())
    );
    -- As in pgq._live_keys.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return query select t.* from unnest(v_tallies) t;
end
$$;
comment on function pgq._tally(timestamptz) is 'all live jobs by lane and state';

create function pgq._times(
    p_queue_id integer, p_now timestamptz, out since timestamptz, out next_due timestamptz
)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
declare
    v_us constant bigint := pgq._us(p_now);
    v_slots smallint[];
    v_max integer;
    v_slot smallint;
begin
    v_slots := pgq._readable_slots();
    select q.max_attempts into v_max from pgq.queue q where q.id = p_queue_id;
    select min(pgq._oldest(s, l.id, p_now, v_max, false)) into since
      from pgq.lane l, unnest(v_slots) s where l.queue_id = p_queue_id;
    foreach v_slot in array v_slots loop
        case v_slot
        when 4 then
            next_due := least(next_due, (
                select min(d.run_at)
                  from pgq.lane l,
                       lateral (
                           select j.run_at from pgq.job_4 j
                            where j.lane = l.id and j.due > v_us and j.run_at > p_now
                              and j.lease_expires_at is null
                            order by j.due limit 1
                       ) d
                 where l.queue_id = p_queue_id
            ));
        when 5 then
            next_due := least(next_due, (
                select min(d.run_at)
                  from pgq.lane l,
                       lateral (
                           select j.run_at from pgq.job_5 j
                            where j.lane = l.id and j.due > v_us and j.run_at > p_now
                              and j.lease_expires_at is null
                            order by j.due limit 1
                       ) d
                 where l.queue_id = p_queue_id
            ));
        else
        end case;
    end loop;
    -- As in pgq._live_keys.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return;
end
$$;
comment on function pgq._times(integer, timestamptz) is
'since when the oldest ready job of a queue has been ready, and when the next scheduled one is due';

/*
 * Public: the views, and pgq_get. What they show is what the caller may observe; pgq_health and
 * pgq_locks, which are about the whole database, are for those who may observe all queues.
 */

create function pgq._queues()
returns table (
    queue text, ready bigint, scheduled bigint, waiting bigint, active bigint, dead bigint,
    oldest_ready_age interval, next_due timestamptz, completed_last_minute bigint,
    failed_last_minute bigint, completed_last_hour bigint, failed_last_hour bigint,
    max_active integer, paused boolean, estimated boolean
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
begin
    return query
    with tally as (
        select l.queue_id, t.state, sum(t.jobs)::bigint as jobs, bool_or(t.estimated) as estimated
          from pgq._tally(v_now) t join pgq.lane l on l.id = t.lane
         group by l.queue_id, t.state
    )
    select q.name, coalesce(max(t.jobs) filter (where t.state = 'ready'), 0),
           coalesce(max(t.jobs) filter (where t.state = 'scheduled'), 0),
           coalesce(max(t.jobs) filter (where t.state = 'waiting'), 0),
           coalesce(max(t.jobs) filter (where t.state = 'active'), 0),
           d.dead, v_now - o.since, o.next_due,
           case when q.keep_completed > '0' then coalesce(e.completed_last_minute, 0) end,
           coalesce(e.failed_last_minute, 0),
           case when q.keep_completed > '0' then coalesce(e.completed_last_hour, 0) end,
           coalesce(e.failed_last_hour, 0),
           q.max_active, q.paused, coalesce(bool_or(t.estimated), false) or d.dead = 10000
      from pgq.queue q
      left join tally t on t.queue_id = q.id
      left join pgq._ends(v_now) e on e.queue_id = q.id,
           lateral pgq._times(q.id, v_now) o,
           lateral (
               select count(*) as dead
                 from (
                          select from pgq.archive a
                           where a.queue = q.name and a.state = 'dead' and a.expires_at > v_now
                           limit 10000
                      ) a
           ) d
     where pgq._may_observe(q.id)
     group by q.id, d.dead, o.since, o.next_due, e.completed_last_minute, e.failed_last_minute,
              e.completed_last_hour, e.failed_last_hour;
end
$$;
comment on function pgq._queues() is 'for the view pgq_queues';

create function pgq._leased(p_slot smallint)
returns setof pgq.job
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
    case p_slot
    when 0 then
        return query
        select j.*
          from pgq.lane l,
               lateral (
                   select j.* from pgq.job_0 j
                    where j.lane = l.id and j.id > coalesce((
                                  select f.base from pgq.floor_0 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                    order by j.id
                    limit 10000
               ) j
         where j.token is not null;
    when 1 then
        return query
        select j.*
          from pgq.lane l,
               lateral (
                   select j.* from pgq.job_1 j
                    where j.lane = l.id and j.id > coalesce((
                                  select f.base from pgq.floor_1 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                    order by j.id
                    limit 10000
               ) j
         where j.token is not null;
    when 2 then
        return query
        select j.*
          from pgq.lane l,
               lateral (
                   select j.* from pgq.job_2 j
                    where j.lane = l.id and j.id > coalesce((
                                  select f.base from pgq.floor_2 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                    order by j.id
                    limit 10000
               ) j
         where j.token is not null;
    when 3 then
        return query
        select j.*
          from pgq.lane l,
               lateral (
                   select j.* from pgq.job_3 j
                    where j.lane = l.id and j.id > coalesce((
                                  select f.base from pgq.floor_3 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                    order by j.id
                    limit 10000
               ) j
         where j.token is not null;
    when 4 then
        return query
        select j.*
          from pgq.lane l,
               lateral (
                   select j.* from pgq.job_4 j
                    where j.lane = l.id and j.due > coalesce((
                                  select f.base from pgq.floor_4 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                    order by j.due
                    limit 10000
               ) j
         where j.token is not null;
    when 5 then
        return query
        select j.*
          from pgq.lane l,
               lateral (
                   select j.* from pgq.job_5 j
                    where j.lane = l.id and j.due > coalesce((
                                  select f.base from pgq.floor_5 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                    order by j.due
                    limit 10000
               ) j
         where j.token is not null;
    end case;
end
$$;
comment on function pgq._leased(smallint) is
'the active jobs among the first ten thousand of each lane in a slot, where they are';

create function pgq._workers()
returns table (
    queue text, worker text, jobs bigint, expired bigint, oldest_claimed_at timestamptz,
    last_heartbeat_at timestamptz, next_expiry_at timestamptz, pid integer, backend_gone boolean
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_jobs pgq.job[];
begin
    v_jobs := array(select j from unnest(pgq._readable_slots()) s, pgq._leased(s) j);
    -- As in pgq._live_keys.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return query
        select q.name, j.worker, count(*), count(*) filter (where j.lease_expires_at <= v_now),
               min(j.claimed_at),
               max(j.lease_expires_at - j.lease_ms * interval '1 millisecond'),
               min(j.lease_expires_at), j.pid,
               a.pid is null or a.backend_start > min(j.claimed_at)
          from unnest(v_jobs) j
          join pgq.lane l on l.id = j.lane
          join pgq.queue q on q.id = l.queue_id
          left join pg_stat_activity a on a.pid = j.pid
         where pgq._may_observe(q.id)
         group by q.name, j.worker, j.pid, a.pid, a.backend_start;
end
$$;
comment on function pgq._workers() is 'for the view pgq_workers';

create view pgq.observer as
select p.queue_id
  from pgq.privilege p
 where p.verb = 'observe'
   and (p.role = 0::pg_catalog.oid
        or pg_catalog.pg_has_role(current_user, p.role::pg_catalog.oid, 'usage'))
 union all
select null
  from pg_catalog.pg_namespace n
 where n.nspname = 'pgq' and pg_catalog.pg_has_role(current_user, n.nspowner, 'usage');
comment on view pgq.observer is 'the queues (null: all) that the current user may observe';

create view @extschema@.pgq_queues as
select * from pgq._queues();
comment on view @extschema@.pgq_queues is
'The queues that the caller may observe. Jobs are counted where there are few; of many in a state '
'the number is estimated, from a sample of pages, and estimated is true (dead: at least 10000). '
'oldest_ready_age: how long the oldest ready job has been ready. The numbers of the last minute '
'and hour: of jobs completed (null if the queue keeps none, estimated above some 60 a second) and '
'of attempts failed.';


create view @extschema@.pgq_jobs with (security_barrier) as
select j.id, j.token, q.name as queue, l.priority::integer as priority,
       case when j.token is not null then 'active'
            when j.wait is not null or j.lease_expires_at = 'infinity' then 'waiting'
            when j.run_at > pg_catalog.clock_timestamp() then 'scheduled'
            else 'ready' end as state,
       j.attempt::integer as attempt, coalesce(j.max_attempts, q.max_attempts) as max_attempts,
       j.payload, j.headers, j.group_key::text as group_key, j.dedupe_key::text as dedupe_key,
       j.worker, j.enqueued_at, coalesce(j.run_at, j.enqueued_at) as run_at, j.claimed_at,
       nullif(j.lease_expires_at, 'infinity') as lease_expires_at, j.last_error,
       coalesce(j.cancel_requested, false) as cancel_requested, j.checkpoint,
       j.start_by as expires_at, null::timestamptz as finished_at, null::jsonb as result
  from pgq.queue q
  join pgq.lane l on l.queue_id = q.id
  join pgq.job j on j.lane = l.id
 where exists (select from pgq.observer o where o.queue_id is null or o.queue_id = q.id)
 union all
select a.id, a.token, a.queue, a.priority::integer, a.state, a.attempt,
       coalesce(a.max_attempts, q.max_attempts), a.payload, a.headers, a.group_key::text,
       a.dedupe_key::text, a.worker, a.enqueued_at, coalesce(a.run_at, a.enqueued_at),
       a.claimed_at, null, a.last_error, false, a.checkpoint, null, a.finished_at, a.result
  from pgq.archive a left join pgq.queue q on q.name = a.queue
 where a.expires_at > pg_catalog.clock_timestamp()
   and exists (select from pgq.observer o where o.queue_id is null or o.queue_id = q.id);
comment on view @extschema@.pgq_jobs is
'The jobs, live and archived, of the queues that the caller may observe, with the columns of '
'pgq_job, and expires_at, finished_at and result. Ask for a queue, and pgq_get for an id: a scan '
'reads all jobs.';

create function @extschema@.pgq_get(id bigint)
returns setof @extschema@.pgq_jobs
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_job @extschema@.pgq_jobs;
begin
    perform pgq._check_not_null('id', id is null);
    -- One statement: jobs move between slots and archive, and in one snapshot each is in one place.
    begin
        select a.id, a.token, a.queue, a.priority::integer, a.state, a.attempt,
       coalesce(a.max_attempts, q.max_attempts), a.payload, a.headers, a.group_key::text,
       a.dedupe_key::text, a.worker, a.enqueued_at, coalesce(a.run_at, a.enqueued_at),
       a.claimed_at, null, a.last_error, false, a.checkpoint, null, a.finished_at, a.result
          into v_job
          from pgq.archive a left join pgq.queue q on q.name = a.queue
         where a.id = pgq_get.id and a.expires_at > clock_timestamp()
         union all
        select j.id, j.token, q.name as queue, l.priority::integer as priority,
       case when j.token is not null then 'active'
            when j.wait is not null or j.lease_expires_at = 'infinity' then 'waiting'
            when j.run_at > pg_catalog.clock_timestamp() then 'scheduled'
            else 'ready' end as state,
       j.attempt::integer as attempt, coalesce(j.max_attempts, q.max_attempts) as max_attempts,
       j.payload, j.headers, j.group_key::text as group_key, j.dedupe_key::text as dedupe_key,
       j.worker, j.enqueued_at, coalesce(j.run_at, j.enqueued_at) as run_at, j.claimed_at,
       nullif(j.lease_expires_at, 'infinity') as lease_expires_at, j.last_error,
       coalesce(j.cancel_requested, false) as cancel_requested, j.checkpoint,
       j.start_by as expires_at, null::timestamptz as finished_at, null::jsonb as result
          from (
                   select (null::pgq.job).* where false
                   union all
                   select i.* from pgq.lane l, lateral (
                       select i.* from pgq.job_0 i
                        where i.lane = l.id and i.id = pgq_get.id offset 0
                   ) i where (select pg_relation_size('pgq.job_0') > 0)
                   union all
                   select i.* from pgq.lane l, lateral (
                       select i.* from pgq.job_1 i
                        where i.lane = l.id and i.id = pgq_get.id offset 0
                   ) i where (select pg_relation_size('pgq.job_1') > 0)
                   union all
                   select i.* from pgq.lane l, lateral (
                       select i.* from pgq.job_2 i
                        where i.lane = l.id and i.id = pgq_get.id offset 0
                   ) i where (select pg_relation_size('pgq.job_2') > 0)
                   union all
                   select i.* from pgq.lane l, lateral (
                       select i.* from pgq.job_3 i
                        where i.lane = l.id and i.id = pgq_get.id offset 0
                   ) i where (select pg_relation_size('pgq.job_3') > 0)
                   union all
                   select i.* from pgq.lane l, lateral (
                       select i.* from pgq.job_4 i
                        where i.lane = l.id and i.id = pgq_get.id offset 0
                   ) i where (select pg_relation_size('pgq.job_4') > 0)
                   union all
                   select i.* from pgq.lane l, lateral (
                       select i.* from pgq.job_5 i
                        where i.lane = l.id and i.id = pgq_get.id offset 0
                   ) i where (select pg_relation_size('pgq.job_5') > 0)
               ) j
          join pgq.lane l on l.id = j.lane
          join pgq.queue q on q.id = l.queue_id;
        -- As in pgq._live_keys.
        raise exception using errcode = 'PQ000';
    exception
        when sqlstate 'PQ000' then
    end;
    if v_job.id is null then
        perform pgq._check_moved();
    elsif pgq._may_observe((select q.id from pgq.queue q where q.name = v_job.queue)) then
        return next v_job;
    end if;
end
$$;
revoke all on function @extschema@.pgq_get(bigint) from public;
comment on function @extschema@.pgq_get(bigint) is
'One job, live or archived, as pgq_jobs shows it; no row if it is unknown, or of a queue that the '
'caller may not observe. Some index look-ups for each priority in use, however many jobs there '
'are; leaves no lock. Errors: 22004 null id; 40001.';

create view @extschema@.pgq_workers as
select * from pgq._workers();
comment on view @extschema@.pgq_workers is
'Who holds leases: per queue, worker and backend (pid) that claimed, how many, how many of them '
'have expired, when the oldest was claimed, the last heartbeat (or claim), and when the next one '
'expires. backend_gone: that backend has ended; its jobs come back when their leases expire, '
'unless the worker lives on with another connection.';

/*
 * Public: pgq_health and pgq_locks, for those who may observe all queues.
 */

create function pgq._slot_users()
returns table (slot text, mode text, pid integer)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return query
    select distinct t.slot, l.mode, l.pid
      from (
               select 'job_0' as slot, 'pgq.job_0'::regclass as relation
               union all
               select 'job_1' as slot, 'pgq.job_1'::regclass as relation
               union all
               select 'job_2' as slot, 'pgq.job_2'::regclass as relation
               union all
               select 'job_3' as slot, 'pgq.job_3'::regclass as relation
               union all
               select 'job_4' as slot, 'pgq.job_4'::regclass as relation
               union all
               select 'job_5' as slot, 'pgq.job_5'::regclass as relation
               union all
               select null, null where false
           ) t
      join pg_locks l on l.relation = t.relation and l.locktype = 'relation'
     where l.database = (select d.oid from pg_database d where d.datname = current_database());
end
$$;
comment on function pgq._slot_users() is 'who has locks on the slots';

create function pgq._xmin_holders(p_now timestamptz)
returns table (holder text, age interval, pid integer, query text)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return query
    select format('by a session, %s transactions', age(coalesce(a.backend_xmin, a.backend_xid))),
           p_now - a.xact_start, a.pid, a.query
      from pg_stat_activity a
     where coalesce(a.backend_xmin, a.backend_xid) is not null and a.pid <> pg_backend_pid()
     union all
    select format('by the prepared transaction "%s"', p.gid), p_now - p.prepared, null, null
      from pg_prepared_xacts p
     union all
    select format('by the replication slot "%s", %s transactions', s.slot_name,
                  age(coalesce(s.xmin, s.catalog_xmin))), null, s.active_pid, null
      from pg_replication_slots s where s.xmin is not null or s.catalog_xmin is not null;
end
$$;
comment on function pgq._xmin_holders(timestamptz) is
'who keeps dead versions from being removed, and for how long already';

create function pgq._health()
returns table (
    subject text, status text, detail text, age interval, pid integer, query text
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_tick constant bigint := coalesce(pg_sequence_last_value('pgq.last_tick'), 0);
begin
    if not pgq._may_observe(null) then
        return;
    end if;
    return query
    select 'maintenance', 'ok', 'since the last tick',
           v_now - (timestamptz 'epoch' + v_tick * interval '1 millisecond'), null::integer, null
     union all
    select 'rotation', case when cardinality(r.live) + cardinality(r.closing) > 3
                            then 'warning' else 'ok' end,
           format('ring %s, closing %s, parked %s, closing %s', r.live, r.closing, r.parked,
                  r.parked_closing),
           v_now - r.switched_at, null, null
      from (select o.* from pgq.ring o order by o.gen desc limit 1) r
     union all
    select 'slot in use', case when a.xact_start < v_now - interval '1 minute'
                               then 'warning' else 'ok' end,
           format('%s: %s', u.slot, case when u.mode like 'RowExclusive%%' then 'written to'
                                         else 'read, ' || u.mode end),
           v_now - a.xact_start, u.pid, a.query
      from pgq._slot_users() u join pg_stat_activity a on a.pid = u.pid
     where u.pid <> pg_backend_pid()
     union all
    select 'xmin held', case when x.age > interval '5 minutes' then 'warning' else 'ok' end,
           x.holder, x.age, x.pid, x.query
      from pgq._xmin_holders(v_now) x
     union all
    select 'archive', 'ok', format('%s partitions, %s', count(*), pg_size_pretty(sum(z.size))),
           null, null, null
      from (select pgq._size_of(i.inhrelid::regclass) as size
              from pg_inherits i where i.inhparent = 'pgq.archive'::regclass) z
     where z.size > 0
     union all
    select 'slot', 'ok', format('%s: %s, %s live and %s dead rows', t.relname,
                                coalesce(pg_size_pretty(pgq._size_of(t.relid::regclass)), 'locked'),
                                t.n_live_tup, t.n_dead_tup), null, null, null
      from pg_stat_user_tables t
     where t.schemaname = 'pgq' and t.relname ~ '^job_[0-9]$';
end
$$;
comment on function pgq._health() is 'for the view pgq_health';

create function pgq._locks()
returns table (
    waiting_pid integer, waiting_for interval, waiting_query text, lock_type text, mode text,
    relation text, blocking_pid integer, blocking_state text, blocking_since interval,
    blocking_query text
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
begin
    if not pgq._may_observe(null) then
        return;
    end if;
    return query
    select w.pid, v_now - l.waitstart, w.query, l.locktype, l.mode, r.relation::regclass::text,
           b.pid, b.state, v_now - b.xact_start, b.query
      from pg_stat_activity w
      join pg_locks l on l.pid = w.pid and not l.granted
      join lateral (
               -- Who waits for a row has the row's page locked, or waits for its table.
               select o.relation
                 from pg_locks o join pg_class c on c.oid = o.relation
                where o.pid = w.pid and c.relnamespace = 'pgq'::regnamespace and c.relkind = 'r'
                order by not o.granted desc, o.locktype = 'tuple' desc, c.relname
                limit 1
           ) r on true,
           unnest(pg_blocking_pids(w.pid)) p
      left join pg_stat_activity b on b.pid = p
     where w.datname = current_database();
end
$$;
comment on function pgq._locks() is 'for the view pgq_locks';

create view @extschema@.pgq_health as
select * from pgq._health();
comment on view @extschema@.pgq_health is
'What keeps the queue healthy, and what is in its way: maintenance; rotation; sessions that use a '
'slot (it cannot be emptied meanwhile); who holds the xmin horizon, by session, prepared '
'transaction or replication slot; the archive; the slots. status: ok or warning. Empty for who may '
'not observe all queues; queries of others are shown as far as the owner of the extension may see '
'them.';

create view @extschema@.pgq_locks as
select * from pgq._locks();
comment on view @extschema@.pgq_locks is
'Sessions that wait for a lock while they use pgq, and each session that they wait for. Empty for '
'who may not observe all queues.';

/*
 * Maintenance: rotation, expired leases without an attempt left, late commits, retention.
 *
 * It runs about twice a second in ordinary calls, for all of them together, and on pgq_maintain().
 * A call only queues it, as the event of a deferred trigger: it runs at COMMIT, once and after all
 * other deferred triggers, so that no lock that it takes outlives the commit. It waits for
 * nothing: rows are locked with SKIP LOCKED, tables with NOWAIT, and what fails is tried again at
 * the next tick.
 *
 * A slot goes free > live > closing > free. It is closed when it seems to hold no job, and claims
 * then pass it by. At a later tick it is locked in ACCESS EXCLUSIVE mode; no transaction that
 * inserted into it can be open then. If it is empty in a snapshot taken after the lock, it is
 * truncated; if not, a late commit has arrived, and it is live again. Nothing else than that look
 * tells that a slot is empty. While pg_dump is at work no slot is truncated.
 *
 * Only READ COMMITTED gives each statement its own snapshot, so nothing is done under other levels.
 */

create function pgq._size(p_slot smallint)
returns bigint
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    return pg_table_size(format('pgq.job_%s', p_slot)::regclass);
end
$$;
comment on function pgq._size(smallint) is 'bytes of a slot, dead versions included';

create function pgq._holds_jobs(p_slot smallint, p_closely boolean)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_found boolean;
begin
    case p_slot
    when 0 then
        v_found := case when p_closely then exists (select from pgq.job_0) else exists (
            select
              from pgq.lane l,
                   lateral (
                      select from pgq.job_0 j
                       where j.lane = l.id and j.id > coalesce((
                                  select f.base from pgq.floor_0 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0) limit 1
                   ) j
        ) end;
    when 1 then
        v_found := case when p_closely then exists (select from pgq.job_1) else exists (
            select
              from pgq.lane l,
                   lateral (
                      select from pgq.job_1 j
                       where j.lane = l.id and j.id > coalesce((
                                  select f.base from pgq.floor_1 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0) limit 1
                   ) j
        ) end;
    when 2 then
        v_found := case when p_closely then exists (select from pgq.job_2) else exists (
            select
              from pgq.lane l,
                   lateral (
                      select from pgq.job_2 j
                       where j.lane = l.id and j.id > coalesce((
                                  select f.base from pgq.floor_2 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0) limit 1
                   ) j
        ) end;
    when 3 then
        v_found := case when p_closely then exists (select from pgq.job_3) else exists (
            select
              from pgq.lane l,
                   lateral (
                      select from pgq.job_3 j
                       where j.lane = l.id and j.id > coalesce((
                                  select f.base from pgq.floor_3 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0) limit 1
                   ) j
        ) end;
    when 4 then
        v_found := case when p_closely then exists (select from pgq.job_4) else exists (
            select
              from pgq.lane l,
                   lateral (
                      select from pgq.job_4 j
                       where j.lane = l.id and j.due > coalesce((
                                  select f.base from pgq.floor_4 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0) limit 1
                   ) j
        ) end;
    when 5 then
        v_found := case when p_closely then exists (select from pgq.job_5) else exists (
            select
              from pgq.lane l,
                   lateral (
                      select from pgq.job_5 j
                       where j.lane = l.id and j.due > coalesce((
                                  select f.base from pgq.floor_5 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0) limit 1
                   ) j
        ) end;
    end case;
    if not v_found and not p_closely then
        case p_slot
        when 4 then
            v_found := exists (select from pgq.job_4 j where j.wait is not null);
        when 5 then
            v_found := exists (select from pgq.job_5 j where j.wait is not null);
        else
        end case;
    end if;
    return v_found;
end
$$;
comment on function pgq._holds_jobs(smallint, boolean) is
'whether a slot holds jobs; closely: all rows are looked at, not only those above the bases';

create function pgq._holds_unleased(p_slot smallint, p_now timestamptz)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
declare
    v_found boolean;
begin
    case p_slot
    when 0 then
        v_found := exists (
            select
              from pgq.lane l,
                   lateral (
                      select from pgq.job_0 j
                       where j.lane = l.id and j.id > coalesce((
                                  select f.floor from pgq.floor_0 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                         and (j.lease_expires_at is null or j.lease_expires_at <= p_now)
                       order by j.id limit 1
                   ) j
        );
    when 1 then
        v_found := exists (
            select
              from pgq.lane l,
                   lateral (
                      select from pgq.job_1 j
                       where j.lane = l.id and j.id > coalesce((
                                  select f.floor from pgq.floor_1 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                         and (j.lease_expires_at is null or j.lease_expires_at <= p_now)
                       order by j.id limit 1
                   ) j
        );
    when 2 then
        v_found := exists (
            select
              from pgq.lane l,
                   lateral (
                      select from pgq.job_2 j
                       where j.lane = l.id and j.id > coalesce((
                                  select f.floor from pgq.floor_2 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                         and (j.lease_expires_at is null or j.lease_expires_at <= p_now)
                       order by j.id limit 1
                   ) j
        );
    when 3 then
        v_found := exists (
            select
              from pgq.lane l,
                   lateral (
                      select from pgq.job_3 j
                       where j.lane = l.id and j.id > coalesce((
                                  select f.floor from pgq.floor_3 f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
                         and (j.lease_expires_at is null or j.lease_expires_at <= p_now)
                       order by j.id limit 1
                   ) j
        );
    end case;
    return v_found;
end
$$;
comment on function pgq._holds_unleased(smallint, timestamptz) is
'whether any queue has a job in a slot of the ring that nobody leases; looks from the floors on, '
'which pgq._adjust_floors has just lowered below what is claimable';

create function pgq._is_dumped()
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The caller's transaction may have looked long ago.
    perform pg_stat_clear_snapshot();
    return exists (
        select from pg_stat_activity a
         where a.datname = current_database() and a.application_name = 'pg_dump'
           and a.backend_xmin is not null
    ) or exists (
        select from pg_locks l
         where l.relation in ('pg_extension'::regclass, 'pg_foreign_table'::regclass)
           and l.database = (select d.oid from pg_database d where d.datname = current_database())
           and l.mode = 'AccessShareLock' and l.pid <> pg_backend_pid()
         group by l.pid having count(distinct l.relation) = 2
    );
end
$$;
comment on function pgq._is_dumped() is
'whether pg_dump has a snapshot, as its name tells, or under another name the catalogs that it has '
'read since. It locks tables of an extension only when it comes to them: by then a truncated one '
'is empty for old snapshots, too, and where its jobs went they do not show';

create function pgq._truncate(p_slot smallint)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    case p_slot
    when 0 then
        -- Also when the lock cannot be had for hours: a late commit is delivered nevertheless.
        if pgq._holds_jobs(0::smallint, false) then
            return 'live';
        end if;
        -- Before the lock, too, which would make a parallel dump fail.
        if pgq._is_dumped() then
            return 'closing';
        end if;
        lock table pgq.job_0, pgq.floor_0, pgq.hold_0
            in access exclusive mode nowait;
        if pgq._holds_jobs(0::smallint, true) then
            truncate pgq.floor_0;
            return 'live';
        end if;
        if pgq._is_dumped() then
            return 'closing';
        end if;
        truncate pgq.job_0, pgq.floor_0, pgq.hold_0;
    when 1 then
        -- Also when the lock cannot be had for hours: a late commit is delivered nevertheless.
        if pgq._holds_jobs(1::smallint, false) then
            return 'live';
        end if;
        -- Before the lock, too, which would make a parallel dump fail.
        if pgq._is_dumped() then
            return 'closing';
        end if;
        lock table pgq.job_1, pgq.floor_1, pgq.hold_1
            in access exclusive mode nowait;
        if pgq._holds_jobs(1::smallint, true) then
            truncate pgq.floor_1;
            return 'live';
        end if;
        if pgq._is_dumped() then
            return 'closing';
        end if;
        truncate pgq.job_1, pgq.floor_1, pgq.hold_1;
    when 2 then
        -- Also when the lock cannot be had for hours: a late commit is delivered nevertheless.
        if pgq._holds_jobs(2::smallint, false) then
            return 'live';
        end if;
        -- Before the lock, too, which would make a parallel dump fail.
        if pgq._is_dumped() then
            return 'closing';
        end if;
        lock table pgq.job_2, pgq.floor_2, pgq.hold_2
            in access exclusive mode nowait;
        if pgq._holds_jobs(2::smallint, true) then
            truncate pgq.floor_2;
            return 'live';
        end if;
        if pgq._is_dumped() then
            return 'closing';
        end if;
        truncate pgq.job_2, pgq.floor_2, pgq.hold_2;
    when 3 then
        -- Also when the lock cannot be had for hours: a late commit is delivered nevertheless.
        if pgq._holds_jobs(3::smallint, false) then
            return 'live';
        end if;
        -- Before the lock, too, which would make a parallel dump fail.
        if pgq._is_dumped() then
            return 'closing';
        end if;
        lock table pgq.job_3, pgq.floor_3, pgq.hold_3
            in access exclusive mode nowait;
        if pgq._holds_jobs(3::smallint, true) then
            truncate pgq.floor_3;
            return 'live';
        end if;
        if pgq._is_dumped() then
            return 'closing';
        end if;
        truncate pgq.job_3, pgq.floor_3, pgq.hold_3;
    when 4 then
        -- Also when the lock cannot be had for hours: a late commit is delivered nevertheless.
        if pgq._holds_jobs(4::smallint, false) then
            return 'live';
        end if;
        -- Before the lock, too, which would make a parallel dump fail.
        if pgq._is_dumped() then
            return 'closing';
        end if;
        lock table pgq.job_4, pgq.floor_4, pgq.hold_4
            in access exclusive mode nowait;
        if pgq._holds_jobs(4::smallint, true) then
            truncate pgq.floor_4;
            return 'live';
        end if;
        if pgq._is_dumped() then
            return 'closing';
        end if;
        truncate pgq.job_4, pgq.floor_4, pgq.hold_4;
    when 5 then
        -- Also when the lock cannot be had for hours: a late commit is delivered nevertheless.
        if pgq._holds_jobs(5::smallint, false) then
            return 'live';
        end if;
        -- Before the lock, too, which would make a parallel dump fail.
        if pgq._is_dumped() then
            return 'closing';
        end if;
        lock table pgq.job_5, pgq.floor_5, pgq.hold_5
            in access exclusive mode nowait;
        if pgq._holds_jobs(5::smallint, true) then
            truncate pgq.floor_5;
            return 'live';
        end if;
        if pgq._is_dumped() then
            return 'closing';
        end if;
        truncate pgq.job_5, pgq.floor_5, pgq.hold_5;
    end case;
    return 'free';
exception
    -- Somebody has used the table and is not done, or this session has a cursor open on it.
    when lock_not_available or object_in_use then
        return 'closing';
end
$$;
comment on function pgq._truncate(smallint) is
'empties a closing slot and returns what it is then: free, live (it has jobs again), or still '
'closing';

create function pgq._evacuate(p_from smallint, p_to smallint, p_now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_lane record;
begin
    p_now := greatest(p_now, pgq._open_slot(p_to));
    case p_from
    when 0 then
        for v_lane in with chosen as materialized (
            select i.ctid
              from (
                       select i.ctid, i.group_id from pgq.job_0 i
                        where i.lease_expires_at is distinct from 'infinity' limit 1000
                   ) i
              left join lateral pgq._lock_groups(array[i.group_id], true) g on true
             where i.group_id is null or g is not null
        ), moved as (
            delete from pgq.job_0 j
             where j.ctid = any (array(
                       select l.ctid
                         from chosen c,
                              lateral (
                                  select o.ctid from pgq.job_0 o
                                   where o.ctid = c.ctid for update skip locked
                              ) l
                   ))
            returning j.*
        ), parked as (
            insert into pgq.job (
                id, enqueued_at, lane, slot, attempt, max_attempts, run_at, due, token, claimed_at,
                lease_expires_at, lease_ms, worker, payload, headers, last_error, dedupe_key,
                dedupe_queue_id, group_key, group_id, wait, cancel_requested, checkpoint,
                start_by, is_awaited, pid
            )
            select m.id, m.enqueued_at, m.lane, p_to, m.attempt, m.max_attempts, m.run_at,
                   case when m.wait is null then greatest(m.due, pgq._due(p_now, m.id)) end,
                   m.token, m.claimed_at, m.lease_expires_at, m.lease_ms, m.worker, m.payload,
                   m.headers, m.last_error, m.dedupe_key, m.dedupe_queue_id, m.group_key,
                   m.group_id, m.wait, m.cancel_requested, m.checkpoint, m.start_by, m.is_awaited,
                   m.pid
              from moved m
            returning lane, due
        ), held as (
            insert into pgq.hold (slot, queue_id, permit, token, lane, id)
            select p_to, h.queue_id, h.permit, h.token, h.lane, h.id
              from moved m join pgq.hold_0 h on h.token = m.token and h.id = m.id
        )
        select p.lane, min(p.due) as due from parked p where p.due is not null group by p.lane
        loop
            -- Who is about to sleep may have looked there before, and here afterwards.
            perform pgq._admit(p_to, v_lane.lane, v_lane.due), pgq._wake_lane(v_lane.lane);
        end loop;
    when 1 then
        for v_lane in with chosen as materialized (
            select i.ctid
              from (
                       select i.ctid, i.group_id from pgq.job_1 i
                        where i.lease_expires_at is distinct from 'infinity' limit 1000
                   ) i
              left join lateral pgq._lock_groups(array[i.group_id], true) g on true
             where i.group_id is null or g is not null
        ), moved as (
            delete from pgq.job_1 j
             where j.ctid = any (array(
                       select l.ctid
                         from chosen c,
                              lateral (
                                  select o.ctid from pgq.job_1 o
                                   where o.ctid = c.ctid for update skip locked
                              ) l
                   ))
            returning j.*
        ), parked as (
            insert into pgq.job (
                id, enqueued_at, lane, slot, attempt, max_attempts, run_at, due, token, claimed_at,
                lease_expires_at, lease_ms, worker, payload, headers, last_error, dedupe_key,
                dedupe_queue_id, group_key, group_id, wait, cancel_requested, checkpoint,
                start_by, is_awaited, pid
            )
            select m.id, m.enqueued_at, m.lane, p_to, m.attempt, m.max_attempts, m.run_at,
                   case when m.wait is null then greatest(m.due, pgq._due(p_now, m.id)) end,
                   m.token, m.claimed_at, m.lease_expires_at, m.lease_ms, m.worker, m.payload,
                   m.headers, m.last_error, m.dedupe_key, m.dedupe_queue_id, m.group_key,
                   m.group_id, m.wait, m.cancel_requested, m.checkpoint, m.start_by, m.is_awaited,
                   m.pid
              from moved m
            returning lane, due
        ), held as (
            insert into pgq.hold (slot, queue_id, permit, token, lane, id)
            select p_to, h.queue_id, h.permit, h.token, h.lane, h.id
              from moved m join pgq.hold_1 h on h.token = m.token and h.id = m.id
        )
        select p.lane, min(p.due) as due from parked p where p.due is not null group by p.lane
        loop
            -- Who is about to sleep may have looked there before, and here afterwards.
            perform pgq._admit(p_to, v_lane.lane, v_lane.due), pgq._wake_lane(v_lane.lane);
        end loop;
    when 2 then
        for v_lane in with chosen as materialized (
            select i.ctid
              from (
                       select i.ctid, i.group_id from pgq.job_2 i
                        where i.lease_expires_at is distinct from 'infinity' limit 1000
                   ) i
              left join lateral pgq._lock_groups(array[i.group_id], true) g on true
             where i.group_id is null or g is not null
        ), moved as (
            delete from pgq.job_2 j
             where j.ctid = any (array(
                       select l.ctid
                         from chosen c,
                              lateral (
                                  select o.ctid from pgq.job_2 o
                                   where o.ctid = c.ctid for update skip locked
                              ) l
                   ))
            returning j.*
        ), parked as (
            insert into pgq.job (
                id, enqueued_at, lane, slot, attempt, max_attempts, run_at, due, token, claimed_at,
                lease_expires_at, lease_ms, worker, payload, headers, last_error, dedupe_key,
                dedupe_queue_id, group_key, group_id, wait, cancel_requested, checkpoint,
                start_by, is_awaited, pid
            )
            select m.id, m.enqueued_at, m.lane, p_to, m.attempt, m.max_attempts, m.run_at,
                   case when m.wait is null then greatest(m.due, pgq._due(p_now, m.id)) end,
                   m.token, m.claimed_at, m.lease_expires_at, m.lease_ms, m.worker, m.payload,
                   m.headers, m.last_error, m.dedupe_key, m.dedupe_queue_id, m.group_key,
                   m.group_id, m.wait, m.cancel_requested, m.checkpoint, m.start_by, m.is_awaited,
                   m.pid
              from moved m
            returning lane, due
        ), held as (
            insert into pgq.hold (slot, queue_id, permit, token, lane, id)
            select p_to, h.queue_id, h.permit, h.token, h.lane, h.id
              from moved m join pgq.hold_2 h on h.token = m.token and h.id = m.id
        )
        select p.lane, min(p.due) as due from parked p where p.due is not null group by p.lane
        loop
            -- Who is about to sleep may have looked there before, and here afterwards.
            perform pgq._admit(p_to, v_lane.lane, v_lane.due), pgq._wake_lane(v_lane.lane);
        end loop;
    when 3 then
        for v_lane in with chosen as materialized (
            select i.ctid
              from (
                       select i.ctid, i.group_id from pgq.job_3 i
                        where i.lease_expires_at is distinct from 'infinity' limit 1000
                   ) i
              left join lateral pgq._lock_groups(array[i.group_id], true) g on true
             where i.group_id is null or g is not null
        ), moved as (
            delete from pgq.job_3 j
             where j.ctid = any (array(
                       select l.ctid
                         from chosen c,
                              lateral (
                                  select o.ctid from pgq.job_3 o
                                   where o.ctid = c.ctid for update skip locked
                              ) l
                   ))
            returning j.*
        ), parked as (
            insert into pgq.job (
                id, enqueued_at, lane, slot, attempt, max_attempts, run_at, due, token, claimed_at,
                lease_expires_at, lease_ms, worker, payload, headers, last_error, dedupe_key,
                dedupe_queue_id, group_key, group_id, wait, cancel_requested, checkpoint,
                start_by, is_awaited, pid
            )
            select m.id, m.enqueued_at, m.lane, p_to, m.attempt, m.max_attempts, m.run_at,
                   case when m.wait is null then greatest(m.due, pgq._due(p_now, m.id)) end,
                   m.token, m.claimed_at, m.lease_expires_at, m.lease_ms, m.worker, m.payload,
                   m.headers, m.last_error, m.dedupe_key, m.dedupe_queue_id, m.group_key,
                   m.group_id, m.wait, m.cancel_requested, m.checkpoint, m.start_by, m.is_awaited,
                   m.pid
              from moved m
            returning lane, due
        ), held as (
            insert into pgq.hold (slot, queue_id, permit, token, lane, id)
            select p_to, h.queue_id, h.permit, h.token, h.lane, h.id
              from moved m join pgq.hold_3 h on h.token = m.token and h.id = m.id
        )
        select p.lane, min(p.due) as due from parked p where p.due is not null group by p.lane
        loop
            -- Who is about to sleep may have looked there before, and here afterwards.
            perform pgq._admit(p_to, v_lane.lane, v_lane.due), pgq._wake_lane(v_lane.lane);
        end loop;
    when 4 then
        for v_lane in with chosen as materialized (
            select i.ctid
              from (
                       select i.ctid, i.group_id from pgq.job_4 i
                        where i.lease_expires_at is distinct from 'infinity' limit 1000
                   ) i
              left join lateral pgq._lock_groups(array[i.group_id], true) g on true
             where i.group_id is null or g is not null
        ), moved as (
            delete from pgq.job_4 j
             where j.ctid = any (array(
                       select l.ctid
                         from chosen c,
                              lateral (
                                  select o.ctid from pgq.job_4 o
                                   where o.ctid = c.ctid for update skip locked
                              ) l
                   ))
            returning j.*
        ), parked as (
            insert into pgq.job (
                id, enqueued_at, lane, slot, attempt, max_attempts, run_at, due, token, claimed_at,
                lease_expires_at, lease_ms, worker, payload, headers, last_error, dedupe_key,
                dedupe_queue_id, group_key, group_id, wait, cancel_requested, checkpoint,
                start_by, is_awaited, pid
            )
            select m.id, m.enqueued_at, m.lane, p_to, m.attempt, m.max_attempts, m.run_at,
                   case when m.wait is null then greatest(m.due, pgq._due(p_now, m.id)) end,
                   m.token, m.claimed_at, m.lease_expires_at, m.lease_ms, m.worker, m.payload,
                   m.headers, m.last_error, m.dedupe_key, m.dedupe_queue_id, m.group_key,
                   m.group_id, m.wait, m.cancel_requested, m.checkpoint, m.start_by, m.is_awaited,
                   m.pid
              from moved m
            returning lane, due
        ), held as (
            insert into pgq.hold (slot, queue_id, permit, token, lane, id)
            select p_to, h.queue_id, h.permit, h.token, h.lane, h.id
              from moved m join pgq.hold_4 h on h.token = m.token and h.id = m.id
        )
        select p.lane, min(p.due) as due from parked p where p.due is not null group by p.lane
        loop
            -- Who is about to sleep may have looked there before, and here afterwards.
            perform pgq._admit(p_to, v_lane.lane, v_lane.due), pgq._wake_lane(v_lane.lane);
        end loop;
    when 5 then
        for v_lane in with chosen as materialized (
            select i.ctid
              from (
                       select i.ctid, i.group_id from pgq.job_5 i
                        where i.lease_expires_at is distinct from 'infinity' limit 1000
                   ) i
              left join lateral pgq._lock_groups(array[i.group_id], true) g on true
             where i.group_id is null or g is not null
        ), moved as (
            delete from pgq.job_5 j
             where j.ctid = any (array(
                       select l.ctid
                         from chosen c,
                              lateral (
                                  select o.ctid from pgq.job_5 o
                                   where o.ctid = c.ctid for update skip locked
                              ) l
                   ))
            returning j.*
        ), parked as (
            insert into pgq.job (
                id, enqueued_at, lane, slot, attempt, max_attempts, run_at, due, token, claimed_at,
                lease_expires_at, lease_ms, worker, payload, headers, last_error, dedupe_key,
                dedupe_queue_id, group_key, group_id, wait, cancel_requested, checkpoint,
                start_by, is_awaited, pid
            )
            select m.id, m.enqueued_at, m.lane, p_to, m.attempt, m.max_attempts, m.run_at,
                   case when m.wait is null then greatest(m.due, pgq._due(p_now, m.id)) end,
                   m.token, m.claimed_at, m.lease_expires_at, m.lease_ms, m.worker, m.payload,
                   m.headers, m.last_error, m.dedupe_key, m.dedupe_queue_id, m.group_key,
                   m.group_id, m.wait, m.cancel_requested, m.checkpoint, m.start_by, m.is_awaited,
                   m.pid
              from moved m
            returning lane, due
        ), held as (
            insert into pgq.hold (slot, queue_id, permit, token, lane, id)
            select p_to, h.queue_id, h.permit, h.token, h.lane, h.id
              from moved m join pgq.hold_5 h on h.token = m.token and h.id = m.id
        )
        select p.lane, min(p.due) as due from parked p where p.due is not null group by p.lane
        loop
            -- Who is about to sleep may have looked there before, and here afterwards.
            perform pgq._admit(p_to, v_lane.lane, v_lane.due), pgq._wake_lane(v_lane.lane);
        end loop;
    end case;
end
$$;
comment on function pgq._evacuate(smallint, smallint, timestamptz) is
'moves 1000 jobs of a slot, leases and all, to a parked slot; each takes its place there as of now';

/*
 * The turn of the ring, the tick, and pgq_maintain.
 */

create function pgq._turn(
    p_all smallint[], p_parked smallint, p_now timestamptz, inout p_live smallint[],
    inout p_closing smallint[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slot smallint;
    v_fate text;
    v_limit constant bigint := greatest(8192, coalesce(
        substring(current_setting('pgq.slot_size', true) from '^[0-9]{1,12}$'), '8388608'
    )::bigint);
    v_head constant smallint := p_live[cardinality(p_live)];
begin
    foreach v_slot in array p_closing loop
        v_fate := pgq._truncate(v_slot);
        if v_fate <> 'closing' then
            p_closing := array_remove(p_closing, v_slot);
        end if;
        if v_fate = 'live' then
            p_live := v_slot || p_live;
        end if;
    end loop;
    -- An enqueue that read the ring before it turned may write a slot that is free by now.
    foreach v_slot in array p_all loop
        if v_slot <> all (p_live || p_closing) and pgq._holds_jobs(v_slot, true) then
            p_live := v_slot || p_live;
        end if;
    end loop;
    foreach v_slot in array p_live loop
        if v_slot <> v_head and not pgq._holds_jobs(v_slot, false) then
            p_live := array_remove(p_live, v_slot);
            p_closing := p_closing || v_slot;
        end if;
    end loop;
    if pgq._size(v_head) < v_limit then
        return;
    end if;
    foreach v_slot in array p_all loop
        if v_slot <> all (p_live || p_closing) then
            p_live := p_live || v_slot;
            return;
        end if;
    end loop;
    -- No slot is free. One that holds little more than garbage is emptied by hand: at most a job
    -- per page, or a hundred. The statistics may be wrong; what they cannot do is to lose a job.
    foreach v_slot in array p_live loop
        if v_slot <> v_head
            and pg_stat_get_live_tuples(format('pgq.job_%s', v_slot)::regclass)
                <= greatest(pg_relation_size(format('pgq.job_%s', v_slot)::regclass) / 8192, 100)
        then
            perform pgq._evacuate(v_slot, p_parked, p_now);
            return;
        end if;
    end loop;
end
$$;
comment on function pgq._turn(smallint[], smallint, timestamptz, smallint[], smallint[]) is
'frees, closes and adds slots of one family; the last of p_live is the one that is written. It '
'is left when it has grown to pgq.slot_size bytes (default 8 MB)';

create function pgq._ready_slots(p_ring pgq.ring, p_now timestamptz)
returns smallint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_head constant smallint := p_ring.live[cardinality(p_ring.live)];
    -- Like a floor it waits for those who are open since then, but not for longer.
    v_since constant bigint := coalesce((
        select max(r.gen) from pgq.ring r
         where r.gen > p_ring.gen - 100 and r.switched_at <= p_now - interval '2 seconds'
    ), p_ring.gen - 100);
    v_written constant smallint[] := v_head || array(
        select r.live[cardinality(r.live)] from pgq.ring r where r.gen >= v_since
    );
begin
    return array(
        select l.slot
          from unnest(p_ring.live) with ordinality l (slot, n)
         where l.slot = any (v_written) or pgq._holds_unleased(l.slot, p_now)
         order by l.n
    );
end
$$;
comment on function pgq._ready_slots(pgq.ring, timestamptz) is
'the live slots of the ring without those that are spent: all that is in them is leased, and they '
'have not been written for two seconds';

create function pgq._shift_xids(p_now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ms constant bigint := pgq._ms(p_now);
begin
    if abs(v_ms - coalesce(pg_sequence_last_value('pgq.xid_shifted'), 0)) >= 1000 then
        perform setval('pgq.xid_shifted', v_ms);
        perform setval('pgq.xid_old', greatest(pg_sequence_last_value('pgq.xid_recent'), 1));
        perform setval('pgq.xid_recent', pg_snapshot_xmax(pg_current_snapshot())::text::bigint);
    end if;
end
$$;
comment on function pgq._shift_xids(timestamptz) is
'moves the registers xid_old and xid_recent on, once a second';

create function pgq._turn_ring(p_now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ring pgq.ring; v_live smallint[]; v_slot smallint;
begin
    select r.* into v_ring from pgq.ring r order by r.gen desc limit 1;
    v_live := v_ring.live;
    select t.p_live, t.p_closing into v_ring.parked, v_ring.parked_closing
      from pgq._turn(
               '{4,5}', v_ring.parked[cardinality(v_ring.parked)], p_now, v_ring.parked,
               v_ring.parked_closing
           ) t;
    select t.p_live, t.p_closing into v_ring.live, v_ring.closing
      from pgq._turn(
               '{0,1,2,3}', v_ring.parked[cardinality(v_ring.parked)], p_now, v_ring.live,
               v_ring.closing
           ) t;
    foreach v_slot in array v_ring.live loop
        if v_slot <> all (v_live) then
            v_ring.firsts[v_slot + 1] := coalesce(
                case when v_slot = v_ring.live[cardinality(v_ring.live)]
                     then pg_sequence_last_value('pgq.job_id') end, 0);
        end if;
    end loop;
    v_ring.ready := pgq._ready_slots(v_ring, p_now);
    insert into pgq.ring (gen, live, firsts, closing, parked, parked_closing, switched_at, ready)
    select r.gen + 1, v_ring.live, v_ring.firsts, v_ring.closing, v_ring.parked,
           v_ring.parked_closing,
           case when (r.live, r.closing, r.parked, r.parked_closing)
                     = (v_ring.live, v_ring.closing, v_ring.parked, v_ring.parked_closing)
                then r.switched_at else p_now end,
           v_ring.ready
      from pgq.ring r
     where r.gen = v_ring.gen
       and (r.live, r.closing, r.parked, r.parked_closing, r.ready) is distinct from
           (v_ring.live, v_ring.closing, v_ring.parked, v_ring.parked_closing, v_ring.ready);
    delete from pgq.ring r where r.gen < v_ring.gen - 100;
end
$$;
comment on function pgq._turn_ring(timestamptz) is
'frees, closes and adds slots, and decides which are spent; the floors have been adjusted';

create function pgq._maintain()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_slot smallint;
begin
    perform from pgq.gate g for update skip locked;
    if not found then
        return;
    end if;
    -- What it does to groups is for the next tick: it must not wait for their buckets.
    perform set_config('pgq.grouped', pg_current_xact_id()::text, true);
    delete from pgq.chore c
     where c.ctid = any (array(select o.ctid from pgq.chore o for update skip locked));

    perform setval('pgq.last_tick', pgq._ms(v_now));
    perform pgq._shift_xids(v_now);
    perform pgq._reclaim(null, 1000, 10000, true), pgq._drop_permits(),
            pgq._forget_starts(v_now), pgq._bury_overdue(v_now), pgq._fire_schedules(v_now);

    foreach v_slot in array pgq._slots() loop
        perform pgq._adjust_floors(v_slot, v_now);
    end loop;
    perform pgq._raise_bases();
    perform pgq._turn_ring(v_now);

    perform pgq._expire_archive(v_now), pgq._take_hints(), pgq._take_waiter_hints(),
            pgq._clear_group_events(), pgq._fit_samples(), pgq._sum_up(v_now);
end
$$;
comment on function pgq._maintain() is 'one tick of maintenance, unless another session is at it';

create function pgq._at_commit()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_xid constant text := pg_current_xact_id()::text;
begin
    if pgq._is_preparing() then
        return null;
    end if;
    if new.wake is not null then
        perform pg_notify(format('pgq_%s', new.wake), '');
    end if;
    if new.wake is not null or not pgq._read_committed() then
        return null;
    end if;
    -- The first event queues one more, behind the deferred triggers of everybody else. After SET
    -- CONSTRAINTS ... IMMEDIATE, that one fires in here instead of at COMMIT, and nothing is done.
    if new.last then
        if pg_trigger_depth() = 1 then
            perform pgq._maintain();
        end if;
    elsif current_setting('pgq.ticking', true) is distinct from v_xid then
        perform set_config('pgq.ticking', v_xid, true);
        insert into pgq.chore (last) values (true);
    end if;
    return null;
end
$$;
comment on function pgq._at_commit() is
'runs maintenance that was queued in pgq.chore: once per transaction, as the last deferred '
'trigger; sends what pgq._wake has left to it';

create constraint trigger chore_at_commit after insert on pgq.chore
    deferrable initially deferred
    for each row execute function pgq._at_commit();

create function @extschema@.pgq_maintain()
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if not pgq._read_committed() then
        raise exception 'maintenance needs the isolation level READ COMMITTED'
            using errcode = 'active_sql_transaction',
                  detail = 'An older snapshot must not decide that a slot is empty.';
    end if;
    insert into pgq.chore default values;
end
$$;
revoke all on function @extschema@.pgq_maintain() from public;
comment on function @extschema@.pgq_maintain() is
'Does at the commit of the caller''s transaction what ordinary calls do twice a second: '
'rotation, reclaim, retention. For quiet databases, for example from pg_cron; no queue needs it. '
'Errors: 25001 under REPEATABLE READ and SERIALIZABLE.';

/*
 * What a dump meets where it is restored. The extension is created first, and with it the queue
 * "default" and its lane, which the dump holds as well, with other settings maybe and under other
 * numbers. Tables are filled in any order, and two at a time: who comes removes only what is its
 * own. What was in use stays, and the restored row fails.
 */

-- Fires for pgq_create_queue, too, which therefore looks first whether there is the queue.
create function pgq._replace_queue()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if pg_sequence_last_value('pgq.last_tick') is null then
        delete from pgq.lane l
         using pgq.queue q
         where l.queue_id = q.id and q.name = new.name and q.id <> new.id;
        delete from pgq.queue q where q.name = new.name;
    end if;
    return new;
end
$$;
comment on function pgq._replace_queue() is
'lets a restored queue take the place of the one that the installation made';

create function pgq._replace_lane()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if pg_sequence_last_value('pgq.last_tick') is null then
        delete from pgq.lane l where l.id = new.id;
    end if;
    return new;
end
$$;
comment on function pgq._replace_lane() is
'lets a restored lane take the place of the one that the installation made';

create trigger queue_replace before insert on pgq.queue
    for each row when (new.name = 'default')
    execute function pgq._replace_queue();
create trigger lane_replace before insert on pgq.lane
    for each row when (new.id = 1)
    execute function pgq._replace_lane();

/*
 * pgq_version, and the end of the installation: nothing is executable or readable by PUBLIC.
 */

create function @extschema@.pgq_version()
returns text
language sql
immutable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$ select '0.1.0'::text $$;
revoke all on function @extschema@.pgq_version() from public;
comment on function @extschema@.pgq_version() is 'The version of the installed extension.';

revoke all on all tables in schema pgq from public;
revoke all on all sequences in schema pgq from public;
revoke all on all functions in schema pgq from public;
