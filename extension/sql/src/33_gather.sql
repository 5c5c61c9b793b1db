/*
 * The claim. A priority of a queue may have jobs in several slots; they are merged in id order
 * without ever locking a job that is not then given to the caller: take from the slot with the
 * lowest id all ids below the next slot's lowest, look for what is its lowest now, and again.
 * The slots of the ring are opened one after another, as far as the batch needs: whoever keeps
 * the transaction open keeps the slots that were looked at from being truncated.
 */

--@ define window
(v_slot, v_lane, p_after, p_until, p_limit, p_now, p_max, p_tick)
--@ end

create function pgq._parked_sources(
    p_lanes integer[], p_slots smallint[], p_after bigint, p_until bigint, p_limit integer,
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
    v_ids bigint[];
    v_grouped boolean;
begin
    foreach v_lane in array p_lanes loop
        foreach v_slot in array p_slots loop
            if p_until = p_after + 2 then
                v_ids := array[p_after + 1];
            else
                select w.* into v_ids, v_grouped from pgq._window{window} w;
                if cardinality(v_ids) = p_limit and p_limit < 1000 and not v_grouped then
                    p_limit := 1000;
                    select w.* into v_ids, v_grouped from pgq._window{window} w;
                end if;
            end if;
            if v_ids is not null then
                v_source := (v_slot, v_lane, v_ids[1], v_ids);
                v_sources := v_sources || v_source;
            end if;
        end loop;
    end loop;
    if cardinality(v_sources) > 1 then
        v_sources := array(select s from unnest(v_sources) s order by s.head);
    end if;
    return v_sources;
end
$$;
comment on function
    pgq._parked_sources(
        integer[], smallint[], bigint, bigint, integer, timestamptz, integer, boolean
    ) is
'where in these lanes and parked slots there are claimable jobs; locks no row. p_limit: how many '
'of those that fell due first are enough if each is of another group; else it is at least 1,000';

create function pgq._with_ring(
    p_sources pgq.source[], p_slot smallint, p_lanes integer[], p_after bigint, p_until bigint,
    p_now timestamptz, p_max integer, p_tick boolean
)
returns pgq.source[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if cardinality(p_sources) = 0 then
        return array(select row(p_slot, l, p_after + 1, null)::pgq.source from unnest(p_lanes) l);
    end if;
    -- A look costs a third of a claim, and mostly finds nothing: the rest is in parked slots.
    p_sources := p_sources || array(
        select row(p_slot, l, i, null)::pgq.source
          from unnest(p_lanes) l,
               pgq._peek(p_slot, l, p_after, p_until, p_now, p_max, p_tick) i
         where i is not null
    );
    return array(select s from unnest(p_sources) s order by s.head);
end
$$;
comment on function
    pgq._with_ring(
        pgq.source[], smallint, integer[], bigint, bigint, timestamptz, integer, boolean
    ) is
'adds a slot of the ring to where there may be jobs, and sorts';

create function pgq._rest_of(
    p_source pgq.source, p_from bigint, p_until bigint, p_now timestamptz, p_max integer,
    p_tick boolean
)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_source.ids is null then
        return pgq._peek(
            p_source.slot, p_source.lane, p_from - 1, p_until, p_now, p_max, p_tick
        );
    end if;
    return (select min(i) from unnest(p_source.ids) i where i >= p_from);
end
$$;
comment on function
    pgq._rest_of(pgq.source, bigint, bigint, timestamptz, integer, boolean) is
'where the jobs of a source begin that have ids from p_from on; null: there are none';

--@ define look_parked
pgq._parked_sources(
        p_lanes, p_parked, p_after, p_until, v_limit, p_now, p_max, p_tick
    )
--@ end

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
    v_limit integer := greatest(p_batch, 100);
    v_sources pgq.source[] := {look_parked};
    v_source pgq.source;
    v_next integer := 1;
    v_first bigint; v_until bigint;
    v_left integer := p_batch; v_count integer;
begin
    loop
        -- Null when all slots are open. Any job in this slot and the next ones has a higher id.
        v_first := p_firsts[p_live[v_next] + 1];
        if v_next <= cardinality(p_live)
            and (cardinality(v_sources) = 0 or v_first < (v_sources[1]).head)
        then
            v_sources := pgq._with_ring(
                v_sources, p_live[v_next], p_lanes, p_after, p_until, p_now, p_max, p_tick
            );
            v_next := v_next + 1;
            continue;
        end if;
        exit when cardinality(v_sources) = 0;
        v_source := v_sources[1];
        v_sources := v_sources[2:];
        -- Two heads can be equal: a bound, not an id, or a job moved between the two looks.
        v_until := greatest(least((v_sources[1]).head, v_first + 1, p_until), v_source.head + 1);
        return query
        select c.*
          from pgq._claim(
                   v_source.slot, v_source.lane, v_source.head - 1, v_until, v_left, p_now, p_max,
                   p_tick, p_lease_ms, p_worker, p_keep, v_source.ids
               ) c;
        get diagnostics v_count = row_count;
        v_left := v_left - v_count;
        exit when v_left = 0 or (v_source.ids is null and v_sources = '{}' and v_first is null);
        -- What this source still has below v_until is locked by others.
        v_source.head := pgq._rest_of(v_source, v_until, p_until, p_now, p_max, p_tick);
        if v_source.head is not null then
            v_sources := v_sources || v_source;
        elsif cardinality(v_source.ids) = v_limit and v_limit < 1000 then
            v_limit := 1000;
            v_sources := {look_parked}
                || array(select s from unnest(v_sources) s where s.ids is null);
        end if;
        v_sources := array(select s from unnest(v_sources) s order by s.head);
    end loop;
end
$$;
comment on function
    pgq._gather(
        integer[], smallint[], smallint[], bigint[], bigint, bigint, integer, timestamptz, integer,
        boolean, integer, text, boolean
    ) is
'leases up to p_batch jobs of one priority of a queue with p_after < id < p_until, in id order';
