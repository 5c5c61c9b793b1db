/*
 * Looking at, and changing, the jobs of groups, of which the buckets are locked.
 */

create function pgq._waiting(
    p_group_ids bigint[], p_places bigint[], p_slots smallint[], p_lanes integer[]
)
returns setof pgq.turn
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
begin
    return query
    select g.id, g.place, g.slot, case when g.slot < 0 then w.slot else g.slot end,
           case when g.slot < 0 then w.lane else g.lane end,
           case when g.slot < 0 then w.id else g.place end,
           case when g.slot < 0 then w.at else g.place end, w.id is not null
      from unnest(p_group_ids, p_places, p_slots, p_lanes) g (id, place, slot, lane)
      left join lateral (
               select u.*
                 from (
                          --@ each parked
                          (select {slot}::smallint as slot, j.lane, j.id, j.wait as at
                             from pgq.job_{slot} j
                            where j.group_id = g.id and j.wait >= g.place
                            order by j.wait, j.id limit 1)
                          union all
                          --@ end
                          select null, null, null, null where false
                      ) u
                order by u.at, u.id limit 1
           ) w on true
     where (g.slot >= 0 or w.id is not null)
       and (g.slot <> -2 or ((
               --@ each parked
               select j.id from pgq.job_{slot} j
                where j.group_id = g.id and j.wait < g.place order by j.wait desc, j.id desc limit 1
           ) is null and (
               --@ end
               select null
           ) is null));
end
$$;
comment on function pgq._waiting(bigint[], bigint[], smallint[], integer[]) is
'those of these groups to which a new job was added, or in which jobs wait in a place from '
'p_places on: before it may lie the dead index entries of thousands. Where only jobs were added '
'that wait (p_slots: -2) behind another one, nothing is to be done';

create function pgq._heads(p_queue_id integer, p_group_ids bigint[])
returns table (group_id bigint, heads bigint, last bigint, hint bigint)
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
begin
    -- In one snapshot, taken when all slots are locked: heads are moved meanwhile.
    return query
    select g.id, h.*, (
               select min(greatest(o.id, 0)) from pgq.group_hint o
                where o.group_id in (g.id, p_queue_id)
           )
      from (
               select 0
                      --@ each slot
                      , (
                          select min({base}) from pgq.lane l where l.queue_id = p_queue_id
                      ) as base_{slot}
                      --@ end
           ) b,
           unnest(p_group_ids) g (id), lateral (
               select count(*), max(j.id)
                 from (
                          --@ each ring
                          select j.id from pgq.job_{slot} j
                           where j.group_id = g.id and j.id > b.base_{slot}
                             and j.lease_expires_at is distinct from 'infinity' and {has_pages}
                          union all
                          --@ end
                          --@ each parked
                          select j.id from pgq.job_{slot} j
                           where j.group_id = g.id and j.wait is null and j.due > b.base_{slot}
                             and {has_pages}
                          union all
                          --@ end
                          select null where false
                      ) j
           ) h;
end
$$;
comment on function pgq._heads(integer, bigint[]) is
'how many heads each of these groups of a queue has, and the highest id of them. hint: from which '
'place on somebody has left the group to the next tick, who may have ended a head; 0 while all '
'groups of the queue are left, as its group_concurrency was raised: others wait before new jobs';

create function pgq._next_heads(
    p_group_ids bigint[], p_places bigint[], p_slots smallint[], p_lanes integer[]
)
returns table (
    group_id bigint, place bigint, slot smallint, lane integer, id bigint, is_next boolean
)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
declare
    v_turns constant pgq.turn[] := array(
        select w from pgq._waiting(p_group_ids, p_places, p_slots, p_lanes) w
    );
begin
    if v_turns = '{}' then
        return;
    end if;
    return query
    with turn as materialized (
        select t.*, l.queue_id
          from unnest(v_turns) t left join pgq.lane l on l.id = t.lane
    ), decided as (
        select t.*, h.heads, coalesce(h.last, 0) as last, h.hint,
               case when exists (select from pgq.group_block b where b.group_id = t.group_id)
                    then 0 else q.group_concurrency end as most
          from turn t
          left join (
                   select h.*
                     from (
                              select o.queue_id, array_agg(o.group_id) as ids
                                from turn o where o.noted < 4 group by o.queue_id
                          ) o, pgq._heads(o.queue_id, o.ids) h
               ) h on h.group_id = t.group_id
          left join pgq.queue q on q.id = t.queue_id
    )
    select d.group_id, least(d.place, d.hint), d.slot, d.lane, d.id,
           case when d.noted >= 4 or d.hint is not null or d.at < d.last then null
                when d.heads = d.most - 1 or (d.heads < d.most and not d.is_followed) then true
                when d.heads >= d.most and d.noted >= 0 then false end
      from decided d
     where d.noted >= 0 or d.heads < d.most or d.at < d.last or d.hint is not null;
end
$$;
comment on function pgq._next_heads(bigint[], bigint[], smallint[], integer[]) is
'those of these groups in which something is to be done, with the job that is next; is_next: it '
'can be claimed, or it is new and has to wait, and nothing else is to be done';

