/*
 * Looking at, and changing, the jobs of groups, of which the buckets are locked.
 */

create function pgq._heads(p_group_id bigint, p_queue_id integer, out heads bigint, out last bigint)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    select count(*), coalesce(max(h.id), 0)
      into heads, last
      from (
               select null::bigint as id where false
               --@ each ring
               union all
               select j.id from pgq.job_{slot} j
                where j.group_id = p_group_id and j.lease_expires_at is distinct from 'infinity'
               --@ end
               --@ each parked
               union all
               select j.id from pgq.job_{slot} j
                where j.group_id = p_group_id and j.wait is null
                  and j.due > (
                          select min(coalesce(f.base, 0))
                            from pgq.lane l
                            left join lateral (
                                    select f.base from pgq.floor_{slot} f
                                     where f.lane = l.id order by f.n desc limit 1
                                 ) f on true
                           where l.queue_id = p_queue_id
                      )
               --@ end
           ) h;
end
$$;
comment on function pgq._heads(bigint, integer) is
'how many heads a group has, and the highest id of them';

create function pgq._follower(
    p_group_id bigint, p_from bigint, out slot smallint, out lane integer, out id bigint,
    out place bigint, out by_xid bigint
)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
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
     order by f.place, f.id
     limit 1;
end
$$;
comment on function pgq._follower(bigint, bigint) is
'the new or waiting job of a group that is next; of the waiting ones, in a place from p_from on: '
'before it may lie the dead index entries of thousands. by_xid: who enqueues it, if it is new';

create function pgq._unwait(p_slot smallint, p_lane integer, p_id bigint)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_due bigint;
begin
    if (pgq._lock(p_slot, p_lane, p_id, true)).id is null then
        return false;
    end if;
    case p_slot
    --@ each ring
    when {slot} then
        update pgq.job_{slot} j set due = null, lease_expires_at = null
         where j.lane = p_lane and j.id = p_id and j.lease_expires_at = 'infinity';
    --@ end
    --@ each parked
    when {slot} then
        update pgq.job_{slot} j
           set wait = null, lease_expires_at = null,
               due = pgq._due(greatest(j.run_at, pgq._now()), j.id)
         where j.lane = p_lane and j.id = p_id and j.wait is not null
        returning j.due into v_due;
        perform pgq._admit({slot}::smallint, p_lane, v_due) where v_due is not null;
    --@ end
    end case;
    return true;
end
$$;
comment on function pgq._unwait(smallint, integer, bigint) is
'makes a new or waiting job a head; false if somebody is about to cancel or replace it';

create function pgq._come_late(p_group_id bigint, p_from bigint, p_place bigint)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
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

create function pgq._look_at_groups(
    p_group_ids bigint[], p_places bigint[], p_slots smallint[], p_lanes integer[]
)
returns table (group_id bigint, place bigint, slot smallint, lane integer, is_alone boolean)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    return query
    select g.id, g.place, g.slot, g.lane, g.slot between 0 and 3 and w.id is null
               and not exists (select from pgq.group_block b where b.group_id = g.id)
               --@ each ring
               and not exists (
                   select from pgq.job_{slot} j where j.group_id = g.id and j.id <> g.place
               )
               --@ end
               --@ each parked
               and not exists (
                   select from pgq.job_{slot} j where j.group_id = g.id and j.wait is null
               )
               --@ end
      from unnest(p_group_ids, p_places, p_slots, p_lanes) g (id, place, slot, lane)
      left join lateral (
              --@ each parked
              select j.id from pgq.job_{slot} j where j.group_id = g.id and j.wait >= g.place
              union all
              --@ end
              select null where false
              limit 1
           ) w on true
     where g.slot >= 0 or w.id is not null;
end
$$;
comment on function
    pgq._look_at_groups(bigint[], bigint[], smallint[], integer[]) is
'those of these groups to which a new job was added, or in which jobs wait; is_alone: the new one '
'is the only one';

create function pgq._look_at_ended(p_group_ids bigint[], p_places bigint[])
returns table (group_id bigint, place bigint)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    return query
    select g.id, g.place
      from unnest(p_group_ids, p_places) g (id, place), lateral (
               --@ each parked
               select j.id from pgq.job_{slot} j where j.group_id = g.id and j.wait >= g.place
               union all
               --@ end
               select null where false
               limit 1
           ) w;
end
$$;
comment on function pgq._look_at_ended(bigint[], bigint[]) is
'pgq._look_at_groups where heads have ended and no job is new: those in which jobs wait';
