/*
 * Receipts. A receipt is looked up in the slot that its token names. If it is not there it is
 * either stale, or maintenance has moved the job to a parked slot, perhaps this very moment: each
 * look is a statement of its own, with a new snapshot, and the parked slots are looked at until a
 * job that is being moved from one to the other cannot have been missed.
 */

create function pgq._lanes(p_tokens bigint[])
returns integer[]
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return array(select distinct ((t >> 3) & 65535)::integer from unnest(p_tokens) t order by 1);
end
$$;
comment on function pgq._lanes(bigint[]) is 'the lanes that these tokens name';

create function pgq._finish(
    p_slot smallint, p_lane integer, p_ids bigint[], p_tokens bigint[]
)
returns setof pgq.job
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
begin
    -- A row that is updated meanwhile is checked for the token again. It may be left out, if the
    -- place of the version that was found is checked again, too; pgq._settle looks once more then.
    case p_slot
    --@ each slot
    when {slot} then
        return query
        delete from pgq.job_{slot} j
         using unnest(p_ids, p_tokens) r (id, token), lateral (
                   {found} offset 0
               ) i
         where j.ctid = i.ctid and j.token = r.token
        returning j.*;
    --@ end
    end case;
end
$$;
comment on function pgq._finish(smallint, integer, bigint[], bigint[]) is
'deletes and returns the jobs of those receipts that are good in a lane of a slot; waits for '
'another session with the same receipt';

create function pgq._renew(
    p_slot smallint, p_lane integer, p_ids bigint[], p_tokens bigint[], p_lease_ms integer,
    p_now timestamptz, p_checkpoints jsonb[]
)
returns setof pgq.renewal
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
begin
    case p_slot
    --@ each slot
    when {slot} then
        return query
        update pgq.job_{slot} j
           set lease_expires_at
                   = p_now + coalesce(p_lease_ms, abs(j.lease_ms)) * interval '1 millisecond',
               checkpoint = coalesce(r.checkpoint, j.checkpoint)
          from unnest(p_ids, p_tokens, p_checkpoints) r (id, token, checkpoint), lateral (
                   {found} for update skip locked
               ) i
         where j.ctid = i.ctid
        returning j.id, j.token, j.lease_expires_at, coalesce(j.cancel_requested, false);
    --@ end
    end case;
end
$$;
comment on function
    pgq._renew(
        smallint, integer, bigint[], bigint[], integer, timestamptz, jsonb[]
    ) is
'renews the leases of those receipts that are good in a lane of a slot; passes by those that '
'others have locked';

create function pgq._held(p_slot smallint, p_lane integer, p_ids bigint[], p_tokens bigint[])
returns setof pgq.renewal
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
begin
    case p_slot
    --@ each slot
    when {slot} then
        return query
        select j.id, j.token, j.lease_expires_at, coalesce(j.cancel_requested, false)
          from unnest(p_ids, p_tokens) r (id, token), lateral (
                   select j.* from pgq.job_{slot} j
                    where j.lane = p_lane and j.id = r.id and j.token = r.token offset 0
               ) j;
    --@ end
    end case;
end
$$;
comment on function pgq._held(smallint, integer, bigint[], bigint[]) is
'those of the receipts that are good in a lane of a slot, locked or not, as they are';

create function pgq._looks(p_tokens bigint[])
returns smallint[]
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slots constant smallint[] := array(
        select distinct (t.token & 7)::smallint
          from unnest(p_tokens) t (token) where t.token & 7 <= 5 order by 1
    ) || '{4,5}'::smallint[];
begin
    return v_slots || v_slots || v_slots;
end
$$;
comment on function pgq._looks(bigint[]) is
'the slots in which to look for receipts, in this order, which is the lock order';

create function pgq._settle(p_ids bigint[], p_tokens bigint[], p_done integer default 0)
returns setof pgq.job
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slot smallint := (p_tokens[1] & 7)::smallint;
    v_lane integer := ((p_tokens[1] >> 3) & 65535)::integer;
    v_lanes integer[] := array[v_lane];
    v_looks smallint[];
    v_left integer := cardinality(p_ids);
    v_count integer;
    v_one_lane boolean;
