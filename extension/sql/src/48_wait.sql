/*
 * Public: pgq_channel, pgq_wait, pgq_wake. See 37_wake.sql.
 */

create function @extschema@.pgq_channel(queue text)
returns text
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return format('pgq_%s', pgq._queue_id(queue, 'consume'));
end
$$;
revoke all on function @extschema@.pgq_channel(text) from public;
comment on function @extschema@.pgq_channel(text) is
'The channel to LISTEN on for jobs of a queue, while the session sleeps as pgq_wait told. A '
'notification has no payload and means: call pgq_dequeue now. Errors: 42704 unknown queue; 22004; '
'42501.';

create function @extschema@.pgq_wake()
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_waiting constant text := coalesce(current_setting('pgq.waiting', true), '');
begin
    perform pg_advisory_unlock_shared({wait_class}, i)
       from unnest(string_to_array(v_waiting, ',')::integer[]) i;
    perform set_config('pgq.waiting', '', false), set_config('pgq.writers', '', false);
end
$$;
revoke all on function @extschema@.pgq_wake() from public;
comment on function @extschema@.pgq_wake() is
'Ends what pgq_wait began: others need not notify this session any more. Call it before '
'pgq_dequeue after each sleep; the end of the session does the same.';

create function pgq._writers(p_pids integer[])
returns integer[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        -- Those of prepared transactions have no pid.
        select distinct coalesce(l.pid, -1)
          from pg_locks l
         where l.locktype = 'relation' and l.mode = 'RowExclusiveLock'
           and l.pid is distinct from pg_backend_pid()
           and l.database = (select d.oid from pg_database d where d.datname = current_database())
           and (l.relation in ('pgq.queue'::regclass, 'pgq.schedule'::regclass)
                or l.relation in (select i.inhrelid from pg_inherits i
                                   where i.inhparent = 'pgq.job'::regclass))
           and (p_pids is null or coalesce(l.pid, -1) = any (p_pids))
    );
end
$$;
comment on function pgq._writers(integer[]) is
'the other sessions (null: all, or of these) that have written to a slot, resumed a queue or made '
'a schedule, and are not done';

--@ define ends_soon
not coalesce(l.awaited_until > p_now + interval '2 minutes', false)
--@ end

create function pgq._begin_wait(p_queue_ids integer[], p_now timestamptz)
returns timestamptz
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ids constant text := array_to_string(p_queue_ids, ',');
    v_noticed boolean;
begin
    if current_setting('pgq.waiting', true) is distinct from v_ids then
        perform @extschema@.pgq_wake();
        -- A call that failed has left its locks, not the setting.
        perform pg_advisory_unlock_shared({wait_class}, l.objid::bigint::integer)
           from pg_locks l
          where l.locktype = 'advisory' and l.classid = {wait_class} and l.objsubid = 2
            and l.mode = 'ShareLock' and l.pid = pg_backend_pid()
            and l.database = (select d.oid from pg_database d where d.datname = current_database());
        perform pg_advisory_lock_shared({wait_class}, i) from unnest(p_queue_ids) i;
        perform set_config('pgq.waiting', v_ids, false);
    end if;
    v_noticed := not exists (
        select from pgq.lane l
         where l.queue_id = any (p_queue_ids) and not coalesce(l.awaited_until > p_now, false)
    );
    -- Seldom: to those who look for writers, this session is one then.
    if exists (select from pgq.lane l where l.queue_id = any (p_queue_ids) and {ends_soon}) then
        update pgq.lane l set awaited_until = p_now + interval '3 minutes'
         where l.ctid = any (array(
                   select l.ctid from pgq.lane l
                    where l.queue_id = any (p_queue_ids) and {ends_soon}
                      for no key update skip locked
               ));
    end if;
    return (
        select min(l.awaited_until) from pgq.lane l
         where l.queue_id = any (p_queue_ids) and v_noticed
    );
end
$$;
comment on function pgq._begin_wait(integer[], timestamptz) is
'lets others know that this session is going to sleep, and returns until when they look; null: '
'they may not yet';

create function pgq._next_event(p_queue_id integer, p_now timestamptz)
returns timestamptz
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
declare
    v_us constant bigint := pgq._us(p_now);
    v_tick constant boolean := true;
    v_slots constant smallint[] := pgq._slots();
    v_queue pgq.queue;
    v_lane integer;
    v_at timestamptz;
    v_next timestamptz;
