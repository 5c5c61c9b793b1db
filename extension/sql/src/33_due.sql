/*
 * The claim from a parked slot where a queue has one priority: the ordinary case of groups, of
 * which all heads but the first ones are parked.
 */

--@ define leased
where j.ctid = f.ctid
            returning j.id, j.token, v_queue, v_priority, 'active', j.attempt::integer,
                   coalesce(j.max_attempts, v_max), j.payload, j.headers, j.group_key, j.dedupe_key,
                   j.worker, j.enqueued_at, coalesce(j.run_at, j.enqueued_at), j.claimed_at,
                   j.lease_expires_at, j.last_error, false, j.checkpoint
--@ end
--@ define due_window
select i.ctid as tid, i.id, i.group_id from pgq.job_{slot} i
                where {due} order by i.due limit 100
--@ end
-- A window "w" that does not show all that is due will do if each of its jobs is of another group.
--@ define will_do
((p_serial and not exists (select from w where w.group_id is null))
                   or (select count(*) < 100 from w))
--@ end
-- The same for the other slot: the lowest id in its window, null if nothing is due there; 0: a
-- hundred do not tell.
--@ define first_of_second
(
            select case when (p_serial and w.grouped) or coalesce(cardinality(w.ids), 0) < 100
                        then w.ids[1] else 0 end
              from pgq._window(
                       p_slots[2], p_lane, 0, 9223372036854775807, 100, p_now, p_max, false
                   ) w
        )
--@ end

-- As in pgq_dequeue: what has come back since must not follow those that have been returned. But
-- behind a hundred that fell due first there may be others, with any ids.
--@ define remainder
select g.*
          from pgq._grab(
                   p_queue, p_batch - v_count, p_lease_ms, p_worker, false,
                   case when v_count > 0 and v_until is not null then v_until - 1 else 0 end,
                   p_priority => case when v_count > 0 then p_priority end
               ) g
--@ end

create function pgq._claim_due(
    p_slots smallint[], p_ring smallint, p_lane integer, p_place bigint, p_queue text,
    p_priority integer, p_serial boolean, p_max integer, p_batch integer, p_now timestamptz,
    p_lease_ms integer, p_worker text
)
returns setof @extschema@.pgq_job
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_lane alias for p_lane; v_now alias for p_now; v_max alias for p_max;
    v_queue alias for p_queue; v_priority alias for p_priority; v_lease_ms alias for p_lease_ms;
    v_worker alias for p_worker; v_tick constant boolean := false;
    v_us constant bigint := (extract(epoch from p_now) * 1000000)::bigint;
    v_expiry constant timestamptz := p_now + p_lease_ms * interval '1 millisecond';
    v_place constant bigint := (p_place & ~7::bigint) | p_slots[1];
    v_until bigint := pgq._peek(p_ring, p_lane, 0, 9223372036854775807, p_now, p_max, false);
    v_count integer; v_is_left boolean;
begin
    if p_slots[2] is not null then
        v_until := least(v_until, {first_of_second});
    end if;
    case p_slots[1]
    --@ each parked
    when {slot} then
        return query
        with w as materialized ({due_window})
        {lease}
          from (
                   select l.ctid
                     from (
                              select o.* from w o
                               where (v_until is null or o.id < v_until) and {will_do}
                               order by o.id
                          ) o, lateral (
                              select i.ctid from pgq.job_{slot} i
                               where i.ctid = o.tid and i.lane = v_lane and i.id = o.id
                                 and i.wait is null and (i.run_at is null or i.run_at <= v_now)
                                 and {claimable}
                                 for update skip locked
                          ) l limit p_batch
               ) f
         {leased};
        get diagnostics v_count = row_count;
        if v_count < p_batch then
            v_is_left := v_until is not null
                or (select count(*) + v_count >= 100 from ({due_window}) w);
        end if;
    --@ end
    end case;
    if {raise_floor} then
        perform pgq._raise_floor(p_slots[1], p_lane);
    end if;
    if v_is_left then
        return query {remainder};
    end if;
end
$$;
comment on function
    pgq._claim_due(
        smallint[], smallint, integer, bigint, text, integer, boolean, integer, integer,
        timestamptz, integer, text
    ) is
'leases up to p_batch jobs of a queue that has one lane; in p_slots, of which the oldest is the '
'first, some are due. Takes those of the first one that have lower ids than all elsewhere; the '
'rest is left to pgq._grab. p_place: as in tokens, but for the slot; p_serial: no group has more '
'than one head';
