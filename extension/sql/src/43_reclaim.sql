/*
 * Public: pgq_reclaim.
 */

create function pgq._take_back(p_slot smallint, p_lane integer, p_id bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_job pgq.job := pgq._remove(p_slot, p_lane, p_id);
    v_delay constant interval := case when v_job.lease_ms > 0 then interval '0' end;
begin
    v_job.lease_ms := 0;
    perform pgq._put_back(
        v_job, v_delay,
        format('lease expired at %s (attempt %s, worker %s)', v_job.lease_expires_at,
               v_job.attempt, coalesce(left(v_job.worker, 200), 'unnamed')),
        true
    );
end
$$;
comment on function pgq._take_back(smallint, integer, bigint) is
'makes a job ready again, or dead, whose lease has expired, and which is locked';

create function pgq._reclaim(p_queue_id integer, p_batch integer, p_exhausted boolean)
returns setof bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
    -- Seldom: to look at all permits takes long where there are thousands.
    v_by_permit constant boolean := p_exhausted and random() < 0.05;
    v_skips text[] := pgq._skips('job');
    v_ids bigint[]; v_left integer; v_slot smallint; v_expired record;
begin
    for v_try in {tries} loop
        begin
            v_ids := '{}';
            v_expired := null;
            foreach v_slot in array pgq._slots() loop
                v_left := p_batch - cardinality(v_ids);
                exit when v_left = 0;
                for v_expired in
                    select e.*
                      from (
                               select e.* from pgq._take_expired(
                                   v_slot, p_queue_id, v_left, v_now, p_exhausted
                               ) e
                                union
                               select h.* from pgq._expired_holders(v_slot, v_now) h
                                where v_by_permit
                           ) e
                     where e.id::text <> all (v_skips)
                     limit v_left
                loop
                    perform pgq._take_back(v_slot, v_expired.lane, v_expired.id);
                    v_ids := v_ids || v_expired.id;
                end loop;
            end loop;
            return query select unnest(v_ids);
            return;
        exception
            when {fault_of_one} then
                if v_expired is null then
                    raise;
                end if;
                v_skips := v_skips
                    || pgq._skip('job', v_expired.id::text, v_expired.lane, sqlstate, sqlerrm);
        end;
    end loop;
end
$$;
comment on function pgq._reclaim(integer, integer, boolean) is
'takes back expired leases (see pgq._take_expired; with p_exhausted now and then also those that '
'keep a permit behind the window): the jobs are ready again, after the backoff if it was the '
'second one in a row, or dead; returns their ids';

create function @extschema@.pgq_reclaim(
    queue text default null,
    max integer default 1000
)
returns setof bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_left integer := max;
    v_queue_id integer;
    v_count integer;
begin
    perform pgq._check_batch('max', max);
    if queue is not null or pgq._may(null, 'consume') then
        return query
        select r.*
          from pgq._reclaim(
                   case when queue is not null then pgq._queue_id(queue, 'consume') end, max, false
               ) r;
    else
        for v_queue_id in select q.id from pgq.queue q where pgq._may(q.id, 'consume') loop
            exit when v_left = 0;
            return query select r.* from pgq._reclaim(v_queue_id, v_left, false) r;
            get diagnostics v_count = row_count;
            v_left := v_left - v_count;
        end loop;
    end if;
    perform pgq._check_moved();
end
$$;
revoke all on function @extschema@.pgq_reclaim(text, integer) from public;
comment on function @extschema@.pgq_reclaim(text, integer) is
'Takes back up to max expired leases of a queue, or of all, and returns the ids of the jobs: '
'each is ready again; after the queue''s backoff if it was the second lease in a row that it lost; '
'or, without an attempt left, dead. Not needed for progress: pgq_dequeue '
'sees to expired leases by itself. Errors: 42704 unknown queue; 22004 and 22023 max.';
