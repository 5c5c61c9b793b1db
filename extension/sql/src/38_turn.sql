/*
 * Which jobs of a group may be claimed: decided at COMMIT, see 38_group.sql.
 */

create function pgq._room(
    p_group_id bigint, p_lane integer, out size bigint, out heads bigint, out last bigint,
    out hint bigint
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    select q.group_concurrency::bigint, h.heads, coalesce(h.last, 0), h.hint
      into size, heads, last, hint
      from pgq.lane l
      join pgq.queue q on q.id = l.queue_id, pgq._heads(q.id, array[p_group_id]) h
     where l.id = p_lane;
    if exists (select from pgq.group_block b where b.group_id = p_group_id) then
        heads := size;
    end if;
end
$$;
comment on function pgq._room(bigint, integer) is
'how many heads a group may have, and pgq._heads; a blocked one is full';

create function pgq._leave_group(p_group_id bigint, p_from bigint, p_lane integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgq.group_hint (group_id, id) values (p_group_id, p_from);
    perform pgq._wake_lane(p_lane);
end
$$;
comment on function pgq._leave_group(bigint, bigint, integer) is
'leaves a group to the next commit in it, or the next tick: of who sleeps somebody is woken for it';

create function pgq._turn_group(p_group_id bigint, p_from bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_xid constant bigint := pg_current_xact_id()::text::bigint;
    v_from bigint := p_from;
    v_is_full boolean := false;
    v_room record;
    v_job record;
begin
    loop
        v_job := pgq._follower(p_group_id, v_from, v_is_full);
        exit when v_job.id is null;
        -- One that was new when its transaction committed may lie below a floor.
        if v_job.by_xid <> v_xid
            and (pgq._lock(v_job.slot, v_job.lane, v_job.id, true)).id is null
        then
            perform pgq._leave_group(p_group_id, least(v_from, v_job.place), v_job.lane);
            exit;
        end if;
        if v_room is null then
            v_room := pgq._room(p_group_id, v_job.lane);
            -- Left since the bucket was locked, by one who has not locked it.
            if v_room.hint < v_from then
                v_from := v_room.hint;
                continue;
            end if;
        end if;
        if v_job.by_xid <> v_xid or (v_job.by_xid is not null and v_room.heads >= v_room.size) then
            perform pgq._wait(pgq._remove(v_job.slot, v_job.lane, v_job.id));
            v_from := least(v_from, v_job.id);
        elsif v_room.heads < v_room.size then
            if pgq._make_heads(v_job.slot, v_job.lane, array[v_job.id]) <> '{}' then
                v_room.heads := v_room.heads + 1;
                v_room.last := greatest(v_room.last, v_job.id);
                -- It was the first one that waited.
                v_from := case when v_job.by_xid is null then v_job.place else v_from end;
            else
                -- Its followers wait with it for whoever is about to cancel or replace it.
                perform pgq._leave_group(p_group_id, v_job.place, v_job.lane);
                exit;
            end if;
        elsif not v_is_full then
            v_is_full := true;
        else
            if v_job.place < v_room.last
                and not pgq._come_late(p_group_id, v_from, v_room.last)
            then
                perform pgq._leave_group(p_group_id, v_from, v_job.lane);
            end if;
            exit;
        end if;
    end loop;
end
$$;
comment on function pgq._turn_group(bigint, bigint) is
'lets as many jobs of a group be claimed as may be, and new ones for which there is no room wait; '
'its bucket is locked. p_from: of the waiting jobs none lies before it';

--@ define group_bucket
16384 + (id & 16383)::integer
--@ end

create function pgq._lock_groups(p_group_ids bigint[], p_skip boolean)
returns setof bigint
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
begin
    if p_skip then
        return query
        select g.id
          from (select id, {group_bucket} as bucket from unnest(p_group_ids) id
                 order by 2) g,
               lateral (
                   select from pgq.bucket b where b.id = g.bucket for update skip locked
               ) b;
    else
        return query
        select g.id
          from (select id, {group_bucket} as bucket from unnest(p_group_ids) id
                 order by 2) g,
               lateral (select from pgq.bucket b where b.id = g.bucket for update) b;
    end if;
end
$$;
comment on function pgq._lock_groups(bigint[], boolean) is
'locks the buckets of groups and returns the groups; p_skip: those that can be had at once';

create function pgq._merge_hints(
    p_group_ids bigint[], inout p_places bigint[], inout p_slots smallint[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
{index_scans}
as $$
declare
    v_hint pgq.group_hint;
    v_n integer;
begin
    if not exists (select from pgq.group_hint) then
        return;
    end if;
    for v_hint in
        delete from pgq.group_hint h
         where h.group_id = any (p_group_ids) and h.id >= 0 returning h.*
    loop
        v_n := array_position(p_group_ids, v_hint.group_id);
        p_places[v_n] := least(p_places[v_n], v_hint.id);
        p_slots[v_n] := greatest(p_slots[v_n], smallint '6');
    end loop;
end
$$;
comment on function pgq._merge_hints(bigint[], bigint[], smallint[]) is
'takes the hints for these groups, of which the buckets are locked: their places, if those are '
'lower, and that there may be a new job anywhere';
