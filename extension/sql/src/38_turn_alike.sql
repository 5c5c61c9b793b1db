/*
 * The ordinary cases of what is decided at COMMIT (see 38_group.sql), where the same has happened
 * in all groups that a transaction has changed. Either jobs were added that wait: nothing is to be
 * done where another one waits before them, or where there is a head before them and can be only
 * one. Or the only head has completed: the next one follows, and heads need not be counted, as the
 * note tells, which came with the event.
 */

-- The one that is next of a group "g", if it waits in this slot.
--@ define next_waiting
select i.ctid from pgq.job_{slot} i
                            where i.ctid = (
                                      select j.ctid from pgq.job_{slot} j
                                       where j.group_id = g.id and j.wait >= g.place
                                       order by j.wait, j.id limit 1
                                  )
                              and i.group_id = g.id and i.wait >= g.place
                              and (
                                  select j.id from pgq.job_{other} j
                                   where j.group_id = g.id and j.wait >= g.place
                                     and j.wait <= i.wait
                                     and (select pg_relation_size('pgq.job_{other}') > 0) limit 1
                              ) is null
--@ end

create function pgq._follow_in(
    p_slot smallint, p_lane integer, p_group_ids bigint[], p_places bigint[]
)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_us constant bigint := (extract(epoch from v_now) * 1000000)::bigint;
    v_groups bigint[]; v_lanes integer[]; v_due bigint; v_is_behind boolean; v_is_awaited boolean;
begin
    case p_slot
    --@ each parked
    when {slot} then
        with made as (
            update pgq.job_{slot} j
               set wait = null,
                   due = case when j.run_at is null then v_us else greatest(pgq._us(j.run_at), v_us)
                         end + j.id {spread}
             where j.ctid = any (array(
                       select i.ctid
                         from unnest(p_group_ids, p_places) g (id, place), lateral (
                                  {next_waiting}
                                  for update skip locked
                              ) i
                   ))
            returning j.lane, j.group_id, j.due
        )
        select array_agg(m.group_id), array_agg(m.lane) filter (where m.lane <> p_lane), min(m.due),
               min(m.due) <= (
                   select f.mark from pgq.floor_{slot} f where f.lane = p_lane
                    order by f.n desc limit 1
               ),
               (select l.awaited_until > v_now from pgq.lane l where l.id = p_lane)
          into v_groups, v_lanes, v_due, v_is_behind, v_is_awaited from made m;
    --@ end
    end case;
    if v_groups is null then
        return p_group_ids;
    elsif v_is_behind or v_is_awaited or v_lanes is not null then
        perform pgq._admit(p_slot, l.lane, v_due), pgq._wake_lane(l.lane)
           from (select p_lane union select unnest(v_lanes)) l (lane);
    end if;
    if cardinality(v_groups) = cardinality(p_group_ids) then
        return array[]::bigint[];
    end if;
    return array(
        select g from unnest(p_group_ids) g where (g in (select unnest(v_groups))) is not true
    );
end
$$;
comment on function pgq._follow_in(smallint, integer, bigint[], bigint[]) is
'lets the jobs be claimed that are next in these groups, if they wait in this slot and nobody is '
'about to cancel or replace them, and returns the groups in which none was';

create function pgq._followed(p_group_ids bigint[], p_places bigint[])
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
begin
    return array(
        select g.id
          from unnest(p_group_ids, p_places) g (id, place)
         where false
               --@ each parked
               or (
                   select j.id from pgq.job_{slot} j
                    where j.group_id = g.id and j.wait >= g.place and {has_pages}
                    order by j.wait, j.id limit 1
               ) is not null
               --@ end
    );
end
$$;
comment on function pgq._followed(bigint[], bigint[]) is
'those of these groups in which a job waits in a place from p_places on';

-- "is true" keeps it from becoming a join: it is hashed.
--@ define is_left
(g.id in (select unnest(v_left))) is true
--@ end
-- A group may have been noted more than once.
--@ define noted_once
(select u.id, min(u.place) as place
              from unnest(p_group_ids, p_places) u (id, place) group by u.id)
