/*
 * Rotation: how slots are emptied, and how their size stays bounded.
 *
 * Claims stop looking into a slot of the ring (it leaves ring.ready) when nothing there can be
 * claimed and nobody has written to it for two seconds. A later tick locks it in ACCESS EXCLUSIVE
 * mode; no transaction that added a job can be open then. A look in a snapshot taken after the lock
 * decides: no row, then TRUNCATE. Nothing else may tell that a slot is empty: no counter, flag or
 * age. A job that commits late into a slot that is out of use is found by the next tick.
 *
 * One slot of the ring is always free. When the head is full and no other slot is free, the two
 * neighbours with the fewest jobs are cleaned: their jobs move, in the order of pos, to the free
 * slot, which stands before them in the order. So claims read the jobs that moved first. The jobs
 * keep pos, lease and receipt. A slot that is mostly garbage is cleaned alone. A tick moves 1,000
 * jobs, and pairs are cleaned only when the head holds as much garbage as there is to move.
 *
 * While pg_dump is at work nothing is truncated.
 */

create function pgq._slot_table(p_slot integer)
returns regclass
language sql
stable
begin atomic
    select format('pgq.job_%s', p_slot)::regclass;
end;
comment on function pgq._slot_table(integer) is 'The table of a slot.';

create function pgq._has_jobs(p_slot smallint)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_slot >= 4 then
        -- The statistics only spare a look.
        return pg_stat_get_live_tuples(pgq._slot_table(p_slot)) > 100
            or exists (select from pgq.job j where j.slot = p_slot);
    end if;
    return exists (
        select
          from pgq.lane l, lateral (
                   select from pgq.job j
                    where j.slot = p_slot and j.lane = l.id and j.pos > coalesce((
                              select f.base from pgq.floor f
                               where f.slot = p_slot and f.lane = l.id order by f.n desc limit 1
                          ), 0)
                    order by j.pos limit 1
               ) j
    );
end
$$;
comment on function pgq._has_jobs(smallint) is
'Whether a slot seems to hold jobs. Of the ring: from the bases on.';

create function pgq._truncate(p_slot smallint)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_found boolean;
begin
    -- Before the lock, too, which would make a parallel dump fail.
    if pgq._is_dumped() then
        return false;
    end if;
    execute format(
        'lock table pgq.job_%1$s, pgq.floor_%1$s, pgq.note_%1$s, pgq.hold_%1$s'
        ' in access exclusive mode nowait', p_slot
    );
    execute format('select exists (select from pgq.job_%s)', p_slot) into v_found;
    if v_found then
        -- It has come just now, or a position was wrong: claims and ticks look at all of it again.
        insert into pgq.floor (slot, n, lane, floor, base, mark)
        select p_slot, nextval('pgq.floor_n'), f.lane, 0, 0, 0
          from (select distinct o.lane from pgq.floor o where o.slot = p_slot) f;
    end if;
    if v_found or pgq._is_dumped() then
        return false;
    end if;
    execute format(
        'truncate pgq.job_%1$s, pgq.floor_%1$s, pgq.note_%1$s, pgq.hold_%1$s', p_slot
    );
    return true;
exception
    -- Somebody has used the table and is not done, or this session has a cursor open on it.
    when lock_not_available or object_in_use then
        return false;
end
$$;
comment on function pgq._truncate(smallint) is
'Empties a slot that holds no job. False: it does, or somebody uses it.';

create function pgq._has_only_short_users(p_slot smallint, p_now timestamptz)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return not exists (
        select
          from pg_locks l left join pg_stat_activity a on a.pid = l.pid
         where l.relation = any (array[
                   pgq._slot_table(p_slot), format('pgq.note_%s', p_slot)::regclass
               ])
           and l.database = (select d.oid from pg_database d where d.datname = current_database())
           and l.pid is distinct from pg_backend_pid()
           and (a.xact_start > p_now - interval '100 ms') is not true
    );
end
$$;
comment on function pgq._has_only_short_users(smallint, timestamptz) is
'Whether all who have locks on a slot have begun a moment ago.';

create function pgq._truncate_parked(p_slot smallint, p_now timestamptz)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
set lock_timeout = '10ms'
as $$
begin
    if pgq._truncate(p_slot) then
        return true;
    end if;
    -- Under load there is always a commit that looks at the lines of groups: one waits for those.
    if pgq._is_dumped() or not pgq._has_only_short_users(p_slot, p_now)
        or pgq._has_jobs(p_slot)
    then
        return false;
    end if;
    execute format('lock table pgq.job_%1$s, pgq.note_%1$s in access exclusive mode', p_slot);
    return pgq._truncate(p_slot);
exception
    when lock_not_available or deadlock_detected then
        return false;
