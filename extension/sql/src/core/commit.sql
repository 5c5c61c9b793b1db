/*
 * What happens at a commit: what the transaction has noted is decided, and a tick runs if one is
 * due. Both are events of deferred triggers, which fire after the caller's statements.
 *
 * event   of pgq.note                              of pgq.chore
 * first   queues the last one (kind d),            queues the last one,
 *         pgq.noted := transaction                 pgq.ticking := transaction
 * last    decides (or leaves hints),               still pgq.noted, or rows written outside of pgq
 *         pgq.noted := '', pgq.decided :=          since the event before: queues itself again, ten
 *         transaction                              times at most; else errands and a tick
 *
 * So the last events fire behind the deferred triggers of everybody else. A trigger that queues
 * itself again, or a cursor WITH HOLD, would run behind a tick and keep its locks: hence the count.
 *
 * Where locks would outlive the event notes become hints, and no tick runs: at PREPARE TRANSACTION,
 * and after SET CONSTRAINTS ... IMMEDIATE, when the last event fires inside the first (depth 2).
 */

create function pgq._notes()
returns pgq.note[]
language plpgsql
as $$
declare
    v_notes pgq.note[] := array[]::pgq.note[];
begin
    --@ each slot
    if pg_relation_size('pgq.note_{slot}') > 0 then
        with taken as (
            delete from pgq.note_{slot} n where n.xid = pg_current_xact_id() returning n.*
        )
        select v_notes || array_agg(row(t.*)::pgq.note) into v_notes from taken t;
    end if;
    --@ end
    return v_notes;
end
$$;
comment on function pgq._notes() is 'Takes what this transaction has noted.';

create function pgq._hint(p_notes pgq.note[])
returns void
language plpgsql
as $$
begin
    insert into pgq.hint (kind, key, place)
    select n.kind, u.key, coalesce(abs(u.place), 0)
      from unnest(p_notes) n, unnest(n.keys, n.places) u (key, place);
end
$$;
comment on function pgq._hint(pgq.note[]) is 'Leaves notes to the next tick.';

create function pgq._decide(p_notes pgq.note[])
returns void
language plpgsql
as $$
begin
    perform pgq._lock_buckets(array(
        select k from unnest(p_notes) n, unnest(n.keys) k
    ));
    -- The places of jobs that were added are noted with a minus.
    perform pgq._turn_groups(array_agg(g.id), array_agg(g.ended), array_agg(g.added))
       from (
                -- What has ended was a head: before it stand only jobs that this transaction has
                -- added. So the first place of both kinds is where to look from.
                select u.key as id,
                       case when bool_or(u.place >= 0) then min(abs(u.place)) end as ended,
                       min(-u.place) filter (where u.place < 0) as added
                  from unnest(p_notes) n, unnest(n.keys, n.places) u (key, place)
                 where n.kind = 'g'
                 group by u.key
            ) g
       left join lateral (
               select j.lane, j.is_head from pgq.job j
                where j.slot in (4, 5) and j.group_id = g.id and j.place < g.added
                order by j.place desc, j.id desc limit 1
            ) b on g.ended is null
      -- Behind a job that is no head, or is the only one that may be, nobody becomes one. This look
      -- spares a sixth of an enqueue into groups whose jobs wait.
      where b.lane is null
         or (b.is_head and (select q.group_concurrency from pgq.queue q
                             where q.id = pgq._queue_of(b.lane)) > 1)
         or exists (
                select from pgq.job j
                 where j.slot in (4, 5) and j.group_id = g.id and j.is_head and j.place >= g.added
            )
     having count(*) > 0;
    perform pgq._turn_waiters(array_agg(k))
       from unnest(p_notes) n, unnest(n.keys) k where n.kind = 'w' having count(*) > 0;
end
$$;
comment on function pgq._decide(pgq.note[]) is 'Does at the commit what the notes ask for.';

create function pgq._leave_to_tick(p_notes pgq.note[])
returns void
language plpgsql
as $$
begin
    perform pgq._hint(p_notes);
    -- Whoever sleeps does the next tick. Whoever has added jobs has told already.
    perform pgq._wake_lane(l.lane)
       from (
                select distinct j.lane
                  from unnest(p_notes) n, unnest(n.keys, n.places) u (key, place), lateral (
                           select o.lane from pgq.job o
                            where o.slot in (4, 5) and o.group_id = u.key and o.place >= u.place
                            order by o.place, o.id limit 1
                       ) j
                 where n.kind = 'g' and u.place >= 0
            ) l;
end
$$;
comment on function pgq._leave_to_tick(pgq.note[]) is
'Turns notes into hints, and wakes sleepers.';

create function pgq._at_note()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    v_xid constant text := pg_current_xact_id()::text;
    v_notes pgq.note[];
