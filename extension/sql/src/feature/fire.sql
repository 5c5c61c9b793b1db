/*
 * What ticks do about schedules: each fires under a lock on its row, so that each time gives one
 * job. And pg_cron, which queues maintenance every minute where it is installed in the database and
 * the owner of pgq may use it, so that schedules fire when nobody calls pgq.
 */

create function pgq._use_pg_cron()
returns void
language plpgsql
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
          using 'pgq', '* * * * *', 'insert into pgq.chore default values';
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
                  hint = 'Without pg_cron, schedules fire when a client calls pgq: call '
                         'pgq_maintain every minute by other means.';
end
$$;
comment on function pgq._use_pg_cron() is
'Lets pg_cron do what pgq_maintain does, while there are schedules.

If pg_cron is there and may be used.';

create function pgq._headers_of(p_headers jsonb, p_name text, p_at timestamptz)
returns jsonb
language plpgsql
stable
set timezone = 'UTC'
as $$
begin
    return coalesce(p_headers, '{}')
        || jsonb_build_object('pgq_schedule', p_name, 'pgq_scheduled_at', p_at);
end
$$;
comment on function pgq._headers_of(jsonb, text, timestamptz) is
'Returns the headers of a job of a schedule.

Raises 54000 if they are too large for a value.';

create function pgq._next_time_if_any(p_schedule pgq.schedule, p_after timestamptz)
returns timestamptz
language plpgsql
as $$
begin
    return pgq._next_time_of(p_schedule.cron, p_schedule.timezone, p_after);
exception
    when invalid_parameter_value then
        raise warning 'schedule "%" is paused: %', p_schedule.name, sqlerrm
            using errcode = '01000',
                  hint = 'If an update of the server has removed its time zone, name another one '
                         'with pgq_schedule. Then call pgq_resume_schedule.';
        return null;
end
$$;
comment on function pgq._next_time_if_any(pgq.schedule, timestamptz) is
'Returns what pgq._next_time_of does; null with a warning if that fails.

It must not fail the commit of a stranger.';

create function pgq._fire_if_due(p_schedule pgq.schedule, p_queue text, p_now timestamptz)
returns void
language plpgsql
as $$
declare
    v_at timestamptz;
    v_next timestamptz;
begin
    v_at := case when p_schedule.missed <> 'skip'
                      or p_schedule.next_at > p_now - interval '1 minute' then p_schedule.next_at
                 else pgq._next_time_if_any(p_schedule, p_now - interval '1 minute') end;
    -- Without a look at max_ready: that would fail the commit of a stranger.
    perform pgq._add_jobs(
                t, array[p_schedule.payload], null, null, p_schedule.max_attempts,
                pgq._headers_of(p_schedule.headers, p_schedule.name, v_at), null, false
            )
       from pgq._target(p_queue, p_schedule.priority, null, p_schedule.max_attempts, null) t
      where v_at <= p_now;
    -- One of the times that were missed per tick, or all at once.
    v_next := pgq._next_time_if_any(
        p_schedule, case when p_schedule.missed = 'all' then v_at else p_now end
    );
    update pgq.schedule s
       set last_at = case when v_at <= p_now then v_at else s.last_at end,
           next_at = coalesce(v_next, s.next_at), paused = v_next is null
     where s.name = p_schedule.name;
end
$$;
comment on function pgq._fire_if_due(pgq.schedule, text, timestamptz) is
'Adds the job of a schedule whose time has come, unless it is too late for that.';

create function pgq._fire_schedules(p_now timestamptz)
returns void
language plpgsql
as $$
begin
    perform pgq._do_each('schedule', array(
        select s.name from pgq.schedule s
         where s.next_at <= p_now and not s.paused
           and s.name <> all ((select pgq._skips('schedule'))::text[])
         order by s.next_at limit 100 for update skip locked
    ), p_now => p_now);
end
$$;
comment on function pgq._fire_schedules(timestamptz) is
'For ticks: adds the jobs of schedules that are due.';