end
$$;
comment on function pgq._truncate_parked(smallint, timestamptz) is
'As pgq._truncate, for a parked slot: waits for 10 ms where only short transactions use it.';

create function pgq._pages(p_slot smallint, p_is_fresh boolean)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_pages constant bigint := pg_relation_size(pgq._slot_table(p_slot)) / 8192;
    v_width double precision;
begin
    if not p_is_fresh or v_pages = 0 then
        return v_pages;
    end if;
    select avg(pg_column_size(j.*))::double precision into v_width
      from (select i.* from pgq.job i where i.slot = p_slot limit 100) j;
    -- At a fillfactor of 40.
    return least(v_pages, coalesce(ceil(
        pg_stat_get_live_tuples(pgq._slot_table(p_slot)) / greatest(floor(3277 / (v_width + 4)), 1)
    )::bigint, 0));
end
$$;
comment on function pgq._pages(smallint, boolean) is
'How many pages a slot has, or (p_is_fresh) about as many as its jobs would fill in an empty slot.';

create function pgq._lock_first(p_slot smallint, p_limit integer)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_skipped constant bigint[] := array(
        select s.key::bigint from pgq.skipped s where s.kind = 'job'
    );
begin
    return array(
        select i.id
          from (select distinct o.id from pgq.lane o) l, lateral (
                   select j.id from pgq.job j
                    where j.slot = p_slot and j.lane = l.id and j.id <> all (v_skipped)
                      and j.pos > coalesce((
                              select f.base from pgq.floor f
                               where f.slot = p_slot and f.lane = l.id order by f.n desc limit 1
                          ), 0)
                    order by j.pos limit p_limit for update skip locked
               ) i
         limit p_limit
    );
end
$$;
comment on function pgq._lock_first(smallint, integer) is
'Locks the first jobs of a slot of the ring that nobody has locked, and returns their ids.';

create function pgq._choose_dirty(
    p_live smallint[], p_together integer, p_is_full boolean, p_limit bigint
)
returns smallint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_head constant integer := cardinality(p_live);
    v_fresh constant bigint[] := array(
        select pgq._pages(s, true) from unnest(p_live) with ordinality u (s, n) order by n
    );
    v_pages constant bigint[] := array(
        select pgq._pages(s, false) from unnest(p_live) with ordinality u (s, n) order by n
    );
    v_n integer;
begin
    -- One that is mostly garbage, unless all that is left in it is locked.
    for v_n in 1..v_head - 1 loop
        if v_pages[v_n] > 2 * v_fresh[v_n] + p_limit / 8192
            and pgq._lock_first(p_live[v_n], 1) <> '{}'
        then
            return array[p_live[v_n]];
        end if;
    end loop;
    select u.n into v_n
      from (
               select n, sum(v_fresh[m]) as jobs, sum(v_pages[m] - v_fresh[m]) as garbage
                 from generate_series(1, v_head - p_together) n,
                      generate_series(n, n + p_together - 1) m
                group by n
           ) u
     where p_is_full and u.jobs <= u.garbage + v_pages[v_head] - v_fresh[v_head]
     order by u.jobs limit 1;
    return coalesce(p_live[v_n:v_n + p_together - 1], '{}');
end
$$;
comment on function pgq._choose_dirty(smallint[], integer, boolean, bigint) is
'The slots to clean next: one that is mostly garbage, or p_together neighbours in the ring. p_is_full: '
'the head is full and no slot is free.';

create function pgq._move(p_from smallint, p_to smallint, p_limit integer)
returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ids constant bigint[] := pgq._lock_first(p_from, p_limit);
    v_count integer;
begin
    with gone as (
        delete from pgq.job j where j.slot = p_from and j.id = any (v_ids) returning j.*
    ), moved as (
        insert into pgq.job
        select (m.job).*
          from (
                   select pgq._relocated(g::pgq.job, p_to, g.pos, g.due) as job from gone g offset 0
               ) m
        returning id, token
    ), held as (
        insert into pgq.hold (slot, queue_id, permit, token, id)
        select p_to, h.queue_id, h.permit, h.token, h.id
          from moved m join pgq.hold h on h.token = m.token and h.id = m.id
         where h.slot = p_from
    )
    select count(*)::integer into v_count from moved;
    return v_count;
end
$$;
comment on function pgq._move(smallint, smallint, integer) is
'Moves the first jobs of a slot of the ring to another one; returns their number.';

create function pgq._move_parked(p_from smallint, p_to smallint, p_limit integer)
returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    -- The buckets keep commits from looking at a line meanwhile.
    v_ids constant bigint[] := array(
        select i.id
          from (select j.id, coalesce(j.group_id, case when j.due is null then j.id end) as key
                  from pgq.job j where j.slot = p_from limit p_limit) i
          left join lateral (
                  select k from unnest(pgq._try_buckets(array[i.key])) k where i.key is not null
               ) b on true
         where i.key is null or b.k is not null
    );
    v_opened constant timestamptz := pgq._open(p_to);
    v_count integer;
