/*
 * Public: pgq_health and pgq_locks, for those who may observe all queues.
 */

create function pgq._xmin_holders(p_now timestamptz)
returns table (holder text, status text, age interval, pid integer, query text)
language plpgsql
stable
as $$
begin
    return query
    select h.holder,
           case when h.is_hidden then 'unknown'
                when h.is_idle or coalesce(h.age > interval '5 minutes', h.behind > 100000)
                then 'warning'
                else 'ok' end,
           h.age, h.pid, h.query
      from (
               select format('by a session, %s transactions', x.behind) as holder,
                      p_now - a.xact_start as age, x.behind, a.backend_start is null as is_hidden,
                      false as is_idle, a.pid, a.query
                 from pg_stat_activity a,
                      -- A snapshot in another database keeps nothing here; VACUUM's does nowhere.
                      lateral (
                          select age(case when a.datid is null or a.datname = current_database()
                                          then coalesce(a.backend_xmin, a.backend_xid)
                                          else a.backend_xid end) as behind
                      ) x
                where x.behind is not null and a.pid <> pg_backend_pid()
                  and not exists (
                          select from pg_stat_progress_vacuum v
                           where v.pid = any (array[a.pid, a.leader_pid])
                      )
                union all
               select format('by the prepared transaction "%s"', p.gid), p_now - p.prepared, null,
                      false, false, null, null
                 from pg_prepared_xacts p
                union all
               select format('by the replication slot "%s", %s transactions', s.slot_name,
                             age(coalesce(s.xmin, s.catalog_xmin))),
                      null, age(s.xmin), false, not s.active, s.active_pid, null
                 from pg_replication_slots s
                where s.xmin is not null or s.catalog_xmin is not null
           ) h;
end
$$;
comment on function pgq._xmin_holders(timestamptz) is
'Returns who keeps dead versions from being removed, and for how long already.

Where no time is known the transactions since then count. unknown: the owner may not see what
that session does.';

create function pgq._tick_health(p_now timestamptz)
returns table (subject text, status text, detail text, age interval)
language plpgsql
as $$
declare
    v_last constant timestamptz := timestamptz 'epoch'
        + pg_sequence_last_value('pgq.last_tick') * interval '1 millisecond';
    -- A tick comes with the calls that end jobs and with claims, unless something stops it.
    v_lacks constant boolean := coalesce((
        select max(s.at) > coalesce(v_last, min(s.at)) + interval '1 minute'
          from (
                   --@ each stat
                   select r.at from pgq.stat_{slot} r
                    union all
                   --@ end
                   select null where false
               ) s
         where s.at <= p_now  -- later ones are of a clock that was set back
    ), false) or (
        coalesce(v_last, '-infinity') < p_now - interval '1 minute'
        and exists (select from pgq.hint h where h.kind <> 'l')
    );
begin
    return query
    select 'maintenance',
           case when p_now - v_last < interval '-1 minute' or v_lacks then 'warning' else 'ok' end,
           case when v_lacks then 'maintenance is due and does not run: all calls run under '
                                  'REPEATABLE READ or SERIALIZABLE, or it fails'
                when v_last is null then 'no tick yet: nobody has claimed'
                else 'since the last tick' end, p_now - v_last
     union all
    select 'clock', case when p_now - c.at < interval '1 day' then 'warning' else 'ok' end,
           format('set back from %s%s', g.clock_was,
                  coalesce(' to ' || g.set_back_at, ', and right again')), p_now - c.at
      from pgq.gate g, coalesce(g.set_back_at, g.clock_was) c (at) where c.at is not null;
end
$$;
comment on function pgq._tick_health(timestamptz) is
'Returns when maintenance ran last, and whether the clock was set back.

See pgq._follow_clock.';

