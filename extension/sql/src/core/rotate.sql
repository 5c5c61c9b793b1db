/*
 * Rotation: when slots are left, cleaned, passed by and emptied. A job that commits late into a
 * slot that is out of use is found by the next tick.
 */

create function pgq._rotate_parked(p_ring pgq.ring, p_now timestamptz, p_limit bigint)
returns smallint[]
language plpgsql
as $$
declare
    v_written constant smallint := p_ring.parked[cardinality(p_ring.parked)];
    v_other constant smallint := (9 - v_written)::smallint;
begin
    if pgq._pages(v_other, false) = 0 then
        return case when pg_table_size(pgq._slot_table(v_written)) > p_limit
                    then array[v_written, v_other] else array[v_written] end;
    end if;
    if not pgq._has_jobs(v_other) then
        return case when pgq._truncate_parked(v_other, p_now)
                    then array[v_written] else array[v_other, v_written] end;
    end if;
    if pgq._pages(v_written, false) - pgq._pages(v_written, true) >= pgq._pages(v_other, true)
        and pg_table_size(pgq._slot_table(v_written)) > p_limit
    then
        perform pgq._expect(p_now + interval '100 ms')
          where pgq._move(v_other, v_written, 1000) > 0;
    end if;
    return array[v_other, v_written];
end
$$;
comment on function pgq._rotate_parked(pgq.ring, timestamptz, bigint) is
'Returns what ring.parked is to be.

What the other slot holds moves over when the written one has as much garbage.';

create function pgq._choose_ready(p_ring pgq.ring, p_now timestamptz)
returns smallint[]
language plpgsql
as $$
declare
    v_head constant smallint := p_ring.live[cardinality(p_ring.live)];
    v_written constant smallint[] := array(
        select r.live[cardinality(r.live)] from pgq.ring r
         where r.gen >= coalesce((
                   select max(o.gen) from pgq.ring o
                    where o.switched_at <= p_now - interval '2 seconds'
               ), 0)
    );
begin
    return array(
        select l.slot
          from unnest(p_ring.live) with ordinality l (slot, n)
         where l.slot = v_head or l.slot = p_ring.filling or l.slot = any (p_ring.cleaned)
            or pgq._has_jobs(l.slot, true)
            or (l.slot = any (v_written) and pgq._has_jobs(l.slot))
         order by l.n
    );
end
$$;
comment on function pgq._choose_ready(pgq.ring, timestamptz) is
'Returns the live slots into which claims look.

Not those without jobs, and not those in which all jobs are leased and which nobody has written
to for two seconds.';

create function pgq._rotate(p_now timestamptz)
returns void
language plpgsql
as $$
declare
    v_old pgq.ring;
    v_ring pgq.ring;
    v_slot smallint;
    v_limit constant bigint := greatest(8192, coalesce(pgq._slot_size(), 8388608));
    v_head smallint;
    v_free smallint[];
    v_is_full boolean;
begin
    select r.* into v_old from pgq.ring r order by r.gen desc limit 1;
    v_ring := v_old;
    v_ring.parked := pgq._rotate_parked(v_ring, p_now, v_limit);
    v_head := v_ring.live[cardinality(v_ring.live)];
    foreach v_slot in array '{0,1,2,3}'::smallint[] loop
        if v_slot = any (v_old.live) then
            if v_slot <> all (v_old.ready) and not pgq._has_jobs(v_slot)
                and pgq._truncate(v_slot)
            then
                v_ring.live := array_remove(v_ring.live, v_slot);
            end if;
        elsif pgq._pages(v_slot, false) > 0
            and exists (select from pgq.job j where j.slot = v_slot)
        then
            v_ring.live := v_slot || v_ring.live;  -- a late commit
        elsif pgq._pages(v_slot, false) > 0 then
            perform pgq._truncate(v_slot);  -- one that was rolled back
        end if;
    end loop;
    v_free := array(
        select s::smallint from generate_series(0, 3) s
         where s <> all (v_ring.live) and pgq._pages(s::smallint, false) = 0
    );
    -- Dead versions and TOAST included.
    v_is_full := pg_table_size(pgq._slot_table(v_head)) >= v_limit;
    if v_is_full and cardinality(v_free) >= 2 then
        v_ring.live := v_ring.live || v_free[1];
        v_is_full := false;
    end if;
    -- Not at once: the statistics do not know yet what is in a slot that has just been left.
    if v_ring.filling is not null
        or (v_ring.live = v_old.live and v_old.switched_at <= p_now - interval '2 seconds')
    then
        v_ring := pgq._clean(v_ring, v_is_full, v_limit);
    end if;
    v_ring.ready := pgq._choose_ready(v_ring, p_now);
    if v_ring is distinct from v_old then
        if (v_ring.live, v_ring.parked) is distinct from (v_old.live, v_old.parked) then
            v_ring.switched_at := p_now;
        end if;
        v_ring.gen := v_old.gen + 1;
        insert into pgq.ring select v_ring.*;
        delete from pgq.ring r where r.gen = v_old.gen - 100;
    end if;
end
$$;
comment on function pgq._rotate(timestamptz) is 'Empties, cleans and adds slots.';
