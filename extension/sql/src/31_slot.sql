/*
 * The statements on jobs, each once per slot on the slot itself: a plan over pgq.job would lock all
 * slots, and one that is being truncated must not be touched by anybody who has no business there.
 *
 * Claimable is a job that nobody leases, or whose lease has expired and that has an attempt left
 * (p_max is the queue's max_attempts); if it had lost the lease before, after the backoff. Ticks
 * take most of these back sooner, and bury those without an attempt. Parked jobs are looked at in
 * the order in which they fell due, a thousand at a time, and of these the lowest ids come first.
 */

--@ define start
coalesce((
                       select case when v_tick then f.base else f.floor end
                         from pgq.floor_{slot} f where f.lane = v_lane order by f.n desc limit 1
                   ), 0)
--@ end
-- Of a lane "l".
--@ define floor
coalesce((
                                  select f.floor from pgq.floor_{slot} f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
--@ end
-- The same for those that look for active jobs, too.
--@ define base
coalesce((
                                  select f.base from pgq.floor_{slot} f
                                   where f.lane = l.id order by f.n desc limit 1
                              ), 0)
--@ end
-- Asked once per statement, which spares it the beginning of index scans. Sound: it has locked the
-- slot, which keeps it from being truncated, before it took its snapshot.
--@ define has_pages
(select pg_relation_size('pgq.job_{slot}') > 0)
--@ end
--@ define claimable
(i.lease_expires_at is null or (i.lease_expires_at <= v_now and i.cancel_requested is null
                    and i.attempt < coalesce(i.max_attempts, v_max) and (i.lease_ms > 0
                        or pgq._has_waited(i.lane, i.attempt, i.token, i.lease_expires_at))))
--@ end

-- A place is up to 4095 microseconds behind the time: see "spread".
--@ define due
i.lane = v_lane and i.due <= v_us + 4095 and i.due > {start}
                   and (i.run_at is null or i.run_at <= v_now) and {claimable}
--@ end

create function pgq._peek(
    p_slot smallint, p_lane integer, p_after bigint, p_until bigint, p_now timestamptz,
    p_max integer, p_tick boolean
)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_lane alias for p_lane; v_now alias for p_now; v_max alias for p_max; v_tick alias for p_tick;
    v_id bigint;
begin
    case p_slot
    --@ each ring
    when {slot} then
        select i.id
          into v_id
          from pgq.job_{slot} i
         where i.lane = p_lane and i.id > p_after and i.id < p_until
           and i.id > {start}
           and {claimable}
         order by i.id
         limit 1;
    --@ end
    end case;
    return v_id;
end
$$;
comment on function
    pgq._peek(smallint, integer, bigint, bigint, timestamptz, integer, boolean) is
'the lowest claimable id between p_after and p_until in a lane of a slot of the ring, or null; '
'locks nothing. p_tick: starts at the base, where expired leases are, not at the floor';

create function pgq._window(
    p_slot smallint, p_lane integer, p_after bigint, p_until bigint, p_limit integer,
    p_now timestamptz, p_max integer, p_tick boolean, out ids bigint[], out grouped boolean
)
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
set enable_sort = off
as $$
declare
    v_lane alias for p_lane; v_now alias for p_now; v_max alias for p_max; v_tick alias for p_tick;
    v_us constant bigint := pgq._us(p_now);
begin
    case p_slot
    --@ each parked
    when {slot} then
        select array_agg(w.id order by w.id), count(distinct w.group_id) = count(*)
          into ids, grouped
          from (
                   select i.id, i.group_id from pgq.job_{slot} i
                    where {due} and i.id > p_after and i.id < p_until
                    order by i.due limit p_limit
               ) w;
    --@ end
    end case;
end
$$;
comment on function
    pgq._window(smallint, integer, bigint, bigint, integer, timestamptz, integer, boolean) is
'the ids of those claimable jobs in a lane of a parked slot that fell due first, sorted, and '
'whether each is of another group; null if there are none';

create function pgq._oldest(
    p_slot smallint, p_lane integer, p_now timestamptz, p_max integer, p_tick boolean
)
returns timestamptz
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
set enable_sort = off
as $$
declare
    v_lane alias for p_lane; v_now alias for p_now; v_max alias for p_max; v_tick alias for p_tick;
    v_us constant bigint := pgq._us(p_now);
    v_since timestamptz;
begin
    case p_slot
    --@ each ring
    when {slot} then
        select i.enqueued_at
          into v_since
          from pgq.job_{slot} i
         where i.lane = p_lane and i.id > {start} and {claimable}
         order by i.id
         limit 1;
    --@ end
    --@ each parked
    when {slot} then
        select coalesce(i.run_at, i.enqueued_at)
          into v_since
          from pgq.job_{slot} i where {due} order by i.due limit 1;
    --@ end
    end case;
    return v_since;
end
$$;
comment on function pgq._oldest(smallint, integer, timestamptz, integer, boolean) is
'since when the oldest claimable job in a lane of a slot could be claimed, or null; locks no row. '
'p_tick: as in pgq._peek';

--@ define lease
update pgq.job_{slot} j
           set token = (nextval('pgq.token') << 20) | v_place
                       | (case when j.group_id is null then 0 else 524288 end),
               attempt = j.attempt + 1, claimed_at = v_now, lease_expires_at = v_expiry,
               lease_ms = case when coalesce(j.token, j.lease_ms) is null then v_lease_ms
                               else -v_lease_ms end,
               worker = v_worker, pid = pg_backend_pid()
--@ end
--@ define first
select i.ctid from pgq.job_{slot} i
                    where i.lane = v_lane and i.id > v_after and i.id < v_until
                      and i.id > {start} and {claimable}
                    order by i.id limit v_left for update skip locked
--@ end

-- By its receipt "r". Whoever locks several jobs does it by slot, lane and id.
--@ define found
select i.ctid from pgq.job_{slot} i
                    where i.lane = p_lane and i.id = r.id and i.token = r.token
--@ end

-- What raising costs against what it costs to pass claimed entries meanwhile: after about 32 claims
-- of one job, 10 claims of ten, 3 claims of a hundred.
--@ define raise_floor
random() * 32 < sqrt(v_count)
--@ end

create function pgq._claim(
    p_slot smallint, p_lane integer, p_after bigint, p_until bigint, p_batch integer,
    p_now timestamptz, p_max integer, p_tick boolean, p_lease_ms integer, p_worker text,
    p_keep boolean, p_ids bigint[] default null
)
returns setof pgq.job
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
declare
    v_lane alias for p_lane; v_after alias for p_after; v_until alias for p_until;
    v_left alias for p_batch; v_now alias for p_now; v_max alias for p_max;
    v_tick alias for p_tick; v_lease_ms alias for p_lease_ms; v_worker alias for p_worker;
    v_expiry constant timestamptz := p_now + p_lease_ms * interval '1 millisecond';
    v_place constant bigint := ((p_keep::integer << 19) | (p_lane << 3) | p_slot)::bigint;
    v_count integer;
begin
    case p_slot
    --@ each ring
    when {slot} then
        return query
        {lease}
          from (
                   {first}
               ) f
         where j.ctid = f.ctid
        returning j.*;
    --@ end
    --@ each parked
    when {slot} then
        return query
        {lease}
          from (
                   select l.ctid from unnest(p_ids) w (id), lateral (
                       select i.ctid from pgq.job_{slot} i
                        where i.lane = v_lane and i.id = w.id
                          and (i.run_at is null or i.run_at <= v_now) and i.wait is null
                          and {claimable}
                          for update skip locked
                   ) l where w.id > v_after and w.id < v_until limit v_left
               ) f
         where j.ctid = f.ctid
        returning j.*;
    --@ end
    end case;
    get diagnostics v_count = row_count;
    if {raise_floor} then
        perform pgq._raise_floor(p_slot, p_lane);
    end if;
end
$$;
comment on function
    pgq._claim(
        smallint, integer, bigint, bigint, integer, timestamptz, integer, boolean, integer, text,
        boolean, bigint[]
    ) is
'leases up to p_batch claimable jobs with p_after < id < p_until in a lane of a slot and returns '
'them in id order, passing by those that others have locked; in a parked slot, of the sorted p_ids';

create function pgq._remove(p_slot smallint, p_lane integer, p_id bigint, out job pgq.job)
language plpgsql
set search_path = pg_catalog, pg_temp
{index_scans}
as $$
begin
    case p_slot
    --@ each slot
    when {slot} then
        delete from pgq.job_{slot} j where j.lane = p_lane and j.id = p_id returning j.* into job;
    --@ end
    end case;
end
$$;
comment on function pgq._remove(smallint, integer, bigint) is
'deletes and returns a job that this session has locked';
