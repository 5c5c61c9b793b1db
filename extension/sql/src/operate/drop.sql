/*
 * Public: pgq_drop_queue.
 *
 * It locks rows of that queue only. An enqueue reads the lanes and locks nothing of its queue, so
 * one that is open may add jobs after the drop. Therefore the lanes stay until no transaction is
 * open that may know them, and ticks remove what arrives. No other queue gets their ids meanwhile.
 *
 * Lock order: the queue, its lanes, schedules and archive; then its jobs, with SKIP LOCKED.
 */

create function pgq._check_empty(p_dropped pgq.dropped, p_has_dead boolean)
returns void
language plpgsql
as $$
declare
    v_is_empty boolean;
begin
    v_is_empty := not p_has_dead and not exists (
        select from pgq.lane l, lateral (
            select from pgq.job j where j.lane = l.id limit 1
        ) j where l.queue_id = p_dropped.queue_id
    );
    -- As in pgq._find.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        if not v_is_empty then
            raise exception 'queue "%" holds jobs', p_dropped.name
                using errcode = 'object_in_use',
                      hint = 'Use "force" to delete its live and dead jobs, too.';
        end if;
end
$$;
comment on function pgq._check_empty(pgq.dropped, boolean) is
'Raises 55006 if a queue has dead jobs (p_has_dead) or live ones.

In one snapshot; leaves no lock on a slot.';

create function pgq._empty_dropped(p_dropped pgq.dropped, p_max integer)
returns bigint
language plpgsql
as $$
declare
    v_count bigint;
begin
    with doomed as materialized (
        select j.slot, j.id from pgq.job j
         where pgq._is_of(j.lane, p_dropped.queue_id)
         limit p_max for update skip locked
    ), gone as (
        delete from pgq.job j
         using doomed d where j.slot = d.slot and j.id = d.id
        returning j as job
    ), kept as (
        insert into pgq.archive
        select (a.row).*
          from (
                   select pgq._archived(
                              g.job, p_dropped.name, 'cancelled', pgq._now(), p_dropped.keep_for,
                              null
                          ) as row
                     from gone g
                    where not p_dropped.is_forced and p_dropped.keep_for > '0'
                      and not coalesce((g.job).is_head and (g.job).due is null, false)
                   offset 0
               ) a
    ), noted as (
        select pgq._note_ended(array_agg(pgq._bare(g.job)), 'cancelled')
          from gone g where (g.job).is_awaited or pgq._waits_for_jobs(g.job)
    )
    select count(*) into v_count from gone left join noted on true;
    return v_count;
end
$$;
comment on function pgq._empty_dropped(pgq.dropped, integer) is
'Removes up to p_max jobs of a dropped queue, and returns their number.

Those that came too late for a drop without force are kept as cancelled.';

create function pgq._check_dropped()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
    -- Not for what a dump brings.
    perform pgq._check_empty(new, false)
      where new.xid = pg_current_xact_id() and not new.is_forced;
    return null;
end
$$;
comment on function pgq._check_dropped() is
'Raises 55006 at the commit of a drop without force, if jobs have come since.';

create constraint trigger dropped_at_commit after insert on pgq.dropped
    deferrable initially deferred
    for each row execute function pgq._check_dropped();

create function pgq._lane_holders()
returns text[]
language plpgsql
as $$
begin
    return array(
        select h.name
          from pg_locks l
          left join pg_locks x
            on x.virtualtransaction = l.virtualtransaction and x.locktype = 'transactionid'
               and x.mode = 'ExclusiveLock',
               unnest(array[l.virtualtransaction, x.transactionid::text]) h (name)
         where l.relation = 'pgq.lane'::regclass
           and l.database = (select d.oid from pg_database d where d.datname = current_database())
           and l.pid is distinct from pg_backend_pid()
    );
end
$$;
comment on function pgq._lane_holders() is
'Returns the other transactions that have read lanes.

By pg_locks.virtualtransaction and, if they write, by transaction id: a prepared one keeps only
that when the server starts again.';

create function pgq._forget_dropped()
returns void
language plpgsql
set lock_timeout = '1ms'
as $$
declare
    -- Whoever commits the drop itself does not know yet who will have seen the lanes.
    v_ids constant integer[] := array(
        select d.queue_id from pgq.dropped d where d.xid <> pg_current_xact_id()
    );
    v_holders text[];
    v_dropped pgq.dropped;
