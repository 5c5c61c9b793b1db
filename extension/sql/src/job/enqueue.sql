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
        select l.id, r.live[cardinality(r.live)], l.awaited_until > pgq._now()
          into v_lane, v_slot, v_is_awaited
          from pgq.lane l,
               lateral (select o.live from pgq.ring o order by o.gen desc limit 1) r
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
'Adds a job in the caller''s transaction and returns its id. priority: -32768 to 32767, higher '
'first. run_at: not before then, within 1000 years; null or past: now. max_attempts: default the '
'queue''s. headers: a JSON object that travels with the job. dedupe_key (1 to 250 characters): if '
'a live job of the queue has it, or one that completed within its dedupe_for, nothing is added and '
'its id returned; waits for a transaction that is enqueueing with the same key. on_duplicate: '
'''keep'' leaves that job as it is; ''replace'' gives it this payload and run_at, unless it is '
'active; ''error'' raises 23505. group_key (1 to 250 characters): of the queue''s jobs with the '
'same one at most group_concurrency are active at a time, in id order, retries included. '
'expires_at, within 1000 years: if it has not started by then it is dead, with the error '
'''expired'', and does not run; one that was released has not started. after: ids of jobs; it '
'waits until all of them have completed, where a job that is not known any more counts as '
'completed; after_on_dead: if one of them dies or is cancelled, it is dead, too (''die''), or '
'waits until that one is retried (''wait''). Errors: 42704 unknown queue; 22004 null payload, '
'queue or priority; 22003 priority; 22023 other values; 23505; 40001; 53400 the queue has '
'max_ready jobs; 54000 the payload is longer than its max_payload or 64 MB, the headers than 1 MB, '
'or the priority would be its 1001st; P0002 an id in after that no job has had yet, PQ002 one of '
'another shard; 0A000 after with a group_key; 25001 under REPEATABLE READ and SERIALIZABLE, with '
'after, or with a dedupe_key where the queue has a dedupe_for.';

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
        select l.id, r.live[cardinality(r.live)], l.awaited_until > v_now
          into v_lane, v_slot, v_is_awaited
          from pgq.lane l,
               lateral (select o.live from pgq.ring o order by o.gen desc limit 1) r
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
'Adds one job per payload, with the same settings, and returns their ids in the order of the '
'payloads. Arguments and errors as in pgq_enqueue; 22004 also for a null payload, 22023 for keys '
'that are not as many as the payloads. A null key: none for that job. Of payloads with the same '
'dedupe key the first is added, with ''replace'' the last. Nothing is added if one is bad. 40P01, '
'rarely, with ''replace'' beside pgq_cancel_all: run it again.';
