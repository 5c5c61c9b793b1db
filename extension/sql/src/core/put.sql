/*
 * Where jobs go: to the ring when they are ready, to a parked slot until they are due.
 */

create function pgq._head_slot()
returns smallint
language sql
stable
begin atomic
    select r.live[cardinality(r.live)] from pgq.ring r order by r.gen desc limit 1;
end;
comment on function pgq._head_slot() is 'The slot of the ring that is written.';

create function pgq._parked_slot()
returns smallint
language sql
stable
begin atomic
    select r.parked[cardinality(r.parked)] from pgq.ring r order by r.gen desc limit 1;
end;
comment on function pgq._parked_slot() is 'The parked slot that is written.';

create function pgq._due(p_at timestamptz)
returns bigint
language sql
begin atomic
    select greatest(
        pgq._us(p_at), (coalesce(pg_sequence_last_value('pgq.last_tick'), 0) + 1) * 1000
    );
end;
comment on function pgq._due(timestamptz) is
'Returns the due of a job that is parked.

It is later than the last tick, which may already have looked at that time. The caller has a
transaction id, and has locked the slot: so no later tick passes it.';

create function pgq._put(p_job pgq.job)
returns void
language plpgsql
as $$
begin
    p_job.slot := pgq._head_slot();
    perform pgq._open(p_job.slot);
    p_job.pos := nextval('pgq.number');
    p_job.due := null;
    p_job.token := null;
    p_job.lease_expires_at := null;
    p_job.worker := null;
    insert into pgq.job select p_job.*;
    perform pgq._wake_lane(p_job.lane);
end
$$;
comment on function pgq._put(pgq.job) is
'Adds a job to the head of the ring: it is ready from now on.';

create function pgq._park(p_job pgq.job, p_run_at timestamptz, p_is_asked boolean default false)
returns void
language plpgsql
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_slot smallint;
begin
    p_job.run_at := p_run_at;
    p_job.claimed_at := case when not p_is_asked then v_now end;
    if p_run_at <= v_now then
        perform pgq._put(p_job);
        return;
    end if;
    p_job.slot := pgq._parked_slot();
    -- The row of a head may be in either slot: both are locked before pgq._due reads their marks.
    perform pgq._open((9 - p_job.slot)::smallint) where p_job.head_place is not null;
    perform pgq._open(p_job.slot);
    p_job.due := pgq._due(p_run_at);
    p_job.pos := null;
    p_job.token := null;
    p_job.lease_expires_at := null;
    p_job.worker := null;
    if p_job.head_place is not null then
        -- Its copy was just deleted: the row in the line becomes due.
        v_slot := pgq._lock_parked_one(p_job.id);
        update pgq.job j
           set due = p_job.due, run_at = p_job.run_at, claimed_at = p_job.claimed_at,
               attempt = p_job.attempt, lost = p_job.lost, last_error = p_job.last_error,
               checkpoint = p_job.checkpoint, is_awaited = p_job.is_awaited,
               start_by = p_job.start_by, history = p_job.history
         where j.slot in (4, 5) and j.slot = v_slot and j.id = p_job.id;
    else
        insert into pgq.job select p_job.*;
    end if;
    perform pgq._wake_lane(p_job.lane, p_run_at);
end
$$;
comment on function pgq._park(pgq.job, timestamptz, boolean) is
'Puts a job back that was just deleted: ready, or parked until p_run_at.

p_is_asked: somebody has asked for that time; else claimed_at says when the job came back.';

create function pgq._backoff(p_queue pgq.queue, p_attempt integer)
returns interval
language plpgsql
as $$
declare
    v_tries constant integer := p_attempt - 1;
    v_seconds double precision := extract(epoch from p_queue.backoff_max)::double precision;
begin
    -- In logarithms first: the power overflows long before attempts run out.
    if p_queue.backoff_base = '0' then
        v_seconds := 0;
    elsif ln(extract(epoch from p_queue.backoff_base)::double precision)
            + v_tries * ln(p_queue.backoff_factor) < ln(v_seconds)
    then
        v_seconds := extract(epoch from p_queue.backoff_base)::double precision
            * power(p_queue.backoff_factor, v_tries);
    end if;
    return make_interval(secs => v_seconds * (0.5 + random() / 2));
end
$$;
comment on function pgq._backoff(pgq.queue, integer) is
'Returns the wait before the next attempt.

base * factor ^ (attempt - 1), at most backoff_max, of that a random share between a half and all
("equal jitter").';

create function pgq._remember(p_job pgq.job, p_error text)
returns jsonb
language sql
begin atomic
    select case when p_job.token is null then p_job.history
                else case when jsonb_array_length(p_job.history) = 10 then p_job.history - 0
                          else coalesce(p_job.history, '[]') end
                     || jsonb_build_object(
                            'attempt', p_job.attempt, 'worker', p_job.worker,
                            'claimed_at', p_job.claimed_at,
                            'ended_at', least(p_job.lease_expires_at, pgq._now()),
                            'error', pgq._shorten(p_error, 1000)
                        ) end;
end;
comment on function pgq._remember(pgq.job, text) is
'Returns the history of a job with the attempt that has just failed, ten at most.';

create function pgq._end(p_job pgq.job, p_state text)
returns void
language plpgsql
as $$
begin
    insert into pgq.archive
    select (a.row).*
      from (
               select pgq._archived(p_job, q.name, p_state, pgq._now(), q.keep_dead, null) as row
                 from pgq.queue q
                where q.id = pgq._queue_of(p_job.lane) and q.keep_dead > '0' offset 0
           ) a;
    perform pgq._note_ended(array[p_job], p_state);
end
$$;
comment on function pgq._end(pgq.job, text) is
'The end of a job that has just been deleted: dead or cancelled.';

create function pgq._put_back(p_job pgq.job, p_delay interval, p_error text, p_retryable boolean)
returns text
language plpgsql
as $$
declare
    v_queue pgq.queue;
begin
    p_job.last_error := coalesce(p_error, p_job.last_error);
    p_job.history := pgq._remember(p_job, p_error);
    if p_job.cancel_requested then
        perform pgq._end(p_job, 'cancelled');
        return 'cancelled';
    end if;
    select q.* into v_queue from pgq.queue q where q.id = pgq._queue_of(p_job.lane);
    perform pgq._count_ends(p_job.lane, 0, 1);
    if p_retryable and p_job.attempt < coalesce(p_job.max_attempts, v_queue.max_attempts) then
        p_job.start_by := null;
        perform pgq._park(
            p_job, pgq._now() + coalesce(p_delay, pgq._backoff(v_queue, p_job.attempt))
        );
        return 'scheduled';
    end if;
    perform pgq._end(p_job, 'dead');
    return 'dead';
end
$$;
comment on function pgq._put_back(pgq.job, interval, text, boolean) is
'Ends a failed attempt: next attempt, dead, or cancelled if that was asked for.

The next attempt comes after p_delay; null: the backoff of the queue.';
