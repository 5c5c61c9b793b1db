/*
 * Cleaning, as in a log-structured store. One slot of the ring is always free. When the head is
 * full and no other slot is free, the two slots that are older than the head are cleaned: their
 * jobs move to the free slot, which comes after them in the order. The last ones move first.
 * So claims go on at the front, with the positions of the old slots, and meet few of the moved
 * jobs before the new slot has positions. The jobs keep pos, lease and receipt. Pairs are
 * cleaned only when they and the head hold as much garbage as there is to move. A slot that has
 * grown past twice what its jobs need, plus p_limit, is cleaned alone.
 *
 * A tick moves 1,000 jobs and waits for none. Jobs that somebody has locked stay; if no slot is
 * free meanwhile, one more is moved to the same one. If that one stands behind, its first jobs move
 * first.
 */

create function pgq._pages(p_slot smallint, p_is_fresh boolean)
returns bigint
language plpgsql
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
    return least(v_pages, ceil(
        pg_stat_get_live_tuples(pgq._slot_table(p_slot)) / greatest(floor(3277 / (v_width + 4)), 1)
    )::bigint);
end
$$;
comment on function pgq._pages(smallint, boolean) is
'Returns how many pages a slot has.

With p_is_fresh: about as many as its jobs would fill in an empty slot.';

