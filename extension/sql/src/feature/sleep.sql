/*
 * How a session goes to sleep. State between calls is in settings of the session: pgq.idle, since
 * when it has had nothing to do in each queue; pgq.waiting, the queues on which it holds the
 * advisory lock; pgq.writers, for whom it still waits (0 ends the list, so that none is not all).
 * A transaction that fails takes its settings back, not what it did to the session's locks.
 *
 * Who had something to do a moment ago lingers: it sleeps in naps, without the lock, and looks for
 * jobs after each. So while jobs keep coming nobody notifies, although consumers that keep up have
 * nothing to do again and again. The lock comes first and the look after it, as ever, so nothing
 * is lost when lingering ends.
 */

create function pgq._has_writers()
returns boolean
language plpgsql
as $$
declare
    v_before constant integer[] := string_to_array(
        nullif(current_setting('pgq.writers', true), ''), ','
    )::integer[];
    -- To a slot; or they have resumed a queue or made a schedule.
    v_writers constant integer[] := array(
        -- Those of prepared transactions have no pid.
        select distinct coalesce(l.pid, -1)
          from pg_locks l
         where l.locktype = 'relation' and l.mode = 'RowExclusiveLock'
           and l.pid is distinct from pg_backend_pid()
           and l.database = (select d.oid from pg_database d where d.datname = current_database())
           and (l.relation in ('pgq.queue'::regclass, 'pgq.schedule'::regclass)
                or l.relation in (select i.inhrelid from pg_inherits i
                                   where i.inhparent = 'pgq.job'::regclass))
           and (v_before is null or coalesce(l.pid, -1) = any (v_before))
    );
begin
    perform set_config('pgq.writers', array_to_string(v_writers || array[0], ','), false);
    return v_writers <> '{}';
end
$$;
comment on function pgq._has_writers() is
'Says whether a session that was writing when this one began to wait is not done.

It may have noticed too late that this session waits.';

create function pgq._linger(p_queue_ids integer[], p_now timestamptz)
returns bigint[]
language plpgsql
as $$
declare
    v_now constant bigint := pgq._ms(p_now);
    v_before constant jsonb := nullif(current_setting('pgq.idle', true), '')::jsonb;
    v_is_stuck constant boolean := (
        current_setting('pgq.ready', true) <> ''
        and current_setting('pgq.round', true)::integer > 12
    ) is true;
    v_since constant bigint[] := array(
        select case when v_before is null then 0
                    else coalesce((v_before ->> u.id::text)::bigint, v_now) end
          from unnest(p_queue_ids) with ordinality u (id, n) order by u.n
    );
begin
    perform set_config(
        'pgq.idle', jsonb_object(p_queue_ids::text[], v_since::text[])::text, false
    );
    return array(
        select case when v_now - u.since between 0 and 40 - 1 and not v_is_stuck
                    then v_now - u.since end
          from unnest(v_since) with ordinality u (since, n) order by u.n
    );
end
$$;
comment on function pgq._linger(integer[], timestamptz) is
'Returns for how many milliseconds the session has been idle in each queue.

Since the first call with the queue after pgq_wake, or after one without it. Null: it need not
linger, because that is long, or it has not called pgq_wake yet, or it is stuck at a limit.';

create function pgq._hold_waits(p_queue_ids integer[])
returns boolean
language plpgsql
as $$
declare
    v_held constant integer[] := array(
        select l.objid::bigint::integer as id
          from pg_locks l
         where l.locktype = 'advisory' and l.classid = 1885826917 and l.objsubid = 2
           and l.mode = 'ShareLock' and l.pid = pg_backend_pid()
           and l.database = (select d.oid from pg_database d where d.datname = current_database())
         order by id
    );
begin
    perform set_config('pgq.waiting', array_to_string(p_queue_ids, ','), false);
    if v_held = p_queue_ids then
        return true;
    end if;
    perform set_config('pgq.writers', '', false);
    perform pg_advisory_unlock_shared(1885826917, i)
       from unnest(v_held) i where i <> all (p_queue_ids);
    -- Who looks whether to notify has the exclusive one: for a moment, unless it is stopped then.
    return p_queue_ids = array(
        select i from unnest(p_queue_ids) i
         where i = any (v_held) or pg_try_advisory_lock_shared(1885826917, i)
    );
end
$$;
comment on function pgq._hold_waits(integer[]) is
'Lets the session hold the advisory lock on these queues and no others.

Returns whether it has all of them.';

create function pgq._begin_wait(p_queue_ids integer[], p_now timestamptz)
returns timestamptz
language plpgsql
as $$
declare
    v_noticed boolean;
begin
    if p_queue_ids <> '{}' or current_setting('pgq.waiting', true) <> '' then
        v_noticed := pgq._hold_waits(p_queue_ids);
    end if;
    if p_queue_ids = '{}' then
        return null;
    end if;
    v_noticed := v_noticed and not exists (
        select from pgq.lane l
         where l.queue_id = any (p_queue_ids) and not coalesce(l.awaited_until > p_now, false)
    );
    -- Who writes meanwhile may not have noticed either.
    if not v_noticed then
        perform set_config('pgq.writers', '', false);
    end if;
    -- About once a minute for all who sleep.
    if exists (
        select from pgq.lane l
         where l.queue_id = any (p_queue_ids)
           and not coalesce(l.awaited_until > p_now + interval '2 minutes', false)
    ) then
        update pgq.lane l set awaited_until = p_now + interval '3 minutes'
         where l.ctid = any (array(
                   select l.ctid from pgq.lane l
                    where l.queue_id = any (p_queue_ids)
                      and not coalesce(l.awaited_until > p_now + interval '2 minutes', false)
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
'Lets others know that this session is going to sleep.

Returns until when they look; null: they may not yet.';

create function pgq._is_deaf(p_queue_ids integer[])
returns boolean
language plpgsql
as $$
declare
    v_channels constant text[] := array(
        select c from pg_listening_channels() c where c ~ '^pgq_[0-9]+$'
    );
begin
    return v_channels <> '{}' and exists (
        select from unnest(p_queue_ids) i where format('pgq_%s', i) <> all (v_channels)
    );
end
$$;
comment on function pgq._is_deaf(integer[]) is
'Says whether the session listens for some, but not all of these queues.

One was dropped and created again.';

create function pgq._next_tick(p_now timestamptz)
returns timestamptz
language sql
begin atomic
    select least(
        timestamptz 'epoch' + interval '1 millisecond'
            * coalesce(pg_sequence_last_value('pgq.next_tick'), 0),
        p_now + interval '500 ms'
    );
end;
comment on function pgq._next_tick(timestamptz) is
'When a claim has to come for what is left to the next tick.';

create function pgq._tick_has_work()
returns boolean
language plpgsql
as $$
begin
    return pgq._read_committed()  -- else its claims do no maintenance
        and (exists (select from pgq.hint h where h.kind <> 'l')
             or exists (
                    select
                      from (select r.live || r.parked as used from pgq.ring r
                             order by r.gen desc limit 1) r,
                           generate_series(0, 5) s
                     where s <> all (r.used) and pg_relation_size(pgq._slot_table(s)) > 0
                ));
end
$$;
comment on function pgq._tick_has_work() is
'Whether something is left to the next tick that nothing else tells of.';
