/*
 * The claim. A priority of a queue may have jobs in several slots; they are merged in id order
 * without ever locking a job that is not then given to the caller: look at the lowest claimable
 * id in each slot, take from the slot with the lowest all ids below the next slot's lowest, look
 * again.
 */

create function pgq._wants_tick(p_lease_ms integer)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant bigint := pgq._ms(pgq._now());
    v_next constant bigint := coalesce(pg_sequence_last_value('pgq.next_tick'), 0);
begin
    if not pgq._read_committed() then
        return true;
    end if;
    -- Not if the tick that was due failed or was rolled back, nor if the clock has been set back.
    if v_now < v_next and v_next <= v_now + 500
        and v_now - coalesce(pg_sequence_last_value('pgq.last_tick'), 0) < 2500
    then
        -- A lease shorter than that must be found expired as soon as it is.
        if v_now + p_lease_ms + 5 < v_next then
            perform setval('pgq.next_tick', v_now + p_lease_ms + 5);
        end if;
        return false;
    end if;
    perform setval('pgq.next_tick', v_now + least(p_lease_ms, 500));
    insert into pgq.chore default values;
    return true;
end
$$;
comment on function pgq._wants_tick(integer) is
'true about twice a second for all sessions together: the call then looks for expired leases, too, '
'and maintenance runs at its commit (pgq._maintain). Under REPEATABLE READ always true, and there '
'is no maintenance';