begin
    if v_left > 1 then
        select array_agg(r.id), array_agg(r.token), count(*)::integer, min(r.token & 7)::smallint,
               bool_and((r.token >> 3) & 65535 = v_lane)
          into p_ids, p_tokens, v_left, v_slot, v_one_lane
          from (select distinct r.id, r.token from unnest(p_ids, p_tokens) r (id, token)
                 order by r.id, r.token) r;
        if not v_one_lane then
            v_lanes := pgq._lanes(p_tokens);
        end if;
    end if;
    v_left := v_left - p_done;
    if v_left = 0 then
        return;
    end if;
    -- Nearly always the first look finds all.
    v_looks := array[v_slot];
    for v_round in 1..2 loop
        foreach v_slot in array v_looks loop
            continue when v_slot > 5;
            foreach v_lane in array v_lanes loop
                return query select f.* from pgq._finish(v_slot, v_lane, p_ids, p_tokens) f;
                get diagnostics v_count = row_count;
                v_left := v_left - v_count;
            end loop;
            if v_left = 0 then
                return;
            end if;
        end loop;
        v_looks := pgq._looks(p_tokens);
    end loop;
    perform pgq._check_moved();
end
$$;
comment on function pgq._settle(bigint[], bigint[], integer) is
'deletes and returns the jobs whose receipts are good; waits while another session settles the '
'same receipt. p_done: how many of them the caller has deleted already';

create function pgq._settle_one(p_id bigint, p_token bigint, out job pgq.job)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null('id', p_id is null);
    perform pgq._check_not_null('token', p_token is null);
    {check_restricted};
    if not {is_owner} then
        p_token := (pgq._mask(array[p_token]))[1];
    end if;
    select s.* into job from pgq._settle(array[p_id], array[p_token]) s;
end
$$;
comment on function pgq._settle_one(bigint, bigint) is
'pgq._settle for one receipt, of a queue that the caller may consume from; null if it is stale';

create function pgq._results_of(
    p_jobs pgq.job[], p_ids bigint[], p_tokens bigint[], p_results jsonb[]
)
returns jsonb[]
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
set enable_nestloop = off
set enable_hashjoin = on
as $$
begin
    return array(
        select r.result
          from unnest(p_jobs) with ordinality j
          left join {receipts} r on r.id = j.id and r.token = j.token
         order by j.ordinality
    );
end
$$;
comment on function pgq._results_of(pgq.job[], bigint[], bigint[], jsonb[]) is
'the results given with receipts, in the order of the jobs; of a receipt that is given twice the '
'first one that is not null';

create function pgq._complete(
    p_ids bigint[], p_tokens bigint[], p_results jsonb[], p_done integer default 0
)
returns setof bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_bits bigint;
    v_jobs pgq.job[];
    v_sample integer;
begin
    if p_done = 0 and (cardinality(p_tokens) = 1 or (
           select bool_and(t & 524287 = p_tokens[1] & 524287) from unnest(p_tokens) t
       ))
    then
        return query
        select d
          from pgq._complete_together(
                   (p_tokens[1] & 7)::smallint, ((p_tokens[1] >> 3) & 65535)::integer, p_ids,
                   p_tokens, p_results
               ) d;
        get diagnostics p_done = row_count;
        if p_done = cardinality(p_ids) then
            return;
        end if;
    end if;
    v_bits := (select bit_or(t) from unnest(p_tokens) t);
    -- A bit of the token says that the queue kept completed jobs when it was claimed, or that it
    -- has a group.
    v_jobs := array(select s from pgq._settle(p_ids, p_tokens, p_done) s);
    perform pgq._note_ended(v_jobs, true);
    if v_bits & 524288 <> 0 and v_jobs <> '{}' then
        select max(q.sample) into v_sample
          from pgq.lane l join pgq.queue q on q.id = l.queue_id
         where l.id = any (pgq._lanes(p_tokens))
           and (q.keep_completed > '0' or q.dedupe_for > '0');
        if v_sample is not null then
            if cardinality(p_results) > 1 then
                p_results := pgq._results_of(v_jobs, p_ids, p_tokens, p_results);
            end if;
            perform pgq._keep(v_jobs, 'completed', p_results);
        end if;
        if random() * v_sample < 1 then
            perform pgq._count_ends(d.lane, d.completed * v_sample, 0)
               from (select j.lane, count(*) as completed from unnest(v_jobs) j group by j.lane) d;
        end if;
    end if;
    return query select j.id from unnest(v_jobs) j;
end
$$;
comment on function pgq._complete(bigint[], bigint[], jsonb[], integer) is
'completes and returns the ids; p_results: one for each receipt, or null; p_done: as in '
'pgq._settle';
