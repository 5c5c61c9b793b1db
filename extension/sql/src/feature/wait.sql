/*
 * Public: pgq_channel, pgq_wait, pgq_wake. See feature/wake.sql and feature/sleep.sql.
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
'Returns the channel to LISTEN on for jobs of a queue.

A session is notified while it sleeps as long as pgq_wait told. A notification has no payload and
means: call pgq_dequeue now.

Errors:

* 22004: the queue is null.
* 42501: the privilege is missing.
* 42704: there is no such queue.';

create function @extschema@.pgq_wake()
returns void
language plpgsql
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
'Ends the sleep that pgq_wait began: other sessions need not notify this one.

Call it after each sleep, before pgq_dequeue. The end of the session does the same.';

create function pgq._next_event(p_queue_id integer, p_now timestamptz, p_lingers boolean)
returns timestamptz
language plpgsql
as $$
declare
    v_next timestamptz;
    v_lane bigint;
begin
    for v_lane in
        select distinct l.id from pgq.queue q join pgq.lane l on l.queue_id = q.id
         where q.id = p_queue_id and not q.paused
    loop
        v_next := least(
            v_next, (select min(pgq._oldest(s, v_lane)) from unnest(pgq._ready_slots()) s)
        );
        exit when v_next <= p_now;
        -- From the base on: leases that will expire, and what has been committed late.
        if not p_lingers then
            select least(v_next, min(coalesce(j.lease_expires_at, pgq._next_tick(p_now))))
              into v_next
              from generate_series(0, 3) s, lateral (
                       select i.lease_expires_at from pgq.job i
                        where i.slot = s and i.lane = v_lane and i.pos > coalesce((
                                  select f.base from pgq.floor f
                                   where f.slot = s and f.lane = v_lane order by f.n desc limit 1
                              ), 0)
                        order by i.pos limit 1000
                   ) j;
        end if;
    end loop;
    if v_next is null or v_next > p_now then
        v_next := least(
            v_next, pgq._next_due_of(p_queue_id),
            (select min(s.next_at) from pgq.schedule s
              where s.queue_id = p_queue_id and not s.paused)
        );
    end if;
    -- As in pgq._find.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return v_next;
end
$$;
comment on function pgq._next_event(integer, timestamptz, boolean) is
'Returns when there may be something to claim in a queue, or null.

Long ago if there is now; else when the next job or schedule falls due, the next of a thousand
leases expires, or a tick finds what was committed late. p_lingers: what is leased, or was
committed late, is not looked at.';

create function pgq._next_due_of(p_queue_id integer)
returns timestamptz
language plpgsql
as $$
begin
    -- Of a thousand jobs that fall due next none may be of the queue: then look again after them.
    return (
        select timestamptz 'epoch' + interval '1 microsecond' * min(coalesce(
                   (select min(d.due) from unnest(f.dues, f.queues) d (due, queue_id)
                     where d.queue_id = p_queue_id),
                   case when cardinality(f.dues) = 1000 then f.dues[1000] end
               ))
          from generate_series(4, 5) s, lateral (
                   select array_agg(o.due order by o.due) as dues,
                          array_agg(pgq._queue_of(o.lane) order by o.due) as queues
                     from (
                              select j.due, j.lane from pgq.job j
                               where j.slot = s and j.due > coalesce((
                                         select f.base from pgq.floor f
                                          where f.slot = s and f.lane = 0 order by f.n desc limit 1
                                     ), 0)
                               order by j.due limit 1000
                          ) o
               ) f
    );
end
$$;
comment on function pgq._next_due_of(integer) is
'When the next scheduled job of a queue is due, or a time before that.';

create function pgq._pause_ms(p_ready text, p_is_soon boolean, p_lingers boolean)
returns double precision
language plpgsql
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
'Returns how many milliseconds to sleep if somebody must look again soon.

The longer, the more often that has been so. p_ready: since when there are jobs. Each other time
0, to claim them, and while they change at most 8, or always 0 to one that lingers, which has
just slept.';

create function pgq._sleep_for(
    p_queue_ids integer[], p_idle_ms bigint[], p_max_wait interval, p_now timestamptz
)
returns interval
language plpgsql
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
        return least(p_max_wait, interval '10 ms');
    end if;
    -- An old snapshot tells nothing of what has come meanwhile.
    v_is_soon := not pgq._read_committed()
        or (v_is_asleep and (v_until is null or pgq._has_writers()));
    v_events := array(
        select pgq._next_event(u.i, p_now, u.ms is not null)
          from unnest(p_queue_ids, p_idle_ms) u (i, ms)
         where u.ms is distinct from 0
    ) || case when v_is_asleep and pgq._tick_has_work() then pgq._next_tick(p_now) end;
    v_ready := (select coalesce(string_agg(e::text, ','), '') from unnest(v_events) e
                 where e <= p_now);
    v_is_soon := v_is_soon or v_ready <> '';
    v_ms := pgq._pause_ms(v_ready, v_is_soon, not v_is_asleep);
    return (
        select least(p_max_wait, interval '1 minute', v_until - p_now,
                     case when v_is_soon then v_ms * interval '1 millisecond' end,
                     case when not v_is_asleep then interval '10 ms' end,
                     min(e) - p_now)
          from unnest(v_events) e where e > p_now
    );
end
$$;
comment on function pgq._sleep_for(integer[], bigint[], interval, timestamptz) is
'Returns how long to sleep, for pgq_wait.

p_idle_ms: for how long the session lingers in each queue, null if it does not.';

create function @extschema@.pgq_wait(
    queues text[],
    max_wait interval default '30 seconds'
)
returns interval
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_ids integer[];
    v_pause interval;
begin
    perform pgq._check_array('queues', queues),
            pgq._check_not_null('max_wait', max_wait is null),
            pgq._check_interval('max_wait', max_wait, true);
    v_ids := array(
        select distinct pgq._queue_id(q, 'consume') as id from unnest(queues) q order by id
    );
    v_pause := least(
        pgq._sleep_for(v_ids, pgq._linger(v_ids, v_now), max_wait, v_now),
        case when pgq._is_deaf(v_ids) then interval '1 second' end
    );
    -- So that the claim which follows finds what a tick makes ready.
    perform pgq._want_tick(500) where v_pause = '0';
    return v_pause;
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
'Returns how long a session may sleep until a notification; 0: dequeue now.

The session has nothing to do, and listens on pgq_channel of each of these queues. The sleep is
at most max_wait, and at most a minute.

* If the answer is 0, call pgq_wake and pgq_dequeue.
* If a notification comes, call pgq_wake and pgq_dequeue.
* If none comes in this time, call pgq_wait again.

A session is woken for new jobs and for jobs that come back. The time ends when the next job
falls due or a lease expires. While a queue is at a limit, the time is at most a second.

Nobody notifies a session before it calls pgq_wait. For 40 ms from the first call after pgq_wake,
each call returns 10 ms at most, and nobody notifies the session either. So jobs that follow one
another need no notification.

Exceptions:

* A queue that was dropped and created again has another channel. A session that listens on the
  old channel alone sleeps for a second at most.
* COMMIT PREPARED cannot notify. With prepared transactions, give a max_wait of a second.
* Do not call it inside a transaction block: no notification comes there.

Errors:

* 22004: an argument or a queue is null.
* 22023: the array has more than one dimension, or max_wait is negative or infinite.
* 25006: the transaction is read-only, and the call has to note that the session sleeps.
* 42501: the privilege is missing.
* 42704: there is no such queue.';
