/*
 * Public: pgq_jobs and pgq_get, live and archived jobs of the queues that the caller may observe.
 */

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
       j.history,
       case when j.pos is null and j.due is null and j.place is null then nullif(array(
           select d.on_id from pgq.dependency d where d.job_id = j.id order by d.on_id limit 100
       ), '{}') end as after,
       case when j.is_awaited then nullif(array(
           select d.job_id from pgq.dependency d where d.on_id = j.id order by d.job_id limit 100
       ), '{}') end as before, q.id as queue_id
  from pgq.job j
  join pgq.queue q on q.id = (j.lane >> 16)::integer
                -- As rows: the planner holds a range of ids for rarer, and looks for that first.
                and (j.lane, j.id) >= (q.id::bigint << 16, 0)
                and (j.lane, j.id) < ((q.id + 1)::bigint << 16, 0)
 where (j.is_head is null or j.due is not null)
   and exists (select from pgq.observer o where o.queue_id is null or o.queue_id = q.id);
comment on view pgq.live_job is
'Live jobs as pgq_jobs shows them.

The head of a group is shown where its copy is, or as scheduled.';

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
       a.result, a.history, null::bigint[] as after,
       -- Dead jobs are many, and few are waited for.
       case when a.state <> 'completed' and exists (select from pgq.dependency) then nullif(array(
           select d.job_id from pgq.dependency d where d.on_id = a.id order by d.job_id limit 100
       ), '{}') end as before, q.id as queue_id
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
       u.finished_at, u.result, u.history, u.after, u.before
  from (
           select j.* from pgq.live_job j
            union all
           select a.* from pgq.finished_job a
       ) u;
comment on view @extschema@.pgq_jobs is
'The jobs, live and archived, of the queues that the caller may observe.

The columns are those of pgq_job, and expires_at, finished_at, result, history, after and before.
Filter by queue, and use pgq_get for an id: a scan reads all jobs.

* history: the last ten attempts that failed or lost their lease, oldest first. Each has attempt,
  worker, claimed_at, ended_at and the error: of more than 1,000 characters the first and the last
  500. Null: none failed.
* after: the jobs for which this one still waits, as pgq_enqueue was told in after.
* before: the jobs that wait for this one in the same way.

Both have the ids of the first 100 jobs, also of queues that the caller may not observe. Null:
there are none.

Under REPEATABLE READ and SERIALIZABLE the view leaves out jobs that maintenance has moved since
the snapshot. pgq_get raises 40001 for them.';

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
set join_collapse_limit = 1  -- first the job by its id, then its queue
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
                              u.finished_at, u.result, u.history, u.after, u.before
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
        perform pgq._check_snapshot(), pgq._check_shard(id);
    end if;
end
$$;
revoke all on function @extschema@.pgq_get(bigint) from public;
comment on function @extschema@.pgq_get(bigint) is
'Returns one job, live or archived, as pgq_jobs shows it.

The call takes some index look-ups for each priority in use, however many jobs there are. It
leaves no lock.

* Returns no row if the job is unknown, or of a queue that the caller may not observe.

Errors:

* 22004: the id is null.
* 40001: the snapshot of REPEATABLE READ or SERIALIZABLE is too old. Run the transaction again.
* PQ002: the job is of another shard.';
