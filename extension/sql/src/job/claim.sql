/*
 * Public: pgq_claim.
 */

create function pgq._raise_held(p_id bigint, p_detail text)
returns void
language plpgsql
as $$
begin
    raise exception 'job % is held by another consumer', p_id
        using errcode = 'lock_not_available',
              detail = p_detail,
              hint = 'Claim another job, or try again later.';
end
$$;
comment on function pgq._raise_held(bigint, text) is 'Raises 55P03.';

create function pgq._check_claimable(p_job pgq.job, p_queue pgq.queue)
returns void
language plpgsql
as $$
declare
    v_now constant timestamptz := pgq._now();
begin
    if p_job.pos is null and p_job.due is null then
        raise exception 'job % waits for other jobs', p_job.id
            using errcode = 'object_not_in_prerequisite_state',
                  detail = case when p_job.group_key is null
                                then 'Its "after" names them.'
                                else format('Its group is "%s".', p_job.group_key) end;
    end if;
    if p_job.start_by <= v_now and p_job.attempt = 0 then
        raise exception 'job % has expired', p_job.id
            using errcode = 'object_not_in_prerequisite_state',
                  detail = format('It had to start by %s.', p_job.start_by);
    end if;
    if p_job.lease_expires_at > v_now then
        perform pgq._raise_held(
            p_job.id,
            format('It is leased%s until %s.', ' to "' || left(p_job.worker, 200) || '"',
                   p_job.lease_expires_at)
        );
    end if;
    if p_job.pos is null and p_job.run_at > v_now then
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
            using errcode = 'object_not_in_prerequisite_state',
                  detail = 'It was active when pgq_cancel was called.';
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
'Raises 55P03 for a job that is held, 55000 for one that cannot be claimed now.';

create function pgq._free_one(p_job pgq.job)
returns void
language plpgsql
as $$
declare
    v_job pgq.job := pgq._lock(p_job.slot, p_job.id, true);
begin
    -- Not if it was cancelled, or taken back, just now.
    if v_job.lease_expires_at <= pgq._now() and v_job.token = p_job.token
        and v_job.cancel_requested is null
    then
        execute format(
            'update pgq.job_%s j set token = null, lease_expires_at = null, worker = null,'
            ' lost = j.lost + 1, last_error = pgq._loss(j),'
            ' history = pgq._remember(j, pgq._loss(j)) where j.id = $1', v_job.slot
        ) using v_job.id;
        perform pgq._count_ends(v_job.lane, 0, 1);
    end if;
end
$$;
comment on function pgq._free_one(pgq.job) is
'Makes a job ready again whose lease has expired, unless somebody has it locked.';

create function @extschema@.pgq_claim(
    id bigint,
    timeout interval default '30 seconds',
    worker text default null
)
returns @extschema@.pgq_job
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    v_lease_ms integer;
    v_job pgq.job;
    v_queue pgq.queue;
    v_result @extschema@.pgq_job;
begin
    perform pgq._check_not_null('id', id is null);
    perform pgq._check_length('worker', worker, 200);
    v_lease_ms := pgq._lease_ms(timeout);
    perform pgq._check_not_null('timeout', timeout is null), pgq._want_tick(v_lease_ms);
    v_job := pgq._find_mine(id, 'consume');
    select q.* into v_queue from pgq.queue q where q.id = pgq._queue_of(v_job.lane);
    if not found then
        raise exception 'there is no live job %', id
            using errcode = 'no_data_found',
                  detail = 'It does not exist, or has completed, died or been cancelled.';
    end if;
    perform pgq._check_claimable(v_job, v_queue);
    -- Where its lease has expired, or it is due, it is ready first.
    if v_job.lease_expires_at is not null then
        perform pgq._free_one(v_job);
    elsif v_job.pos is null then
        v_job := pgq._lock(v_job.slot, id, true);
        -- Not pgq._promote_jobs: its plan is over all slots.
        perform pgq._put(pgq._remove(v_job.slot, id))
          where v_job.run_at <= pgq._now() and v_job.place is null;
        perform pgq._promote_head(v_job)
          where v_job.run_at <= pgq._now() and v_job.place is not null;
    end if;
    v_job := pgq._find(id);
    if v_job.pos is null then
        v_result := null;  -- somebody has just ended it, or given it back for later
    elsif v_queue.max_active > 0 or v_queue.rate_limit > 0 then
        select l.* into v_result from pgq._lease_limited(
            v_queue, array[v_job.lane], 1, v_lease_ms, worker, v_job.slot, v_job.pos
        ) l;
    else
        select l.* into v_result from pgq._lease(
            v_queue, array[v_job.lane], array[v_job.slot], v_job.pos - 1, v_job.pos + 1, 1,
            v_lease_ms, worker
        ) l;
    end if;
    if v_result.id is null then
        perform pgq._raise_held(id, 'It is being claimed or settled just now.');
    end if;
    -- It may lie far above the floor, where no tick looks for expired leases.
    insert into pgq.hint (kind, key) values ('l', id);
    return v_result;
end
$$;
revoke all on function @extschema@.pgq_claim(bigint, interval, text) from public;
comment on function @extschema@.pgq_claim(bigint, interval, text) is
'Claims one given job, and leases it for timeout.

The job is ready, or its lease has expired. The call does not wait: a job that others hold gives
55P03 at once.

* timeout: the lease, up to 24 days.
* worker: a name for the operator, of at most 200 characters.

Errors:

* 22004: the id or the timeout is null.
* 22023: the timeout is out of range, or the worker is too long.
* 25001: the queue has limits, and the isolation level is REPEATABLE READ or SERIALIZABLE.
* 55000: the job is waiting, scheduled or expired, has no attempt left or a request to cancel it, or
  its queue is paused or at a limit.
* 55P03: another consumer holds the job (the detail says which one, until when), or an open
  transaction has locked it.
* P0002: the job is unknown or finished.
* PQ002: the job is of another shard.';
