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
{nested_loops}
set enable_sort = off
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_max constant integer := 0;
    v_tick constant boolean := false;
    v_lane integer;
    v_left integer := p_limit;
begin
    for v_lane in select l.id from pgq.lane l where l.queue_id = p_queue_id loop
        -- In one snapshot, taken when all slots are locked: jobs move between them, and take their
        -- place as of the time when they do.
        v_left := v_left - (select count(*) from (
            select from (
                --@ each ring
                select from pgq.job_{slot} i
                 where i.lane = v_lane and i.id > {start} and {claimable} and {has_pages}
                union all
                --@ end
                --@ each parked
                select from (select pgq._us(pgq._now()) as v_us) t, pgq.job_{slot} i
                 where {due} and {has_pages}
                union all
                --@ end
                select where false
            ) u limit v_left
        ) r)::integer;
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

create function pgq._fit_lanes()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    update pgq.lane l set is_bounded = not l.is_bounded
     where l.ctid = any (array(
               select o.ctid
                 from pgq.lane o join pgq.queue q on q.id = o.queue_id
                where o.is_bounded <> q.is_bounded
                  for no key update of o skip locked
           ));
end
$$;
comment on function pgq._fit_lanes() is
'for ticks: lanes that were added while the bounds of their queue were being set or lifted';

-- Others have started in time, and their leases have expired since.
--@ define overdue
j.start_by <= v_now and j.attempt = 1
--@ end

create function pgq._expire(p_job pgq.job)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._remove(p_job.slot, p_job.lane, p_job.id);
    perform pgq._put_back(p_job, null, 'expired', false);
end
$$;
comment on function pgq._expire(pgq.job) is
'makes a locked job dead that has not started in time';

create function pgq._drop_overdue(p_jobs pgq.job[])
returns setof pgq.job
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_job pgq.job;
begin
    for v_job in select j.* from unnest(p_jobs) j where {overdue} loop
        v_job.attempt := (v_job.attempt - 1)::smallint;
        v_job.claimed_at := null;
        v_job.worker := null;
        perform pgq._expire(v_job);
    end loop;
    return query select j.* from unnest(p_jobs) j where ({overdue}) is not true;
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
{nested_loops}
as $$
begin
    case p_slot
    --@ each slot
    when {slot} then
        return query
        select r.*
          from pgq.lane l,
               lateral (
                   select j.id, j.start_by from pgq.job_{slot} j
                    where j.lane = l.id and j.{key} > {floor}
                      and j.lease_expires_at is null and j.wait is null and j.attempt = 0
                    order by j.{key}
                    limit 1000
               ) o,
               lateral (
                   select j.* from pgq.job_{slot} j
                    where j.lane = l.id and j.id = o.id and j.lease_expires_at is null
                      for update skip locked
               ) r
         where l.expiring and o.start_by <= p_now;
    --@ end
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
    v_skips text[] := pgq._skips('job');
    v_job pgq.job;
begin
    if not exists (select from pgq.lane l where l.expiring) then
        return;
    end if;
    for v_try in {tries} loop
        begin
            v_job := null;
            for v_job in
                select o.* from unnest(pgq._slots()) s, pgq._find_overdue(s, p_now) o
                 where o.id::text <> all (v_skips)
            loop
                perform pgq._expire(v_job);
            end loop;
            return;
        exception
            when {fault_of_one} then
                if v_job is null then
                    raise;
                end if;
                v_skips := v_skips
                    || pgq._skip('job', v_job.id::text, v_job.lane, sqlstate, sqlerrm);
        end;
    end loop;
end
$$;
comment on function pgq._bury_overdue(timestamptz) is
'for ticks: makes jobs dead that have not started in time';
