/*
 * Public: pgq_retry, pgq_retry_dead, pgq_purge.
 */

create function pgq._revive(p_ids bigint[], p_skip boolean)
returns setof bigint
language plpgsql
as $$
declare
    v_dead pgq.archive;
    v_job pgq.job;
    v_queue_id integer;
begin
    perform pgq._lock_keys(q.id, k.keys)
       from (
                select a.queue, array_agg(a.dedupe_key) as keys from pgq.archive a
                 where a.id = any (p_ids) group by a.queue
            ) k
       join pgq.queue q on q.name = k.queue;
    for v_dead in
        select a.* from pgq.archive a
         where a.id = any (p_ids) and a.state = 'dead' and a.expires_at > pgq._now()
         order by a.id
    loop
        select q.id into v_queue_id from pgq.queue q where q.name = v_dead.queue;
        continue when v_dead.dedupe_key is not null
            and (pgq._live_keys(v_queue_id, array[v_dead.dedupe_key]))[1] is not null;
        if p_skip then
            perform from pgq.archive a
              where a.bucket = v_dead.bucket and a.id = v_dead.id for update skip locked;
            continue when not found;
        end if;
        delete from pgq.archive a where a.bucket = v_dead.bucket and a.id = v_dead.id;
        continue when not found;
        v_job := null;
        v_job.id := v_dead.id;
        v_job.enqueued_at := v_dead.enqueued_at;
        v_job.lane := pgq._lane_of(v_queue_id, v_dead.priority);
        v_job.attempt := 0;
        v_job.lost := 0;
        v_job.max_attempts := v_dead.max_attempts;
        v_job.payload := v_dead.payload;
        v_job.headers := v_dead.headers;
        v_job.last_error := v_dead.last_error;
        v_job.dedupe_key := v_dead.dedupe_key;
        v_job.dedupe_queue_id := case when v_dead.dedupe_key is not null then v_queue_id end;
        v_job.group_key := v_dead.group_key;
        v_job.group_id := (pgq._group_ids(v_queue_id, array[v_dead.group_key]))[1];
        v_job.checkpoint := v_dead.checkpoint;
        v_job.history := v_dead.history;
        v_job.is_awaited := case
            when not pgq._read_committed()
                or exists (select from pgq.dependency d where d.on_id = v_dead.id)
            then true end;
        if v_job.group_id is null then
            perform pgq._park(v_job, pgq._now());
        else
            perform pgq._unblock(array[v_job.id]);
            v_job.slot := pgq._parked_slot();
            perform pgq._open(v_job.slot);
            -- Behind those that were late to stand before it.
            v_job.place := 2 * v_job.id + 1;
            insert into pgq.job select v_job.*;
            perform pgq._note(v_job.slot, 'g', array[v_job.group_id], array[-v_job.place]);
        end if;
        return next v_dead.id;
    end loop;
end
$$;
comment on function pgq._revive(bigint[], boolean) is
'Puts dead jobs back as ready with all their attempts; returns the ids.

Not where a live job has the dedupe key. p_skip: leaves out those that somebody else is about to
put back or purge.';

create function @extschema@.pgq_retry(id bigint)
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
    perform pgq._check_not_null('id', id is null);
    if not exists (
        select from pgq.archive a join pgq.queue q on q.name = a.queue
         where a.id = pgq_retry.id and pgq._may(q.id, 'manage')
    ) then
        perform pgq._check_shard(id);
        return false;
    end if;
    perform pgq._revive(array[id], false);
    if found then
        return true;
    end if;
    if exists (
        select from pgq.archive a
         where a.id = pgq_retry.id and a.state = 'dead' and a.expires_at > pgq._now()
           and a.dedupe_key is not null
    ) then
        raise exception 'a live job has the dedupe key of job %', id
            using errcode = 'unique_violation',
                  hint = 'Retry the dead job when the live one has ended, or cancel the live one.';
    end if;
    return false;
end
$$;
revoke all on function @extschema@.pgq_retry(bigint) from public;
comment on function @extschema@.pgq_retry(bigint) is
'Makes a dead job ready again in the caller''s transaction.

The job has all its attempts again.

* Returns false if there is no dead job with this id.

Errors:

* 22004: the id is null.
* 23505: a live job has its dedupe key.
* PQ002: the job is of another shard.';

create function @extschema@.pgq_retry_dead(
    queue text,
    max integer default 1000
)
returns setof bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
    perform pgq._check_batch('max', max);
    perform pgq._queue_id(queue, 'manage');
    return query
    select r.*
      from pgq._revive(array(
               select a.id
                 from pgq.archive a
                where a.queue = pgq_retry_dead.queue and a.state = 'dead'
                  and a.expires_at > pgq._now()
                order by a.id
                limit max
           ), true) r
     order by 1;
end
$$;
revoke all on function @extschema@.pgq_retry_dead(text, integer) from public;
comment on function @extschema@.pgq_retry_dead(text, integer) is
'Makes dead jobs of a queue ready again, oldest first, and returns their ids.

A job whose dedupe key a live job has stays dead.

* max: at most this number.

Errors:

* 22004: an argument is null.
* 22023: max is out of range.
* 42704: there is no such queue.';

create function @extschema@.pgq_purge(
    queue text,
    states text[] default '{ready,scheduled,waiting}',
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
    v_state text;
    v_live bigint;
    v_ended bigint;
    v_dead bigint[];
begin
    perform pgq._check_array('states', states),
            pgq._check_batch('max', coalesce(max, 1));
    foreach v_state in array states loop
        if v_state not in ('ready', 'scheduled', 'waiting', 'dead', 'completed', 'cancelled') then
            raise exception 'jobs in state "%" cannot be purged', v_state
                using errcode = 'invalid_parameter_value',
                      hint = 'The states are ready, scheduled, waiting, dead, completed and '
                             'cancelled.';
        end if;
    end loop;
    -- Of those alone that are over: locks no slot.
    v_live := case when states && '{ready,scheduled,waiting}'
                   then pgq._end_live(v_queue_id, states, max, false) else bigint '0' end;
    with doomed as (
        select a.bucket, a.id
          from pgq.archive a, pgq.queue q
         where q.id = v_queue_id and a.queue = q.name and a.id > q.first_job
           and a.state = any (states)
         limit max - v_live for update of a skip locked
    ), gone as (
        delete from pgq.archive a
         using doomed d where a.bucket = d.bucket and a.id = d.id and a.state = any (states)
        returning a.id, a.state
    )
    select count(*), array_agg(g.id) filter (where g.state = 'dead') into v_ended, v_dead
      from gone g;
    perform pgq._unblock(v_dead) where v_dead is not null;
    return v_live + v_ended;
end
$$;
revoke all on function @extschema@.pgq_purge(text, text[], integer) from public;
comment on function @extschema@.pgq_purge(text, text[], integer) is
'Deletes the jobs of a queue that are in given states. Returns their number.

Active jobs stay. So do jobs that another transaction is about to claim or retry. The call waits
for maintenance that moves jobs. Completed jobs take their dedupe keys with them. For completed
and cancelled jobs the call reads the whole archive: leave them to retention as a rule.

* states: of ready, scheduled, waiting, dead, completed and cancelled.
* max: at most this number. Null: all.

Errors:

* 22004: the queue, the array or a state is null.
* 22023: a state is another one, or max is out of range.
* 42704: there is no such queue.';