begin
    with gone as (
        delete from pgq.job j
         where j.slot = p_from and j.id = any (array(
                   select i.id from pgq.job i
                    where i.slot = p_from and i.id = any (v_ids) for update skip locked
               ))
        returning j.*
    ), moved as (
        insert into pgq.job
        select (m.job).*
          from (
                   select pgq._relocated(
                              g::pgq.job, p_to, null,
                              case when g.due is not null
                                   then greatest(g.due, pgq._due(v_opened, v_opened)) end
                          ) as job
                     from gone g offset 0
               ) m
        returning id
    )
    select count(*)::integer into v_count from moved;
    return v_count;
end
$$;
comment on function pgq._move_parked(smallint, smallint, integer) is
'Moves jobs from one parked slot to the other; returns their number.';

create function pgq._clean(p_ring pgq.ring, p_is_full boolean, p_limit bigint)
returns pgq.ring
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_free constant smallint[] := array(
        select s::smallint from generate_series(0, 3) s
         where s <> all (p_ring.live) and pgq._pages(s::smallint, false) = 0
    );
    v_dirty smallint[];
    v_slot smallint;
    v_n integer;
begin
    foreach v_slot in array p_ring.cleaned loop
        if pgq._move(v_slot, p_ring.filling, 1000) > 0 then
            perform pgq._expect(pgq._now() + interval '100 ms');
            return p_ring;
        end if;
        if not pgq._has_jobs(v_slot) then
            p_ring.cleaned := array_remove(p_ring.cleaned, v_slot);
        end if;
    end loop;
    -- What is left is locked. If no slot is free, one more is moved to the same one meanwhile.
    if p_ring.filling is null or (p_ring.cleaned <> '{}' and v_free = '{}') then
        v_dirty := pgq._choose_dirty(
            array(
                select l from unnest(p_ring.live) with ordinality u (l, n)
                 where l <> all (p_ring.cleaned) and l is distinct from p_ring.filling order by n
            ), case when p_ring.filling is null then 2 else 1 end, p_is_full, p_limit
        );
        if p_ring.filling is not null then
            p_ring.cleaned := p_ring.cleaned || v_dirty;
        elsif v_dirty <> '{}' and v_free <> '{}' then
            -- From the next tick on: whoever raises a position must have seen that.
            v_n := array_position(p_ring.live, v_dirty[1]);
            p_ring.filling := v_free[1];
            p_ring.cleaned := v_dirty;
            p_ring.live := p_ring.live[:v_n - 1] || v_free[1] || p_ring.live[v_n:];
        end if;
        return p_ring;
    end if;
    p_ring.filling := null;
    p_ring.cleaned := '{}';
    return p_ring;
end
$$;
comment on function pgq._clean(pgq.ring, boolean, bigint) is
'Goes on with cleaning slots, or begins when it is time.';

create function pgq._rotate_parked(p_ring pgq.ring, p_now timestamptz, p_limit bigint)
returns smallint[]
language plpgsql
set search_path = pg_catalog, pg_temp
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
        perform pgq._move_parked(v_other, v_written, 1000);
    end if;
    return array[v_other, v_written];
end
$$;
comment on function pgq._rotate_parked(pgq.ring, timestamptz, bigint) is
'What ring.parked is to be. What the other slot holds moves over when the written one has as much '
'garbage.';

create function pgq._ready_slots(p_ring pgq.ring, p_now timestamptz)
returns smallint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_head constant smallint := p_ring.live[cardinality(p_ring.live)];
    v_written constant smallint[] := v_head || array(
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
         where l.slot = any (v_written) or l.slot = p_ring.filling
            or l.slot = any (p_ring.cleaned) or pgq._has_ready(l.slot)
         order by l.n
    );
end
$$;
comment on function pgq._ready_slots(pgq.ring, timestamptz) is
'The live slots into which claims look: not those in which all jobs are leased, and which nobody '
'has written to for two seconds.';

create function pgq._rotate(p_now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
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
    v_ring := pgq._clean(v_ring, v_is_full, v_limit);
    v_ring.ready := pgq._ready_slots(v_ring, p_now);
    if v_ring is distinct from v_old then
        if (v_ring.live, v_ring.parked) is distinct from (v_old.live, v_old.parked) then
            v_ring.switched_at := p_now;
        end if;
        v_ring.gen := v_old.gen + 1;
        insert into pgq.ring select v_ring.*;
    end if;
    delete from pgq.ring r where r.gen < v_old.gen - 100;
end
$$;
comment on function pgq._rotate(timestamptz) is 'Empties, cleans and adds slots.';
