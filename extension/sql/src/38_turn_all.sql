/*
 * All groups that a transaction has changed, at its commit; and those that are left to the ticks.
 */

create function pgq._turn_groups(
    p_group_ids bigint[], p_places bigint[], p_slots smallint[], p_lanes integer[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
declare
    v_next record;
    v_made bigint[];
begin
    for v_next in
        select n.is_next, n.slot, n.lane, array_agg(n.id) as ids,
               array_agg(n.group_id) as groups, array_agg(n.place) as places
          from pgq._next_heads(p_group_ids, p_places, p_slots, p_lanes) n
         group by n.is_next, n.slot, n.lane
    loop
        v_made := case v_next.is_next
                  when true then pgq._make_heads(v_next.slot, v_next.lane, v_next.ids)
                  when false then pgq._let_wait(v_next.slot, v_next.lane, v_next.ids)
                  else '{}' end;
        continue when cardinality(v_made) = cardinality(v_next.ids);
        perform pgq._turn_group(g.id, g.place)
           from unnest(v_next.groups, v_next.places, v_next.ids) g (id, place, job_id)
          where g.job_id <> all (v_made);
    end loop;
end
$$;
comment on function pgq._turn_groups(bigint[], bigint[], smallint[], integer[]) is
'pgq._turn_group for many groups: all at once where one job is next, one by one where more is to '
'be done';

create function pgq._noted_groups(
    p_noted text, out ids bigint[], out places bigint[], out slots smallint[], out lanes integer[]
)
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_note constant text[] := string_to_array(p_noted, '|');
begin
    if strpos(p_noted, ';') = 0 then
        ids := string_to_array(v_note[1], ',')::bigint[];
        places := string_to_array(v_note[2], ',')::bigint[];
        slots := string_to_array(v_note[3], ',')::smallint[];
        lanes := string_to_array(v_note[4], ',')::integer[];
        return;
    end if;
    -- Of a group that was noted more than once the lowest place is known, but no new job.
    select array_agg(g.id), array_agg(g.place), array_agg(g.slot), array_agg(g.lane)
      into ids, places, slots, lanes
      from (
               select n.id, min(n.place) as place, min(n.lane) as lane,
                      case count(*) when 1 then min(n.slot) else smallint '6' end as slot
                 from unnest(string_to_array(p_noted, ';')) o (note),
                      unnest(
                          string_to_array(split_part(o.note, '|', 1), ',')::bigint[],
                          string_to_array(split_part(o.note, '|', 2), ',')::bigint[],
                          string_to_array(split_part(o.note, '|', 3), ',')::smallint[],
                          string_to_array(split_part(o.note, '|', 4), ',')::integer[]
                      ) n (id, place, slot, lane)
                group by n.id
           ) g;
end
$$;
comment on function pgq._noted_groups(text) is 'what pgq._note_groups has noted';

--@ define may_turn
(current_setting('transaction_isolation') in ('read committed', 'read uncommitted')
        and (current_setting('max_prepared_transactions') = '0' or not pgq._is_preparing())
        and pg_trigger_depth() = 1
        and current_setting('pgq.grouped', true) is distinct from v_xid)
--@ end

create function pgq._turn_noted(p_note text default null)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_xid constant text := pg_current_xact_id()::text;
    v_noted constant text := nullif(concat_ws(
        ';', p_note,
        nullif(regexp_replace(current_setting('pgq.groups', true), '^[.];?', ''), '')
    ), '');
    v_noted_waiters constant text := nullif(current_setting('pgq.waiters', true), '');
    v_groups bigint[]; v_places bigint[]; v_slots smallint[]; v_lanes integer[];
    v_waiters bigint[]; v_waiter_lanes integer[];
begin
    if coalesce(v_noted, v_noted_waiters) is null then
        return;
    end if;
    perform set_config('pgq.groups', '', true), set_config('pgq.waiters', '', true);
    if v_noted is not null then
        select n.ids, n.places, n.slots, n.lanes into v_groups, v_places, v_slots, v_lanes
          from pgq._noted_groups(v_noted) n;
    end if;
    if v_noted_waiters is not null then
        select array_agg(w) filter (where n % 2 = 1), array_agg(w::integer) filter (where n % 2 = 0)
          into v_waiters, v_waiter_lanes
          from unnest(string_to_array(v_noted_waiters, ',')::bigint[]) with ordinality w (w, n);
    end if;
    if not {may_turn} then
        insert into pgq.group_hint (group_id, id)
        select g.id, g.place from unnest(v_groups, v_places) g (id, place);
        insert into pgq.waiter_hint (job_id, lane)
        select w.id, w.lane from unnest(v_waiters, v_waiter_lanes) w (id, lane);
        -- Who sleeps may do the next tick.
        perform pgq._wake_lane(l.lane)
           from (select unnest(v_waiter_lanes)
                  union
                 select unnest(string_to_array(split_part(o.note, '|', 4), ',')::integer[])
                   from unnest(string_to_array(v_noted, ';')) o (note)) l (lane);
        return;
    end if;
    perform set_config('pgq.grouped', v_xid, true);
    perform pgq._lock_groups(v_groups || array(select abs(w) from unnest(v_waiters) w), false);
    if v_groups is not null then
        perform pgq._turn_groups(v_groups, m.p_places, m.p_slots, v_lanes)
           from pgq._merge_hints(v_groups, v_places, v_slots) m;
    end if;
    if v_waiters is not null then
        perform pgq._turn_waiters(v_waiters, v_waiter_lanes);
    end if;
end
$$;
comment on function pgq._turn_noted(text) is
'decides which jobs may be claimed in the groups that this transaction has changed, and which of '
'those that waited for jobs which it has ended. p_note: the first note, where it is not in the '
'setting';

create function pgq._at_group_commit()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_xid text;
begin
    -- As in pgq._at_commit: behind the deferred triggers of others, which may wait for somebody.
    if not new.last then
        new.last := true;
        if tg_table_name = 'group_event_0' then
            insert into pgq.group_event_0 select new.*;
        else
            insert into pgq.group_event_1 select new.*;
        end if;
        return null;
    end if;
    v_xid := pg_current_xact_id()::text;
    if current_setting('pgq.groups', true) = {first_note}
        and coalesce(current_setting('pgq.waiters', true), '') = ''
        and new.noted is not null and {may_turn}
    then
        perform set_config('pgq.groups', '', true), set_config('pgq.grouped', v_xid, true),
                pgq._turn_alike(new.noted, new.lane, new.group_ids, new.places);
    elsif new.noted is not null then
        perform pgq._turn_noted(pgq._as_note(
                    array_agg(g.id), array_agg(g.place), array_agg(new.noted), array_agg(new.lane)
                ))
           from (
                    select u.id, min(u.place) as place
                      from unnest(new.group_ids, new.places) u (id, place) group by u.id
                ) g;
    else
        perform pgq._turn_noted();
    end if;
    return null;
end
$$;
comment on function pgq._at_group_commit() is
'turns the groups that a transaction has changed, as the last deferred trigger';

create constraint trigger group_event_0_at_commit after insert on pgq.group_event_0
    deferrable initially deferred
    for each row execute function pgq._at_group_commit();
create constraint trigger group_event_1_at_commit after insert on pgq.group_event_1
    deferrable initially deferred
    for each row execute function pgq._at_group_commit();

-- Also for what a subscription applies.
alter table pgq.group_event_0 enable always trigger group_event_0_at_commit;
alter table pgq.group_event_1 enable always trigger group_event_1_at_commit;

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

create function pgq._spread_hints()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
begin
    with taken as (
        delete from pgq.group_hint h
         where h.id < 0 and h.id = (
                   select min(o.id) from pgq.group_hint o where o.group_id = h.group_id
               )
        returning h.group_id as queue_id
    )
    insert into pgq.group_hint (group_id, id)
    --@ each parked
    select j.group_id, bigint '0'
      from taken t join pgq.lane l on l.queue_id = t.queue_id, pgq.job_{slot} j
     where j.lane = l.id and j.wait is not null and j.group_id is not null
     union
     --@ end
    select null, null where false;
end
$$;
comment on function pgq._spread_hints() is
'leaves a hint for each group in which jobs wait of queues that have a higher group_concurrency. '
'At two ticks: at the first one, which may be that of the same commit, others who still know the '
'old one may not have committed yet';

create function pgq._take_hints()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_groups bigint[];
    v_hint record;
begin
    perform pgq._spread_hints() where exists (select from pgq.group_hint h where h.id < 0);
    v_groups := array(
        select g from pgq._lock_groups(
            array(select distinct h.group_id from pgq.group_hint h where h.id >= 0 limit 1000), true
        ) g
    );
    if v_groups = '{}' then
        return;
    end if;
    -- With a snapshot taken after the locks.
    for v_hint in
        with taken as (
            delete from pgq.group_hint h
             where h.group_id = any (v_groups) and h.id >= 0 returning h.*
        )
        select t.group_id, min(t.id) as id from taken t group by t.group_id
    loop
        perform pgq._turn_group(v_hint.group_id, v_hint.id);
    end loop;
end
$$;
comment on function pgq._take_hints() is 'for ticks: groups that could not be turned at a commit';
