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
                  detail = case when p_job.group_key is null
                                then 'They were named when it was enqueued.'
                                else format('Its group is "%s".', p_job.group_key) end;
    end if;
    if p_job.start_by <= v_now and p_job.attempt = 0 then
        raise exception 'job % has expired', p_job.id
            using errcode = 'object_not_in_prerequisite_state',
                  detail = format('It was to start by %s.', p_job.start_by);
    end if;
    if p_job.lease_expires_at > v_now then
        perform pgq._raise_held(
            p_job.id,
            format('It is leased%s until %s.', ' to "' || left(p_job.worker, 200) || '"',
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
    perform pgq._check_length('worker', worker, 200);
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
    if v_job.token is not null and v_job.lease_ms < 0 then
        -- Other claims wait for the backoff.
        v_job := pgq._lock(v_job.slot, v_job.lane, id, true);
        if v_job.lease_expires_at <= pgq._now() then
            v_job := pgq._remove(v_job.slot, v_job.lane, id);
            v_job.lease_ms := 0;
            perform pgq._park(v_job, pgq._now());
        end if;
    end if;
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
'Claims one given job, ready or with an expired lease, and leases it for timeout. Errors: 55P03 at '
'once when another consumer holds it (the detail says which one until when) or an open transaction '
'has it locked; P0002 unknown or finished; 55000 scheduled, waiting, expired, to be cancelled, '
'without an attempt left, or in a queue that is paused or at a limit; 22004, 22023 and 25001 as '
'pgq_dequeue.';
