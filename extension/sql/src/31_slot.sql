/*
 * The statements on jobs, each once per slot on the slot itself: a plan over pgq.job would lock all
 * slots, and one that is being truncated must not be touched by anybody who has no business there.
 *
 * The settings pin the plans: they are cached, some are made while a slot is empty or was
 * truncated a moment ago, and must be index scans then, too.
 *
 * Claimable is a job that nobody leases, or whose lease has expired and that has an attempt left
 * (p_max is the queue's max_attempts); pgq._maintain buries the others. Parked jobs are looked at
 * in the order in which they fell due, a thousand at a time, and of these the lowest ids come
 * first.
 */

--@ define start
coalesce((
                       select case when p_tick then f.base else f.floor end
                         from pgq.floor_{slot} f where f.lane = p_lane order by f.n desc limit 1
                   ), 0)
--@ end
--@ define claimable
(i.lease_expires_at is null
                    or (i.lease_expires_at <= p_now
                        and i.attempt < coalesce(i.max_attempts, p_max)))
--@ end

create function pgq._peek(
    p_slot smallint, p_lane integer, p_after bigint, p_until bigint, p_now timestamptz,
    p_max integer, p_tick boolean
)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
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
    p_now timestamptz, p_max integer, p_tick boolean
)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
declare
    v_due constant bigint := pgq._due(p_now, 4095);
    v_ids bigint[];
begin
    case p_slot
    --@ each parked
    when {slot} then
        v_ids := array(
            select i.id
              from pgq.job_{slot} i
             where i.lane = p_lane and i.id > p_after and i.id < p_until
               and i.due <= v_due and i.due > {start}
               and (i.run_at is null or i.run_at <= p_now)
               and {claimable}
             order by i.due
             limit p_limit
        );
    --@ end
    end case;
    return v_ids;
end
$$;
comment on function
    pgq._window(smallint, integer, bigint, bigint, integer, timestamptz, integer, boolean) is
'the ids of those claimable jobs in a lane of a parked slot that fell due first';

--@ define lease
update pgq.job_{slot} j
               set token = (nextval('pgq.token') << 20) | v_place, attempt = j.attempt + 1,
                   claimed_at = p_now, lease_expires_at = v_until, lease_ms = p_lease_ms,
                   worker = p_worker
             where j.ctid = any (array(
--@ end

create function pgq._claim(
    p_slot smallint, p_lane integer, p_after bigint, p_until bigint, p_batch integer,
    p_now timestamptz, p_max integer, p_tick boolean, p_lease_ms integer, p_worker text,
    p_keep boolean, p_ids bigint[] default null
)
returns setof pgq.job
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_until constant timestamptz := p_now + p_lease_ms * interval '1 millisecond';
    v_place constant bigint := ((p_keep::integer << 19) | (p_lane << 3) | p_slot)::bigint;
    v_count integer;
begin
    case p_slot
    --@ each ring
    when {slot} then
        return query with leased as (
            {lease}
                select i.ctid from pgq.job_{slot} i
                 where i.lane = p_lane and i.id > p_after and i.id < p_until
                   and i.id > {start} and {claimable}
                 order by i.id limit p_batch for update skip locked
            )) returning j.*
        )
        select l.* from leased l order by l.id;
    --@ end
    --@ each parked
    when {slot} then
        return query with leased as (
            {lease}
                select l.ctid from unnest(p_ids) w (id), lateral (
                    select i.ctid from pgq.job_{slot} i
                     where i.lane = p_lane and i.id = w.id
                       and (i.run_at is null or i.run_at <= p_now) and {claimable}
                       for update skip locked
                ) l where w.id > p_after and w.id < p_until limit p_batch
            )) returning j.*
        )
        select l.* from leased l order by l.id;
    --@ end
    end case;
    get diagnostics v_count = row_count;
    -- Every job has the same chance: on average 32 entries are passed before a floor is raised.
    if random() * 32 < v_count and pgq._read_committed() then
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

create function pgq._remove(p_slot smallint, p_lane integer, p_ids bigint[])
returns setof pgq.job
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    case p_slot
    --@ each slot
    when {slot} then
        return query
        with removed as (
            delete from pgq.job_{slot} j
             where j.ctid = any (array(
                       select i.ctid from unnest(p_ids) r (id), lateral (
                           select i.ctid from pgq.job_{slot} i
                            where i.lane = p_lane and i.id = r.id offset 0
                       ) i
                   ))
            returning j.*
        )
        select r.* from removed r order by r.id;
    --@ end
    end case;
end
$$;
comment on function pgq._remove(smallint, integer, bigint[]) is
'deletes and returns jobs that this session has locked';

--@ define receipt
j.ctid = any (array(
                   select i.ctid from unnest(p_ids, p_tokens) r (id, token), lateral (
                       select i.ctid from pgq.job_{slot} i
                        where i.lane = p_lane and i.id = r.id and i.token = r.token offset 0
                   ) i
               ))
           and j.token = any (p_tokens)
--@ end

create function pgq._lanes(p_tokens bigint[])
returns integer[]
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return array(select distinct ((t >> 3) & 65535)::integer from unnest(p_tokens) t);
end
$$;
comment on function pgq._lanes(bigint[]) is 'the lanes that these tokens name';

create function pgq._finish(
    p_slot smallint, p_lane integer, p_ids bigint[], p_tokens bigint[]
)
returns setof pgq.job
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    -- A row that is updated meanwhile is checked for the token again. It may be left out, if the
    -- place of the version that was found is checked again, too; pgq._settle looks once more then.
    case p_slot
    --@ each slot
    when {slot} then
        return query
        delete from pgq.job_{slot} j
         where {receipt}
        returning j.*;
    --@ end
    end case;
end
$$;
comment on function pgq._finish(smallint, integer, bigint[], bigint[]) is
'deletes and returns the jobs of those receipts that are good in a lane of a '
'slot; waits for another session with the same receipt';

create function pgq._renew(
    p_slot smallint, p_lane integer, p_ids bigint[], p_tokens bigint[], p_lease_ms integer,
    p_now timestamptz
)
returns setof pgq.renewal
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    case p_slot
    --@ each slot
    when {slot} then
        return query
        update pgq.job_{slot} j
           set lease_expires_at
                   = p_now + coalesce(p_lease_ms, j.lease_ms) * interval '1 millisecond'
         where {receipt}
        returning j.id, j.token, j.lease_expires_at;
    --@ end
    end case;
end
$$;
comment on function
    pgq._renew(smallint, integer, bigint[], bigint[], integer, timestamptz) is
'renews the leases of those receipts that are good in a lane of a slot';
