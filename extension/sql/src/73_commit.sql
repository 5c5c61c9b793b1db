/*
 * Public: pgq_maintain. And when ticks run: at commits, behind all that the caller's transaction
 * still has to do, so that no lock of maintenance outlives the tick.
 */

create function pgq._written()
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
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
'how many rows the transaction has written outside of pgq: what queues an event of a deferred '
'trigger writes one; null: a cursor with hold is still to be filled at the commit';

create function pgq._at_last(p_round integer, p_written bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_written constant bigint := pgq._written();
begin
    -- Nothing was queued behind this event since the one before it fired.
    if v_written = p_written then
        perform pgq._run_errands(), pgq._maintain();
    elsif v_written is not null and p_round < 10 then
        insert into pgq.chore (last, round, written) values (true, p_round + 1, v_written);
    else
        perform setval('pgq.next_tick', 1);  -- the next call has it run
    end if;
end
$$;
comment on function pgq._at_last(integer, bigint) is
'maintenance, if nothing of the caller''s runs behind it and keeps its locks; else once more '
'behind that, at most ten times, and then at a commit of somebody else';

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
          where pg_notification_queue_usage() < {notify_full};
    end if;
    if new.wake is not null or not pgq._read_committed() then
        return null;
    end if;
    -- The first event queues one more, behind the deferred triggers of everybody else. After SET
    -- CONSTRAINTS ... IMMEDIATE, that one fires in here instead of at COMMIT, and nothing is done.
    if new.last then
        if pg_trigger_depth() = 1 then
            -- Groups first: maintenance holds locks, and must not wait for a bucket.
            if not pgq._is_noted({event_table}, false) then
                perform pgq._at_last(new.round, new.written);
            elsif current_setting('pgq.ticking', true) = v_xid then
                perform set_config('pgq.ticking', v_xid || ' ', true);
                insert into pgq.chore (last, round, written) values (true, 0, pgq._written());
            end if;
        end if;
    elsif current_setting('pgq.ticking', true) is distinct from v_xid then
        perform set_config('pgq.ticking', v_xid, true);
        insert into pgq.chore (last, round, written) values (true, 0, pgq._written());
    end if;
    return null;
end
$$;
comment on function pgq._at_commit() is
'runs maintenance that was queued in pgq.chore: once per transaction, as the last deferred '
'trigger; does what pgq._wake has left to it';

create constraint trigger chore_at_commit after insert on pgq.chore
    deferrable initially deferred
    for each row execute function pgq._at_commit();

create function @extschema@.pgq_maintain()
returns void
language plpgsql
volatile
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
'Does at the commit of the caller''s transaction what ordinary calls do twice a second: '
'rotation, reclaim, retention. For quiet databases, for example from pg_cron; no queue needs it. '
'Errors: 25001 under REPEATABLE READ and SERIALIZABLE.';
