/*
 * Live jobs. A job is a row of pgq.job; what it is follows from its columns:
 *
 *   active     in the ring, token is set (a lease that has expired is active until a tick frees it)
 *   ready      in the ring, token is null
 *   scheduled  parked, due is set: the next tick after that time moves it to the ring
 *   waiting    parked, due is null: in the line of its group (place is set), or until other jobs
 *              have completed
 *
 * All jobs of a group are in its line. While one of them is ready or active it has a copy in the
 * ring as well: see feature/group.sql.
 *
 * Finished jobs are in pgq.archive.
 *
 * The ring is slots 0 to 3. Enqueue writes the newest slot, the head. Claims read the slots oldest
 * first, each lane by pos, the order of becoming ready. The parked slots are 4 and 5; claims never
 * look there. A slot without jobs is truncated: only that removes dead row versions while a
 * transaction holds the xmin horizon.
 *
 * No index covers a column that a claim or a heartbeat changes, so both are HOT updates. Rows that
 * would be updated often are appended instead and the newest counts: a chain of dead versions would
 * slow down every reader.
 *
 * All tables have a replica identity, so that a publication for all tables does not stop the queue.
 *
 * Lock order of what waits: dedupe buckets by id, then jobs by slot and id; at the commit group
 * buckets by id. pgq._end_live (pgq_cancel_all, pgq_purge) waits for the gate, too, and gives it
 * back at once. Who holds the gate or a group bucket waits for no job.
 */

create sequence pgq.number;
comment on sequence pgq.number is
'Numbers jobs (id), and the order in which they become ready (pos).';
create sequence pgq.token;

create table pgq.job (
    id bigint not null,
    pos bigint,
    enqueued_at timestamptz not null,
    lane bigint not null,
    slot smallint not null,
    attempt smallint not null default 0,
    lost smallint not null default 0,
    max_attempts integer,
    run_at timestamptz,
    start_by timestamptz,
    due bigint,
    token bigint,
    claimed_at timestamptz,
    lease_expires_at timestamptz,
    lease_ms integer,
    pid integer,
    worker text,
    is_awaited boolean,
    cancel_requested boolean,
    group_id bigint,
    place bigint,
    is_head boolean,
    is_blocked boolean,
    head_place bigint,
    payload jsonb not null,
    headers jsonb,
    last_error text,
    dedupe_key text collate "C",
    dedupe_queue_id integer,
    group_key text collate "C",
    checkpoint jsonb,
    history jsonb
) partition by list (slot);
comment on table pgq.job is
'Live jobs.

What a claim changes comes before the payload, so that WAL does not repeat the payload.';
comment on column pgq.job.pos is
'In the ring: the order of becoming ready. The id for a job that was ready when it was enqueued.';
comment on column pgq.job.lane is 'Queue and priority: see pgq._lane_of.';
comment on column pgq.job.lost is 'How many leases in a row have expired.';
comment on column pgq.job.max_attempts is 'Null: the queue''s.';
comment on column pgq.job.run_at is
'When it was asked to run, or is to be tried again. Null: at once.';
comment on column pgq.job.start_by is 'The expires_at of pgq_enqueue.';
comment on column pgq.job.due is
'Parked only: microseconds since 1970, later than any tick that ran before the slot was locked.';
comment on column pgq.job.lease_ms is 'The timeout of the claim, for heartbeats that name none.';
comment on column pgq.job.pid is 'The backend that claimed it.';
comment on column pgq.job.is_awaited is 'Rows of pgq.dependency name it.';
comment on column pgq.job.group_id is 'See pgq._group_ids.';
comment on column pgq.job.place is 'Parked only: its place in the line of its group.';
comment on column pgq.job.is_head is
'Of a row in a line: the job may run. It has a copy in the ring, or due or is_blocked is set.';
comment on column pgq.job.is_blocked is 'Of a head: the job is dead, and its group is blocked.';
comment on column pgq.job.head_place is
'Of a head and its copy: a place in the line before which no job stands.';
comment on column pgq.job.dedupe_queue_id is 'The queue, if the row holds the dedupe key.';
comment on column pgq.job.history is 'The last ten attempts that have failed: see pgq._remember.';

--@ each slot
create table pgq.job_{slot} partition of pgq.job for values in ({slot}) with (
    fillfactor = 40,
    vacuum_truncate = off,
    autovacuum_vacuum_scale_factor = 0.5,
    autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_analyze_threshold = 1000000
);
create unique index job_{slot}_dedupe_idx on pgq.job_{slot} (dedupe_queue_id, dedupe_key)
    where dedupe_queue_id is not null;
--@ end
--@ each ring
create index job_{slot}_lane_pos_idx on pgq.job_{slot} (lane, pos);
--@ end
--@ each parked
create index job_{slot}_lane_id_idx on pgq.job_{slot} (lane, id);
create index job_{slot}_due_idx on pgq.job_{slot} (due) where due is not null;
create index job_{slot}_place_idx on pgq.job_{slot} (group_id, place, id) where place is not null;
create index job_{slot}_head_idx on pgq.job_{slot} (group_id, place) where is_head;
--@ end
--@ each slot
-- The last one: of two indexes that look equally good the planner takes the younger one, and on a
-- slot that is nearly empty the one of (lane, id) looks as good for a search by id.
create unique index job_{slot}_id_idx on pgq.job_{slot} (id);
alter table pgq.job_{slot} replica identity using index job_{slot}_id_idx;
--@ end