begin
    select q.* into v_queue from pgq.queue q where q.id = p_queue_id;
    for v_lane in
        select l.id from pgq.lane l where l.queue_id = p_queue_id and not v_queue.paused
    loop
        --@ each slot
        if {slot} = any (v_slots) then
            v_at := pgq._oldest({slot}::smallint, v_lane, p_now, v_queue.max_attempts, false);
            v_next := least(v_next, v_at);
            -- Leases that will expire: from the base on.
            select min(j.lease_expires_at) into v_at
              from (
                       select j.lease_expires_at from pgq.job_{slot} j
                        where j.lane = v_lane and j.{key} > {start}
                        order by j.{key}
                        limit 1000
                   ) j
             where j.lease_expires_at < 'infinity';
            v_next := least(v_next, v_at);
        end if;
        --@ end
        --@ each parked
        if {slot} = any (v_slots) then
            select greatest(j.run_at, timestamptz 'epoch' + j.due * interval '1 microsecond')
              into v_at
              from pgq.job_{slot} j
             where j.lane = v_lane and j.due > v_us and j.lease_expires_at is null
             order by j.due limit 1;
            v_next := least(v_next, v_at);
        end if;
        --@ end
    end loop;
    -- As in pgq._live_keys.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return v_next;
end
$$;
comment on function pgq._next_event(integer, timestamptz) is
'when there may be something to claim in a queue: long ago if there is now, when the next job '
'falls due or the next of a thousand leases expires, or null';

create function pgq._pause_ms(p_ready text, p_is_soon boolean)
returns double precision
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_before constant text := coalesce(current_setting('pgq.ready', true), '');
    v_round integer := coalesce(nullif(current_setting('pgq.round', true), ''), '0')::integer;
begin
    if p_ready <> v_before then
        v_round := case when v_before = '' then 0 else least(v_round, 6 + v_round % 2) end;
    end if;
    perform set_config('pgq.ready', p_ready, false),
            set_config('pgq.round', case when not p_is_soon then 0 when v_round = 31 then 30
                                         else v_round + 1 end::text, false);
    return case when p_ready <> '' and v_round % 2 = 0 then 0
                else least(power(2, v_round / case when p_ready = '' then 1 else 2 end), 1000) end;
end
$$;
comment on function pgq._pause_ms(text, boolean) is
'how many milliseconds to sleep if somebody must look again soon: the longer, the more often that '
'has been so. p_ready: since when there are jobs; each other time 0, to claim them, and while '
'they change at most 8';

create function @extschema@.pgq_wait(
    queues text[],
    max_wait interval default '30 seconds'
)
returns interval
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_ids integer[];
    v_until timestamptz;
    v_writers integer[];
    v_events timestamptz[];
    v_ready text;
    v_is_soon boolean;
    v_ms double precision;
begin
    perform pgq._check_array('queues', queues),
            pgq._check_not_null('max_wait', max_wait is null),
            pgq._check_interval('max_wait', max_wait, true);
    v_ids := array(
        select distinct pgq._queue_id(q, 'consume') as id from unnest(queues) q order by id
    );
    v_until := pgq._begin_wait(v_ids, v_now);
    v_writers := pgq._writers(
        string_to_array(nullif(current_setting('pgq.writers', true), ''), ',')::integer[]
    );
    perform set_config('pgq.writers', array_to_string(v_writers || array[0], ','), false);
    v_events := array(
        select least(
                   pgq._next_event(i, v_now),
                   (select min(s.next_at) from pgq.schedule s where s.queue_id = i and not s.paused)
               )
          from unnest(v_ids) i
    );
    v_ready := (select coalesce(string_agg(e::text, ','), '') from unnest(v_events) e
                 where e <= v_now);
    -- An old snapshot tells nothing of what has come meanwhile.
    v_is_soon := v_ready <> '' or v_until is null or v_writers <> '{}'
        or not pgq._read_committed();
    v_ms := pgq._pause_ms(v_ready, v_is_soon);
    return (
        select least(max_wait, interval '1 minute', v_until - v_now,
                     case when v_is_soon then v_ms * interval '1 millisecond' end,
                     min(e) - v_now)
          from (select e from unnest(v_events) e where e > v_now
                 union all select null) e
    );
end
$$;
revoke all on function @extschema@.pgq_wait(text[], interval) from public;
comment on function @extschema@.pgq_wait(text[], interval) is
'For a session that listens on pgq_channel of these queues and has nothing to do: how long it may '
'sleep, at most max_wait and a minute, until a notification. 0: call pgq_dequeue now. If none has '
'come by then, call pgq_wait again; after a notification, or 0, pgq_wake. Before it, nobody '
'notifies the session. It is woken for new jobs and those that come back, and wakes by itself '
'when the next one falls due or a lease expires; once a second while a queue is at a limit. Not '
'inside a transaction block. Errors: 42704 unknown queue; 22004; 22023; 42501.';