create function pgq._lock_first(p_slot smallint, p_limit integer)
returns bigint[]
language plpgsql
as $$
begin
    return array(
        select i.id
          from (select distinct o.id from pgq.lane o) l, lateral (
                   select j.id from pgq.job j
                    where j.slot = p_slot and j.lane = l.id
                      and j.id <> all ((select pgq._skips('job'))::bigint[])
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
'Locks the first jobs of a ring slot that nobody has locked; returns their ids.';

create function pgq._lock_last(p_slot smallint, p_to smallint, p_limit integer)
returns bigint[]
language plpgsql
as $$
begin
    return array(
        select i.id
          from (select distinct o.id from pgq.lane o) l, lateral (
                   select j.id from pgq.job j
                    where j.slot = p_slot and j.lane = l.id
                      and j.id <> all ((select pgq._skips('job'))::bigint[])
                      and j.pos > coalesce((
                              select f.base from pgq.floor f
                               where f.slot = p_slot and f.lane = l.id order by f.n desc limit 1
                          ), 0)
                      -- Not again past the dead entries of those that have moved.
                      and j.pos < coalesce((
                              select m.pos from pgq.job m
                               where m.slot = p_to and m.lane = l.id order by m.pos limit 1
                          ), 9223372036854775807)
                    order by j.pos desc limit p_limit for update skip locked
               ) i
         limit p_limit
    );
end
$$;
comment on function pgq._lock_last(smallint, smallint, integer) is
'Locks the last jobs before those that have moved from a ring slot to p_to.

Like pgq._lock_first.';

create function pgq._choose_dirty(
    p_live smallint[], p_together integer, p_is_full boolean, p_limit bigint
)
returns smallint[]
language plpgsql
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
'Chooses the slots to clean next.

One that is mostly garbage, or p_together neighbours in the ring. p_is_full: the head is full,
and no second slot is free.';

create function pgq._lock_parked(p_slot smallint, p_limit integer)
returns bigint[]
language plpgsql
as $$
declare
    -- The buckets keep commits from looking at a line meanwhile.
    v_ids constant bigint[] := array(
        select i.id
          from (select j.id, coalesce(j.group_id, case when j.due is null then j.id end) as key
                  from pgq.job j
                 where j.slot = p_slot
                   and j.id <> all ((select pgq._skips('job'))::bigint[])
                 limit p_limit) i
          left join lateral (
                  select k from unnest(pgq._try_buckets(array[i.key])) k where i.key is not null
               ) b on true
         where i.key is null or b.k is not null
    );
begin
    return array(
        select j.id from pgq.job j
         where j.slot = p_slot and j.id = any (v_ids) for update skip locked
    );
end
$$;
comment on function pgq._lock_parked(smallint, integer) is
'Locks parked jobs that nobody has locked, and the buckets of their groups.

Returns the ids.';

create function pgq._move_jobs(p_from smallint, p_to smallint, p_ids bigint[])
returns void
language plpgsql
as $$
begin
    perform pgq._open(p_to);
    with gone as (
        delete from pgq.job j where j.slot = p_from and j.id = any (p_ids) returning j.*
    ), moved as (
        insert into pgq.job
        select (m.job).*
          from (
                   select pgq._relocated(
                              g::pgq.job, p_to, g.pos,
                              case when g.due is not null
                                   then greatest(g.due, pgq._due('epoch')) end
                          ) as job
                     from gone g offset 0
               ) m
        returning id, token
    )
    insert into pgq.hold (slot, queue_id, permit, token, id)
    select p_to, h.queue_id, h.permit, h.token, h.id
      from moved m join pgq.hold h on h.token = m.token and h.id = m.id
     where h.slot = p_from;
end
$$;
comment on function pgq._move_jobs(smallint, smallint, bigint[]) is
'Moves locked jobs to another slot.';

create function pgq._move(
    p_from smallint, p_to smallint, p_limit integer, p_last_first boolean default false
)
returns integer
language plpgsql
as $$
declare
    v_ids bigint[] := case when p_from >= 4 then pgq._lock_parked(p_from, p_limit)
                           when p_last_first then pgq._lock_last(p_from, p_to, p_limit) end;
    v_queues integer[];
begin
    -- With p_last_first: those that were locked as others moved.
    if p_from < 4 and coalesce(v_ids, '{}') = '{}' then
        v_ids := pgq._lock_first(p_from, p_limit);
    end if;
    -- Leases of a queue that is just being configured may get permits where they are.
    v_queues := array(
        select q.id from pgq.queue q
         where q.id = any (array(
                   select distinct pgq._queue_of(j.lane) from pgq.job j
                    where j.slot = p_from and j.id = any (v_ids) and j.token is not null
               ))
           for share skip locked
    );
    return cardinality(pgq._do_each('move', array(
        select j.id::text from pgq.job j
         where j.slot = p_from and j.id = any (v_ids)
           and (j.token is null or pgq._queue_of(j.lane) = any (v_queues))
    ), p_from, p_to));
end
$$;
comment on function pgq._move(smallint, smallint, integer, boolean) is
'Moves jobs to another slot and returns their number.

In the ring it moves the first ones, or the last ones; from a parked slot, to the other one. A job
that cannot be moved is skipped.';

create function pgq._clean(p_ring pgq.ring, p_is_full boolean, p_limit bigint)
returns pgq.ring
language plpgsql
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
        if pgq._move(
            v_slot, p_ring.filling, 1000,
            array_position(p_ring.live, v_slot) < array_position(p_ring.live, p_ring.filling)
        ) > 0 then
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
                 where l <> all (p_ring.cleaned) and l is distinct from p_ring.filling
                   and (n = cardinality(p_ring.live) or pgq._has_jobs(l))
                 order by n
            ), case when p_ring.filling is null then 2 else 1 end, p_is_full, p_limit
        );
        if p_ring.filling is not null then
            p_ring.cleaned := p_ring.cleaned || v_dirty;
        elsif v_dirty <> '{}' and v_free <> '{}' then
            -- From the next tick on: whoever raises a position must have seen that.
            v_n := array_position(p_ring.live, v_dirty[cardinality(v_dirty)]);
            p_ring.filling := v_free[1];
            p_ring.cleaned := array(
                select d from unnest(v_dirty) with ordinality u (d, n) order by n desc
            );
            p_ring.live := p_ring.live[:v_n] || v_free[1] || p_ring.live[v_n + 1:];
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
