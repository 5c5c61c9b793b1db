/*
 * No single job, group or schedule may fail a tick, which runs in the commit of a stranger. A tick
 * does all that is due as one batch in one subtransaction. If that fails, what was at fault is left
 * out for ten minutes, and the batch is done again. Memory or disk that runs out is nobody's fault:
 * what met it is left out of this tick.
 */

create function pgq._skip(p_kind text, p_key text, p_lane bigint, p_sqlstate text, p_error text)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
-- For the server's log alone: whose commit it is may not know of that queue.
set client_min_messages = error
as $$
begin
    insert into pgq.skipped (kind, key, lane, at, error)
    select p_kind, p_key, p_lane, pgq._now(), left(p_error, 1000) where p_sqlstate !~ '^53';
    raise warning 'maintenance skips % "%" of queue "%": %', p_kind, p_key,
            (select q.name from pgq.queue q where q.id = pgq._queue_of(p_lane)), left(p_error, 1000)
        using errcode = '01000',
              hint = 'The next try is in ten minutes at the latest; pgq_health shows what is '
                     'skipped.';
    return p_key;
end
$$;
comment on function pgq._skip(text, text, bigint, text, text) is
'Leaves a job, group or schedule out of the ticks for ten minutes, or (not its fault) out of this '
'one, and returns its key.';

create function pgq._skips(p_kind text)
returns text[]
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return array(select s.key from pgq.skipped s where s.kind = p_kind);
end
$$;
comment on function pgq._skips(text) is
'The jobs, groups or schedules that ticks leave out, to be asked for once, not for each row.';

create function pgq._forget_skipped(p_now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgq.skipped s
     where s.at not between p_now - interval '10 minutes' and p_now;
end
$$;
comment on function pgq._forget_skipped(timestamptz) is
'For ticks: lets them try again what failed ten minutes ago.';

create function pgq._skipped_health(p_now timestamptz)
returns table (subject text, status text, detail text, age interval)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
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
