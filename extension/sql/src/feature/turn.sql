/*
 * How groups go on: which rows of the lines become heads, with copies in the ring. Commits and
 * ticks call it with the buckets of the groups locked. It waits for nobody. See feature/group.sql.
 */

create function pgq._copied(p_row pgq.job, p_slot smallint, p_pos bigint)
returns pgq.job
language sql
immutable
begin atomic
    select row(
        p_row.id, p_pos, p_row.enqueued_at, p_row.lane, p_slot, p_row.attempt, p_row.lost,
        p_row.max_attempts, p_row.run_at, p_row.start_by, null, null, null, null, null, null, null,
        p_row.is_awaited, null, p_row.group_id, null, null, null, p_row.head_place, p_row.payload,
        p_row.headers, p_row.last_error, p_row.dedupe_key, null, p_row.group_key, p_row.checkpoint,
        p_row.history
    )::pgq.job;
end;
comment on function pgq._copied(pgq.job, smallint, bigint) is
'Returns the copy of a head, for the ring.

The key of the job stays with its row in the line.';

create function pgq._let_late_in(
    p_groups bigint[], p_added bigint[], out groups bigint[], out places bigint[]
)
language plpgsql
as $$
begin
    select array_agg(g.id), array_agg(h.place + 1) into groups, places
      from unnest(p_groups, p_added) g (id, added), lateral (
               select j.place from pgq.job j
                where j.slot in (4, 5) and j.group_id = g.id and j.is_head and j.place >= g.added
                order by j.place desc limit 1
           ) h;
    if groups is null then
        return;
    end if;
    with late as materialized (
        select j.slot, j.id, l.id as group_id, j.added, l.place
          from unnest(p_groups, p_added) g (id, added)
          join unnest(groups, places) l (id, place) on l.id = g.id,
               lateral (
                   select j.slot, j.id, j.place as added from pgq.job j
                    where j.slot in (4, 5) and j.group_id = g.id and j.place >= g.added
                      and j.place < l.place and j.is_head is null offset 0
               ) j
    ), free as materialized (
        -- By ctid: a join by id may read the whole index, as it was planned when there was no job.
        select t.*, l.tid from late t, lateral (
            select j.ctid as tid from pgq.job j
             where j.slot in (4, 5) and j.slot = t.slot and j.id = t.id for update skip locked
        ) l
    ), moved as (
        update pgq.job j set place = f.place
          from free f where j.slot in (4, 5) and j.slot = f.slot and j.ctid = f.tid
        returning j.id
    )
    -- Somebody is about to cancel, replace or move the others, or just did.
    insert into pgq.hint (kind, key, place)
    select 'g', t.group_id, t.added from late t where t.id not in (select m.id from moved m);
end
$$;
comment on function pgq._let_late_in(bigint[], bigint[]) is
'Puts jobs that were added from a place on behind the last head behind them.

Returns the groups of which that holds, and the new place of those jobs.';

create function pgq._next_heads(
    p_groups bigint[], p_ended bigint[], p_added bigint[], p_late bigint[], p_places bigint[]
)
returns table (slot smallint, id bigint, lane bigint, group_id bigint, head_place bigint)
language plpgsql
rows 1  -- or a plan would read the slots
as $$
begin
    return query
    with turn as materialized (
        select g.id, coalesce(g.ended, b.place, l.place, g.added) as place, l.place as late,
               q.group_concurrency as most
          from unnest(p_groups, p_ended, p_added) g (id, ended, added)
          left join unnest(p_late, p_places) l (id, place) on l.id = g.id,
               lateral (
                   select j.lane from pgq.job j
                    where j.slot in (4, 5) and j.group_id = g.id
                      and j.place >= coalesce(g.ended, l.place, g.added)
                    order by j.place, j.id limit 1
               ) f
          join pgq.queue q on q.id = pgq._queue_of(f.lane),
               lateral (
                   select min(w.place) as place, count(*) as jobs
                     from (
                              select j.place from pgq.job j
                               where j.slot in (4, 5) and j.group_id = g.id and g.ended is null
                                 and j.place < coalesce(l.place, g.added)
                               order by j.place desc, j.id desc limit q.group_concurrency
                          ) w
               ) b
         -- Where as many stand before the jobs that were added, none of these can be a head.
         where b.jobs < q.group_concurrency
    )
    select r.slot, r.id, r.lane, t.id as group_id, r.first as head_place
      from turn t, lateral (
               select f.*, min(f.place) over () as first,
                      bool_or(f.is_blocked) over () as is_blocked_by_one
                 from (
                          select j.slot, j.id, j.lane, j.place, j.is_head, j.is_blocked
                            from pgq.job j
                           where j.slot in (4, 5) and j.group_id = t.id and j.place >= t.place
                           order by j.place, j.id limit t.most
                      ) f
           ) r
     where r.is_head is null and r.is_blocked_by_one is null
       -- Not a late one that was locked a moment ago.
       and (t.late is null or r.place >= t.late);
