/*
 * Public: pgq_schedule, pgq_unschedule, pgq_pause_schedule, pgq_resume_schedule.
 *
 * Ticks fire what is due, under a lock on its row: each time gives one job. Where pg_cron is
 * installed in the database, and the owner of pgq may use it, it calls pgq_maintain every minute,
 * so that schedules fire when nobody calls pgq.
 */

create function pgq._use_pg_cron()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_schema text;
begin
    -- Functions of the extension, not of anybody who has made a schema of that name.
    select n.nspname::text into v_schema
      from pg_extension e
      join pg_depend d on d.refclassid = 'pg_extension'::regclass and d.refobjid = e.oid
                      and d.deptype = 'e' and d.classid = 'pg_proc'::regclass
      join pg_proc p on p.oid = d.objid and has_function_privilege(p.oid, 'execute')
      join pg_namespace n on n.oid = p.pronamespace and has_schema_privilege(n.oid, 'usage')
      join pg_class c on c.relnamespace = n.oid and c.relname = 'job'
                     and has_table_privilege(c.oid, 'select')
     where e.extname = 'pg_cron'
       and ((p.proname = 'schedule' and p.pronargs = 3)
            or (p.proname = 'unschedule' and p.proargtypes = '20'::oidvector))
     group by n.nspname
    having count(*) = 2;
    if not found then
        return;
    end if;
    if exists (select from pgq.schedule s where not s.paused) then
        execute format('select %I.schedule($1, $2, $3)', v_schema)
          using 'pgq', '* * * * *', 'select @extschema@.pgq_maintain()';
    else
        execute format(
            'select %I.unschedule(j.jobid) from %1$I.job j'
            ' where j.jobname = $1 and j.username = current_user', v_schema
        ) using 'pgq';
    end if;
exception
    -- Its library is not loaded, or it does not run jobs of superusers.
    when internal_error then
        raise warning 'pg_cron cannot be used: %', sqlerrm
            using errcode = '01000',
                  hint = 'Schedules fire when somebody calls pgq.';
end
$$;
comment on function pgq._use_pg_cron() is
'lets pg_cron, if it is there and may be used, call pgq_maintain while there are schedules';

