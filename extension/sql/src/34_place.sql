/*
 * Moving single jobs; what happens to them after a receipt was good, or has expired.
 */

create function pgq._take_expired(
    p_slot smallint, p_queue_id integer, p_batch integer, p_now timestamptz, p_exhausted boolean
)
returns table (lane integer, id bigint)
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
begin
    case p_slot
    --@ each slot
    when {slot} then
        return query
        with expired as materialized (
            select l.id as lane, w.id
              from pgq.lane l
              join pgq.queue q on q.id = l.queue_id,
                   lateral (
                       select j.id, j.lease_expires_at, j.attempt, j.max_attempts,
                              j.cancel_requested, j.lease_ms
                         from pgq.job_{slot} j
                        where j.lane = l.id and j.{key} > {base}
                        order by j.{key}
                        limit case when p_exhausted then 10000 end
                   ) w
             where (p_queue_id is null or l.queue_id = p_queue_id)
               and w.lease_expires_at <= p_now
               and (not p_exhausted or q.max_active > 0 or w.cancel_requested
                    or w.lease_ms < 0
                    or w.attempt >= coalesce(w.max_attempts, q.max_attempts))
             order by l.id, w.id
        )
        select j.lane, j.id
          from expired e, lateral (
              select j.lane, j.id from pgq.job_{slot} j
               where j.lane = e.lane and j.id = e.id and j.lease_expires_at <= p_now
                 for update skip locked
          ) j
         limit p_batch;
    --@ end
    end case;
end
$$;
comment on function
    pgq._take_expired(smallint, integer, integer, timestamptz, boolean) is
'locks up to p_batch jobs in a slot whose leases have expired, of one queue or (null) of all. '
'p_exhausted: looks at the first 10000 live jobs of each lane, and takes only those that claims '
'leave alone: to be cancelled, without an attempt left, or with a second lease lost in a row; and '
'those that keep a permit of max_active';

-- By whoever has locked the slot for writing, so that no tick says again that it is empty.
--@ define not_empty
if pg_sequence_last_value('pgq.empty_{slot}') is not null then
                perform setval('pgq.empty_{slot}', 1, false);
            end if
--@ end

create function pgq._open_slot(p_slot smallint)
returns timestamptz
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    case p_slot
    --@ each ring
    when {slot} then
        lock table pgq.job_{slot} in row exclusive mode;
    --@ end
    --@ each parked
    when {slot} then
        lock table pgq.job_{slot} in row exclusive mode;
        {not_empty};
    --@ end
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
    -- Null if somebody has asked for that time.
    p_job.claimed_at := case when p_job.token is not null or p_run_at <= pgq._now()
                             then pgq._now() end;
    p_job.due := pgq._us(greatest(p_run_at, pgq._open_slot(p_job.slot))) + p_job.id {spread};
    p_job.token := null;
    p_job.lease_expires_at := null;
    p_job.lease_ms := case when p_job.lease_ms = 0 then 0 end;
    p_job.worker := null;
    insert into pgq.job select p_job.*;
    perform pgq._admit(p_job.slot, p_job.lane, p_job.due);
    perform pgq._wake_lane(p_job.lane, p_run_at);
end
$$;
comment on function pgq._park(pgq.job, timestamptz) is
'puts a job back that has just been deleted from pgq.job or pgq.archive: ready, or scheduled';

create function pgq._backoff(
    p_queue pgq.queue, p_attempt integer, p_share double precision default random()
)
returns interval
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tries constant integer := greatest(p_attempt - 1, 0);
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
    return make_interval(secs => v_seconds * (1 + p_share) / 2);
end
$$;
comment on function pgq._backoff(pgq.queue, integer, double precision) is
'the wait before the next try: base * factor ^ (attempt - 1), at most backoff_max; of that a half, '
'and of the other half p_share, 0 to 1 ("equal jitter")';

create function pgq._has_waited(
    p_lane integer, p_attempt integer, p_token bigint, p_lost_at timestamptz
)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select pgq._now() - pgq._backoff(q, p_attempt, (hashint8(p_token) & 1023) / 1023.0)
                   >= p_lost_at
          from pgq.lane l join pgq.queue q on q.id = l.queue_id where l.id = p_lane
    );
end
$$;
comment on function pgq._has_waited(integer, integer, bigint, timestamptz) is
'whether the backoff is over for a job that has lost its second lease in a row, and no tick has '
'come to take it back. Its jitter is in its token, so that all looks agree';

create function pgq._put_back(p_job pgq.job, p_delay interval, p_error text, p_retryable boolean)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgq.queue;
begin
    p_job.last_error := coalesce(p_error, p_job.last_error);
    if p_job.cancel_requested then
        perform pgq._keep(array[p_job], 'cancelled', null), pgq._note_ended(array[p_job]);
        return 'cancelled';
    end if;
    select q.* into v_queue
      from pgq.lane l join pgq.queue q on q.id = l.queue_id where l.id = p_job.lane;
    perform pgq._count_ends(p_job.lane, 0, 1);
    if p_retryable and p_job.attempt < coalesce(p_job.max_attempts, v_queue.max_attempts) then
        p_job.start_by := null;
        perform pgq._park(
            p_job, pgq._now() + coalesce(p_delay, pgq._backoff(v_queue, p_job.attempt))
        );
        return 'scheduled';
    end if;
    perform pgq._keep(array[p_job], 'dead', null);
    perform pgq._note_ended(array[p_job]);
    insert into pgq.group_block (group_id, queue_id, job_id)
    select p_job.group_id, v_queue.id, p_job.id
     where p_job.group_id is not null and v_queue.group_on_dead = 'block';
    return 'dead';
end
$$;
comment on function pgq._put_back(pgq.job, interval, text, boolean) is
'the end of a failed attempt: the next try after p_delay (null: the queue''s backoff), or dead, or '
'cancelled, if that was asked for';