begin
    if new.kind <> 'd' and not pgq._read_committed() then
        -- A look at the notes would be a dependency between serializable transactions.
        perform pgq._leave_to_tick(array[row(new.*)::pgq.note]);
        return null;
    elsif new.kind <> 'd' then
        -- Any role can set the setting: it only spares the look at the tables.
        if current_setting('pgq.noted', true) is distinct from v_xid or not exists (
            select from pgq.note n where n.xid = pg_current_xact_id() and n.kind = 'd'
        ) then
            perform set_config('pgq.noted', v_xid, true);
            insert into pgq.note (slot, xid, kind) values (new.slot, new.xid, 'd');
        end if;
        return null;
    end if;
    perform set_config('pgq.noted', '', true);
    v_notes := pgq._notes();
    -- Buckets are locked once per transaction: a second time it could deadlock.
    if pg_trigger_depth() = 1 and current_setting('pgq.decided', true) is distinct from v_xid
        and not pgq._is_preparing()
    then
        perform set_config('pgq.decided', v_xid, true), pgq._decide(v_notes);
    else
        perform pgq._leave_to_tick(v_notes);
    end if;
    return null;
end
$$;
comment on function pgq._at_note() is
'Decides at a commit what the transaction has noted.

It runs behind the deferred triggers of others.';
create constraint trigger note_at_commit after insert on pgq.note
    deferrable initially deferred
    for each row execute function pgq._at_note();
-- Also in sessions that replicate.
--@ each slot
alter table pgq.note_{slot} enable always trigger note_at_commit;
--@ end

create function pgq._written()
returns bigint
language plpgsql
as $$
begin
    -- It is filled behind the deferred triggers.
    if exists (select from pg_cursors c where c.is_holdable and c.creation_time >= now()) then
        return null;
    end if;
    return (
        select coalesce(sum(pg_stat_get_xact_tuples_inserted(c.oid)
                            + pg_stat_get_xact_tuples_updated(c.oid)
                            + pg_stat_get_xact_tuples_deleted(c.oid)), 0)::bigint
          from pg_locks l join pg_class c on c.oid = l.relation
         where l.pid = pg_backend_pid() and l.mode = 'RowExclusiveLock'
           and l.database = (select d.oid from pg_database d where d.datname = current_database())
           and c.relnamespace <> 'pgq'::regnamespace
    );
end
$$;
comment on function pgq._written() is
'Returns how many rows the transaction has written outside of pgq.

An event of a deferred trigger writes one. Null: a cursor with hold is still to be filled at the
commit.';

create function pgq._at_last(p_round integer, p_written bigint)
returns void
language plpgsql
as $$
declare
    v_written constant bigint := pgq._written();
begin
    -- Nothing was queued behind this event since the one before it fired. Notes come first: a tick
    -- holds locks, and must not wait for a bucket.
    if v_written = p_written
        and current_setting('pgq.noted', true) is distinct from pg_current_xact_id()::text
    then
        perform pgq._run_errands(), pgq._tick();
    elsif v_written is not null and p_round < 10 then
        insert into pgq.chore (last, round, written) values (true, p_round + 1, v_written);
    else
        perform setval('pgq.next_tick', 1);  -- the next call has it run
    end if;
end
$$;
comment on function pgq._at_last(integer, bigint) is
'Runs maintenance if nothing of the caller''s runs behind it and keeps its locks.

Else it runs once more behind that, at most ten times, and then at a commit of somebody else.';

create function pgq._at_commit()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_xid constant text := pg_current_xact_id()::text;
begin
    -- Of an update, whose text may look as if it prepared a transaction.
    if new.round < 0 then
        perform pgq._run_errands();
        delete from pgq.chore c where c.round < 0;
        return null;
    end if;
    if pgq._is_preparing() then
        return null;
    end if;
    if new.wake is not null then
        perform pg_notify(format('pgq_%s', new.wake), '')
          where pg_notification_queue_usage() < 0.9;
    elsif not pgq._read_committed() then
        return null;
    -- The first event queues one more, behind the deferred triggers of everybody else. After SET
    -- CONSTRAINTS ... IMMEDIATE, that one fires in here instead of at COMMIT, and nothing is done.
    elsif new.last then
        perform pgq._at_last(new.round, new.written) where pg_trigger_depth() = 1;
    elsif current_setting('pgq.ticking', true) is distinct from v_xid then
        perform set_config('pgq.ticking', v_xid, true);
        insert into pgq.chore (last, round, written) values (true, 0, pgq._written());
    end if;
    return null;
end
$$;
comment on function pgq._at_commit() is
'Runs maintenance that was queued in pgq.chore, once per transaction.

It is the last deferred trigger, and does what pgq._wake has left to it.';

create constraint trigger chore_at_commit after insert on pgq.chore
    deferrable initially deferred
    for each row execute function pgq._at_commit();

create function @extschema@.pgq_maintain()
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if not pgq._read_committed() then
        raise exception 'maintenance needs the isolation level READ COMMITTED'
            using errcode = 'active_sql_transaction',
                  detail = 'An older snapshot must not decide that a slot is empty.';
    end if;
    insert into pgq.chore default values;
end
$$;
revoke all on function @extschema@.pgq_maintain() from public;
comment on function @extschema@.pgq_maintain() is
'Runs maintenance at the commit of the caller''s transaction.

Maintenance is rotation, reclaim and retention. Ordinary calls run it twice a second, so no queue
needs this function. Call it in quiet databases, for example from pg_cron.

Errors:

* 25001: the isolation level is REPEATABLE READ or SERIALIZABLE.';