end
$$;
comment on function pgq._next_heads(bigint[], bigint[], bigint[], bigint[], bigint[]) is
'Returns the rows of lines that are to become heads: see pgq._turn_groups.

A line is read from the place of what has ended on. If nothing has, up to group_concurrency rows
before the added jobs are read backwards: if there are that many, no added job can be a head; else
the first of them begins the line.

p_late, p_places: what pgq._let_late_in has returned, the place of jobs that were added late.';

create function pgq._turn_groups(p_groups bigint[], p_ended bigint[], p_added bigint[])
returns void
language plpgsql
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_slot constant smallint := pgq._head_slot();
    v_late record; v_next record; v_lane record;
begin
    select l.groups, l.places into v_late
      from pgq._let_late_in(p_groups, p_added) l
     where num_nonnulls(variadic p_added) > 0;
    select array_agg(n.slot) as slots, array_agg(n.id) as ids, array_agg(n.lane) as lanes,
           array_agg(n.group_id) as groups, array_agg(n.head_place) as places
      into v_next
      from pgq._next_heads(p_groups, p_ended, p_added, v_late.groups, v_late.places) n;
    if v_next.ids is null then
        return;
    end if;
    perform pgq._open(v_slot);
    for v_lane in with next as materialized (
        select n.*
          from unnest(v_next.slots, v_next.ids, v_next.lanes, v_next.groups, v_next.places)
               n (slot, id, lane, group_id, head_place)
    ), free as materialized (
        select n.*, l.tid from next n, lateral (
            select j.ctid as tid from pgq.job j
             where j.slot in (4, 5) and j.slot = n.slot and j.id = n.id for update skip locked
        ) l
    ), head as (
        update pgq.job j
           set is_head = true, head_place = n.head_place,
               due = case when j.run_at > v_now then pgq._due(j.run_at) end
          from free n
         where j.slot in (4, 5) and j.slot = n.slot and j.ctid = n.tid
        returning j as job, j.id, j.lane, j.due
    ), hinted as (
        -- As above: somebody has locked it, or it has just changed.
        insert into pgq.hint (kind, key)
        select 'g', n.group_id from next n where n.id not in (select h.id from head h)
        returning key
    ), copied as (
        insert into pgq.job
        select (c.job).*
          from (
                   select pgq._copied(h.job, v_slot, nextval('pgq.number')) as job
                     from (select o.* from head o where o.due is null order by o.id) h offset 0
               ) c
    )
    -- Whoever sleeps does the tick that looks at a hint.
    select r.lane, min(r.due) as due
      from (
               select h.lane, h.due from head h
                union all
               select n.lane, null from hinted i join next n on n.group_id = i.key
           ) r
     group by r.lane
    loop
        perform pgq._wake_lane(v_lane.lane),
                pgq._expect(timestamptz 'epoch' + v_lane.due * interval '1 microsecond');
    end loop;
end
$$;
comment on function pgq._turn_groups(bigint[], bigint[], bigint[]) is
'Makes the first rows of lines heads, with copies in the ring, or due.

Their buckets are locked. p_ended: before that place nobody stands. p_added: from which place on
jobs were added. Either may be null.';

create function pgq._promote_head(p_row pgq.job)
returns void
language plpgsql
as $$
begin
    update pgq.job j set due = null where j.slot in (4, 5) and j.id = p_row.id;
    perform pgq._put(pgq._copied(p_row, p_row.slot, null));
end
$$;
comment on function pgq._promote_head(pgq.job) is
'Copies a head that is due, and locked, to the ring.';
