/*
 * Groups: at most group_concurrency jobs of a group may be ready or active at a time, in id order.
 *
 * All jobs of a group stand in its line, in the parked slots, by (place, id). The first ones, as
 * many as may run, are heads: is_head is set, and a copy in the ring is what claims find. (A head
 * that is not due has no copy; due is set in the line.) A row leaves the line when its job ends.
 *
 *   Once a transaction has committed, the heads of a group are the first rows of its line.
 *
 * That is decided at COMMIT, under a lock on the bucket of the group: by whoever has added jobs to
 * the line, or has ended a head. So each decision sees those before it, and an open transaction
 * keeps nobody waiting. Where nothing can be decided (PREPARE TRANSACTION, an old snapshot, SET
 * CONSTRAINTS) a hint is left for the next tick.
 *
 * The place of a job is twice its id. A job that commits after a higher id has become head is late:
 * its place is behind that head. A dead job that blocks its group stays in the line as its head.
 */

create function pgq._group_ids(p_queue_id integer, p_group_keys text[])
returns bigint[]
language plpgsql
volatile
strict
set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        select hashtextextended(
                   k collate "C",
                   p_queue_id # pg_sequence_last_value('pgq.group_seed')
               )
          from unnest(p_group_keys) k
    );
end
$$;
comment on function pgq._group_ids(integer, text[]) is
'The numbers of groups. Two groups with the same hash take turns. Who does not know the seed '
'cannot find a key with the hash of somebody else''s group.';

