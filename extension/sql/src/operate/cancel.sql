/*
 * Public: pgq_cancel, pgq_cancel_key, pgq_cancel_all.
 */

create function pgq._cancel(p_id bigint, p_force boolean)
returns boolean
language plpgsql
as $$
declare
    v_job pgq.job;
begin
    if (pgq._find_mine(p_id, 'manage')).id is null then
        return false;
    end if;
    loop
        v_job := pgq._find_and_lock(p_id, p_force);
        exit when v_job.id is null or v_job.token is null or p_force;
        -- Its holder is told. False if its lease has ended or it was moved meanwhile.
        if pgq._mark(v_job.slot, v_job.id, 'cancel_requested', v_job.token) then
            return false;
        end if;
    end loop;
    if v_job.id is null then
        return false;
    end if;
    perform pgq._end(pgq._remove(v_job.slot, v_job.id), 'cancelled');
    return true;
end
$$;
comment on function pgq._cancel(bigint, boolean) is 'See pgq_cancel.';

create function @extschema@.pgq_cancel(
    id bigint,
    force boolean default false
)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
    perform pgq._check_not_null('id', id is null), pgq._check_not_null('force', force is null);
    return pgq._cancel(id, force);
end
$$;
revoke all on function @extschema@.pgq_cancel(bigint, boolean) from public;
comment on function @extschema@.pgq_cancel(bigint, boolean) is
'Cancels a ready, scheduled or waiting job in the caller''s transaction.

The archive keeps the job for keep_dead of its queue. An active job goes on: its worker is told
at the next heartbeat, and there is no other attempt. The call waits for a transaction that is
about to claim, pop or end the job.

* force: cancels an active job, too. Its receipt is then lost.
* Returns false if the job is unknown, finished or, without force, active.

Errors:

* 22004: an argument is null.
* 40001: the snapshot of REPEATABLE READ or SERIALIZABLE is too old. Run the transaction again.
* PQ002: the job is of another shard.';

create function @extschema@.pgq_cancel_key(
    queue text,
    dedupe_key text,
    force boolean default false
)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    v_queue_id constant integer := pgq._queue_id(queue, 'manage');
    v_id bigint;
    v_last bigint;
begin
    perform pgq._check_not_null('dedupe_key', dedupe_key is null),
            pgq._check_not_null('force', force is null);
    -- Another one may have got the key in the transaction that ended the one before.
    loop
        v_id := (pgq._live_keys(v_queue_id, array[dedupe_key]))[1];
        exit when v_id is null or v_id is not distinct from v_last;
        if pgq._cancel(v_id, force) then
            return true;
        end if;
        v_last := v_id;
    end loop;
    return false;
end
$$;
revoke all on function @extschema@.pgq_cancel_key(text, text, boolean) from public;
comment on function @extschema@.pgq_cancel_key(text, text, boolean) is
'Cancels the live job with a dedupe key, as pgq_cancel does.

If this job ends meanwhile, the call cancels the job that has got the key.

Errors:

* 22004: an argument is null.
* 40001: the snapshot of REPEATABLE READ or SERIALIZABLE is too old. Run the transaction again.
* 42704: there is no such queue.';

create function pgq._end_live(
    p_queue_id integer, p_states text[], p_max bigint, p_keep boolean
)
returns bigint
language plpgsql
as $$
declare
    v_now timestamptz;
    v_tick bigint;
    v_count bigint;
    v_all bigint := bigint '0';
begin
    -- Again if a tick has come meanwhile: what that moves is not seen, or cannot be locked.
    for v_round in 1..3 loop
        v_tick := pg_sequence_last_value('pgq.last_tick');
        begin
            -- Waits for the tick that another session is just committing, and gives the lock back.
            perform from pgq.gate g for key share;
            raise exception using errcode = 'PQ000';
        exception
            when sqlstate 'PQ000' then
                v_now := pgq._now();
        end;
        with doomed as (
            select j.slot, j.id
              from pgq.job j
             where pgq._is_of(j.lane, p_queue_id)
               and pgq._state_of(j, v_now) = any (p_states)
             limit p_max - v_all
               for update skip locked
        ), gone as (
            delete from pgq.job j
             using doomed d where j.slot = d.slot and j.id = d.id
            returning j as job
        ), kept as (
            insert into pgq.archive
            select (a.row).*
              from (
                       select pgq._archived(
                                  g.job, q.name, 'cancelled', v_now, q.keep_dead, null
                              ) as row
                         from gone g join pgq.queue q on q.id = pgq._queue_of((g.job).lane)
                        where p_keep and q.keep_dead > '0' offset 0
                   ) a
        ), noted as (
            select pgq._note_ended(array_agg(pgq._bare(g.job)), 'cancelled') from gone g
             where (g.job).group_id is not null or (g.job).is_awaited
                or pgq._waits_for_jobs(g.job)
        )
        select count(*) into v_count from gone left join noted on true;
        v_all := v_all + v_count;
        exit when v_all = p_max
            or v_tick is not distinct from pg_sequence_last_value('pgq.last_tick');
    end loop;
    perform pgq._check_snapshot();
    return v_all;
end
$$;
comment on function pgq._end_live(integer, text[], bigint, boolean) is
'Deletes live jobs of a queue that are in given states; returns their number.

Up to p_max, null: all. Those that others have locked stay. p_keep: they go to the archive, as
cancelled.';

create function @extschema@.pgq_cancel_all(
    queue text,
    force boolean default false,
    max integer default null
)
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
    v_queue_id constant integer := pgq._queue_id(queue, 'manage');
    v_id bigint;
    v_count bigint;
begin
    perform pgq._check_not_null('force', force is null),
            pgq._check_batch('max', coalesce(max, 1));
    -- Waits, in the lock order, so that none is passed by which an enqueue is about to replace.
    perform
       from pgq.job j
      where pgq._is_of(j.lane, v_queue_id) and (j.token is null or force) and pgq._is_job(j)
      order by j.slot, j.id limit max for update;
    v_count := pgq._end_live(
        v_queue_id, '{ready,scheduled,waiting}' || case when force then array['active'] end, max,
        true
    );
    for v_id in
        select j.id from pgq.job j
         where pgq._is_of(j.lane, v_queue_id) and j.is_head is null
         order by j.slot, j.id
    loop
        exit when v_count = max;
        if pgq._cancel(v_id, force) then
            v_count := v_count + 1;
        end if;
    end loop;
    return v_count;
end
$$;
revoke all on function @extschema@.pgq_cancel_all(text, boolean, integer) from public;
comment on function @extschema@.pgq_cancel_all(text, boolean, integer) is
'Cancels the live jobs of a queue, as pgq_cancel does, and returns their number.

If the call cancels fewer than max jobs, it also asks the workers of active jobs to stop.

* force: cancels active jobs, too.
* max: at most this number. Null: all.

Errors:

* 22004: the queue or force is null.
* 22023: max is out of range.
* 40001: the snapshot of REPEATABLE READ or SERIALIZABLE is too old. Run the transaction again.
* 40P01: rarely, others replace or complete several of the jobs, while one of these is released
  or moved. Run the transaction again.
* 42704: there is no such queue.';