create function pgq._sources(
    p_lanes integer[], p_slots smallint[], p_after bigint, p_until bigint, p_batch integer,
    p_now timestamptz, p_max integer, p_tick boolean
)
returns pgq.source[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_source pgq.source;
    v_sources pgq.source[] := array[]::pgq.source[];
    v_lane integer;
    v_slot smallint;
    v_head bigint;
    v_ids bigint[];
begin
    foreach v_lane in array p_lanes loop
        foreach v_slot in array p_slots loop
            if v_slot < 4 then
                v_head := pgq._peek(v_slot, v_lane, p_after, p_until, p_now, p_max, p_tick);
            elsif p_until = p_after + 2 then
                v_head := p_after + 1;
                v_ids := array[v_head];
            else
                v_ids := pgq._window(
                    v_slot, v_lane, p_after, p_until, greatest(p_batch, 1000), p_now, p_max, p_tick
                );
                if cardinality(v_ids) > 1 then
                    v_ids := array(select i from unnest(v_ids) i order by i);
                end if;
                v_head := v_ids[1];
            end if;
            if v_head is not null then
                v_source := (v_slot, v_lane, v_head, v_ids);
                v_sources := v_sources || v_source;
            end if;
        end loop;
    end loop;
    return v_sources;
end
$$;
comment on function
    pgq._sources(
        integer[], smallint[], bigint, bigint, integer, timestamptz, integer, boolean
    ) is
'where in these lanes and slots there are claimable jobs; locks nothing';

create function pgq._merge(
    p_sources pgq.source[], p_after bigint, p_until bigint, p_batch integer, p_now timestamptz,
    p_max integer, p_tick boolean, p_lease_ms integer, p_worker text, p_keep boolean
)
returns setof pgq.job
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_source pgq.source;
    v_after bigint := p_after;
    v_until bigint;
    v_left integer := p_batch;
    v_count integer;
begin
    while v_left > 0 and cardinality(p_sources) > 0 loop
        p_sources := array(select s from unnest(p_sources) s order by s.head);
        v_source := p_sources[1];
        p_sources := p_sources[2:];
        -- Two heads are equal if maintenance has moved the job between the two looks.
        v_until := greatest(coalesce((p_sources[1]).head, p_until), v_source.head + 1);
        return query
        select c.*
          from pgq._claim(
                   v_source.slot, v_source.lane, v_after, v_until, v_left, p_now, p_max, p_tick,
                   p_lease_ms, p_worker, p_keep, v_source.ids
               ) c;
        get diagnostics v_count = row_count;
        v_left := v_left - v_count;
        if cardinality(p_sources) > 0 then
            -- What this source still has below v_until is locked by others.
            if v_source.slot < 4 then
                v_source.head := pgq._peek(
                    v_source.slot, v_source.lane, v_until - 1, p_until, p_now, p_max, p_tick
                );
            else
                v_source.head := (select min(i) from unnest(v_source.ids) i where i >= v_until);
            end if;
            v_after := (p_sources[1]).head - 1;
            if v_source.head is not null then
                p_sources := p_sources || v_source;
            end if;
        end if;
    end loop;
end
$$;
comment on function
    pgq._merge(
        pgq.source[], bigint, bigint, integer, timestamptz, integer, boolean, integer, text, boolean
    ) is
'leases up to p_batch jobs with p_after < id < p_until from several sources, in id order';

create function pgq._gather(
    p_lanes integer[], p_live smallint[], p_parked smallint[], p_firsts bigint[], p_after bigint,
    p_until bigint, p_batch integer, p_now timestamptz, p_max integer, p_tick boolean,
    p_lease_ms integer, p_worker text, p_keep boolean
)
returns setof pgq.job
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_sources pgq.source[] := pgq._sources(
        p_lanes, p_parked, p_after, p_until, p_batch, p_now, p_max, p_tick
    );
    v_left integer := p_batch;
    v_count integer;
begin
    -- With nothing parked, the oldest slot of the ring has the lowest ids, up to the first of the
    -- next.
    if cardinality(v_sources) = 0 and cardinality(p_lanes) = 1 then
        return query
        select c.*
          from pgq._claim(
                   p_live[1], p_lanes[1], p_after,
                   least(p_until, p_firsts[p_live[2] + 1] + 1), v_left, p_now, p_max, p_tick,
                   p_lease_ms, p_worker, p_keep
               ) c;
        get diagnostics v_count = row_count;
        v_left := v_left - v_count;
        if v_left = 0 or cardinality(p_live) = 1 then
            return;
        end if;
    end if;
    return query
    select m.*
      from pgq._merge(
               v_sources || pgq._sources(
                   p_lanes, p_live, p_after, p_until, p_batch, p_now, p_max, p_tick
               ),
               p_after, p_until, v_left, p_now, p_max, p_tick, p_lease_ms, p_worker, p_keep
           ) m;
end
$$;
comment on function
    pgq._gather(
        integer[], smallint[], smallint[], bigint[], bigint, bigint, integer, timestamptz, integer,
        boolean, integer, text, boolean
    ) is
'leases up to p_batch jobs of one priority of a queue, in id order';

create function pgq._grab(
    p_queue text, p_batch integer, p_lease_ms integer, p_worker text, p_tick boolean default null,
    p_after bigint default 0, p_until bigint default 9223372036854775807
)
returns setof @extschema@.pgq_job
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_left integer := p_batch;
    v_count integer;
    v_queue record;
begin
    -- One row per priority; more than one lane only if two sessions used it first at the same time.
    for v_queue in
        select q.max_attempts, q.paused, q.keep_completed > '0' as keep, l.priority, l.lanes,
               r.live, r.parked, r.firsts
          from pgq.queue q,
               lateral (select o.* from pgq.ring o order by o.gen desc limit 1) r,
               lateral (
                   select o.priority, array_agg(o.id) as lanes
                     from pgq.lane o
                    where o.queue_id = q.id
                    group by o.priority
                    order by o.priority desc
               ) l
         where q.name = p_queue
    loop
        p_tick := coalesce(p_tick, pgq._wants_tick(p_lease_ms));
        exit when v_left = 0 or v_queue.paused;
        return query
        select c.id, c.token, p_queue, v_queue.priority::integer, 'active', c.attempt::integer,
               coalesce(c.max_attempts, v_queue.max_attempts), c.payload, c.headers, null::text,
               null::text, c.worker, c.enqueued_at, coalesce(c.run_at, c.enqueued_at), c.claimed_at,
               c.lease_expires_at, c.last_error, false
          from pgq._gather(
                   v_queue.lanes, v_queue.live, v_queue.parked, v_queue.firsts, p_after, p_until,
                   v_left, v_now, v_queue.max_attempts, p_tick, p_lease_ms, p_worker, v_queue.keep
               ) c;
        get diagnostics v_count = row_count;
        v_left := v_left - v_count;
    end loop;
    if not found then
        perform pgq._raise_unknown_queue(p_queue);
    end if;
    if v_left > 0 then
        perform pgq._check_moved();
    end if;
end
$$;
comment on function pgq._grab(text, integer, integer, text, boolean, bigint, bigint) is
'leases up to p_batch jobs of a queue with p_after < id < p_until, highest priority first, then '
'in id order';
