/*
 * The tables of events: one is written, the others are truncated.
 */

create function pgq._clear_group_event(p_table integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    case p_table
    --@ each event
    when {slot} then
        lock table pgq.group_event_{slot} in access exclusive mode nowait;
        truncate pgq.group_event_{slot};
    --@ end
    end case;
exception
    when lock_not_available or object_in_use then
        return;
end
$$;
comment on function pgq._clear_group_event(integer) is
'truncates a table of events, unless a transaction is open that has noted something there';

create function pgq._clear_group_events(p_now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_written constant integer := {event_table};
    v_since constant bigint := coalesce(pg_sequence_last_value('pgq.event_table'), 0) / 10;
    v_window constant bigint := pgq._ms(p_now) / 10000;
    v_empty integer[];
    v_used integer[];
begin
    select array_agg(t.n) filter (where t.size = 0), array_agg(t.n) filter (where t.size > 0)
      into v_empty, v_used
      from (
               values
               --@ each event
               ({slot}, pg_relation_size('pgq.group_event_{slot}')),
               --@ end
               (null, null)
           ) t (n, size);
    -- One that is empty already: nobody waits for the lock of this tick.
    if v_written = any (v_used) and v_window <> v_since and v_empty is not null then
        perform setval('pgq.event_table', v_window * 10 + v_empty[1]);
    end if;
    perform pgq._clear_group_event(u) from unnest(v_used) u where u <> v_written;
end
$$;
comment on function pgq._clear_group_events(timestamptz) is
'has the next table of events written, from one window of ten seconds to another, and truncates '
'those that are not written. A transaction that is open keeps one from being truncated: with six, '
'the others go on by turns';
