/*
 * No single job, group or schedule may fail a tick, which runs in the commit of a stranger. A tick
 * does all that is due as one batch in one subtransaction. If that fails, what was at fault is left
 * out for ten minutes, and the batch is done again.
 */

create function pgq._skip(p_kind text, p_key text, p_lane bigint, p_error text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
-- For the server's log alone: whose commit it is may not know of that queue.
set client_min_messages = error
as $$
begin
    insert into pgq.skipped (kind, key, lane, at, error)
    values (p_kind, p_key, p_lane, pgq._now(), left(p_error, 1000));
    raise warning 'maintenance skips % "%" of queue "%": %', p_kind, p_key,
            (select q.name from pgq.queue q where q.id = pgq._queue_of(p_lane)), left(p_error, 1000)
        using errcode = '01000',
              hint = 'The next try is in ten minutes; pgq_health shows it until then.';
end
$$;
comment on function pgq._skip(text, text, bigint, text) is
'leaves a job, group or schedule out of the ticks for ten minutes';

create function pgq._is_skipped(p_kind text, p_key text)
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from pgq.skipped s where s.kind = p_kind and s.key = p_key);
end
$$;
comment on function pgq._is_skipped(text, text) is
'whether ticks leave out a job, group or schedule';

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
'for ticks: lets them try again what failed ten minutes ago';

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
comment on function pgq._skipped_health(timestamptz) is 'for pgq._health: what ticks leave out';