/*
 * Where claims and ticks may begin in a slot. Per lane: jobs up to "floor" are finished or leased,
 * jobs up to "base" are finished. A parked slot has one position, of lane 0, counted in due. The
 * row with the highest n counts. See core/position.sql.
 */
create sequence pgq.floor_n;
create table pgq.floor (
    slot smallint not null,
    n bigint not null,
    lane bigint not null,
    floor bigint not null,
    base bigint not null,
    mark bigint not null,
    mark_xid bigint,
    swept bigint
) partition by list (slot);
comment on table pgq.floor is 'Claim positions.';
comment on column pgq.floor.mark is 'The last number that was drawn when the row was written.';
comment on column pgq.floor.mark_xid is
'All numbers up to mark belong to transactions below this id. Null: the id that wrote the row.';
comment on column pgq.floor.swept is
'Up to here the last tick has looked for expired leases. Null: the next one begins at the base.';
--@ each slot
create table pgq.floor_{slot} partition of pgq.floor for values in ({slot})
    with (vacuum_truncate = off);
alter table pgq.floor_{slot} replica identity full;
create index floor_{slot}_lane_n_idx on pgq.floor_{slot} (lane, n);
--@ end

/*
 * What a transaction leaves for its commit: groups to which jobs were added or of which a head has
 * ended, and jobs that may not have to wait any more. Truncated with the slot that it wrote.
 */
create table pgq.note (
    slot smallint not null,
    xid xid8 not null,
    kind "char" not null,
    keys bigint[],
    places bigint[]
) partition by list (slot);
comment on table pgq.note is 'What is to be decided at a commit: see pgq._at_note.';
comment on column pgq.note.kind is
'Kind of the ids and places.

g: ids of groups, and from which place on to look (minus: where jobs were added). w: ids of
waiting jobs, or (minus) of those to kill. d: the last event, which decides.';
--@ each slot
create table pgq.note_{slot} partition of pgq.note for values in ({slot})
    with (vacuum_truncate = off);
alter table pgq.note_{slot} replica identity full;
create index note_{slot}_xid_idx on pgq.note_{slot} (xid);
--@ end

create table pgq.hint (
    kind "char" not null,
    key bigint not null,
    place bigint not null default 0
);
alter table pgq.hint replica identity full;
create index hint_kind_key_idx on pgq.hint (kind, key);
comment on table pgq.hint is
'What could not be decided at a commit, for the next tick.

g, w: as in pgq.note, but places have no sign: all are looked at as those of jobs that were added.
q: all groups of a queue, once more if place is 1. e: a job that has completed or (minus) died, and
for which others wait. l: a job that pgq_claim has leased.';

create table pgq.ring (
    gen bigint not null,
    live smallint[] not null,
    ready smallint[] not null,
    parked smallint[] not null,
    filling smallint,
    cleaned smallint[] not null default '{}',
    switched_at timestamptz not null,
    constraint ring_pkey primary key (gen)
);
comment on table pgq.ring is 'Which slots hold jobs. The row with the highest gen counts.';
comment on column pgq.ring.live is 'Slots of the ring, oldest first. The last one is the head.';
comment on column pgq.ring.ready is 'Those of live into which claims look, in the same order.';
comment on column pgq.ring.parked is 'Parked slots that hold jobs. The last one is written.';
comment on column pgq.ring.filling is
'The slot into which jobs are moved to clean others: see pgq._clean. It has no positions '
'meanwhile.';
comment on column pgq.ring.cleaned is
'The slots that are being cleaned. The first one that still has jobs is next.';
comment on column pgq.ring.switched_at is 'Since when live and parked have been so.';
insert into pgq.ring (gen, live, ready, parked, switched_at)
values (1, '{0}', '{0}', '{4}', pg_catalog.clock_timestamp());

create table pgq.gate (
    one boolean not null default true,
    clock_was timestamptz,
    set_back_at timestamptz,
    constraint gate_pkey primary key (one),
    constraint gate_one_check check (one)
);
comment on table pgq.gate is 'A tick locks its only row. Only pgq._end_live waits for that.';
comment on column pgq.gate.clock_was is
'What the clock showed before it was set back last: see pgq._follow_clock.';
comment on column pgq.gate.set_back_at is
'What the clock showed after that. Null if it has been set right again.';
insert into pgq.gate default values;

create table pgq.chore (
    last boolean not null default false,
    wake integer,
    round smallint,
    written bigint
);
alter table pgq.chore replica identity full;
comment on table pgq.chore is
'An insert queues a tick for the commit of its transaction: see pgq._at_commit.';
comment on column pgq.chore.wake is 'A queue to notify for instead: see pgq._wake.';
comment on column pgq.chore.round is 'See pgq._at_last. Below 0: call pgq._run_errands instead.';
comment on column pgq.chore.written is 'What pgq._written() was at the event that queued this one.';
