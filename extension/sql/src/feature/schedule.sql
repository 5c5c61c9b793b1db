/*
 * Public: pgq_schedule, pgq_unschedule, pgq_pause_schedule, pgq_resume_schedule, pgq_run_schedule.
 * Ticks fire what is due: see feature/fire.sql.
 */

create function pgq._save_schedule(p_new pgq.schedule, p_queue text)
returns timestamptz
language plpgsql
set lock_timeout = '200ms'
as $$
begin
    perform pgq._hold_queue(p_queue, p_new.queue_id, 'manage');
    insert into pgq.schedule as s select p_new.*
    on conflict on constraint schedule_pkey do update
       set queue_id = excluded.queue_id, cron = excluded.cron, timezone = excluded.timezone,
           payload = excluded.payload, priority = excluded.priority,
           max_attempts = excluded.max_attempts, headers = excluded.headers,
           missed = excluded.missed,
           next_at = case when (s.cron, s.timezone) = (excluded.cron, excluded.timezone)
                               and not s.paused
                          then s.next_at else excluded.next_at end
     where pgq._may(s.queue_id, 'manage')
    returning s.next_at into p_new.next_at;
    if not found then
        raise exception 'permission denied for schedule "%"', p_new.name
            using errcode = 'insufficient_privilege',
                  detail = 'A queue that you do not manage has a schedule of this name.',
                  hint = 'Choose another name.';
    end if;
    return p_new.next_at;
exception
    when lock_not_available then
        raise exception 'another open transaction changes schedule "%"', p_new.name
            using errcode = 'lock_not_available',
                  detail = 'All queues share the names of schedules.',
                  hint = 'Try again, or choose another name.';
end
$$;
comment on function pgq._save_schedule(pgq.schedule, text) is
'Adds or replaces a schedule and returns its next time.

Raises 42501, 42704 and 55P03.';

create function @extschema@.pgq_schedule(
    name text,
    cron text,
    payload jsonb default '{}',
    queue text default 'default',
    timezone text default 'UTC',
    priority integer default 0,
    max_attempts integer default null,
    headers jsonb default null,
    missed text default 'once'
)
returns timestamptz
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    v_at pgq.target;
    v_next timestamptz;
begin
    perform pgq._check_not_null('name', name is null), pgq._check_not_null('cron', cron is null),
            pgq._check_not_null('payload', payload is null),
            pgq._check_not_null('timezone', timezone is null),
            pgq._check_not_null('missed', missed is null),
            pgq._check_size('payload', array[payload]);
    perform pgq._check_length('name', name, 200), pgq._check_length('cron', cron, 1000);
    if name = '' then
        raise exception '"name" must have at least one character'
            using errcode = 'invalid_parameter_value';
    end if;
    if missed not in ('skip', 'once', 'all') then
        raise exception '"missed" must be skip, once or all, not "%"', missed
            using errcode = 'invalid_parameter_value';
    end if;
    perform pgq._queue_id(queue, 'manage');
    v_at := pgq._target(queue, priority, null, max_attempts, headers);
    perform pgq._check_bounds(v_at.queue_id, array[payload], 0),
            pgq._headers_of(headers, name, pgq._now());
    v_next := pgq._save_schedule(row(
        name, v_at.queue_id, cron, timezone, payload, priority, max_attempts, headers, missed,
        false, pgq._next_time_of(cron, timezone, pgq._now()), null
    )::pgq.schedule, queue);
    perform pgq._tell_cron(), pgq._wake(v_at.queue_id);
    return v_next;
end
$$;
revoke all on function
    @extschema@.pgq_schedule(text, text, jsonb, text, text, integer, integer, jsonb, text)
    from public;
comment on function
    @extschema@.pgq_schedule(text, text, jsonb, text, text, integer, integer, jsonb, text) is
'Adds a job at each time of a cron expression. Returns the first of these times.

A schedule with the same name is replaced, and stays paused if it was. If expression and time
zone are the same, a missed time is not forgotten. Each time gives one job, whoever calls. The
headers of the job have pgq_schedule, the name, and pgq_scheduled_at, the time.

* name: 1 to 200 characters. All queues share the names.
* cron: the five fields of crontab(5), or six with seconds first, or @hourly and the like.
  ''@every'' and an interval, from a second to a week: the multiples of the interval since 1970.
  At most 1,000 characters.
