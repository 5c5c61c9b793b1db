/*
 * The turn of the ring, and the tick.
 */

create function pgq._turn(
    p_all smallint[], p_parked smallint, p_now timestamptz, inout p_live smallint[],
    inout p_closing smallint[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slot smallint;
    v_fate text;
    v_limit constant bigint := greatest(8192, coalesce(pgq._slot_size(), 8388608));
    v_head constant smallint := p_live[cardinality(p_live)];
begin
    foreach v_slot in array p_closing loop
        v_fate := pgq._truncate(v_slot);
        if v_fate <> 'closing' then
            p_closing := array_remove(p_closing, v_slot);
        end if;
        if v_fate = 'live' then
            p_live := v_slot || p_live;
        end if;
    end loop;
    -- An enqueue that read the ring before it turned may write a slot that is free by now.
    foreach v_slot in array p_all loop
        if v_slot <> all (p_live || p_closing) and pgq._holds_jobs(v_slot, true) then
            p_live := v_slot || p_live;
        end if;
    end loop;
    foreach v_slot in array p_live loop
        if v_slot <> v_head and not pgq._holds_jobs(v_slot, false) then
            p_live := array_remove(p_live, v_slot);
            p_closing := p_closing || v_slot;
        end if;
    end loop;
    -- Dead versions and TOAST included.
    if pg_table_size(format('pgq.job_%s', v_head)::regclass) < v_limit then
        return;
    end if;
    foreach v_slot in array p_all loop
        if v_slot <> all (p_live || p_closing) then
            p_live := p_live || v_slot;
            return;
        end if;
    end loop;
    -- No slot is free. One that holds little more than garbage is emptied by hand: at most a job
    -- per page, or a hundred. The statistics may be wrong; what they cannot do is to lose a job.
    foreach v_slot in array p_live loop
        if v_slot <> v_head
            and pg_stat_get_live_tuples(format('pgq.job_%s', v_slot)::regclass)
                <= greatest(pg_relation_size(format('pgq.job_%s', v_slot)::regclass) / 8192, 100)
        then
            -- Else all that is in it is locked.
            exit when pgq._evacuate(v_slot, p_parked, p_now);
        end if;
    end loop;
end
$$;
comment on function pgq._turn(smallint[], smallint, timestamptz, smallint[], smallint[]) is
'frees, closes and adds slots of one family; the last of p_live is the one that is written. It '
'is left when it has grown to pgq._slot_size() bytes (default 8 MB)';

create function pgq._holds_older(p_slot smallint, p_first bigint)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
declare
    v_found boolean;
begin
    case p_slot
    --@ each ring
    when {slot} then
        v_found := exists (
            select
              from pgq.lane l,
                   lateral (
                      select from pgq.job_{slot} j
                       where j.lane = l.id and j.id > {base} and j.id <= p_first limit 1
                   ) j
        );
    --@ end
    end case;
    return v_found;
end
$$;
comment on function pgq._holds_older(smallint, bigint) is
'whether a slot of the ring holds jobs up to p_first: of an enqueue that had chosen the slot '
'before it was freed, and was still open when it was written again';

create function pgq._ready_slots(p_ring pgq.ring, p_now timestamptz)
returns smallint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_head constant smallint := p_ring.live[cardinality(p_ring.live)];
    -- Like a floor it waits for those who are open since then, but not for longer.
    v_since constant bigint := coalesce((
        select max(r.gen) from pgq.ring r
         where r.gen > p_ring.gen - 100 and r.switched_at <= p_now - interval '2 seconds'
    ), p_ring.gen - 100);
    v_written constant smallint[] := v_head || array(
        select r.live[cardinality(r.live)] from pgq.ring r where r.gen >= v_since
    );
begin
    return array(
        select l.slot
          from unnest(p_ring.live) with ordinality l (slot, n)
         where l.slot = any (v_written) or pgq._holds_unleased(l.slot, p_now)
         order by l.n
    );
end
$$;
comment on function pgq._ready_slots(pgq.ring, timestamptz) is
'the live slots of the ring without those that are spent: all that is in them is leased, and they '
'have not been written for two seconds';

create function pgq._shift_xids(p_now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ms constant bigint := pgq._ms(p_now);
begin
    if abs(v_ms - coalesce(pg_sequence_last_value('pgq.xid_shifted'), 0)) >= 1000 then
        perform setval('pgq.xid_shifted', v_ms);
        perform setval('pgq.xid_old', greatest(pg_sequence_last_value('pgq.xid_recent'), 1));
        perform setval('pgq.xid_recent', pg_snapshot_xmax(pg_current_snapshot())::text::bigint);
    end if;
end
$$;
comment on function pgq._shift_xids(timestamptz) is
'moves the registers xid_old and xid_recent on, once a second';

create function pgq._turn_ring(p_now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_old pgq.ring; v_ring pgq.ring; v_slot smallint;
begin
    select r.* into v_old from pgq.ring r order by r.gen desc limit 1;
    v_ring := v_old;
    select t.p_live, t.p_closing into v_ring.parked, v_ring.parked_closing
      from pgq._turn(
               '{4,5}', v_ring.parked[cardinality(v_ring.parked)], p_now, v_ring.parked,
               v_ring.parked_closing
           ) t;
    select t.p_live, t.p_closing into v_ring.live, v_ring.closing
      from pgq._turn(
               '{0,1,2,3}', v_ring.parked[cardinality(v_ring.parked)], p_now, v_ring.live,
               v_ring.closing
           ) t;
    foreach v_slot in array v_ring.live loop
        if v_slot <> all (v_old.live) then
            v_ring.firsts[v_slot + 1] := coalesce(
                case when v_slot = v_ring.live[cardinality(v_ring.live)]
                     then pg_sequence_last_value('pgq.job_id') end, 0);
        elsif v_ring.firsts[v_slot + 1] > 0
            and pgq._holds_older(v_slot, v_ring.firsts[v_slot + 1])
        then
            v_ring.firsts[v_slot + 1] := 0;
        end if;
    end loop;
    v_ring.ready := pgq._ready_slots(v_ring, p_now);
    if v_ring is distinct from v_old then
        if (v_ring.live, v_ring.closing, v_ring.parked, v_ring.parked_closing)
            <> (v_old.live, v_old.closing, v_old.parked, v_old.parked_closing)
        then
            v_ring.switched_at := p_now;
        end if;
        v_ring.gen := v_old.gen + 1;
        insert into pgq.ring select v_ring.*;
    end if;
    delete from pgq.ring r where r.gen < v_old.gen - 100;
end
$$;
comment on function pgq._turn_ring(timestamptz) is
'frees, closes and adds slots, and decides which are spent; the floors have been adjusted';

create function pgq._maintain()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
begin
    perform from pgq.gate g for update skip locked;
    if not found then
        return;
    end if;
    -- What it does to groups is for the next tick: it must not wait for their buckets.
    perform set_config('pgq.grouped', pg_current_xact_id()::text, true);
    delete from pgq.chore c
     where c.ctid = any (array(select o.ctid from pgq.chore o for update skip locked));

    perform pgq._follow_clock(v_now);
    perform pgq._shift_xids(v_now), pgq._forget_skipped(v_now);
    perform pgq._reclaim(null, 1000, true), pgq._drop_permits(),
            pgq._forget_starts(v_now), pgq._bury_overdue(v_now), pgq._fire_schedules(v_now),
            pgq._forget_dropped();

    perform pgq._adjust_floors(s, v_now) from unnest(pgq._slots()) s;
    perform pgq._find_admitted();
    perform pgq._raise_bases();
    perform pgq._turn_ring(v_now);
    perform pgq._note_empty(s) from unnest('{4,5}'::smallint[]) s;
    -- What this tick has ended counts for the hints that it takes.
    perform pgq._turn_noted(pgq._take_notes({event_table}));
    perform pgq._expire_archive(v_now), pgq._take_hints(), pgq._take_waiter_hints(),
            pgq._clear_group_events(v_now), pgq._fit_lanes(), pgq._fit_samples(),
            pgq._sum_up(v_now);
end
$$;
comment on function pgq._maintain() is 'one tick of maintenance, unless another session is at it';
