/*
 * Waking workers that sleep. A NOTIFY takes a lock at commit that all who notify share, so none is
 * sent unless somebody sleeps; see feature/sleep.sql.
 *
 * Who sleeps holds an advisory lock on the queue, in share mode (pgq_wait). Who adds a job tries to
 * take it in exclusive mode, and gives it back at once. That is only tried while awaited_until of
 * the lane, which is read anyway, lies in the future, or in a snapshot that may be old.
 *
 * A transaction that looked before the sleeper had the lock, and commits when it sleeps, holds a
 * lock on the slot that it has written to, or on the queues or schedules: pgq_wait looks for such,
 * and lets its caller come back soon while one that was there when it began to wait still is.
 */

create function pgq._wake(p_queue_id integer)
returns void
language plpgsql
as $$
begin
    -- More than once: another session may be trying the same, which takes it a microsecond.
    for v_try in 1..3 loop
        -- In one expression: a call that is cancelled between the two would keep the lock.
        if pg_try_advisory_lock(1885826917, p_queue_id)
            and pg_advisory_unlock(1885826917, p_queue_id)
        then
            return;
        end if;
    end loop;
    -- A transaction that has notified cannot be prepared: at commit it is known whether it is.
    if current_setting('max_prepared_transactions') = '0'
        or current_setting('session_replication_role') = 'replica'
    then
        -- NOTIFY fails the commit where the queue of the whole server is full, as a session that
        -- listens and does not read makes it. Sleepers look by themselves then.
        perform pg_notify(format('pgq_%s', p_queue_id), '')
          where pg_notification_queue_usage() < 0.9;
    else
        insert into pgq.chore (wake) values (p_queue_id);
    end if;
end
$$;
comment on function pgq._wake(integer) is
'Notifies those who sleep for jobs of a queue, at the commit.';

create function pgq._wake_lane(p_lane bigint, p_run_at timestamptz default null)
returns void
language plpgsql
as $$
declare
    v_now constant timestamptz := pgq._now();
begin
    perform pgq._wake(l.queue_id)
       from pgq.lane l
      where l.id = p_lane and (l.awaited_until > v_now or not pgq._read_committed())
        and coalesce(p_run_at < v_now + interval '1 minute', true);
end
$$;
comment on function pgq._wake_lane(bigint, timestamptz) is
'Notifies as pgq._wake, for a job that has come (back) to a lane.

Also if it falls due before sleepers look by themselves, so that they set their alarm.';
