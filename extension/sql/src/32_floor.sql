/*
 * Claim positions. Without them every claim would walk past the dead index entries of all jobs that
 * finished since the slot was last truncated, and a held xmin horizon keeps those entries.
 *
 * A floor is sound when nothing below it can become claimable unless by way of a parked slot:
 *   - A row that a running transaction claims or completes is still ready in the snapshot that
 *     computes the floor, so the floor stays below it, and a rollback finds it above.
 *   - An id below the floor that is not visible yet: enqueue assigns its transaction id before it
 *     draws the job's id. So all ids up to "mark", read before the snapshot whose xmax is mark_xid,
 *     belong to transactions below mark_xid, and are decided once none of these is running. The
 *     same holds for due in the parked slots, where the mark is the clock.
 * Transactions that are open for longer than a second or two (those below pgq.xid_old) are not
 * waited for, or any long transaction in the cluster would stop the floors. What they commit
 * below a floor is found by pgq._lower_floors. The base waits for all. Under REPEATABLE READ the
 * order "mark, then snapshot" does not hold: no floor is raised there.
 */

create function pgq._raise_floor(p_slot smallint, p_lane integer)
returns void
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
    v_mark bigint;
    v_old constant bigint := coalesce(pg_sequence_last_value('pgq.xid_old'), 0);
begin
    if not pgq._read_committed() then
        return;
    end if;
    v_mark := case when p_slot < 4 then coalesce(pg_sequence_last_value('pgq.job_id'), 0)
                   else pgq._us(pgq._now()) end;
    case p_slot
    --@ each slot
    when {slot} then
        insert into pgq.floor_{slot} (n, lane, floor, base, mark, mark_xid)
        select nextval('pgq.floor_n'), p_lane,
               case when f.n is null then 0
                    else greatest(f.floor, least(f.mark, ready.key - 1)) end,
               case when f.n is null then 0
                    when pg_snapshot_xmin(s.now)::text::bigint < f.mark_xid then f.base
                    else greatest(f.base, least(f.mark, live.key - 1)) end,
               v_mark, pg_snapshot_xmax(s.now)::text::bigint
          from pg_current_snapshot() s (now)
          left join lateral (
                  select f.* from pgq.floor_{slot} f where f.lane = p_lane order by f.n desc limit 1
               ) f on true
          left join lateral (
                  select j.{key} from pgq.job_{slot} j
                   where j.lane = p_lane and j.{key} > f.floor and j.lease_expires_at is null
                   order by j.{key} limit 1
               ) ready (key) on true
          left join lateral (
                  select j.{key} from pgq.job_{slot} j
                   where j.lane = p_lane and j.{key} > f.base order by j.{key} limit 1
               ) live (key) on true
         where f.n is null
            or not exists (
                   select from pg_snapshot_xip(s.now) x (xid)
                    where x.xid::text::bigint < f.mark_xid and x.xid::text::bigint >= v_old
               );
    --@ end
    end case;
end
$$;
comment on function pgq._raise_floor(smallint, integer) is
'appends the highest sound claim position of a lane in a slot, unless it is not decided yet';

create function pgq._lower_floors(p_slot smallint, p_now timestamptz)
returns void
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
        insert into pgq.floor_{slot} (n, lane, floor, base, mark, mark_xid)
        select nextval('pgq.floor_n'), f.lane, j.key - 1, f.base, f.mark, f.mark_xid
          from pgq.lane l
          join pgq.queue q on q.id = l.queue_id,
               lateral (
                   select f.* from pgq.floor_{slot} f where f.lane = l.id order by f.n desc limit 1
               ) f,
               lateral (
                   select j.{key}
                     from pgq.job_{slot} j
                    where j.lane = l.id and j.{key} > f.base and j.{key} <= f.floor
                      and (j.lease_expires_at is null
                           or (j.lease_expires_at <= p_now
                               and j.attempt < coalesce(j.max_attempts, q.max_attempts)))
                    order by j.{key}
                    limit 1
               ) j (key);
    --@ end
    end case;
end
$$;
comment on function pgq._lower_floors(smallint, timestamptz) is
'makes claims see again what has become claimable below a floor: expired leases, and late commits';
