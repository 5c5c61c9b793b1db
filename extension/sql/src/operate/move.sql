/*
 * Public: pgq_move. A ready job gets a new place in the ring, at the end of its new lane. Others
 * stay where they are, with another lane, unless they get another time. Jobs of groups stand in a
 * line that belongs to a lane.
 *
 * Lock order: the dedupe bucket of the new queue, the job.
 */

create function pgq._change_place(p_job pgq.job, p_lane bigint, p_run_at timestamptz)
returns void
language plpgsql
as $$
begin
    p_job.lane := p_lane;
    if p_job.dedupe_queue_id is not null then
        p_job.dedupe_queue_id := pgq._queue_of(p_lane);
    end if;
    if p_run_at is not null and not pgq._waits_for_jobs(p_job) then
        perform pgq._remove(p_job.slot, p_job.id);
        perform pgq._park(p_job, p_run_at, true);
        return;
    elsif p_job.pos is not null then
        perform pgq._remove(p_job.slot, p_job.id);
        perform pgq._put(p_job);
        return;
    end if;
    execute format(
        'update pgq.job_%s j set lane = $2, dedupe_queue_id = $3, run_at = coalesce($4, j.run_at)'
        ' where j.id = $1', p_job.slot
    ) using p_job.id, p_lane, p_job.dedupe_queue_id, p_run_at;
    update pgq.dependency d set lane = p_lane
     where d.ctid = any (array(
               select o.ctid from pgq.dependency o
                where o.job_id = p_job.id for update skip locked
           ));
    perform pgq._wake_lane(p_lane, p_job.run_at) where p_job.due is not null;
end
$$;
comment on function pgq._change_place(pgq.job, bigint, timestamptz) is
'Moves a locked job to another lane, and to another time, if there is one.

The queue in pgq.dependency is for pgq_obstacles alone. A transaction that is about to complete
the job may leave the old queue there.';

create function @extschema@.pgq_move(
    id bigint,
    queue text default null,
    priority integer default null,
    run_at timestamptz default null
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
    v_job pgq.job; v_queue text; v_lane bigint; v_at pgq.target; v_key text[];
begin
    perform pgq._check_not_null('id', id is null),
            pgq._check_not_null(
                'queue, priority or run_at', num_nonnulls(queue, priority, run_at) = 0
            );
    perform pgq._queue_id(queue, 'enqueue') where queue is not null;
    loop
        v_job := pgq._find_mine(id, 'manage');
        select q.name into v_queue from pgq.queue q where q.id = pgq._queue_of(v_job.lane);
        if not found or v_job.token is not null then
            return false;
        end if;
        if v_job.group_id is not null then
            raise exception 'job % of a group cannot be moved', id
                using errcode = 'feature_not_supported',
                      hint = 'Cancel it, and enqueue its payload again.';
        end if;
        v_lane := v_job.lane;
        v_at := pgq._target(
            coalesce(queue, v_queue), coalesce(priority, pgq._priority_of(v_lane)), run_at,
            null, null
        );
        if v_at.queue_id <> pgq._queue_of(v_lane) then
            -- When it has ended it would be taken for one of a dropped queue of that name.
            perform from pgq.queue q where q.id = v_at.queue_id and q.first_job >= v_job.id;
            if found then
                raise exception 'job % is older than queue "%"', id, queue
                    using errcode = 'object_not_in_prerequisite_state',
                          hint = 'Enqueue its payload there, and cancel it.';
            end if;
            v_key := array_remove(array[v_job.dedupe_key], null);
            perform pgq._check_bounds(
                        v_at.queue_id, array[v_job.payload], num_nonnulls(v_job.pos)
                    ),
                    pgq._lock_keys(v_at.queue_id, v_key);
            perform pgq._raise_duplicate(queue, v_key, l, l)
               from pgq._live_keys(v_at.queue_id, v_key) l;
        end if;
        v_job := pgq._find_and_lock(id, false);
        exit when v_job.id is null or v_job.lane = v_lane;
    end loop;
    if v_job.id is null or v_job.token is not null then
        return false;
    end if;
    perform pgq._change_place(
                v_job, v_at.lane, case when run_at is not null then greatest(run_at, pgq._now()) end
            )
      where v_at.lane <> v_lane or run_at is not null;
    return true;
end
$$;
revoke all on function @extschema@.pgq_move(bigint, text, integer, timestamptz) from public;
comment on function @extschema@.pgq_move(bigint, text, integer, timestamptz) is
'Gives a job another queue, priority or time, in the caller''s transaction.

The job must be ready, scheduled or waiting. It becomes the last of those that are ready there. It
keeps its id and attempts, and has the settings of its new queue. The caller needs the
privilege to manage its queue, and to enqueue into the new one. The call waits for a transaction
that is about to claim, pop or end the job, or that uses its dedupe key in the new queue.

* queue: null for the same one.
* priority: null for the same one.
* run_at: null for the same time; a past one means now. A job that waits for others starts after
  them, too.
* Returns false if the job is active, finished or unknown.

Errors:

* 0A000: the job is of a group.
* 22003: the priority is out of range.
* 22004: the id is null, or queue, priority and run_at are.
* 22023: run_at is not within 1000 years.
* 23505: a live job of the new queue has its dedupe key.
* 40001: the snapshot of REPEATABLE READ or SERIALIZABLE is too old. Run the transaction again.
* 42501: the privilege to enqueue into the new queue is missing.
* 42704: there is no such queue, or the queue of the job is dropped meanwhile.
* 53400: the new queue has max_ready jobs.
* 54000: the payload is longer than max_payload of the new queue, or the queue has 1,000 other
  priorities.
* 55000: the job is older than the new queue.
* PQ002: the job is of another shard.';
