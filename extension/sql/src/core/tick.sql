/*
 * Ticks: expired leases, what falls due, rotation, retention. A tick runs about twice a second for
 * all sessions together, and when the next job is due: a claim, a heartbeat or pgq_wait queues it
 * for its commit, see core/commit.sql. So none of its locks outlives the commit.
 *
 * A tick waits for no row (SKIP LOCKED), and for no table (NOWAIT), but for two things: to empty a
 * parked slot, 10 ms for each lock, and to forget a dropped queue, 1 ms. What fails is tried again
 * by the next tick. It runs under READ COMMITTED only: each statement needs a snapshot of its own.
 */

create function pgq._want_tick(p_lease_ms integer)
returns void
language plpgsql
as $$
declare
    v_now constant bigint := pgq._ms(pgq._now());
    v_next constant bigint := coalesce(pg_sequence_last_value('pgq.next_tick'), 0);
begin
    if pgq._has_lost_tokens() then
        perform pgq._skip_lost_tokens();
    elsif v_now < v_next and v_next <= v_now + 1000 then
        -- A short lease that is granted now is looked for when it expires.
        perform setval('pgq.next_tick', v_now + p_lease_ms + 1)
          where v_now + p_lease_ms + 1 < v_next;
        return;
    end if;
    if pgq._read_committed() then
        -- At once, so that not everybody queues one. A rollback does not take that back: so if no
        -- tick has come for 2.5 seconds, the time is left as it is, and every call queues one.
        perform setval('pgq.next_tick', v_now + least(p_lease_ms + 1, 500))
          where pg_sequence_last_value('pgq.last_tick') >= v_now - 2500;
        insert into pgq.chore default values;
    end if;
end
$$;
comment on function pgq._want_tick(integer) is
'Queues a tick for the commit if one is due.';

create function pgq._expect(p_at timestamptz)
returns void
language plpgsql
as $$
begin
    perform setval('pgq.next_tick', pgq._ms(p_at))
      where pgq._ms(p_at) < pg_sequence_last_value('pgq.next_tick');
end
$$;
comment on function pgq._expect(timestamptz) is 'Has the next tick come when a job falls due.';

create function pgq._tick_slots(p_now timestamptz)
returns void
language plpgsql
as $$
declare
    v_writers constant bigint[] := pgq._oldest_writers();
    v_head constant smallint := pgq._head_slot();
    v_slot smallint;
    v_due timestamptz;
    v_next timestamptz := p_now + interval '500 ms';
begin
    foreach v_slot in array '{4,5}'::smallint[] loop
        -- VACUUM FULL leaves a slot its position.
        continue when pgq._pages(v_slot, false) = 0
            and pg_relation_size(format('pgq.floor_%s', v_slot)::regclass) = 0;
        perform pgq._set_parked_base(v_slot, p_now, v_writers[v_slot + 1]);
        if pgq._promote(v_slot, p_now, v_head) = 1000 then
            v_next := p_now + interval '20 ms';
        end if;
        -- Not one that is due already: it is locked or skipped, or more are due than a tick moves.
        select timestamptz 'epoch' + j.due * interval '1 microsecond' into v_due
          from pgq.job j
         where j.slot = v_slot and j.due > pgq._us(p_now) order by j.due limit 1;
        if v_due < v_next then
            v_next := greatest(v_due, p_now + interval '20 ms');
        end if;
    end loop;
    foreach v_slot in array '{0,1,2,3}'::smallint[] loop
        continue when pgq._pages(v_slot, false) = 0;
        perform pgq._sweep(v_slot, p_now, v_writers[v_slot + 1]);
    end loop;
    -- Or sooner, if a transaction that is not seen yet expects it.
    perform setval('pgq.next_tick', least(pgq._ms(v_next), case when e.ms > pgq._ms(p_now)
                                          then greatest(e.ms, pgq._ms(p_now) + 20) end))
       from pg_sequence_last_value('pgq.next_tick') e (ms);
end
$$;
comment on function pgq._tick_slots(timestamptz) is
'Moves what is due, sweeps the slots, and says when the next tick is due.';

create function pgq._tick()
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    v_now timestamptz;
    -- While somebody holds the xmin horizon dead rows stay in the pages before: rarely looked at.
    v_first constant tid := format('(%s,0)', case when random() < 0.01 then 0 else greatest(
        pg_relation_size('pgq.chore') / 8192 - 8, 0) end)::tid;
begin
    perform from pgq.gate g for update skip locked;
    v_now := pgq._now();  -- now: no tick is to run behind a later one
    if not found then
        -- Within half a second something else was due, which the tick at work may not see.
        perform pgq._expect(v_now + interval '20 ms')
          where pgq._ms(v_now) < pg_sequence_last_value('pgq.last_tick') + 500;
        return;
    end if;
    -- What it notes itself becomes hints: it must not wait for a bucket.
    perform set_config('pgq.decided', pg_current_xact_id()::text, true);
    delete from pgq.chore c where c.ctid >= v_first;
    perform pgq._follow_clock(v_now), pgq._shift_xids(v_now);
    -- What failed ten minutes ago is tried again.
    delete from pgq.skipped s where s.at not between v_now - interval '10 minutes' and v_now;
    perform pgq._fire_schedules(v_now), pgq._forget_dropped();
    perform pgq._tick_slots(v_now);
    perform pgq._hint(pgq._notes()), pgq._take_hints(), pgq._hint(pgq._notes()),
            pgq._empty_hints();
    perform pgq._drop_permits(), pgq._forget_starts(v_now);
    perform pgq._rotate(v_now);
    perform pgq._expire_archive(v_now), pgq._merge_lanes(), pgq._fit_samples(), pgq._sum_up(v_now);
end
$$;
comment on function pgq._tick() is 'One tick, unless another session is at it.';
