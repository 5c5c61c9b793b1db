/*
 * Public: pgq_enqueue, pgq_enqueue_many.
 *
 * The transaction id is assigned before an id is drawn: pgq._raise_floor relies on it. So is the
 * lock on the slot (by pgq._open_slot, or a statement that writes to that slot alone), and a place
 * in a parked slot is not before the time at which that lock was had: see pgq._raise_base.
 */

create function pgq._check_settings_of_job(
    p_priority integer, p_run_at timestamptz, p_max_attempts integer, p_headers jsonb
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null('priority', p_priority is null);
    if p_priority not between -32768 and 32767 then
        raise exception '"priority" must be between -32768 and 32767, not %', p_priority
            using errcode = 'numeric_value_out_of_range';
    end if;
    if not isfinite(p_run_at) then
        raise exception '"run_at" must be finite'
            using errcode = 'invalid_parameter_value';
    end if;
    if p_run_at > pgq._now() + interval '1000 years' then
        raise exception '"run_at" must be within 1000 years, not %', p_run_at
            using errcode = 'invalid_parameter_value';
    end if;
    if p_max_attempts not between 1 and 32767 then
        raise exception '"max_attempts" must be between 1 and 32767, not %', p_max_attempts
            using errcode = 'invalid_parameter_value';
    end if;
    if jsonb_typeof(p_headers) <> 'object' then
        raise exception '"headers" must be a JSON object, not %', jsonb_typeof(p_headers)
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
comment on function pgq._check_settings_of_job(integer, timestamptz, integer, jsonb) is
'raises 22004, 22003 or 22023 for bad settings of a job; null passes, but for the priority';

create function pgq._target(
    p_queue text, p_priority integer, p_run_at timestamptz, p_max_attempts integer,
    p_headers jsonb, p_expiring boolean default false
)
returns pgq.target
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_at pgq.target;
begin
    perform pg_current_xact_id();
    if p_priority is null or p_priority not between -32768 and 32767
        or p_max_attempts not between 1 and 32767 or p_headers is not null or p_run_at is not null
    then
        perform pgq._check_settings_of_job(p_priority, p_run_at, p_max_attempts, p_headers);
        if p_run_at > pgq._now() then
            v_at.run_at := p_run_at;
        end if;
    end if;
    select q.id, l.id, r.live[cardinality(r.live)], r.parked[cardinality(r.parked)], q.is_bounded,
           l.id is null or l.awaited_until > pgq._now() or not pgq._read_committed()
      into v_at.queue_id, v_at.lane, v_at.slot, v_at.parked, v_at.is_bounded, v_at.is_awaited
      from pgq.queue q
      left join lateral (
              select l.id, l.awaited_until from pgq.lane l
               where l.queue_id = q.id and l.priority = p_priority and l.expiring = p_expiring
               order by l.priority, l.id limit 1
           ) l on true,
           lateral (select r.live, r.parked from pgq.ring r order by r.gen desc limit 1) r
     where q.name = p_queue;
    if not found then
        perform pgq._raise_unknown_queue(p_queue, 'enqueue');
    end if;
    -- An old snapshot may show a queue that has been dropped; locking its row tells (40001).
    if not pgq._read_committed() then
        perform from pgq.queue q where q.id = v_at.queue_id for key share;
    end if;
    if v_at.lane is null then
        v_at.lane := pgq._add_lane(v_at.queue_id, p_priority::smallint, p_expiring);
    end if;
    if v_at.run_at is not null then
        v_at.slot := v_at.parked;
        perform pgq._admit(v_at.slot, v_at.lane, pgq._us(v_at.run_at));
    end if;
    return v_at;
end
$$;
comment on function pgq._target(text, integer, timestamptz, integer, jsonb, boolean) is
'checks what both forms of enqueue share and says where the jobs go; run_at comes back null for '
'now. p_expiring: they are to start by a time';

-- Leaves the slot null if it is for pgq_enqueue_many. Of two lanes either will do.
--@ define where
select l.id, r.live[cardinality(r.live)], l.awaited_until, l.queue_id
      into v_lane, v_slot, v_awaited, v_queue_id
      from pgq.lane l,
           lateral (select o.live from pgq.ring o order by o.gen desc limit 1) r
     where l.queue = pgq_enqueue.queue and l.priority = pgq_enqueue.priority
       and not (l.expiring or l.is_bounded) and payload is not null
       and ({is_owner} or pgq._may(l.queue_id, 'enqueue'))
       and pg_current_xact_id() is not null
       and current_setting('transaction_isolation') = 'read committed'
     limit 1
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
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_id bigint; v_lane integer; v_slot smallint; v_awaited timestamptz; v_queue_id integer;
begin
    {check_restricted};
    -- The ordinary case, in two statements; pgq_enqueue_many does the rest, and says what is wrong.
    if num_nonnulls(run_at, headers, max_attempts, dedupe_key, group_key, expires_at, after) = 0
    then {where};
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
        return (select e from @extschema@.pgq_enqueue_many(
            array[payload], queue, priority, run_at,
            case when dedupe_key is not null then array[dedupe_key] end,
            case when group_key is not null then array[group_key] end, max_attempts, headers,
            on_duplicate, expires_at, after, after_on_dead
        ) e);
    end case;
    -- As in pgq._wake, without a call while nobody sleeps.
    if v_awaited > pgq._now()
        and not (pg_try_advisory_lock({wait_class}, v_queue_id)
                 and pg_advisory_unlock({wait_class}, v_queue_id))
    then
        perform pgq._wake(v_queue_id);
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
'first. run_at: not before then; null or past: now. max_attempts: default the queue''s. headers: '
'a JSON object that travels with the job. dedupe_key (1 to 250 characters): if a live job of the '
'queue has it, or one that completed within its dedupe_for, nothing is added and its id returned; '
'waits for a transaction that is enqueueing with the same key. on_duplicate: ''keep'' leaves that '
'job as it is; ''replace'' gives it this payload and run_at, unless it is active; ''error'' raises '
'23505. group_key (1 to 250 characters): of the queue''s jobs with the same one at most '
'group_concurrency are active at a time, in id order, retries included. expires_at: if it has not '
'started by then it is dead, with the error ''expired'', and does not run. after: ids of jobs; it '
'waits until all of them have completed, where a job that is not known any more counts as '
'completed; after_on_dead: if one of them dies or is cancelled, it is dead, too (''die''), or '
'waits until that one is retried (''wait''). Errors: 42704 unknown queue; 22004 null payload, '
'queue or priority; 22003 priority; 22023 other values; 23505; 40001; 53400 the queue has '
'max_ready jobs; 54000 the payload is longer than its max_payload; 0A000 after with a group_key.';

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
as $$
declare
    v_at pgq.target;
    v_now constant timestamptz := pgq._now();
    v_opened timestamptz;
begin
    perform pgq._check_array('payloads', payloads), pgq._queue_id(queue, 'enqueue');
    if dedupe_keys is not null or group_keys is not null or expires_at is not null
        or after is not null
    then
        return query select unnest(pgq._enqueue_keyed(
            payloads, queue, priority, run_at, dedupe_keys, group_keys, max_attempts, headers,
            on_duplicate, expires_at, after, after_on_dead
        ));
        return;
    end if;
    v_at := pgq._target(queue, priority, run_at, max_attempts, headers);
    if v_at.is_bounded then
        perform pgq._check_bounds(
            v_at.queue_id, payloads,
            case when v_at.run_at is null then cardinality(payloads) else 0 end
        );
    end if;
    v_opened := pgq._open_slot(v_at.slot);
    return query
    insert into pgq.job as j (
        id, enqueued_at, lane, slot, max_attempts, run_at, due, payload, headers
    )
    select n.id, v_now, v_at.lane, v_at.slot, pgq_enqueue_many.max_attempts, v_at.run_at,
           case when v_at.run_at is not null
                then pgq._due(greatest(v_at.run_at, v_opened), n.id) end,
           n.payload, pgq_enqueue_many.headers
      from (select nextval('pgq.job_id'), p from unnest(payloads) p) n (id, payload)
    returning j.id;
    perform pgq._wake_lane(v_at.lane, v_at.run_at) where v_at.is_awaited;
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
'payloads. Arguments and errors as in pgq_enqueue; 22004 also for a null element, 22023 for keys '
'that are not as many as the payloads. Of payloads with the same dedupe key the first is added, '
'with ''replace'' the last. Nothing is added if one is bad.';