begin
    if v_ids = '{}' then
        return;
    end if;
    v_holders := pgq._lane_holders();
    update pgq.dropped d set holders = v_holders
     where d.queue_id = any (v_ids) and d.holders is null;
    -- At random: those in which others keep a job locked hold up no more than themselves.
    for v_dropped in
        select d.* from pgq.dropped d
         where d.queue_id = any (v_ids) and not d.holders && v_holders
         order by random() limit 20
    loop
        begin
            -- Who keeps a job locked may bring it back, or have it die.
            continue when pgq._empty_dropped(v_dropped, 1000) > 0 or exists (
                select from pgq.job j where pgq._is_of(j.lane, v_dropped.queue_id)
            );
            -- Jobs that died in transactions that were open then. A new queue may have the name.
            delete from pgq.archive a
             where v_dropped.is_forced and a.queue = v_dropped.name and a.state = 'dead'
               and a.id <= coalesce(
                       (select q.first_job from pgq.queue q where q.name = v_dropped.name), a.id
                   );
            delete from pgq.lane l where l.queue_id = v_dropped.queue_id;
            delete from pgq.lane_gate g where g.queue_id = v_dropped.queue_id;
            delete from pgq.permit p where p.queue_id = v_dropped.queue_id;
            delete from pgq.start s where s.queue_id = v_dropped.queue_id;
            delete from pgq.dropped d where d.queue_id = v_dropped.queue_id;
        exception
            when lock_not_available then
                null;  -- somebody adds a job that waits for a dead one, for example
        end;
    end loop;
end
$$;
comment on function pgq._forget_dropped() is
'Removes what is left of dropped queues; for ticks.

Of 20 queues whose lanes no open transaction has read, a thousand jobs per queue, and at last the
lanes. A queue of which somebody has a row locked is left to the next tick.';

create function @extschema@.pgq_drop_queue(
    name text,
    force boolean default false
)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set lock_timeout = '200ms'
as $$
declare
    v_id integer;
    v_dropped pgq.dropped;
begin
    perform pgq._check_not_null('name', name is null);
    perform pgq._check_not_null('force', force is null);
    if not pgq._read_committed() then
        raise exception 'dropping a queue needs the isolation level READ COMMITTED'
            using errcode = 'active_sql_transaction',
                  detail = 'An older snapshot may not show all of its jobs.';
    end if;
    v_id := pgq._queue_id(name, 'manage');
    begin
        with gone as (
            delete from pgq.queue q where q.id = v_id returning q.id, q.name, q.keep_dead
        )
        insert into pgq.dropped as d (queue_id, name, is_forced, keep_for)
        select g.id, g.name, force, g.keep_dead from gone g
        returning d.* into v_dropped;
        perform pgq._raise_unknown_queue(name, 'manage') where not found;  -- dropped meanwhile
        -- The short ways of enqueue and of ticks pass by such lanes. A pgq_wait that has found the
        -- queue just before does not let its session sleep.
        update pgq.lane l set is_bounded = true, awaited_until = null
         where l.queue_id = v_id;
        delete from pgq.schedule s where s.queue_id = v_id;
        delete from pgq.archive a where force and a.queue = v_dropped.name and a.state = 'dead';
    exception when lock_not_available then
        raise exception 'another open transaction changes queue "%"', name
            using errcode = 'lock_not_available',
                  hint = 'Try again; pg_stat_activity shows transactions that stay open.';
    end;
    perform pgq._check_empty(v_dropped, exists (
        select from pgq.archive a
         where a.queue = v_dropped.name and a.state = 'dead' and a.expires_at > pgq._now()
    )) where not force;
    while force and pgq._empty_dropped(v_dropped, 10000) > 0 loop
    end loop;
    -- A new queue of this name has another channel: sessions that sleep now would not hear of it.
    perform pgq._drop_grants(v_id), pgq._tell_cron(), pgq._wake(v_id);
end
$$;
revoke all on function @extschema@.pgq_drop_queue(text, boolean) from public;
comment on function @extschema@.pgq_drop_queue(text, boolean) is
'Drops a queue and its schedules.

Completed and cancelled jobs stay in the archive until they expire. Roles that may observe all
queues see them. A new queue of the same name does not have them.

The call waits for no other queue, and holds up none. If an open transaction adds a job to the
dropped queue, pgq cancels the job later; with force pgq deletes it. Call pgq_unwatch for tables
that feed the queue, or their inserts fail.

* force: drops a queue with live or dead jobs, too, and deletes these jobs.

Errors:

* 22004: an argument is null.
* 25001: the isolation level is REPEATABLE READ or SERIALIZABLE.
* 42704: there is no such queue.
* 55006: the queue holds jobs, at the call or at the commit.
* 55P03: another transaction that changes the queue stayed open for 200 ms.';
