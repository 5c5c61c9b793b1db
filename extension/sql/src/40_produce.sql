/*
 * Public: pgq_enqueue, pgq_enqueue_many.
 *
 * The transaction id is assigned before an id is drawn: pgq._raise_floor relies on it. So is the
 * lock on the slot (by pgq._open_slot, or a statement that writes to that slot alone), and a place
 * in a parked slot is not before the time at which that lock was had: see pgq._raise_base.
 */

-- Of two lanes either will do. Leaves the slot null where it is not the ordinary case.
--@ define where
select l.id, r.live[cardinality(r.live)], r.parked, l.awaited_until > pgq._now(),
               l.queue_id
          into v_lane, v_slot, v_parkeds, v_is_awaited, v_queue_id
          from pgq.lane l,
               lateral (select o.live, o.parked from pgq.ring o order by o.gen desc limit 1) r
         where l.queue = v_queue and l.priority = v_priority
           and not (l.expiring or l.is_bounded)
           and ({is_owner} or pgq._may(l.queue_id, 'enqueue'))
           and pg_current_xact_id() is not null
           and current_setting('transaction_isolation') = 'read committed'
         limit 1
--@ end

--@ define target
row(
            v_queue_id, v_lane, v_slot, v_parkeds[cardinality(v_parkeds)], null, false, v_is_awaited
        )::pgq.target
--@ end

-- As in pgq._wake, without a call while nobody sleeps.
--@ define wake
if v_is_awaited then
        if not (pg_try_advisory_lock({wait_class}, v_queue_id)
                and pg_advisory_unlock({wait_class}, v_queue_id))
        then
            perform pgq._wake(v_queue_id);
        end if;
    end if
--@ end

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
volatile
security definer
set search_path = pg_catalog, pg_temp
{index_scans}
as $$
declare
    v_queue alias for queue; v_priority alias for priority; v_queue_id integer;
    v_id bigint; v_lane integer; v_slot smallint; v_parkeds smallint[]; v_is_awaited boolean;
begin
    {check_restricted};
    if pg_column_size(payload) > {most_unseen} or pg_column_compression(payload) is not null then
        perform pgq._check_size('payload', array[payload]);
    end if;
    -- The ordinary case, in two statements; pgq._enqueue_many does the rest, and says what is bad.
    if payload is not null and on_duplicate = 'keep' and after_on_dead = 'die'
        and run_at is null and headers is null and max_attempts is null and dedupe_key is null
        and expires_at is null and after is null
    then
        {where};
        if group_key is not null and v_slot is not null then
            return (pgq._enqueue_grouped({target}, array[payload], array[group_key]))[1];
        end if;
    end if;
    case v_slot
    --@ each ring
    when {slot} then
        insert into pgq.job_{slot} as j (id, enqueued_at, lane, slot, payload)
        values (nextval('pgq.job_id'), pgq._now(), v_lane, v_slot, pgq_enqueue.payload)
        returning j.id into v_id;
    --@ end
    else
        perform pgq._check_not_null('payload', payload is null);
        return (select e from pgq._enqueue_many(
            array[payload], queue, priority, run_at,
            case when dedupe_key is not null then array[dedupe_key] end,
            case when group_key is not null then array[group_key] end, max_attempts, headers,
            on_duplicate, expires_at, after, after_on_dead
        ) e);
    end case;
    {wake};
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
'or the priority would be its 1001st; P0002 an id in after that no job has had yet; 0A000 after '
'with a group_key; 25001 under REPEATABLE READ and SERIALIZABLE, with after, or with a dedupe_key '
'where the queue has a dedupe_for.';

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
volatile
security definer
set search_path = pg_catalog, pg_temp
{index_scans}
as $$
declare
    v_queue alias for queue; v_queue_id integer; v_lane integer; v_slot smallint;
    v_priority alias for priority; v_now constant timestamptz := pgq._now();
    v_parkeds smallint[]; v_is_awaited boolean;
begin
    {check_restricted};
    if (array_ndims(payloads) = 1 and array_position(payloads, null) is null
        and pg_column_size(payloads) <= {most_unseen}) is not true then
        perform pgq._check_array('payloads', payloads), pgq._check_size('payloads', payloads);
    end if;
    if on_duplicate = 'keep' and after_on_dead = 'die'
        and run_at is null and headers is null and max_attempts is null and dedupe_keys is null
        and expires_at is null and after is null
    then
        {where};
        if group_keys is not null and v_slot is not null then
            return query select unnest(pgq._enqueue_grouped({target}, payloads, group_keys));
            return;
        end if;
    end if;
    case v_slot
    --@ each ring
    when {slot} then
        return query
        insert into pgq.job_{slot} as j (id, enqueued_at, lane, slot, payload)
        select nextval('pgq.job_id'), v_now, v_lane, v_slot, p from unnest(payloads) p
        returning j.id;
    --@ end
    else
        return query
        select e from pgq._enqueue_many(
            payloads, queue, priority, run_at, dedupe_keys, group_keys, max_attempts, headers,
            on_duplicate, expires_at, after, after_on_dead
        ) e;
        return;
    end case;
    {wake};
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