--@ end

create function pgq._first_to_wait(p_group_ids bigint[], p_places bigint[])
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
begin
    return array(
        select g.id
          from unnest(p_group_ids, p_places) g (id, place),
               (select exists (select from pgq.group_hint) as are_left) h
         where h.are_left
            or true
               --@ each parked
               and (
                   select j.id from pgq.job_{slot} j
                    where j.group_id = g.id and j.wait < g.place and {has_pages}
                    order by j.wait desc, j.id desc limit 1
               ) is null
               --@ end
    );
end
$$;
comment on function pgq._first_to_wait(bigint[], bigint[]) is
'those of these groups in which no job waits before p_places, or of which somebody has left a hint';

create function pgq._headless(
    p_lane integer, p_group_ids bigint[], p_places bigint[], p_left bigint[]
)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
declare
    v_left alias for p_left;
begin
    -- A head that another lane has below the base of this one is overlooked, which does no harm.
    return array(
        select g.id
          from unnest(p_group_ids, p_places) g (id, place),
               pgq.lane l join pgq.queue q on q.id = l.queue_id
         where l.id = p_lane and {is_left}
           and (q.is_serial and not exists (select from pgq.group_hint) and (
                   --@ each parked
                   (
                       select j.id from pgq.job_{slot} j
                        where j.group_id = g.id and j.id < g.place and j.wait is null
                          and j.due > {base} and {has_pages}
                        order by j.due desc limit 1
                   ) is not null or
                   --@ end
                   false
               )) is not true
    );
end
$$;
comment on function pgq._headless(integer, bigint[], bigint[], bigint[]) is
'those of the groups p_left that may have no head, or not as many as they can have, or only one '
'with a higher id than p_places: if a queue has but one head per group, all but those of which the '
'head is in a parked slot, before the job that was added';

create function pgq._turn_alike(
    p_noted smallint, p_lane integer, p_group_ids bigint[], p_places bigint[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
declare
    v_slots smallint[]; v_slot smallint; v_left bigint[] := p_group_ids;
begin
    perform from pgq.bucket b
      where b.id = any (array(select {group_bucket} from unnest(p_group_ids) id))
      order by b.id for update;
    if p_noted = -2 then
        v_left := pgq._first_to_wait(p_group_ids, p_places);
        if v_left <> '{}' then
            v_left := pgq._headless(p_lane, p_group_ids, p_places, v_left);
        end if;
    else
        select r.parked || r.parked_closing into v_slots
          from pgq.lane l join pgq.queue q on q.id = l.queue_id,
               lateral (select o.* from pgq.ring o order by o.gen desc limit 1) r
         where l.id = p_lane and q.is_serial and not exists (select from pgq.group_hint)
           and not exists (select from pgq.group_block b where b.group_id = any (p_group_ids));
        foreach v_slot in array coalesce(v_slots, '{}') loop
            v_left := pgq._follow_in(v_slot, p_lane, p_group_ids, p_places);
            exit when v_left = '{}';
            select array_agg(g.id), array_agg(g.place) into p_group_ids, p_places
              from unnest(p_group_ids, p_places) g (id, place) where {is_left};
        end loop;
        if v_slots is not null and v_left <> '{}' then
            v_left := pgq._followed(p_group_ids, p_places);
        end if;
    end if;
    if v_left = '{}' then
        return;
    end if;
    select array_agg(g.id), array_agg(g.place) into p_group_ids, p_places
      from {noted_once} g where {is_left};
    perform pgq._turn_groups(
                p_group_ids, m.p_places, m.p_slots,
                array_fill(p_lane, array[cardinality(p_group_ids)])
            )
       from pgq._merge_hints(
                p_group_ids, p_places, array_fill(p_noted, array[cardinality(p_group_ids)])
            ) m;
end
$$;
comment on function pgq._turn_alike(smallint, integer, bigint[], bigint[]) is
'pgq._turn_groups for what pgq._note_alike has noted, if the transaction has noted nothing else';