create function pgq._follower(
    p_group_id bigint, p_from bigint, p_new_first boolean, out slot smallint, out lane integer,
    out id bigint, out place bigint, out by_xid bigint
)
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
begin
    select f.* into slot, lane, id, place, by_xid
      from (
               --@ each ring
               select {slot}::smallint, j.lane, j.id, j.id as place, j.due from pgq.job_{slot} j
                where j.group_id = p_group_id and j.lease_expires_at = 'infinity'
               union all
               --@ end
               --@ each parked
               (select {slot}::smallint, j.lane, j.id, j.wait as place, null from pgq.job_{slot} j
                 where j.group_id = p_group_id and j.wait >= p_from order by j.wait, j.id limit 1)
               union all
               --@ end
               select null, null, null, null, null where false
           ) f
     order by p_new_first and f.due is null, f.place, f.id
     limit 1;
end
$$;
comment on function pgq._follower(bigint, bigint, boolean) is
'the new or waiting job of a group that is next; of the waiting ones, in a place from p_from on: '
'before it may lie the dead index entries of thousands. p_new_first: if there is a new one, that. '
'by_xid: who enqueues it, if it is new';

-- "n" is a new job of this transaction, and nobody is about to cancel or replace it.
--@ define own_new
from pgq.job_{slot} i
                        where i.lane = p_lane and i.id = n.id
                          and i.lease_expires_at = 'infinity' and i.due = v_xid
                          for update skip locked
--@ end

create function pgq._make_heads(p_slot smallint, p_lane integer, p_ids bigint[])
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
declare
    v_xid constant bigint := pg_current_xact_id()::text::bigint;
    v_ids bigint[];
    v_due bigint;
begin
    case p_slot
    --@ each ring
    when {slot} then
        with made as (
            update pgq.job_{slot} j set due = null, lease_expires_at = null
              from unnest(p_ids) n (id), lateral (
                       select i.ctid {own_new}
                   ) i
             where j.ctid = i.ctid
            returning j.id
        )
        select array_agg(m.id) into v_ids from made m;
    --@ end
    --@ each parked
    when {slot} then
        -- A condition from which no plan can tell that the partial index on wait will do.
        with made as (
            update pgq.job_{slot} j
               set wait = null, lease_expires_at = null,
                   due = greatest(pgq._us(j.run_at), (select pgq._us(pgq._now())))
                         + j.id {spread}
              from unnest(p_ids) n (id), lateral (
                       select i.ctid from pgq.job_{slot} i
                        where i.lane = p_lane and i.id = n.id and coalesce(i.wait, -1) >= 0
                          for update skip locked
                   ) i
             where j.ctid = i.ctid
            returning j.id, j.due
        )
        select array_agg(m.id), min(m.due) into v_ids, v_due from made m;
        perform pgq._admit({slot}::smallint, p_lane, v_due), pgq._wake_lane(p_lane)
          where v_due is not null;
    --@ end
    end case;
    return coalesce(v_ids, '{}');
end
$$;
comment on function pgq._make_heads(smallint, integer, bigint[]) is
'lets jobs be claimed that wait, or are new and of this transaction, which is looked at (a group '
'that was noted without a new job may have one of another), and returns those that nobody is '
'about to cancel or replace';

create function pgq._let_wait(p_slot smallint, p_lane integer, p_ids bigint[])
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
declare
    v_xid constant bigint := pg_current_xact_id()::text::bigint;
    v_ids bigint[];
    v_id bigint;
begin
    case p_slot
    --@ each ring
    when {slot} then
        v_ids := array(
            select i.id
              from unnest(p_ids) n (id), lateral (
                       select i.id {own_new}
                   ) i
        );
    --@ end
    end case;
    -- One by one: all together, with their payloads, could be too much for an array.
    foreach v_id in array v_ids loop
        perform pgq._wait(pgq._remove(p_slot, p_lane, v_id));
    end loop;
    return v_ids;
end
$$;
comment on function pgq._let_wait(smallint, integer, bigint[]) is
'puts new jobs of this transaction, which is looked at, behind those of their groups, and returns '
'those that nobody is about to cancel or replace';

create function pgq._come_late(p_group_id bigint, p_from bigint, p_place bigint)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
{index_scans}
as $$
begin
    --@ each parked
    update pgq.job_{slot} j set wait = p_place
     where j.ctid = any (array(
               select i.ctid from pgq.job_{slot} i
                where i.group_id = p_group_id and i.wait >= p_from and i.wait < p_place
                  for update skip locked
           ));
    --@ end
    return not exists (
        select
          from (
                   --@ each parked
                   select j.id from pgq.job_{slot} j
                    where j.group_id = p_group_id and j.wait >= p_from and j.wait < p_place
                   union all
                   --@ end
                   select null where false
               ) r
    );
end
$$;
comment on function pgq._come_late(bigint, bigint, bigint) is
'moves waiting jobs from before a place to it: whoever ends a head looks from its id on. false: '
'somebody is about to cancel or replace one of them';
