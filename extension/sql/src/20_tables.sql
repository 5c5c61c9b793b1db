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
    description text,
    first_job bigint not null default 0,
    is_serial boolean not null default false,
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
comment on column pgq.queue.description is 'what it is for, for people';
comment on column pgq.queue.first_job is
'archived jobs up to this id are of another queue of its name, which was dropped before';
comment on column pgq.queue.is_serial is
'group_concurrency has always been 1: no group has more than one head. Not known of a queue that '
'was restored from a dump of a version without this column';

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
'parked slots only: the place there, in microseconds since 1970; not before it is due';
comment on column pgq.job.dedupe_queue_id is 'the queue, if there is a dedupe_key';
comment on column pgq.job.group_id is 'see pgq._group_ids';
comment on column pgq.job.wait is
'its place in the group while it waits, see pgq._turn_group; its id while it waits without one';
comment on column pgq.job.start_by is 'the expires_at of pgq_enqueue';
comment on column pgq.job.claimed_at is
'of a job that has come back, and is not to run at a time that somebody asked for: when it came';
comment on column pgq.job.pid is 'the backend that claimed it';
comment on column pgq.job.is_awaited is 'true: jobs of pgq.dependency wait for it';
comment on column pgq.job.lease_ms is
'the timeout of the claim, for heartbeats that name none; negative: the lease before was lost. '
'0, without a lease: the last one was lost';

--@ each slot
create table pgq.job_{slot} partition of pgq.job for values in ({slot}) with (
    fillfactor = 40,
    vacuum_truncate = off,
    autovacuum_vacuum_scale_factor = 0.5,
    autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_analyze_threshold = 1000000
);
--@ end
--@ each slot
create unique index job_{slot}_lane_id_idx on pgq.job_{slot} (lane, id);
alter table pgq.job_{slot} replica identity using index job_{slot}_lane_id_idx;
create unique index job_{slot}_dedupe_idx on pgq.job_{slot} (dedupe_queue_id, dedupe_key)
    where dedupe_key is not null;
--@ end
-- All parked jobs that do not wait have it, and the condition keeps plans that look for an id from
-- taking this index.
--@ each parked
create index job_{slot}_due_idx on pgq.job_{slot} (lane, due) where due is not null;
create index job_{slot}_group_due_idx on pgq.job_{slot} (group_id, due)
    where group_id is not null and wait is null;
create index job_{slot}_group_wait_idx on pgq.job_{slot} (group_id, wait, id)
    where wait is not null;
--@ end
--@ each ring
create index job_{slot}_group_idx on pgq.job_{slot} (group_id, id) where group_id is not null;
--@ end

/*
 * Where claims may start in a slot and lane: rows up to "floor" are finished or leased, rows up to
 * "base" are finished, see pgq._raise_floor. The key is the id in the ring and due in the parked
 * slots. The row with the highest n counts. A floor table is truncated with its slot.
 */
create sequence pgq.floor_n;
--@ each slot
create table pgq.floor_{slot} (
    n bigint not null,
    lane integer not null,
    floor bigint not null,
    base bigint not null,
    mark bigint not null,
    mark_xid bigint
) with (vacuum_truncate = off);
create index floor_{slot}_lane_n_idx on pgq.floor_{slot} (lane, n);
comment on table pgq.floor_{slot} is 'claim positions in slot {slot}';
comment on column pgq.floor_{slot}.mark_xid is 'null: the id of the transaction that wrote the row';
--@ end

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
    clock_was timestamptz,
    set_back_at timestamptz,
    constraint gate_pkey primary key (one),
    constraint gate_one_check check (one)
);
comment on table pgq.gate is
'its only row is locked by whoever does maintenance; nobody waits for it';
comment on column pgq.gate.clock_was is
'what the clock showed before it was set back last: see pgq._follow_clock';
comment on column pgq.gate.set_back_at is
'what it showed after that; null if it has been set right again';

create table pgq.chore (
    last boolean not null default false,
    wake integer,
    round smallint,
    written bigint
);
alter table pgq.chore replica identity full;
comment on table pgq.chore is
'an insert queues maintenance for the commit of its transaction: see pgq._at_commit';
comment on column pgq.chore.wake is 'a queue to notify for instead: see pgq._wake';
comment on column pgq.chore.round is 'see pgq._at_last; below 0: call pgq._run_errands instead';
comment on column pgq.chore.written is 'pgq._written() at the event that queued this one';

insert into pgq.queue (name, is_serial) values ('default', true);
insert into pgq.lane (id, queue_id, priority, queue)
select pg_catalog.nextval('pgq.lane_id'), q.id, 0, q.name from pgq.queue q;
insert into pgq.ring (gen, live, firsts, closing, parked, parked_closing, switched_at, ready)
values (1, '{0}', '{0,0,0,0}', '{}', '{4}', '{}', pg_catalog.clock_timestamp(), '{0}');
insert into pgq.gate default values;
