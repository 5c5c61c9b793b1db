/*
 * Which jobs of a group may be claimed: decided at COMMIT, see 38_group.sql.
 */

create function pgq._turn_group(p_group_id bigint, p_from bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_xid constant bigint := pg_current_xact_id()::text::bigint;
    v_from bigint := p_from;
    v_queue pgq.queue;
    v_heads bigint;
    v_last bigint;
    v_job record;
begin
    loop
        v_job := pgq._follower(p_group_id, v_from);
        exit when v_job.id is null;
        -- One that was new when its transaction committed may lie below a floor.
        if v_job.by_xid <> v_xid then
            perform pgq._wait(r)
               from pgq._remove(v_job.slot, v_job.lane, array[v_job.id]) r;
            v_from := least(v_from, v_job.id);
            continue;
        end if;
        if v_heads is null then
            select q.* into v_queue
              from pgq.lane l join pgq.queue q on q.id = l.queue_id where l.id = v_job.lane;
            select h.heads, h.last into v_heads, v_last from pgq._heads(p_group_id, v_queue.id) h;
            if exists (select from pgq.group_block b where b.group_id = p_group_id) then
                v_heads := v_queue.group_concurrency::bigint;
            end if;
        end if;
        if v_heads < v_queue.group_concurrency then
            if pgq._unwait(v_job.slot, v_job.lane, v_job.id) then
                v_heads := v_heads + 1;
                v_last := greatest(v_last, v_job.id);
            else
                insert into pgq.group_hint (group_id, id) values (p_group_id, v_job.place);
                v_from := v_job.place + 1;
            end if;
        elsif v_job.by_xid is not null then
            perform pgq._wait(r)
               from pgq._remove(v_job.slot, v_job.lane, array[v_job.id]) r;
            v_from := least(v_from, v_job.id);
        else
            if v_job.place < v_last then
                perform pgq._come_late(p_group_id, v_from, v_last);
            end if;
            exit;
        end if;
    end loop;
end
$$;
comment on function pgq._turn_group(bigint, bigint) is
'lets as many jobs of a group be claimed as may be; its bucket is locked. p_from: of the waiting '
'jobs none lies before it';

create function pgq._lock_groups(p_group_ids bigint[], p_skip boolean)
returns setof bigint
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    if p_skip then
        return query
        select g.id
          from (select id, 16384 + (id & 16383)::integer as bucket from unnest(p_group_ids) id
                 order by 2) g,
               lateral (
                   select from pgq.bucket b where b.id = g.bucket for update skip locked
               ) b;
    else
        return query
        select g.id
          from (select id, 16384 + (id & 16383)::integer as bucket from unnest(p_group_ids) id
                 order by 2) g,
               lateral (select from pgq.bucket b where b.id = g.bucket for update) b;
    end if;
end
$$;
comment on function pgq._lock_groups(bigint[], boolean) is
'locks the buckets of groups and returns the groups; p_skip: those that can be had at once';

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

create function pgq._turn_groups(
    p_group_ids bigint[], p_places bigint[], p_slots smallint[], p_lanes integer[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_slots smallint[]; v_lanes integer[]; v_ids bigint[]; v_groups bigint[]; v_places bigint[];
begin
    select array_agg(g.slot) filter (where g.is_alone),
           array_agg(g.lane) filter (where g.is_alone),
           array_agg(g.place) filter (where g.is_alone),
           array_agg(g.group_id) filter (where not g.is_alone),
           array_agg(g.place) filter (where not g.is_alone)
      into v_slots, v_lanes, v_ids, v_groups, v_places
      from pgq._look_at_groups(p_group_ids, p_places, p_slots, p_lanes) g;
    --@ each ring
    if {slot} = any (v_slots) then
        update pgq.job_{slot} j
           set due = null, lease_expires_at = null
          from unnest(v_slots, v_lanes, v_ids) n (slot, lane, id)
         where n.slot = {slot} and j.lane = n.lane and j.id = n.id;
    end if;
    --@ end
    for v_i in 1..coalesce(cardinality(v_groups), 0) loop
        perform pgq._turn_group(v_groups[v_i], v_places[v_i]);
    end loop;
end
$$;
comment on function pgq._turn_groups(bigint[], bigint[], smallint[], integer[]) is
'pgq._turn_group for many groups: at once where there is only a new job, one by one where jobs '
'wait';

create function pgq._at_group_commit()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_xid constant text := pg_current_xact_id()::text;
    v_noted constant text := coalesce(current_setting('pgq.groups', true), '');
    v_note text[];
    v_groups bigint[]; v_places bigint[]; v_slots smallint[]; v_lanes integer[];
begin
    perform set_config('pgq.groups', '', true);
    if strpos(v_noted, ';') = 0 then
        v_note := string_to_array(v_noted, '|');
        v_groups := string_to_array(v_note[1], ',')::bigint[];
        v_places := string_to_array(v_note[2], ',')::bigint[];
        v_slots := string_to_array(v_note[3], ',')::smallint[];
        v_lanes := string_to_array(v_note[4], ',')::integer[];
    else
        -- Noted more than once: each group once, from its lowest place, and with no new job known.
        select array_agg(g.id), array_agg(g.place), array_agg(smallint '6'), array_agg(0)
          into v_groups, v_places, v_slots, v_lanes
          from (
                   select n.id, min(n.place) as place
                     from unnest(string_to_array(v_noted, ';')) o (note),
                          unnest(
                              string_to_array(split_part(o.note, '|', 1), ',')::bigint[],
                              string_to_array(split_part(o.note, '|', 2), ',')::bigint[]
                          ) n (id, place)
                    group by n.id
               ) g;
    end if;
    if not pgq._read_committed() or pgq._is_preparing()
        or current_setting('pgq.grouped', true) is not distinct from v_xid
    then
        insert into pgq.group_hint (group_id, id)
        select g.id, g.place from unnest(v_groups, v_places) g (id, place);
        return null;
    end if;
    perform set_config('pgq.grouped', v_xid, true);
    perform pgq._lock_groups(v_groups, false);
    perform pgq._turn_groups(v_groups, v_places, v_slots, v_lanes);
    return null;
end
$$;
comment on function pgq._at_group_commit() is
'decides which jobs may be claimed in the groups that this transaction has changed';

create constraint trigger group_event_0_at_commit after insert on pgq.group_event_0
    deferrable initially deferred
    for each row execute function pgq._at_group_commit();
create constraint trigger group_event_1_at_commit after insert on pgq.group_event_1
    deferrable initially deferred
    for each row execute function pgq._at_group_commit();

create function pgq._clear_group_events()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if extract(epoch from clock_timestamp())::bigint / 10 % 2 = 1 then
        if pg_relation_size('pgq.group_event_0') > 0 then
            lock table pgq.group_event_0 in access exclusive mode nowait;
            truncate pgq.group_event_0;
        end if;
    elsif pg_relation_size('pgq.group_event_1') > 0 then
        lock table pgq.group_event_1 in access exclusive mode nowait;
        truncate pgq.group_event_1;
    end if;
exception
    when lock_not_available or object_in_use then
        return;
end
$$;
comment on function pgq._clear_group_events() is
'truncates that of the two tables of events that is not written these ten seconds';

create function pgq._take_hints()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_groups bigint[];
    v_hint record;
begin
    v_groups := array(
        select g from pgq._lock_groups(
            array(select distinct h.group_id from pgq.group_hint h limit 1000), true
        ) g
    );
    if v_groups = '{}' then
        return;
    end if;
    -- With a snapshot taken after the locks.
    for v_hint in
        with taken as (
            delete from pgq.group_hint h where h.group_id = any (v_groups) returning h.*
        )
        select t.group_id, min(t.id) as id from taken t group by t.group_id
    loop
        perform pgq._turn_group(v_hint.group_id, v_hint.id);
    end loop;
end
$$;
comment on function pgq._take_hints() is 'for ticks: groups that could not be turned at a commit';
