/*
 * Claims that are not the ordinary case: of queues that are paused, have limits or let priorities
 * age, and where one job is meant.
 */

create function pgq._lease(
    p_queue pgq.queue, p_lanes bigint[], p_slots smallint[], p_after bigint, p_until bigint,
    p_batch integer, p_lease_ms integer, p_worker text
)
returns setof @extschema@.pgq_job
language plpgsql
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_bits constant bigint := pgq._token_bits(
        0, greatest(p_queue.keep_completed, p_queue.dedupe_for) > '0'
    );
    v_lane bigint; v_slot smallint; v_jobs pgq.job[]; v_left integer := p_batch;
begin
    foreach v_lane in array p_lanes loop
        foreach v_slot in array p_slots loop
            exit when v_left = 0;
            case v_slot
            --@ each ring
            when {slot} then
                v_jobs := array(select l from pgq._lease_{slot}(
                    v_lane, p_after, p_until, v_left, v_now, p_lease_ms, p_worker, v_bits
                ) l);
            --@ end
            end case;
            v_left := v_left - cardinality(v_jobs);
            perform pgq._raise_floor(v_slot, v_lane)
              where random() * 32 < sqrt(cardinality(v_jobs));
            return query
            select j.id, j.token, p_queue.name, pgq._priority_of(j.lane)::integer, 'active',
                   j.attempt::integer, coalesce(j.max_attempts, p_queue.max_attempts), j.payload,
                   j.headers, j.group_key, j.dedupe_key, j.worker, j.enqueued_at,
                   coalesce(j.run_at, j.enqueued_at), j.claimed_at, j.lease_expires_at,
                   j.last_error, false, j.checkpoint
              from unnest(v_jobs) j;
        end loop;
    end loop;
end
$$;
comment on function
    pgq._lease(pgq.queue, bigint[], smallint[], bigint, bigint, integer, integer, text) is
'The claim of pgq_dequeue where permits are needed first, or one job is meant.';

create function pgq._ready_slots()
returns smallint[]
language sql
stable
begin atomic
    select r.ready from pgq.ring r order by r.gen desc limit 1;
end;
comment on function pgq._ready_slots() is 'The slots into which claims look, oldest first.';

create function pgq._aged(p_queue pgq.queue, p_lanes bigint[], p_now timestamptz)
returns bigint[]
language plpgsql
as $$
begin
    if p_queue.priority_ageing = '0' then
        return p_lanes;
    end if;
    -- Intervals of years and days with opposite signs may be above zero and have no seconds.
    return array(
        select l.lane
          from (
                   select u.lane, min(pgq._oldest(s, u.lane)) as since
                     from unnest(p_lanes) u (lane), unnest(pgq._ready_slots()) s group by u.lane
               ) l
         order by pgq._priority_of(l.lane) + floor(greatest(
                      extract(epoch from p_now - l.since)
                          / nullif(extract(epoch from p_queue.priority_ageing), 0), 0
                  )) desc, l.lane desc
    );
end
$$;
comment on function pgq._aged(pgq.queue, bigint[], timestamptz) is
'Returns the lanes of a queue in the order in which to claim.

A priority counts as higher, the longer its oldest job has been ready.';

create function pgq._oldest(p_slot smallint, p_lane bigint)
returns timestamptz
language plpgsql
as $$
declare
    v_since timestamptz;
begin
    case p_slot
    --@ each ring
    when {slot} then
        select coalesce(i.run_at, i.enqueued_at) into v_since
          from pgq.job_{slot} i
         where i.lane = p_lane and i.token is null
           and i.pos > coalesce((
                   select f.floor from pgq.floor_{slot} f
                    where f.lane = p_lane order by f.n desc limit 1
               ), 0)
         order by i.pos limit 1;
    --@ end
    end case;
    return v_since;
end
$$;
comment on function pgq._oldest(smallint, bigint) is
'Returns since when the first job of a lane that can be claimed was to run.

In one slot. Null: there is none.';

create function pgq._dequeue_special(
    p_queue text, p_lanes bigint[], p_batch integer, p_lease_ms integer, p_worker text
)
returns setof @extschema@.pgq_job
language plpgsql
as $$
declare
    v_queue pgq.queue;
    v_lanes bigint[];
    v_count integer;
begin
    select q.* into v_queue from pgq.queue q where q.name = p_queue;
    if v_queue.paused then
        return;
    end if;
    v_lanes := pgq._aged(v_queue, p_lanes, pgq._now());
    if v_queue.max_active > 0 or v_queue.rate_limit > 0 then
        return query
        select * from pgq._lease_limited(v_queue, v_lanes, p_batch, p_lease_ms, p_worker);
    else
        return query
        select l.*
          from pgq._lease(
                   v_queue, v_lanes, pgq._ready_slots(), 0, 9223372036854775807, p_batch,
                   p_lease_ms, p_worker
               ) l;
        get diagnostics v_count = row_count;
        perform pgq._check_snapshot() where v_count < p_batch;
    end if;
end
$$;
comment on function pgq._dequeue_special(text, bigint[], integer, integer, text) is
'Claims as pgq_dequeue does, of a queue of which pgq.queue.is_special is true.

It is paused, has limits or lets priorities age.';
