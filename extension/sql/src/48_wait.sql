/*
 * Public: pgq_channel, pgq_wait, pgq_wake. See 37_wake.sql and 38_sleep.sql.
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
begin
    if current_setting('pgq.waiting', true) <> '' then
        perform pgq._hold_waits('{}');
    end if;
    perform set_config('pgq.idle', '{}', false);
end
$$;
revoke all on function @extschema@.pgq_wake() from public;
comment on function @extschema@.pgq_wake() is
'Ends what pgq_wait began: others need not notify this session any more. Call it before '
'pgq_dequeue after each sleep; the end of the session does the same.';

create function pgq._next_event(p_queue_id integer, p_now timestamptz, p_lingers boolean)
returns timestamptz
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
set enable_sort = off
as $$
declare
    v_us constant bigint := pgq._us(p_now);
    v_tick constant boolean := true;
    v_slots constant smallint[] := pgq._slots();
    v_lane integer; v_max integer;
    v_at timestamptz; v_next timestamptz;
begin
    for v_lane, v_max in
        select l.id, q.max_attempts
          from pgq.queue q join pgq.lane l on l.queue_id = q.id
         where q.id = p_queue_id and not q.paused
    loop
        --@ each slot
        if {slot} = any (v_slots) then
            v_next := least(v_next, pgq._oldest({slot}::smallint, v_lane, p_now, v_max, false));
            exit when v_next <= p_now;
            -- From the base on: leases that will expire, and what has been committed late.
            if not p_lingers then
                select min(coalesce(j.lease_expires_at, timestamptz 'epoch'
                                    + j.due * interval '1 microsecond', j.enqueued_at)) into v_at
                  from (
                           select j.lease_expires_at, j.due, j.enqueued_at from pgq.job_{slot} j
                            where j.lane = v_lane and j.{key} > {start}
                            order by j.{key}
                            limit 1000
                       ) j
                 where j.lease_expires_at is distinct from 'infinity';
                v_next := least(v_next, v_at);
            end if;
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
    if v_next is null or v_next > p_now then
        v_next := least(v_next, (select min(s.next_at) from pgq.schedule s
                                  where s.queue_id = p_queue_id and not s.paused));
    end if;
    -- As in pgq._live_keys.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return v_next;
end
$$;
comment on function pgq._next_event(integer, timestamptz, boolean) is
'when there may be something to claim in a queue: long ago if there is now, when the next job '
'or schedule falls due or the next of a thousand leases expires, or null. p_lingers: what is '
'leased, or was committed late, is not looked at';

create function pgq._has_strays()
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_free constant smallint[] := array(
        select s::smallint from generate_series(0, 5) s
         where s <> all ((select pgq._slots())::smallint[])
    );
    v_found boolean := false;
begin
    if v_free <> '{}' then
        execute format(
            'lock table %s in access share mode nowait',
            (select string_agg(format('pgq.job_%s', s), ', ') from unnest(v_free) s)
        );
        v_found := exists (
            select from unnest(v_free) s
             where pg_relation_size(format('pgq.job_%s', s)::regclass) > 0
               and pgq._holds_jobs(s, true)
        );
    end if;
    -- As in pgq._live_keys.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return v_found;
    when lock_not_available then
        return false;
end
$$;
comment on function pgq._has_strays() is
'whether a slot that is free has got jobs, of those who had chosen it before it was freed: the '
'next tick makes it live. Waits for nobody';

create function pgq._next_tick(p_now timestamptz)
returns timestamptz
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return case when pgq._read_committed()  -- else its claims do no maintenance
                     and (exists (select from pgq.group_hint)
                          or exists (select from pgq.waiter_hint)
                          or pgq._has_strays())
                then least(
                         timestamptz 'epoch' + interval '1 millisecond'
                             * coalesce(pg_sequence_last_value('pgq.next_tick'), 0),
                         p_now + interval '500 ms'
                     ) end;
end
$$;
comment on function pgq._next_tick(timestamptz) is
'when a claim has to come for what has been left to the next tick, or null: nothing has';

create function pgq._pause_ms(p_ready text, p_is_soon boolean, p_lingers boolean)
returns double precision
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_before constant text := coalesce(current_setting('pgq.ready', true), '');
    v_round integer := coalesce(nullif(current_setting('pgq.round', true), ''), '0')::integer;
begin
    if p_ready <> v_before then
        v_round := case when v_before = '' or p_lingers then 0
                        else least(v_round, 6 + v_round % 2) end;
    end if;
    perform set_config('pgq.ready', p_ready, false),
            set_config('pgq.round', case when not p_is_soon then 0 when v_round = 31 then 30
                                         else v_round + 1 end::text, false);
    return case when p_ready <> '' and v_round % 2 = 0 then 0
                else least(power(2, v_round / case when p_ready = '' then 1 else 2 end), 1000) end;
end
$$;
comment on function pgq._pause_ms(text, boolean, boolean) is
'how many milliseconds to sleep if somebody must look again soon: the longer, the more often that '
'has been so. p_ready: since when there are jobs; each other time 0, to claim them, and while '
'they change at most 8, or always 0 to one that lingers, which has just slept';

create function pgq._sleep_for(
    p_queue_ids integer[], p_idle_ms bigint[], p_max_wait interval, p_now timestamptz
)
returns interval
language plpgsql
set search_path = pg_catalog, pg_temp
{index_scans}
as $$
declare
    v_asleep constant integer[] := array(
        select u.i from unnest(p_queue_ids, p_idle_ms) u (i, ms) where u.ms is null
    );
    v_until timestamptz;
    v_events timestamptz[];
    v_ready text;
    v_is_asleep constant boolean := v_asleep = p_queue_ids;
    v_is_soon boolean;
    v_ms double precision;
begin
    v_until := pgq._begin_wait(v_asleep, p_now);
    -- At the beginning of a first nap nothing is looked for: what comes meanwhile is one batch.
    if 0 = all (p_idle_ms) and p_queue_ids <> '{}' then
        return least(p_max_wait, interval '{nap} ms');
    end if;
    -- Nobody waits for what is done now. Not by one that has the lock: it would keep that if the
    -- commit failed.
    if v_asleep = '{}' and pg_sequence_last_value('pgq.put_off') > 1
        and current_setting('transaction_read_only') = 'off'
    then
        perform pgq._catch_up();
    end if;
    -- An old snapshot tells nothing of what has come meanwhile.
    v_is_soon := case when not pgq._read_committed() then true
                      when v_is_asleep then v_until is null or pgq._has_writers()
                      else false end;
    v_events := array(
        select pgq._next_event(u.i, p_now, u.ms is not null)
          from unnest(p_queue_ids, p_idle_ms) u (i, ms)
         where u.ms is distinct from 0
    ) || case when v_is_asleep then pgq._next_tick(p_now) end;
    v_ready := (select coalesce(string_agg(e::text, ','), '') from unnest(v_events) e
                 where e <= p_now);
    v_is_soon := v_is_soon or v_ready <> '';
    v_ms := pgq._pause_ms(v_ready, v_is_soon, not v_is_asleep);
    return (
        select least(p_max_wait, interval '1 minute', v_until - p_now,
                     case when v_is_soon then v_ms * interval '1 millisecond' end,
                     case when not v_is_asleep then interval '{nap} ms' end,
                     min(e) - p_now)
          from (select e from unnest(v_events) e where e > p_now
                 union all select null) e
    );
end
$$;
comment on function pgq._sleep_for(integer[], bigint[], interval, timestamptz) is
'for pgq_wait. p_idle_ms: for how long the session lingers in each queue, null if it does not';

create function @extschema@.pgq_wait(
    queues text[],
    max_wait interval default '30 seconds'
)
returns interval
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
{index_scans}
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_ids integer[];
begin
    perform pgq._check_array('queues', queues),
            pgq._check_not_null('max_wait', max_wait is null),
            pgq._check_interval('max_wait', max_wait, true);
    v_ids := array(
        select distinct pgq._queue_id(q, 'consume') as id from unnest(queues) q order by id
    );
    return least(
        pgq._sleep_for(v_ids, pgq._linger(v_ids, v_now), max_wait, v_now),
        case when pgq._is_deaf(v_ids) then interval '1 second' end
    );
exception
    -- It does not sleep then: others need not notify it.
    when operator_intervention or object_not_in_prerequisite_state or transaction_rollback
        or insufficient_resources or invalid_transaction_state or undefined_object
        or insufficient_privilege
    then
        perform pgq._hold_waits('{}');
        raise;
end
$$;
revoke all on function @extschema@.pgq_wait(text[], interval) from public;
comment on function @extschema@.pgq_wait(text[], interval) is
'For a session that listens on pgq_channel of these queues and has nothing to do: how long it may '
'sleep, at most max_wait and a minute, until a notification. 0: call pgq_dequeue now. If none has '
'come by then, call pgq_wait again; after a notification, or 0, pgq_wake. Before it, nobody '
'notifies the session, nor for 40 ms from the first call after pgq_wake on, when each returns 10 '
'ms at most: jobs that follow one another need not be announced. It is woken for new jobs and '
'those that come back, and wakes by itself when the next one falls due or a lease expires; once a '
'second while a queue is at a limit. A queue that was dropped and created again has another '
'channel: a session that still listens on the old one alone sleeps for a second at most. COMMIT '
'PREPARED cannot notify: where transactions are prepared, give a max_wait of a second. Not inside '
'a transaction block: no notification comes there. Errors: 42704 unknown queue; 22004; 22023; '
'42501; 25006 in a read-only transaction, if it has to write that somebody sleeps.';
