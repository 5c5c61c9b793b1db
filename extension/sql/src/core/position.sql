/*
 * Claim positions: where claims and ticks begin in a lane of a slot. Without them every claim would
 * walk past the dead index entries of all jobs that have ended since the slot was truncated.
 *
 * Jobs up to "floor" are finished or leased: claims begin there. Jobs up to "base" are finished:
 * ticks begin there, and lower the floor below what has become claimable: the job of an expired
 * lease, or of a late commit. So does a release, in its own transaction. A position is an appended
 * row; the one with the highest n counts.
 *
 * Why a position may pass a number: whoever adds a job has its transaction id, and its lock on the
 * slot, before it draws the number. So all numbers up to "mark" (the last one drawn) belong to
 * transactions below an id that is drawn after mark was read. That id is the xmin of the row.
 * A claim inserts it in a subtransaction: its own transaction may have had its id long before.
 *   - floor may rise up to the mark of the row before when no running transaction is below that
 *     id. Transactions that are older than one or two seconds (below pgq.xid_old) are not waited
 *     for: what they commit below the floor is found by a tick.
 *   - base may rise up to the same mark when no transaction below that id has a lock on the slot
 *     for writing.
 * So both are at most the mark of their row. Raising never lowers one. pgq._lower_floor and
 * pgq._set_positions lower floors; pgq._truncate begins anew where it finds a job.
 *
 * A job that a running transaction claims or ends is still ready in the snapshot that computes a
 * floor, so a rollback finds it above the floor.
 *
 * A claim may append a row while a tick lowers the floor; the next tick that looks at that job
 * lowers it again. No job may come to stand below a base: see ring.filling. One that is too low is
 * sound.
 */

create function pgq._full_xid(p_xid xid, p_near bigint)
returns bigint
language sql
immutable
begin atomic
    select p_near + d.distance - case when d.distance < 2147483648 then 0 else 4294967296 end
      from (select (p_xid::text::bigint - p_near) & 4294967295) d (distance);
end;
comment on function pgq._full_xid(xid, bigint) is
'Returns the full transaction id of a row''s xmin.

It lies less than two billion from p_near.';

create function pgq._is_filling(p_slot smallint)
returns boolean
language sql
stable
begin atomic
    select coalesce((select r.filling = p_slot from pgq.ring r order by r.gen desc limit 1), false);
end;
comment on function pgq._is_filling(smallint) is
'Says whether jobs are being moved into a slot, which has no positions meanwhile.';

create function pgq._is_decided(p_xid bigint, p_snapshot pg_snapshot, p_old bigint)
returns boolean
language sql
stable
begin atomic
    select pg_snapshot_xmax(p_snapshot)::text::bigint >= p_xid and not exists (
        select from pg_snapshot_xip(p_snapshot) x
         where x::text::bigint < p_xid and x::text::bigint >= p_old
    );
end;
comment on function pgq._is_decided(bigint, pg_snapshot, bigint) is
'Whether no transaction below an id is running, older ones than p_old excepted.';

--@ each ring
create function pgq._raise_floor_{slot}(p_lane bigint)
returns void
language plpgsql
as $$
declare
    v_mark constant bigint := coalesce(pg_sequence_last_value('pgq.number'), 0);
    v_old constant bigint := coalesce(pg_sequence_last_value('pgq.xid_old'), 0);
begin
    if not pgq._read_committed() or pgq._is_filling({slot}::smallint) then
        return;
    end if;
    insert into pgq.floor_{slot} (slot, n, lane, floor, base, mark, swept)
    select {slot}, nextval('pgq.floor_n'), p_lane,
           coalesce(least(f.mark, ready.pos - 1), 0), coalesce(f.base, 0), v_mark, f.swept
      from (select pg_current_snapshot() as snapshot) s
      left join lateral (
              select o.*, coalesce(o.mark_xid, pgq._full_xid(
                         o.xmin, pg_snapshot_xmax(s.snapshot)::text::bigint
                     )) as xid
                from pgq.floor_{slot} o where o.lane = p_lane order by o.n desc limit 1
           ) f on true
      left join lateral (
              select j.pos from pgq.job_{slot} j
               where j.lane = p_lane and j.pos > f.floor and j.token is null
               order by j.pos limit 1
           ) ready on true
     where f.n is null or (v_mark >= f.mark and pgq._is_decided(f.xid, s.snapshot, v_old));
exception
    -- The block is for its subtransaction. A position can be done without.
    when lock_not_available then
        return;
end
$$;
comment on function pgq._raise_floor_{slot}(bigint) is
'For claims: appends the highest sound floor of a lane.';
--@ end

create function pgq._raise_floor(p_slot smallint, p_lane bigint)
returns void
language plpgsql
as $$
begin
    case p_slot
    --@ each ring
    when {slot} then perform pgq._raise_floor_{slot}(p_lane);
    --@ end
    end case;
end
$$;
comment on function pgq._raise_floor(smallint, bigint) is 'Calls pgq._raise_floor_0 and so on.';

create function pgq._lower_floor(p_slot smallint, p_lane bigint, p_pos bigint)
returns void
language plpgsql
as $$
begin
    execute format(
        'insert into pgq.floor_%1$s (slot, n, lane, floor, base, mark, mark_xid, swept)'
        ' select f.slot, nextval(''pgq.floor_n''), f.lane, $2 - 1, f.base, f.mark,'
        ' coalesce(f.mark_xid, pgq._full_xid('
        ' f.xmin, pg_snapshot_xmax(pg_current_snapshot())::text::bigint)), f.swept'
        ' from (select o.*, o.xmin from pgq.floor_%1$s o'
        ' where o.lane = $1 order by o.n desc limit 1) f'
        ' where f.floor >= $2', p_slot
    ) using p_lane, p_pos;
end
$$;
comment on function pgq._lower_floor(smallint, bigint, bigint) is
'Lets claims see a job that has become claimable where it is.';

create function pgq._oldest_writers()
returns bigint[]
language plpgsql
as $$
declare
    v_near constant bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
begin
    return array(
        select w.xid
          from generate_series(0, 5) slot
          left join (
                  select t.relation, min(pgq._full_xid(x.transactionid, v_near)) as xid
                    from pg_locks t
                    join pg_locks x on x.virtualtransaction = t.virtualtransaction
                   where t.locktype = 'relation' and t.mode = 'RowExclusiveLock'
                     and t.database = (select d.oid from pg_database d
                                        where d.datname = current_database())
                     and t.pid is distinct from pg_backend_pid()
                     and x.locktype = 'transactionid' and x.mode = 'ExclusiveLock'
                   group by t.relation
               ) w on w.relation = format('pgq.job_%s', slot)::regclass
         order by slot
    );
end
$$;
comment on function pgq._oldest_writers() is
'Returns per slot the id of the oldest other transaction that writes to it.

One that waits to write counts, too. Null: none.';

create function pgq._shift_xids(p_now timestamptz)
returns void
language plpgsql
as $$
declare
    v_ms constant bigint := pgq._ms(p_now);
begin
    if abs(v_ms - coalesce(pg_sequence_last_value('pgq.xid_shifted'), 0)) >= 1000 then
        perform setval('pgq.xid_shifted', v_ms);
        perform setval('pgq.xid_old', pg_sequence_last_value('pgq.xid_recent'));
        perform setval('pgq.xid_recent', pg_snapshot_xmax(pg_current_snapshot())::text::bigint);
    end if;
end
$$;
comment on function pgq._shift_xids(timestamptz) is
'Moves the registers xid_old and xid_recent on, once a second.';
