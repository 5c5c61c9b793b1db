/*
 * Public: pgq_queues, pgq_queue_settings, pgq_privileges, pgq_schedules, pgq_workers. Like all
 * views they show what the caller may observe.
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
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
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
    perform pgq._check_snapshot();
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
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
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
select * from pgq._queues();
comment on view @extschema@.pgq_queues is
'Counts and times of the queues that the caller may observe.

Small numbers of jobs are counted. Large ones are estimated from a sample of pages, and estimated
is true.

* dead: 10000 means that there are at least as many; estimated is then true.
* oldest_ready_age: how long ago the oldest job that can be claimed was to run. The time for
  which it has waited for others or was leased counts.
* completed_last_minute, completed_last_hour: null if the queue keeps no completed jobs,
  estimated above some 60 a second.
* failed_last_minute, failed_last_hour: attempts that workers failed, leases that pgq_reclaim
  took back or that had no attempt left, and jobs that died without a start.

Errors:

* 40001: the snapshot of REPEATABLE READ or SERIALIZABLE is too old. Run the transaction again.';

-- Below an "offset" nothing that the caller asks is compared before it is known whose row it is.
create view @extschema@.pgq_queue_settings with (security_barrier) as
select q.name, q.max_attempts, q.backoff_base, q.backoff_factor, q.backoff_max, q.keep_completed,
       q.keep_dead, q.max_active, q.dedupe_for, q.group_concurrency, q.group_on_dead, q.rate_limit,
       q.rate_interval, q.rate_burst, q.priority_ageing, q.max_ready, q.max_payload, q.description,
       q.paused, q.created_at
  from pgq.queue q
 where exists (select from pgq.observer o where o.queue_id is null or o.queue_id = q.id) offset 0;
comment on view @extschema@.pgq_queue_settings is
'The settings of the queues that the caller may observe.

The columns have the names of the arguments of pgq_configure_queue.

* paused: whether pgq_pause has paused the queue.
* created_at: when the queue was created.';

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
'What pgq_grant has given, per queue and role.

It shows the queues that the caller may observe. Rows of ''*'', for all queues, are shown to
roles that may observe all queues. The owner, and a role that inherits from it, needs no
privilege.';

create view @extschema@.pgq_schedules with (security_barrier) as
select s.name, s.cron, s.timezone, q.name as queue, s.paused, s.next_at, s.last_at, s.missed,
       s.priority::integer as priority, s.max_attempts, s.payload, s.headers
  from pgq.schedule s
  join pgq.queue q on q.id = s.queue_id
 where exists (select from pgq.observer o where o.queue_id is null or o.queue_id = q.id) offset 0;
comment on view @extschema@.pgq_schedules is
'The schedules of the queues that the caller may observe.

The other columns have the names of the arguments of pgq_schedule.

* paused: whether pgq_pause_schedule has paused the schedule.
* next_at: when it fires next, or would fire if it were not paused.
* last_at: the last time for which it has added a job.';

create view @extschema@.pgq_workers as
select * from pgq._workers();
comment on view @extschema@.pgq_workers is
'The leases of each worker, per queue and backend that claimed.

It looks at the first 10,000 jobs of each priority in each slot.

* jobs, expired: how many jobs the worker holds, and how many of their leases have expired.
* oldest_claimed_at: when the oldest of them was claimed.
* last_heartbeat_at: the last heartbeat or claim. It is reckoned with the timeout of the claim,
  so it is not exact after a heartbeat with another timeout.
* next_expiry_at: when the next lease expires.
* pid: the backend that claimed.
* backend_gone: whether this backend has ended. Its jobs come back when their leases expire,
  unless the worker lives on with another connection. Null on a standby, which cannot know.';