create function pgq._fire(p_schedule pgq.schedule, p_queue text, p_at timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_at pgq.target
        := pgq._target(p_queue, p_schedule.priority, null, p_schedule.max_attempts, null);
begin
    -- Without a look at max_ready: that would fail the commit of a stranger.
    perform pgq._add_keyed(
        v_at, pgq._draw_ids(v_at, 1, false), array[p_schedule.payload], null, null,
        p_schedule.max_attempts,
        coalesce(p_schedule.headers, '{}')
            || jsonb_build_object('pgq_schedule', p_schedule.name, 'pgq_scheduled_at', p_at),
        null, false
    );
end
$$;
comment on function pgq._fire(pgq.schedule, text, timestamptz) is
'adds the job of a schedule for one of its times';

create function pgq._next_tick_if_any(p_schedule pgq.schedule, p_after timestamptz)
returns timestamptz
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgq._next_tick_of(p_schedule.cron, p_schedule.timezone, p_after);
exception
    when invalid_parameter_value then
        raise warning 'schedule "%" is paused: %', p_schedule.name, sqlerrm
            using errcode = '01000',
                  hint = 'An update of the server may have taken its time zone away.';
        return null;
end
$$;
comment on function pgq._next_tick_if_any(pgq.schedule, timestamptz) is
'pgq._next_tick_of; null with a warning if it fails: that must not fail the commit of a stranger';

create function pgq._fire_schedules(p_now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_schedule pgq.schedule;
    v_due record;
    v_at timestamptz;
    v_next timestamptz;
begin
    for v_due in
        select s as schedule, q.name as queue
          from pgq.schedule s join pgq.queue q on q.id = s.queue_id
         where s.next_at <= p_now and not s.paused
         order by s.next_at limit 100 for update of s skip locked
    loop
        v_schedule := v_due.schedule;
        v_at := case when v_schedule.missed <> 'skip' then v_schedule.next_at
                     else pgq._next_tick_if_any(v_schedule, p_now - interval '1 minute') end;
        if v_at <= p_now then
            perform pgq._fire(v_schedule, v_due.queue, v_at);
        end if;
        -- One of the times that were missed per tick, or all at once.
        v_next := pgq._next_tick_if_any(
            v_schedule, case when v_schedule.missed = 'all' then v_at else p_now end
        );
        update pgq.schedule s
           set last_at = case when v_at <= p_now then v_at else s.last_at end,
               next_at = coalesce(v_next, s.next_at), paused = v_next is null
         where s.name = v_schedule.name;
    end loop;
end
$$;
comment on function pgq._fire_schedules(timestamptz) is
'for ticks: adds the jobs of schedules that are due';

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
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_at pgq.target;
    v_next timestamptz;
begin
    perform pgq._check_not_null('name', name is null), pgq._check_not_null('cron', cron is null),
            pgq._check_not_null('payload', payload is null),
            pgq._check_not_null('timezone', timezone is null),
            pgq._check_not_null('missed', missed is null);
    if length(name) not between 1 and 200 or missed not in ('skip', 'once', 'all') then
        raise exception '"name" must have 1 to 200 characters, and "missed" be skip, once or all'
            using errcode = 'invalid_parameter_value';
    end if;
    perform pgq._queue_id(queue, 'manage');
    v_at := pgq._target(queue, priority, null, max_attempts, headers);
    perform from pgq.queue q where q.id = v_at.queue_id for key share;  -- it may be dropped since
    perform pgq._check_bounds(v_at.queue_id, array[payload], 0);
    v_next := pgq._next_tick_of(cron, timezone, pgq._now());
    insert into pgq.schedule as s (
        name, queue_id, cron, timezone, payload, priority, max_attempts, headers, missed, next_at
    )
    values (
        pgq_schedule.name, v_at.queue_id, pgq_schedule.cron, pgq_schedule.timezone,
        pgq_schedule.payload, pgq_schedule.priority, pgq_schedule.max_attempts,
        pgq_schedule.headers, pgq_schedule.missed, v_next
    )
    on conflict on constraint schedule_pkey do update
       set queue_id = excluded.queue_id, cron = excluded.cron, timezone = excluded.timezone,
           payload = excluded.payload, priority = excluded.priority,
           max_attempts = excluded.max_attempts, headers = excluded.headers,
           missed = excluded.missed,
           next_at = case when (s.cron, s.timezone) = (excluded.cron, excluded.timezone)
                          then s.next_at else excluded.next_at end
     where pgq._may(s.queue_id, 'manage')
    returning s.next_at into v_next;
    if not found then
        raise exception 'permission denied for schedule "%"', name
            using errcode = 'insufficient_privilege',
                  detail = 'There is one of that name, of a queue that you do not manage.';
    end if;
    perform pgq._use_pg_cron(), pgq._wake(v_at.queue_id);
    return v_next;
end
$$;
revoke all on function
    @extschema@.pgq_schedule(text, text, jsonb, text, text, integer, integer, jsonb, text)
    from public;
comment on function
    @extschema@.pgq_schedule(text, text, jsonb, text, text, integer, integer, jsonb, text) is
'Adds a job at the times that a cron expression names (the five fields of crontab(5), or @hourly '
'and the like), in a time zone, and returns the first one. A schedule of that name is replaced; if '
'it was paused it stays so, and if expression and time zone are the same, a time that was missed '
'is not forgotten. The job''s headers tell pgq_schedule, the name, and pgq_scheduled_at. '
'missed: what becomes of times at which nobody called pgq: ''once'', one job for all of them; '
'''all'', one for each; ''skip'', none if it is more than a minute late. Each time gives one job, '
'whoever calls. Errors: 22023 a bad expression (the detail names the field), time zone or other '
'argument; 42704 unknown queue; 22004; 22003 priority; 54000 the payload is too long; 42501.';

create function pgq._pause_schedule(p_name text, p_paused boolean)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue_id integer;
begin
    perform pgq._check_not_null('name', p_name is null);
    update pgq.schedule s
       set paused = p_paused,
           next_at = case when s.paused then pgq._next_tick_of(s.cron, s.timezone, pgq._now())
                          else s.next_at end
     where s.name = p_name and pgq._may(s.queue_id, 'manage')
    returning s.queue_id into v_queue_id;
    if not found then
        return false;
    end if;
    perform pgq._use_pg_cron(), pgq._wake(v_queue_id);
    return true;
end
$$;
comment on function pgq._pause_schedule(text, boolean) is
'for pgq_pause_schedule and pgq_resume_schedule';

create function @extschema@.pgq_pause_schedule(name text)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgq._pause_schedule(name, true);
end
$$;
revoke all on function @extschema@.pgq_pause_schedule(text) from public;
comment on function @extschema@.pgq_pause_schedule(text) is
'Lets a schedule add no more jobs until pgq_resume_schedule. false: there is no such schedule. '
'Errors: 22004.';

create function @extschema@.pgq_resume_schedule(name text)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgq._pause_schedule(name, false);
end
$$;
revoke all on function @extschema@.pgq_resume_schedule(text) from public;
comment on function @extschema@.pgq_resume_schedule(text) is
'Lets a paused schedule go on with its next time; those in between were not missed. false: there '
'is no such schedule. Errors: 22004.';

create function @extschema@.pgq_unschedule(name text)
returns boolean
language plpgsql
volatile
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
    perform pgq._use_pg_cron();
    return true;
end
$$;
revoke all on function @extschema@.pgq_unschedule(text) from public;
comment on function @extschema@.pgq_unschedule(text) is
'Removes a schedule; jobs that it has added stay. false: there is no such schedule. Errors: 22004.';
