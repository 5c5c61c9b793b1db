/*
 * No single job, group or schedule may fail a tick, which runs in the commit of a stranger. A tick
 * looks for what is due, and does all of it as one batch in one subtransaction. If that fails, it
 * does each in one of its own, and what fails is left out for ten minutes. Memory or disk that runs
 * out is nobody's fault: what met it is left out of this tick. A look that fails is blamed on none.
 */

create function pgq._do(
    p_what text, p_keys text[], p_slot smallint, p_to smallint, p_now timestamptz
)
returns void
language plpgsql
as $$
declare
    v_ids constant bigint[] := case when p_what <> 'schedule' then p_keys::bigint[] end;
begin
    case p_what
    when 'move' then
        perform pgq._move_jobs(p_slot, p_to, v_ids);
    when 'promote' then
        perform pgq._promote_jobs(p_slot, v_ids, p_to);
    when 'reclaim' then
        perform pgq._end_leases(p_slot, v_ids);
    when 'bury' then
        perform pgq._put_back(pgq._remove(p_slot, i), null, 'expired', false) from unnest(v_ids) i;
    when 'group' then
        perform pgq._take_group_hints(v_ids);
    when 'waiter' then
        delete from pgq.hint h where h.key = any (v_ids) and h.kind = 'w';
        perform pgq._turn_waiters(v_ids);
    when 'schedule' then
        perform pgq._fire_if_due(s, q.name, p_now)
           from pgq.schedule s join pgq.queue q on q.id = s.queue_id
          where s.name = any (p_keys)
          order by s.next_at;
    end case;
end
$$;
comment on function pgq._do(text, text[], smallint, smallint, timestamptz) is
'Does with jobs, groups or schedules, which are locked, what is due.';

create function pgq._do_each(
    p_what text, p_keys text[], p_slot smallint default null, p_to smallint default null,
    p_now timestamptz default null
)
returns text[]
language plpgsql
as $$
declare
    v_key text;
    v_done text[] := array[]::text[];
begin
    if p_keys = '{}' then
        return p_keys;
    end if;
    -- All of them first. If that fails one by one, to find which one it is.
    foreach v_key in array array_prepend(null, p_keys) loop
        begin
            perform pgq._do(
                p_what, case when v_key is null then p_keys else array[v_key] end, p_slot, p_to,
                p_now
            );
            if v_key is null then
                return p_keys;
            end if;
            v_done := v_done || v_key;
        exception
            when internal_error or program_limit_exceeded or insufficient_resources
                or data_exception or integrity_constraint_violation
            then
                perform pgq._skip(p_what, v_key, sqlstate, sqlerrm) where v_key is not null;
        end;
    end loop;
    return v_done;
end
$$;
comment on function pgq._do_each(text, text[], smallint, smallint, timestamptz) is
'As pgq._do; what fails is skipped. Returns those with which it did not.';

create function pgq._skip(p_what text, p_key text, p_sqlstate text, p_error text)
returns void
language plpgsql
-- For the server's log alone: whose commit it is may not know of that queue.
set client_min_messages = error
as $$
declare
    v_kind constant text := case when p_what in ('group', 'schedule') then p_what else 'job' end;
    -- With a minus a job that is to die is hinted at.
    v_key constant text := case when v_kind = 'job' then ltrim(p_key, '-') else p_key end;
    v_lane bigint;
begin
    case v_kind
    when 'job' then
        v_lane := (pgq._find(v_key::bigint)).lane;
    when 'group' then
        select j.lane into v_lane from pgq.job j
         where j.slot in (4, 5) and j.group_id = v_key::bigint and j.place is not null limit 1;
    when 'schedule' then
        select pgq._lane_of(s.queue_id, 0) into v_lane from pgq.schedule s where s.name = v_key;
    end case;
    insert into pgq.skipped (kind, key, lane, at, error)
    select v_kind, v_key, v_lane, pgq._now(), left(p_error, 1000) where p_sqlstate !~ '^53';
    raise warning 'maintenance skips % "%" of queue "%": %', v_kind, v_key,
            (select q.name from pgq.queue q where q.id = pgq._queue_of(v_lane)), left(p_error, 1000)
        using errcode = '01000',
              hint = 'The next attempt is in ten minutes at the latest; pgq_health shows what is '
                     'skipped.';
end
$$;
comment on function pgq._skip(text, text, text, text) is
'Leaves a job, group or schedule out of the ticks for ten minutes.

Where it is not its fault, out of this tick.';

create function pgq._skips(p_kind text)
returns text[]
language plpgsql
stable
as $$
begin
    return array(select s.key from pgq.skipped s where s.kind = p_kind);
end
$$;
comment on function pgq._skips(text) is
'Returns the jobs, groups or schedules that ticks leave out.

Ask once, not for each row.';

create function pgq._skipped_health(p_now timestamptz)
returns table (subject text, status text, detail text, age interval)
language plpgsql
stable
as $$
begin
    return query
    select 'skipped', 'warning',
           format('%s "%s" of queue "%s" fails in maintenance, tried again every ten minutes: %s',
                  s.kind, s.key,
                  (select q.name from pgq.queue q where q.id = pgq._queue_of(s.lane)), s.error),
           p_now - s.at
      from pgq.skipped s;
end
$$;
comment on function pgq._skipped_health(timestamptz) is 'For pgq._health: what ticks leave out.';