* payload, priority, max_attempts, headers: those of each job, as in pgq_enqueue.
* timezone: the expression is in this time zone.
* missed: what becomes of times at which nobody called pgq. ''once'': one job for all of them.
  ''all'': one job for each. ''skip'': no job for a time that is more than a minute late.

Errors:

* 22003: the priority is out of range.
* 22004: the name, expression, payload, time zone or another needed argument is null.
* 22023: the expression (the detail names the field), the time zone or another argument is bad.
* 42501: the privilege is missing.
* 42704: there is no such queue.
* 54000: the payload or the headers are too long.
* 55P03: another transaction that sets a schedule with this name stayed open for 200 ms.';

create function pgq._pause_schedule(p_name text, p_paused boolean)
returns boolean
language plpgsql
as $$
declare
    v_queue_id integer;
begin
    perform pgq._check_not_null('name', p_name is null);
    update pgq.schedule s
       set paused = p_paused,
           next_at = case when s.paused and not p_paused
                          then pgq._next_time_of(s.cron, s.timezone, pgq._now())
                          else s.next_at end
     where s.name = p_name and pgq._may(s.queue_id, 'manage')
    returning s.queue_id into v_queue_id;
    if not found then
        return false;
    end if;
    perform pgq._tell_cron(), pgq._wake(v_queue_id);
    return true;
end
$$;
comment on function pgq._pause_schedule(text, boolean) is
'For pgq_pause_schedule and pgq_resume_schedule.';

create function @extschema@.pgq_pause_schedule(name text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgq._pause_schedule(name, true);
end
$$;
revoke all on function @extschema@.pgq_pause_schedule(text) from public;
comment on function @extschema@.pgq_pause_schedule(text) is
'Stops a schedule from adding jobs until pgq_resume_schedule.

* Returns false if there is no such schedule.

Errors:

* 22004: the name is null.';

create function @extschema@.pgq_resume_schedule(name text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgq._pause_schedule(name, false);
end
$$;
revoke all on function @extschema@.pgq_resume_schedule(text) from public;
comment on function @extschema@.pgq_resume_schedule(text) is
'Lets a paused schedule go on with its next time.

Times that passed during the pause do not count as missed.

* Returns false if there is no such schedule.

Errors:

* 22004: the name is null.
* 22023: the server no longer knows the time zone of the schedule.';

create function @extschema@.pgq_run_schedule(name text)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    v_schedule pgq.schedule;
    v_queue text;
begin
    perform pgq._check_not_null('name', name is null);
    select s.* into v_schedule
      from pgq.schedule s
     where s.name = pgq_run_schedule.name and pgq._may(s.queue_id, 'manage');
    if not found then
        return null;
    end if;
    select q.name into v_queue from pgq.queue q where q.id = v_schedule.queue_id;
    perform pgq._check_bounds(v_schedule.queue_id, array[v_schedule.payload], 1);
    return (
        select (pgq._add_jobs(
                   t, array[v_schedule.payload], null, null, v_schedule.max_attempts,
                   pgq._headers_of(v_schedule.headers, v_schedule.name, pgq._now()), null, false
               ))[1]
          from pgq._target(v_queue, v_schedule.priority, null, v_schedule.max_attempts, null) t
    );
end
$$;
revoke all on function @extschema@.pgq_run_schedule(text) from public;
comment on function @extschema@.pgq_run_schedule(text) is
'Adds the job of a schedule now, in the caller''s transaction. Returns its id.

The next time of the schedule stays. A paused schedule can be run, too. The header
pgq_scheduled_at of the job is the time of the call.

* Returns null if there is no such schedule.

Errors:

* 22004: the name is null.
* 53400: the queue has max_ready jobs.
* 54000: the payload is longer than the max_payload of the queue.';

create function @extschema@.pgq_unschedule(name text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null('name', name is null);
    delete from pgq.schedule s
     where s.name = pgq_unschedule.name and pgq._may(s.queue_id, 'manage');
    if not found then
        return false;
    end if;
    perform pgq._tell_cron();
    return true;
end
$$;
revoke all on function @extschema@.pgq_unschedule(text) from public;
comment on function @extschema@.pgq_unschedule(text) is
'Removes a schedule.

Jobs that the schedule has added stay.

* Returns false if there is no such schedule.

Errors:

* 22004: the name is null.';