create function pgq._health()
returns table (
    subject text, status text, detail text, age interval, pid integer, query text
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
begin
    if not pgq._may(null, 'observe') then
        return;
    end if;
    return query
    select t.subject, t.status, t.detail, t.age, null::integer, null from pgq._tick_health(v_now) t
     union all
    select 'rotation', case when cardinality(r.live) > 3 then 'warning' else 'ok' end,
           format('ring %s, claims look at %s, cleaning %s, parked %s', r.live, r.ready, r.cleaned,
                  r.parked),
           v_now - r.switched_at, null, null
      from (select o.* from pgq.ring o order by o.gen desc limit 1) r
     union all
    select 'sessions', case when s.may then 'ok' else 'unknown' end,
           format('"%s" %s see what others do', current_user,
                  case when s.may then 'may' else 'may not' end), null, null, null
      from (select pg_has_role(current_user, 'pg_read_all_stats', 'usage') as may) s
     union all
    select distinct 'slot in use', case when a.backend_start is null then 'unknown'
                                        when a.xact_start < v_now - interval '1 minute'
                                        then 'warning' else 'ok' end,
           format('%s: %s', c.relname, case when l.mode like 'RowExclusive%%' then 'written to'
                                            else 'read, ' || l.mode end),
           v_now - a.xact_start, a.pid, a.query
      from pg_inherits i join pg_class c on c.oid = i.inhrelid
      join pg_locks l on l.relation = c.oid and l.locktype = 'relation'
      join pg_stat_activity a on a.pid = l.pid and a.datname = current_database()
     where i.inhparent = 'pgq.job'::regclass and a.pid <> pg_backend_pid()
     union all
    select 'xmin held', x.status, x.holder, x.age, x.pid, x.query
      from pgq._xmin_holders(v_now) x
     union all
    select s.*, null, null from pgq._skipped_health(v_now) s union all
    select d.* from pgq._dump_health(v_now) d
     union all
    select 'archive', 'ok', format('%s partitions, %s', count(*), pg_size_pretty(sum(z.size))),
           null, null, null
      from (select pgq._size_of(i.inhrelid::regclass) as size
              from pg_inherits i where i.inhparent = 'pgq.archive'::regclass) z
     where z.size > 0
     union all
    select 'slot', 'ok', format('%s: %s, %s live and %s dead rows', t.relname,
                                coalesce(pg_size_pretty(pgq._size_of(t.relid::regclass)), 'locked'),
                                t.n_live_tup, t.n_dead_tup), null, null, null
      from pg_stat_user_tables t
     where t.schemaname = 'pgq' and t.relname ~ '^job_[0-9]$';
end
$$;
comment on function pgq._health() is 'For the view pgq_health.';

create function pgq._locks()
returns table (
    waiting_pid integer, waiting_for interval, waiting_query text, lock_type text, mode text,
    relation text, blocking_pid integer, blocking_state text, blocking_since interval,
    blocking_query text
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
begin
    if not pgq._may(null, 'observe') then
        return;
    end if;
    return query
    select w.pid, v_now - l.waitstart, w.query, l.locktype, l.mode, r.relation::regclass::text,
           b.pid, b.state, v_now - b.xact_start, b.query
      from pg_stat_activity w
      join pg_locks l on l.pid = w.pid and not l.granted
      join lateral (
               -- Who waits for a row has its place locked, or waits for its table. Of who waits for
               -- a unique index no lock tells the table.
               select case when not o.granted or o.locktype = 'tuple' then o.relation end
                          as relation
                 from pg_locks o join pg_class c on c.oid = o.relation
                where o.pid = w.pid and c.relnamespace = 'pgq'::regnamespace
                order by not o.granted desc, o.locktype = 'tuple' desc
                limit 1
           ) r on true,
           unnest(pg_blocking_pids(w.pid)) p
      left join pg_stat_activity b on b.pid = p
     where w.datname = current_database();
end
$$;
comment on function pgq._locks() is 'For the view pgq_locks.';

create view @extschema@.pgq_health as
select * from pgq._health();
comment on view @extschema@.pgq_health is
'What holds up maintenance and vacuum, by session and query.

Empty for a role that may not observe all queues. A status is ok, warning, or unknown where the
owner of pgq may not see what a session does. The subjects:

* maintenance: when it ran last. A warning if it does not run, or ran in the future.
* clock: whether the clock was set back by more than a minute. A warning for a day.
* rotation: the slots in use. A warning if the ring is full.
* sessions: whether the owner of pgq may see what other sessions do. If not, GRANT
  pg_read_all_stats to it.
* slot in use: a session uses a slot, which cannot be emptied meanwhile. A warning after a minute
  in a transaction.
* xmin held: a session, prepared transaction or replication slot holds the xmin horizon. A
  warning for a session after 5 minutes, for a replication slot that is not in use, and at
  100,000 transactions behind.
* jobs, groups and schedules that maintenance leaves out after it failed with them: a warning.
* dumps: pg_dump is at work, and nothing is emptied meanwhile, for a day at most. A warning after
  an hour.
* archive, slot: their sizes.';

create view @extschema@.pgq_locks as
select * from pgq._locks();
comment on view @extschema@.pgq_locks is
'Sessions that wait for a lock while they use pgq, and what they wait for.

One row for each waiting session and each session that it waits for. Empty for a role that may
not observe all queues.

* relation: the table, or null where no lock tells it.';
