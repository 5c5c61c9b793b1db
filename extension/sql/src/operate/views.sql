/*
 * Public: the views, and pgq_get. What they show is what the caller may observe; pgq_health and
 * pgq_locks, which are about the whole database, are for those who may observe all queues.
 */

create function pgq._queues()
returns table (
    queue text, ready bigint, scheduled bigint, waiting bigint, active bigint, dead bigint,
    oldest_ready_age interval, next_due timestamptz, completed_last_minute bigint,
    failed_last_minute bigint, completed_last_hour bigint, failed_last_hour bigint,
    max_active integer, paused boolean, estimated boolean, description text
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
        select pgq._queue_of(t.lane) as queue_id, t.state, sum(t.jobs)::bigint as jobs,
               bool_or(t.estimated) as estimated
          from pgq._tally(v_now) t group by 1, 2
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
           q.max_active, q.paused, coalesce(bool_or(t.estimated), false) or d.dead = 10000,
           q.description
      from pgq.queue q
      left join tally t on t.queue_id = q.id
      left join pgq._ends(v_now) e on e.queue_id = q.id
      left join pgq._times(v_now) o on o.queue_id = q.id,
           lateral (
               select count(*) as dead
                 from (
                          select from pgq.archive a
                           where a.queue = q.name and a.state = 'dead' and a.expires_at > v_now
                           limit 10000
                      ) a
           ) d
     where pgq._may(q.id, 'observe')
     group by q.id, d.dead, o.since, o.next_due, e.completed_last_minute, e.failed_last_minute,
              e.completed_last_hour, e.failed_last_hour;
    perform pgq._check_moved();
end
$$;
comment on function pgq._queues() is 'For the view pgq_queues.';

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
    v_slots smallint[];
    v_jobs pgq.job[];
begin
    v_slots := pgq._readable_slots();
    -- In one snapshot, in which a job that is moved is in one place.
    v_jobs := array(
        select pgq._bare(j) from unnest(v_slots) s, pgq._leased(s) j where s < 4
    );
    -- As in pgq._find.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return query
        select q.name, j.worker, count(*), count(*) filter (where j.lease_expires_at <= v_now),
               min(j.claimed_at),
               least(v_now, max(j.lease_expires_at - j.lease_ms * interval '1 millisecond')),
               min(j.lease_expires_at), j.pid,
               case when not pg_is_in_recovery()
                    then a.pid is null or a.backend_start > min(j.claimed_at) end
          from unnest(v_jobs) j
          join pgq.queue q on q.id = pgq._queue_of(j.lane)
          left join pg_stat_activity a on a.pid = j.pid
         where pgq._may(q.id, 'observe')
         group by q.name, j.worker, j.pid, a.pid, a.backend_start;
end
$$;
comment on function pgq._workers() is 'For the view pgq_workers.';

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
comment on view pgq.observer is 'The queues (null: all) that the current user may observe.';

create view @extschema@.pgq_queues as
select q.queue, q.ready, q.scheduled, q.waiting, q.active, q.dead, q.oldest_ready_age, q.next_due,
       q.completed_last_minute, q.failed_last_minute, q.completed_last_hour, q.failed_last_hour,
       q.max_active, q.paused, q.estimated, q.description
  from pgq._queues() q;
comment on view @extschema@.pgq_queues is
'The queues that the caller may observe. Jobs are counted where there are few; of many in a state '
'the number is estimated, from a sample of pages, and estimated is true (dead: at least 10000). '
'oldest_ready_age: how long ago the oldest job that can be claimed was to run, the time included '
'for which it has waited for others or been leased. The numbers of the last minute and hour: of '
'jobs completed (null if the queue keeps none, estimated above some 60 a second) and of '
'failures: attempts that workers failed, leases that were taken back by pgq_reclaim or had no '
'attempt left, and jobs that died without having started. Errors: 40001.';

-- Below an "offset" nothing that the caller asks is compared before it is known whose row it is.
create view @extschema@.pgq_queue_settings with (security_barrier) as
select q.name, q.max_attempts, q.backoff_base, q.backoff_factor, q.backoff_max, q.keep_completed,
       q.keep_dead, q.max_active, q.dedupe_for, q.group_concurrency, q.group_on_dead, q.rate_limit,
       q.rate_interval, q.rate_burst, q.priority_ageing, q.max_ready, q.max_payload, q.description,
       q.paused, q.created_at
  from pgq.queue q
 where exists (select from pgq.observer o where o.queue_id is null or o.queue_id = q.id) offset 0;
comment on view @extschema@.pgq_queue_settings is
'The settings of the queues that the caller may observe, with the names that pgq_configure_queue '
'gives them; whether pgq_pause has paused the queue, and when it was created.';

create view @extschema@.pgq_privileges with (security_barrier) as
select coalesce(q.name, '*') as queue, coalesce(r.rolname, 'public')::text as role,
       pg_catalog.array_agg(p.verb order by p.verb) as privileges
  from pgq.privilege p
  left join pgq.queue q on q.id = p.queue_id
  left join pg_catalog.pg_roles r on r.oid = p.role::pg_catalog.oid
 where p.verb <> 'usage' and (r.oid is not null or p.role = 0::pg_catalog.oid)
   and exists (select from pgq.observer o where o.queue_id is null or o.queue_id = p.queue_id)
 group by q.name, r.rolname offset 0;
comment on view @extschema@.pgq_privileges is
'What pgq_grant has given, per queue and role, for the queues that the caller may observe; ''*'', '
'for all queues, is shown to those who may observe all. The owner, and who inherits its role, may '
'do everything without.';

-- PostgreSQL compares columns before it knows whether the caller may see a row, and EXPLAIN ANALYZE
-- counts what was found. What a volatile function has answered is compared later: so the query that
-- asks the function looks at the privileges as well.
create view pgq.live_job as
select j.id, j.token, q.name as queue, ((j.lane & 65535) - 32768)::integer as priority,
       case when j.token is not null then 'active'
            when j.pos is not null then 'ready'
            when j.due is null then 'waiting'
            when j.run_at > pg_catalog.clock_timestamp() then 'scheduled'
            else 'ready' end as state,
       j.attempt::integer as attempt, coalesce(j.max_attempts, q.max_attempts) as max_attempts,
       j.payload, j.headers,
       case when pg_catalog.clock_timestamp() is not null then j.group_key::text end as group_key,
       case when pg_catalog.clock_timestamp() is not null then j.dedupe_key::text end as dedupe_key,
       case when pg_catalog.clock_timestamp() is not null then j.worker end as worker,
       j.enqueued_at, coalesce(j.run_at, j.enqueued_at) as run_at,
       case when j.token is not null then j.claimed_at end as claimed_at, j.lease_expires_at,
       case when pg_catalog.clock_timestamp() is not null then j.last_error end as last_error,
       coalesce(j.cancel_requested, false) as cancel_requested, j.checkpoint,
       j.start_by as expires_at, null::timestamptz as finished_at, null::jsonb as result,
       q.id as queue_id
  from pgq.queue q
  join pgq.job j on (j.lane >> 16)::integer = q.id
                -- As rows: the planner holds a range of ids for rarer, and looks for that first.
                and (j.lane, j.id) >= (q.id::bigint << 16, 0)
                and (j.lane, j.id) < ((q.id + 1)::bigint << 16, 0)
 where (j.is_head is null or j.due is not null)
   and exists (select from pgq.observer o where o.queue_id is null or o.queue_id = q.id);
comment on view pgq.live_job is
'Live jobs as pgq_jobs shows them. The head of a group is shown where its copy is, or as '
'scheduled.';

create view pgq.finished_job as
select a.id, a.token, a.queue, a.priority::integer as priority, a.state, a.attempt,
       coalesce(a.max_attempts, q.max_attempts) as max_attempts, a.payload, a.headers,
       case when pg_catalog.clock_timestamp() is not null then a.group_key::text end as group_key,
       case when pg_catalog.clock_timestamp() is not null then a.dedupe_key::text end as dedupe_key,
       case when pg_catalog.clock_timestamp() is not null then a.worker end as worker,
       a.enqueued_at, coalesce(a.run_at, a.enqueued_at) as run_at, a.claimed_at,
       null::timestamptz as lease_expires_at,
       case when pg_catalog.clock_timestamp() is not null then a.last_error end as last_error,
       false as cancel_requested, a.checkpoint, null::timestamptz as expires_at, a.finished_at,
       a.result, q.id as queue_id
  from pgq.archive a left join pgq.queue q on a.queue = q.name and a.id > q.first_job
 where a.expires_at > pg_catalog.clock_timestamp()
   and exists (select from pgq.observer o where o.queue_id is null or o.queue_id = q.id);
comment on view pgq.finished_job is 'Finished jobs as pgq_jobs shows them.';

-- The barrier of a view that is a union stops nothing: PostgreSQL flattens it, and asks what the
-- caller asks in each part, before it is known whose job it is. Hence the union is a subquery.
create view @extschema@.pgq_jobs with (security_barrier) as
select u.id, u.token, u.queue, u.priority, u.state, u.attempt, u.max_attempts, u.payload,
       u.headers, u.group_key, u.dedupe_key, u.worker, u.enqueued_at, u.run_at, u.claimed_at,
       u.lease_expires_at, u.last_error, u.cancel_requested, u.checkpoint, u.expires_at,
       u.finished_at, u.result
  from (
           select j.* from pgq.live_job j
            union all
           select a.* from pgq.finished_job a
       ) u;
comment on view @extschema@.pgq_jobs is
'The jobs, live and archived, of the queues that the caller may observe, with the columns of '
'pgq_job, and expires_at, finished_at and result. Ask for a queue, and pgq_get for an id: a scan '
'reads all jobs. Under REPEATABLE READ and SERIALIZABLE it leaves out those that maintenance has '
'moved since the snapshot, for which pgq_get raises 40001.';

create function @extschema@.pgq_get(id bigint)
returns setof @extschema@.pgq_jobs
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    v_job @extschema@.pgq_jobs;
    v_whole record;
begin
    perform pgq._check_not_null('id', id is null);
    -- One statement: jobs move between slots and archive, and in one snapshot each is in one place.
    begin
        -- A whole row has its values in it: nothing keeps a slot from being truncated afterwards.
        select u.job, u.queue_id into v_whole
          from (
                   select row(
                              u.id, u.token, u.queue, u.priority, u.state, u.attempt,
                              u.max_attempts, u.payload, u.headers, u.group_key, u.dedupe_key,
                              u.worker, u.enqueued_at, u.run_at, u.claimed_at, u.lease_expires_at,
                              u.last_error, u.cancel_requested, u.checkpoint, u.expires_at,
                              u.finished_at, u.result
                          )::@extschema@.pgq_jobs as job, u.queue_id
                     from (
                              select a.* from pgq.finished_job a where a.id = pgq_get.id
                               union all
                              select j.* from pgq.live_job j where j.id = pgq_get.id
                          ) u
               ) u;
        -- As in pgq._find.
        raise exception using errcode = 'PQ000';
    exception
        when sqlstate 'PQ000' then
    end;
    v_job := v_whole.job;
    if v_job.id is not null and pgq._may(v_whole.queue_id, 'observe') then
        return next v_job;
    else
        -- Whether there is none, or it is hidden.
        perform pgq._check_moved(), pgq._check_shard(id);
    end if;
end
$$;
revoke all on function @extschema@.pgq_get(bigint) from public;
comment on function @extschema@.pgq_get(bigint) is
'One job, live or archived, as pgq_jobs shows it; no row if it is unknown, or of a queue that the '
'caller may not observe. Some index look-ups for each priority in use, however many jobs there '
'are; leaves no lock. Errors: 22004 null id; PQ002 the job is of another shard; 40001.';

create view @extschema@.pgq_schedules with (security_barrier) as
select s.name, s.cron, s.timezone, q.name as queue, s.paused, s.next_at, s.last_at, s.missed,
       s.priority::integer as priority, s.max_attempts, s.payload, s.headers
  from pgq.schedule s
  join pgq.queue q on q.id = s.queue_id
 where exists (select from pgq.observer o where o.queue_id is null or o.queue_id = q.id) offset 0;
comment on view @extschema@.pgq_schedules is
'The schedules of the queues that the caller may observe: what pgq_schedule was told, whether one '
'is paused, when it fires next (paused: would have), and the last time for which it has added a '
'job.';

create view @extschema@.pgq_workers as
select * from pgq._workers();
comment on view @extschema@.pgq_workers is
'Who holds leases (of the first 10000 jobs of each priority in each slot): per queue, worker and '
'backend (pid) that claimed, how many, how many of them have expired, when the oldest was '
'claimed, the last heartbeat (or claim; by the timeout of the claim, so not exact where a '
'heartbeat had one of its own), and when the next lease expires. backend_gone: that backend has '
'ended; its jobs come back when their leases expire, unless the worker lives on with another '
'connection. A standby does not know: null.';
