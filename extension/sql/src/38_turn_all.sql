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

create function pgq._take_notes(p_table integer)
returns pgq.group_event_0[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_notes pgq.group_event_0[];
begin
    -- An index scan, without settings: these tables are never analyzed.
    case p_table
    --@ each event
    when {slot} then
        with taken as (
            delete from pgq.group_event_{slot} e where e.xid = pg_current_xact_id() returning e.*
        )
        select array_agg(row(t.*)::pgq.group_event_0) filter (where not t.last)
          into v_notes from taken t;
    --@ end
    end case;
    return v_notes;
end
$$;
comment on function pgq._take_notes(integer) is
'what this transaction has noted in a table of events since the last time; null for nothing';

create function pgq._is_noted(p_table integer, p_last boolean)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
{index_scans}
as $$
declare
    v_is_noted boolean;
begin
    case p_table
    --@ each event
    when {slot} then
        v_is_noted := exists (
            select from pgq.group_event_{slot} e
             where e.xid = pg_current_xact_id() and e.last = p_last
        );
    --@ end
    end case;
    return v_is_noted;
end
$$;
comment on function pgq._is_noted(integer, boolean) is
'whether there is anything for pgq._take_notes, or (p_last) the event is queued that does it';

--@ define may_turn
({is_read_committed}
        and (current_setting('max_prepared_transactions') = '0' or not pgq._is_preparing())
        and pg_trigger_depth() = 1
        and current_setting('pgq.grouped', true) is distinct from v_xid)
--@ end

create function pgq._turn_noted(p_notes pgq.group_event_0[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_xid constant text := pg_current_xact_id()::text;
    v_groups bigint[]; v_places bigint[]; v_slots smallint[]; v_lanes integer[];
    v_waiters bigint[]; v_waiter_lanes integer[];
begin
    -- Of a group that was noted more than once the lowest place is known, but no new job.
    select array_agg(g.id), array_agg(g.place), array_agg(g.slot), array_agg(g.lane)
      into v_groups, v_places, v_slots, v_lanes
      from (
               select n.id, min(n.place) as place, min(coalesce(n.lane, o.lane)) as lane,
                      case when min(o.ordinality) = max(o.ordinality)
                           then min(coalesce(n.slot, o.noted)) else smallint '6' end as slot
                 from unnest(p_notes) with ordinality o,
                      unnest(o.group_ids, o.places, o.slots, o.lanes) n (id, place, slot, lane)
                group by n.id
           ) g;
    select array_agg(w.id), array_agg(w.lane) into v_waiters, v_waiter_lanes
      from unnest(p_notes) o, unnest(o.waiters, o.waiter_lanes) w (id, lane);
    if not {may_turn} then
        insert into pgq.group_hint (group_id, id)
        select g.id, g.place from unnest(v_groups, v_places) g (id, place);
        insert into pgq.waiter_hint (job_id, lane)
        select w.id, w.lane from unnest(v_waiters, v_waiter_lanes) w (id, lane);
        -- Who sleeps may do the next tick.
        perform pgq._wake_lane(l.lane)
           from (select unnest(v_waiter_lanes) union select unnest(v_lanes)) l (lane);
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
comment on function pgq._turn_noted(pgq.group_event_0[]) is
'decides which jobs may be claimed in the groups that this transaction has changed, and which of '
'those that waited for jobs which it has ended';

create function pgq._at_group_commit()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_xid constant text := pg_current_xact_id()::text;
    v_table constant integer := right(tg_table_name, 1)::integer;
    v_is_only boolean;
begin
    if not ({is_read_committed}) then
        -- Left to the next tick, without a look at these tables, for which SERIALIZABLE might fail.
        perform pgq._turn_noted(array[row(new.*)::pgq.group_event_0]);
        return null;
    end if;
    -- As in pgq._at_commit: behind the deferred triggers of others, which may wait for somebody.
    -- The setting only tells when it is worth a look whether that is queued already.
    if not new.last then
        if current_setting('pgq.noted', true) is distinct from v_xid
            or not pgq._is_noted(v_table, true)
        then
            perform set_config('pgq.noted', v_xid, true);
            new.last := true;
            case v_table
            --@ each event
            when {slot} then
                insert into pgq.group_event_{slot} select new.*;
            --@ end
            end case;
        end if;
        return null;
    end if;
    if new.noted is not null and v_table = {event_table} and {may_turn} then
        case v_table
        --@ each event
        when {slot} then
            select count(*) = 2 and bool_or(
                       not e.last and (e.noted, e.lane, e.group_ids, e.places)
                                      = (new.noted, new.lane, new.group_ids, new.places)
                   )
              into v_is_only from pgq.group_event_{slot} e where e.xid = new.xid;
            delete from pgq.group_event_{slot} e where e.xid = new.xid and v_is_only;
        --@ end
        end case;
    end if;
    -- What this row is a copy of has not been taken yet, and nothing else was noted.
    if v_is_only then
        perform set_config('pgq.grouped', v_xid, true),
                pgq._turn_alike(new.noted, new.lane, new.group_ids, new.places);
    else
        -- Where another table is written by now, this transaction may have noted more there.
        perform pgq._turn_noted(array_agg(n))
           from unnest(case when v_table = {event_table} then array[v_table]
                            else '{0,1,2,3,4,5}' end) t, unnest(pgq._take_notes(t)) n
         having count(*) > 0;
    end if;
    return null;
end
$$;
comment on function pgq._at_group_commit() is
'turns the groups that a transaction has changed, as the last deferred trigger';

--@ each event
create constraint trigger group_event_{slot}_at_commit after insert on pgq.group_event_{slot}
    deferrable initially deferred
    for each row execute function pgq._at_group_commit();
-- Also for what a subscription applies.
alter table pgq.group_event_{slot} enable always trigger group_event_{slot}_at_commit;
--@ end

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
    v_skips text[] := pgq._skips('group');
    v_groups bigint[];
    v_hint record;
begin
    perform pgq._spread_hints() where exists (select from pgq.group_hint h where h.id < 0);
    for v_try in {tries} loop
        v_groups := array(
            select g from pgq._lock_groups(array(
                select distinct h.group_id from pgq.group_hint h
                 where h.id >= 0 and h.group_id::text <> all (v_skips) limit 1000
            ), true) g
        );
        if v_groups = '{}' then
            return;
        end if;
        begin
            v_hint := null;
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
            return;
        exception
            when {fault_of_one} then
                if v_hint is null then
                    raise;
                end if;
                v_skips := v_skips
                    || pgq._skip('group', v_hint.group_id::text, null, sqlstate, sqlerrm);
        end;
    end loop;
end
$$;
comment on function pgq._take_hints() is 'for ticks: groups that could not be turned at a commit';
