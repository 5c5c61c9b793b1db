/*
 * Public: pgq_enqueue, pgq_enqueue_many.
 *
 * The transaction id is assigned, and the slot is locked, before a number is drawn: positions rely
 * on it, see core/position.sql. An INSERT into a slot locks it before it evaluates nextval().
 *
 * The ordinary case takes two statements: one looks up lane and slot, one inserts. pgq._enqueue
 * does the rest, and says what is bad.
 */

create function @extschema@.pgq_enqueue(
    payload jsonb,
    queue text default 'default',
    priority integer default 0,
    run_at timestamptz default null,
    dedupe_key text default null,
    group_key text default null,
    max_attempts integer default null,
    headers jsonb default null,
    on_duplicate text default 'keep',
    expires_at timestamptz default null,
    after bigint[] default null,
    after_on_dead text default 'die'
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
    v_queue alias for queue; v_priority alias for priority;
    v_id bigint; v_lane bigint; v_slot smallint; v_is_awaited boolean;
begin
    perform pgq._check_restricted();
    if pg_column_size(payload) > 4000 or pg_column_compression(payload) is not null then
        perform pgq._check_size('payload', array[payload]);
    end if;
    if payload is not null and on_duplicate = 'keep' and after_on_dead = 'die'
        and num_nonnulls(
                run_at, headers, max_attempts, dedupe_key, group_key, expires_at, after
            ) = 0
    then
        select l.id, l.awaited_until > pgq._now(),
               (select r.live[cardinality(r.live)] from pgq.ring r order by r.gen desc limit 1)
          into v_lane, v_is_awaited, v_slot
          from pgq.lane l
         where l.queue = v_queue and l.priority = v_priority and not l.is_bounded
           and (pgq._is_owner() or pgq._may(l.queue_id, 'enqueue'))
           and pg_current_xact_id() is not null and pgq._read_committed()
         limit 1;
    end if;
    case v_slot
    --@ each ring
    when {slot} then
        insert into pgq.job_{slot} as j (id, pos, enqueued_at, lane, slot, payload)
        values (
            nextval('pgq.number'), currval('pgq.number'), pgq._now(), v_lane, v_slot,
            pgq_enqueue.payload
        )
        returning j.id into v_id;
    --@ end
    else
        perform pgq._check_not_null('payload', payload is null);
        return (select e from pgq._enqueue(
            array[payload], queue, priority, run_at,
            case when dedupe_key is not null then array[dedupe_key] end,
            case when group_key is not null then array[group_key] end, max_attempts, headers,
            on_duplicate, expires_at, after, after_on_dead
        ) e);
    end case;
    if v_is_awaited then
        perform pgq._wake(pgq._queue_of(v_lane));
    end if;
    return v_id;
end
$$;
revoke all on function
    @extschema@.pgq_enqueue(
        jsonb, text, integer, timestamptz, text, text, integer, jsonb, text, timestamptz, bigint[],
        text
    ) from public;
comment on function
    @extschema@.pgq_enqueue(
        jsonb, text, integer, timestamptz, text, text, integer, jsonb, text, timestamptz, bigint[],
        text
    ) is
'Adds a job in the caller''s transaction and returns its id.

* priority: -32768 to 32767, higher first.
* run_at: the job does not start before this time, within 1,000 years. Null or past: now.
* dedupe_key: 1 to 250 characters. If a live job of the queue has the key, or a job that
  completed within dedupe_for, the call adds nothing and returns the id of that job. The call
  waits for a transaction that enqueues with the same key.
* group_key: 1 to 250 characters. Of the jobs of a queue with the same key at most
  group_concurrency are active at a time, in the order of their ids, retries included.
* max_attempts: null for the setting of the queue.
* headers: a JSON object that travels with the job.
* on_duplicate: what happens to the job that has the dedupe key. ''keep'': nothing. ''replace'':
  it gets this payload and run_at, unless it is active. ''error'': the call raises 23505.
* expires_at: within 1,000 years. A job that has not started by then is dead, with the error
  ''expired'', and does not run. A released job has not started.
* after: ids of jobs. The job waits until all of them have completed. A job that is no longer
  known counts as completed.
* after_on_dead: what happens if one of these jobs dies or is cancelled. ''die'': the new job is
  dead, too. ''wait'': the new job waits until that one is retried. ''run'': it starts when all
  of them have ended.

Errors:

* 0A000: after is given with a group_key.
* 22003: the priority is out of range.
* 22004: the payload, queue, priority or another needed argument is null.
* 22023: another argument is bad.
* 23505: a live job has the dedupe key, and on_duplicate is ''error''.
* 25001: the isolation level is REPEATABLE READ or SERIALIZABLE, with after, or with a dedupe_key
  in a queue with dedupe_for.
* 40001: the snapshot of REPEATABLE READ or SERIALIZABLE is too old. Run the transaction again.
* 42704: there is no such queue.
* 53400: the queue has max_ready jobs.
* 54000: the payload is longer than max_payload of the queue or 64 MB, the headers are longer
  than 1 MB, or the queue has 1,000 other priorities.
* P0002: no job has had an id in after yet.
* PQ002: an id in after is of another shard.';

create function @extschema@.pgq_enqueue_many(
    payloads jsonb[],
    queue text default 'default',
    priority integer default 0,
    run_at timestamptz default null,
    dedupe_keys text[] default null,
    group_keys text[] default null,
    max_attempts integer default null,
    headers jsonb default null,
    on_duplicate text default 'keep',
    expires_at timestamptz default null,
    after bigint[] default null,
    after_on_dead text default 'die'
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
declare
    v_queue alias for queue; v_priority alias for priority;
    v_now constant timestamptz := pgq._now();
    v_lane bigint; v_slot smallint; v_is_awaited boolean;
begin
    perform pgq._check_restricted();
    if (array_ndims(payloads) = 1 and array_position(payloads, null) is null
        and pg_column_size(payloads) <= 4000) is not true
    then
        perform pgq._check_array('payloads', payloads), pgq._check_size('payloads', payloads);
    end if;
    if on_duplicate = 'keep' and after_on_dead = 'die'
        and num_nonnulls(
                run_at, headers, max_attempts, dedupe_keys, group_keys, expires_at, after
            ) = 0
    then
        select l.id, l.awaited_until > v_now,
               (select r.live[cardinality(r.live)] from pgq.ring r order by r.gen desc limit 1)
          into v_lane, v_is_awaited, v_slot
          from pgq.lane l
         where l.queue = v_queue and l.priority = v_priority and not l.is_bounded
           and (pgq._is_owner() or pgq._may(l.queue_id, 'enqueue'))
           and pg_current_xact_id() is not null and pgq._read_committed()
         limit 1;
    end if;
    case v_slot
    --@ each ring
    when {slot} then
        return query
        insert into pgq.job_{slot} as j (id, pos, enqueued_at, lane, slot, payload)
        select nextval('pgq.number'), currval('pgq.number'), v_now, v_lane, v_slot, p
          from unnest(payloads) p
        returning j.id;
    --@ end
    else
        return query
        select e from pgq._enqueue(
            payloads, queue, priority, run_at, dedupe_keys, group_keys, max_attempts, headers,
            on_duplicate, expires_at, after, after_on_dead
        ) e;
        return;
    end case;
    if v_is_awaited then
        perform pgq._wake(pgq._queue_of(v_lane));
    end if;
end
$$;
revoke all on function
    @extschema@.pgq_enqueue_many(
        jsonb[], text, integer, timestamptz, text[], text[], integer, jsonb, text, timestamptz,
        bigint[], text
    ) from public;
comment on function
    @extschema@.pgq_enqueue_many(
        jsonb[], text, integer, timestamptz, text[], text[], integer, jsonb, text, timestamptz,
        bigint[], text
    ) is
'Adds one job per payload. Returns the ids in the order of the payloads.

All jobs have the same settings: the arguments are those of pgq_enqueue. If one payload or key is
bad, no job is added.

* dedupe_keys, group_keys: one for each payload; null for a job without one.
* on_duplicate: of payloads with the same dedupe key the first one is added; with ''replace'',
  the last one.

Errors:

* 22004: a payload is null.
* 22023: there are not as many keys as payloads.
* 40P01: rarely, with ''replace'', pgq_cancel_all works on the same jobs. Run the transaction
  again.
* those of pgq_enqueue.';
