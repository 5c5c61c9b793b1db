/*
 * Claim positions. Without them every claim would walk past the dead index entries of all jobs that
 * finished since the slot was last truncated, and a held xmin horizon keeps those entries.
 *
 * A floor is sound when nothing below it can become claimable unless by way of a parked slot:
 *   - A row that a running transaction claims or completes is still ready in the snapshot that
 *     computes the floor, so the floor stays below it, and a rollback finds it above.
 *   - An id below the floor that is not visible yet: enqueue assigns its transaction id before it
 *     draws the job's id. Let "mark" be the last id drawn, and let a transaction id be drawn after
 *     that was read: all ids up to mark belong to transactions below it, and are decided once none
 *     of these is running. The id that is drawn is the row's own, it is inserted in a
 *     subtransaction. (The xmax of a snapshot would not do, running transactions may be above it.)
 *     The same holds for due in the parked slots, where the mark is the clock; see pgq._admit.
 * Transactions that are open for longer than a second or two (those below pgq.xid_old) are not
 * waited for, or any long transaction in the cluster would stop the floors. What they commit below
 * a floor is found by pgq._adjust_floors. The base waits for all. Only a tick may raise it to a
 * mark older than a second, if no older transaction has written to the slot (see pgq._raise_base):
 * one that drew an id below that mark would hold its lock by now.
 * Under REPEATABLE READ the snapshot is older than the mark: no floor is raised there.
 */

create function pgq._full_xid(p_xid xid, p_near bigint)
returns bigint
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_distance constant bigint := (p_xid::text::bigint - p_near) & 4294967295;
begin
    return p_near + v_distance - case when v_distance < 2147483648 then 0 else 4294967296 end;
end
$$;
comment on function pgq._full_xid(xid, bigint) is
'the full transaction id of a row''s xmin, which lies less than two billion from p_near';

create function pgq._snapshot(out xmin bigint, out xmax bigint, out running bigint[])
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_snapshot constant pg_snapshot := pg_current_snapshot();
begin
    xmin := pg_snapshot_xmin(v_snapshot)::text::bigint;
    xmax := pg_snapshot_xmax(v_snapshot)::text::bigint;
    running := array(select x::text::bigint from pg_snapshot_xip(v_snapshot) x);
end
$$;
comment on function pgq._snapshot() is 'the snapshot of the calling statement, in numbers';

create function pgq._raise_floor(p_slot smallint, p_lane integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
set enable_sort = off
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_old constant bigint := coalesce(pg_sequence_last_value('pgq.xid_old'), 0);
    v_mark constant bigint := case when p_slot >= 4 then pgq._us(v_now)
                                   else coalesce(pg_sequence_last_value('pgq.job_id'), 0) end;
begin
    if not pgq._read_committed() then
        return;
    end if;
    case p_slot
    --@ each slot
    when {slot} then
        insert into pgq.floor_{slot} (n, lane, floor, base, mark)
        select nextval('pgq.floor_n'), p_lane,
               case when f.n is null then 0
                    else greatest(f.floor, least(f.mark, ready.key - 1)) end,
               case when f.n is null then 0
                    when s.xmin < f.xid then f.base
                    else greatest(f.base, least(f.mark, live.key - 1)) end,
               v_mark
          from pgq._snapshot() s
          left join lateral (
                  select f.*, coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax)) as xid
                    from pgq.floor_{slot} f where f.lane = p_lane order by f.n desc limit 1
               ) f on true
          left join lateral (
                  select j.{key} from pgq.job_{slot} j
                   where j.lane = p_lane and j.{key} > f.floor
                     and (j.lease_expires_at is null or j.lease_expires_at <= v_now)
                   order by j.{key} limit 1
               ) ready (key) on true
          left join lateral (
                  select j.{key} from pgq.job_{slot} j
                   where j.lane = p_lane and j.{key} > f.base and s.xmin >= f.xid
                   order by j.{key} limit 1
               ) live (key) on true
         where f.n is null
            or (s.xmax >= f.xid and v_mark >= f.mark and not exists (
                   select from unnest(s.running) x where x < f.xid and x >= v_old
               ));
    --@ end
    end case;
exception
    -- The block is for its subtransaction. A floor can be done without.
    when lock_not_available then
        return;
end
$$;
comment on function pgq._raise_floor(smallint, integer) is
'appends the highest sound claim position of a lane in a slot, unless it is not decided yet';

create function pgq._admit(p_slot smallint, p_lane integer, p_due bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
set enable_sort = off
as $$
begin
    case p_slot
    --@ each parked
    when {slot} then
        insert into pgq.floor_{slot} (n, lane, floor, base, mark)
        select nextval('pgq.floor_n'), p_lane, least(f.floor, p_due - 1), least(f.base, p_due - 1),
               least(f.base, p_due - 1)
          from (
              select f.* from pgq.floor_{slot} f where f.lane = p_lane order by f.n desc limit 1
          ) f
         where f.mark >= p_due;
    --@ end
    end case;
    -- An old snapshot does not show how far others have raised it.
    if found or not pgq._read_committed() then
        -- In this order: see pgq._find_admitted. No other open transaction has this lock.
        lock table pgq.gate in row exclusive mode;
        perform nextval('pgq.admission');
    end if;
end
$$;
comment on function pgq._admit(smallint, integer, bigint) is
'called with a job that is put into a parked slot: it lies above the marks there, unless the clock '
'has been set back; then the floor is lowered with it, at once, and once more when the transaction '
'has ended, for others may have raised it meanwhile: see pgq._find_admitted';

create function pgq._adjust_floors(p_slot smallint, p_now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
begin
    case p_slot
    --@ each slot
    when {slot} then
        insert into pgq.floor_{slot} (n, lane, floor, base, mark, mark_xid)
        select nextval('pgq.floor_n'), f.lane, j.key - 1, f.base, f.mark,
               coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax))
          from pgq._snapshot() s,
               pgq.lane l
          join pgq.queue q on q.id = l.queue_id,
               lateral (
                   select f.*, f.xmin from pgq.floor_{slot} f
                    where f.lane = l.id order by f.n desc limit 1
               ) f,
               lateral (
                   select j.{key}
                     from pgq.job_{slot} j
                    where j.lane = l.id and j.{key} > f.base and j.{key} <= f.floor
                      and (j.lease_expires_at is null
                           or (j.lease_expires_at <= p_now and j.cancel_requested is null
                               and j.attempt < coalesce(j.max_attempts, q.max_attempts)
                               and (j.lease_ms > 0 or pgq._has_waited(
                                       j.lane, j.attempt, j.token, j.lease_expires_at
                                   ))))
                    order by j.{key}
                    limit 1
               ) j (key);
        perform pgq._raise_floor({slot}::smallint, l.id)
           from pgq.lane l,
                lateral (
                    select j.lease_expires_at from pgq.job_{slot} j
                     where j.lane = l.id and j.{key} > {floor}
                     order by j.{key} limit 1
                ) j
          where j.lease_expires_at > p_now;
    --@ end
    end case;
end
$$;
comment on function pgq._adjust_floors(smallint, timestamptz) is
'makes claims see again what has become claimable below a floor: expired leases, and late commits; '
'and pass over what is leased above it, if no claim in this slot has come to do so';