create function pgq._note(p_slot smallint, p_kind "char", p_keys bigint[], p_places bigint[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_keys is not null then
        insert into pgq.note (slot, xid, kind, keys, places)
        values (p_slot, pg_current_xact_id(), p_kind, p_keys, p_places);
    end if;
end
$$;
comment on function pgq._note(smallint, "char", bigint[], bigint[]) is
'Leaves groups (kind g) or waiting jobs (w) for the commit. p_slot: one that is locked for '
'writing.';

create function pgq._leave_lines(
    p_slot smallint, p_ids bigint[], p_groups bigint[], p_places bigint[], p_block boolean
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_left integer := cardinality(p_ids);
    v_count integer;
    v_slot smallint := pgq._parked();
begin
    -- A tick may be moving a row from one slot to the other.
    foreach v_slot in array array[v_slot, (9 - v_slot)::smallint, v_slot] loop
        case v_slot
        --@ each parked
        when {slot} then
            continue when pg_relation_size('pgq.job_{slot}') = 0;
            if p_block then
                update pgq.job_{slot} j set is_blocked = true, dedupe_queue_id = null
                 where j.id = any (p_ids) and j.place is not null and j.is_blocked is null;
            else
                delete from pgq.job_{slot} j where j.id = any (p_ids) and j.place is not null;
            end if;
            get diagnostics v_count = row_count;
        --@ end
        end case;
        v_left := v_left - v_count;
        exit when v_left = 0;
    end loop;
    perform pgq._note(p_slot, 'g', p_groups, p_places) where not p_block;
end
$$;
comment on function pgq._leave_lines(smallint, bigint[], bigint[], bigint[], boolean) is
'Called when copies of heads have ended: their rows leave the lines, or (p_block) block them.';

create function pgq._note_ended(p_jobs pgq.job[], p_state text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_end record;
begin
    for v_end in
        select min(j.slot) as slot, q.group_on_dead = 'block' and p_state = 'dead' as blocks,
               array_agg(j.id) filter (where j.head_place is not null) as heads,
               array_agg(j.group_id) filter (where j.head_place is not null) as groups,
               array_agg(j.head_place) filter (where j.head_place is not null) as places,
               array_agg(j.group_id) filter (where j.place is not null and j.is_head) as firsts,
               array_agg(0::bigint) filter (where j.place is not null and j.is_head) as zeros,
               array_agg(j.id) filter (where j.is_awaited) as awaited,
               array_agg(j.lane) filter (where j.is_awaited) as awaited_lanes,
               array_agg(j.id) filter (where pgq._waits_for_jobs(j)) as waiters
          from unnest(p_jobs) j left join pgq.queue q on q.id = pgq._queue_of(j.lane)
         group by 2
    loop
        perform pgq._leave_lines(
                    v_end.slot, v_end.heads, v_end.groups, v_end.places,
                    coalesce(v_end.blocks, false)
                ) where v_end.heads is not null;
        perform pgq._note(v_end.slot, 'g', v_end.firsts, v_end.zeros),
                pgq._drop_dependencies(v_end.waiters);
        perform pgq._tell_waiters(
                    v_end.slot, v_end.awaited, v_end.awaited_lanes, p_state = 'completed'
                ) where v_end.awaited is not null;
    end loop;
end
$$;
comment on function pgq._note_ended(pgq.job[], text) is
'Called with jobs that have just been deleted because they ended in a state: their groups go on, '
'and who waits for them is noted.';

create function pgq._copied(
    p_row pgq.job, p_slot smallint, p_pos bigint, p_head_place bigint default 0
)
returns pgq.job
language sql
immutable
begin atomic
    select row(
        p_row.id, p_pos, p_row.enqueued_at, p_row.lane, p_slot, p_row.attempt, p_row.lost,
        p_row.max_attempts, p_row.run_at, p_row.start_by, null, null, null, null, null, null, null,
        p_row.is_awaited, null, p_row.group_id, null, null, null, p_head_place, p_row.payload,
        p_row.headers, p_row.last_error, p_row.dedupe_key, null, p_row.group_key, p_row.checkpoint
    )::pgq.job;
end;
comment on function pgq._copied(pgq.job, smallint, bigint, bigint) is
'The copy of a head, for the ring: the key of the job stays with its row in the line.';

create function pgq._let_late_in(
    p_groups bigint[], p_added bigint[], p_jobs integer[], out groups bigint[], out places bigint[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Between the first job that was added and a head behind it stand only jobs that were added.
    select array_agg(l.id), array_agg(l.head | 1) into groups, places
      from (
               select g.id, (
                          select max(w.place)
                            from (
                                     select j.place, j.is_head from pgq.job j
                                      where j.slot in (4, 5) and j.group_id = g.id
                                        and j.place >= g.added
                                      order by j.place, j.id limit g.jobs + 1
                                 ) w
                           where w.is_head
                      ) as head
                 from unnest(p_groups, p_added, p_jobs) g (id, added, jobs)
           ) l
     where l.head is not null;
    update pgq.job j set place = l.place
      from unnest(p_groups, p_added) g (id, added), unnest(groups, places) l (id, place)
     where l.id = g.id and j.slot in (4, 5) and j.group_id = g.id
       and j.place >= g.added and j.place < l.place and j.is_head is null;
end
$$;
comment on function pgq._let_late_in(bigint[], bigint[], integer[]) is
'Puts jobs that were added from a place on behind a head that stands behind them; returns the '
'groups of which that holds, and the new place of those jobs.';

create function pgq._turn_groups(
    p_groups bigint[], p_ended bigint[], p_added bigint[], p_jobs integer[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_head constant smallint := pgq._head();
    v_late record; v_lane record;
begin
    select l.groups, l.places into v_late from pgq._let_late_in(p_groups, p_added, p_jobs) l;
    perform pgq._open(v_head);
    for v_lane in with turn as materialized (
        select g.id, coalesce(g.ended, b.place, l.place, g.added) as place,
               q.group_concurrency as most
          from unnest(p_groups, p_ended, p_added) g (id, ended, added)
          left join unnest(v_late.groups, v_late.places) l (id, place) on l.id = g.id,
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
    ), next as materialized (
        select r.slot, r.id, t.id as group_id,
               case when t.most = 1 then r.place else 0 end as head_place
          from turn t, lateral (
                   select f.*, bool_or(f.is_blocked) over () as is_blocked_by_one
                     from (
                              select j.slot, j.id, j.place, j.is_head, j.is_blocked from pgq.job j
                               where j.slot in (4, 5) and j.group_id = t.id and j.place >= t.place
                               order by j.place, j.id limit t.most
                          ) f
               ) r
         where r.is_head is null and r.is_blocked_by_one is null
    ), free as materialized (
        select n.* from next n, lateral (
            select from pgq.job j
             where j.slot in (4, 5) and j.slot = n.slot and j.id = n.id for update skip locked
        ) l
    ), hinted as (
        -- Somebody is about to cancel, replace or move it.
        insert into pgq.hint (kind, key)
        select 'g', n.group_id from next n where n.id not in (select f.id from free f)
    ), head as (
        update pgq.job j
           set is_head = true,
               due = case when j.run_at > v_now then pgq._due(j.run_at, v_now) end
          from free n
         where j.slot in (4, 5) and j.slot = n.slot and j.id = n.id
        returning j as job, j.id, j.lane, j.due, n.head_place
    ), copied as (
        insert into pgq.job
        select (c.job).*
          from (
                   select pgq._copied(h.job, v_head, nextval('pgq.number'), h.head_place) as job
                     from (select o.* from head o where o.due is null order by o.id) h offset 0
               ) c
    )
    select h.lane, min(h.due) as due from head h group by h.lane
    loop
        perform pgq._wake_lane(v_lane.lane),
                pgq._expect(timestamptz 'epoch' + v_lane.due * interval '1 microsecond');
    end loop;
end
$$;
comment on function pgq._turn_groups(bigint[], bigint[], bigint[], integer[]) is
'Makes the first rows of lines heads, with copies in the ring, or due; their buckets are locked. '
'p_ended: before that place nobody stands; p_added: from which place on p_jobs jobs were added. '
'Either may be null.';

create function pgq._promote_head(p_row pgq.job)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    update pgq.job j set due = null where j.slot in (4, 5) and j.id = p_row.id;
    perform pgq._put(pgq._copied(p_row, p_row.slot, null));
end
$$;
comment on function pgq._promote_head(pgq.job) is
'Copies a head that is due, and locked, to the ring.';

create function pgq._unblock(p_group_id bigint, p_id bigint)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_row pgq.job; v_count integer := 0;
begin
    for v_row in
        delete from pgq.job j
         where j.slot in (4, 5) and j.is_blocked
           and ((j.id = p_id and p_id is not null)
                or (p_id is null and j.group_id = p_group_id and j.place is not null))
        returning j.*
    loop
        v_count := v_count + 1;
        perform pgq._note(v_row.slot, 'g', array[v_row.group_id], array[bigint '0']);
    end loop;
    return v_count > 0;
end
$$;
comment on function pgq._unblock(bigint, bigint) is
'Takes a dead job out of the line of its group (p_id), or all of a group, so that the next job '
'runs.';
