/*
 * Public: pgq_dequeue, pgq_pop.
 *
 * A claim looks at the ring alone: lane by lane from the highest priority, slots oldest first, jobs
 * by pos. What else could be claimed is brought there by ticks and commits. The statement is
 * written out once per slot: a plan over pgq.job would lock all slots. It reads the clock anew,
 * after its snapshot: with the time at which the call began, a new lease could begin before the end
 * of the old one, which a tick has freed meanwhile.
 */

create function pgq._lease_limit_ms(p_batch integer, p_timeout interval, p_worker text)
returns integer
language plpgsql
immutable
as $$
begin
    perform pgq._check_batch('batch', p_batch);
    perform pgq._check_not_null('timeout', p_timeout is null);
    perform pgq._check_length('worker', p_worker, 200);
    return pgq._lease_ms(p_timeout);
end
$$;
comment on function pgq._lease_limit_ms(integer, interval, text) is
'Checks the arguments of a claim and returns the lease in milliseconds.

Raises 22004 and 22023.';

create function @extschema@.pgq_dequeue(
    batch integer default 1,
    timeout interval default '30 seconds',
    queue text default 'default',
    worker text default null
)
returns setof @extschema@.pgq_job
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_now_ms constant bigint := pgq._ms(v_now);
    v_ms constant numeric := extract(epoch from timeout) * 1000;
    -- One look at what is good spares the calls.
    v_lease_ms constant integer := case
        when batch >= 1 and v_ms between 1 and 86400000 and octet_length(coalesce(worker, '')) < 201
        then ceil(v_ms)::integer else pgq._lease_limit_ms(batch, timeout, worker) end;
    v_lease constant interval := v_lease_ms * interval '1 millisecond';
    v_queue alias for queue; v_worker alias for worker; v_left integer := batch;
    v_max integer; v_bits bigint; v_slots smallint[]; v_lanes bigint[]; v_is_special boolean;
    v_tick boolean; v_lane bigint; v_slot smallint; v_count integer;
begin
    perform pgq._check_restricted();
    select q.max_attempts,
           pgq._token_bits(0, greatest(q.keep_completed, q.dedupe_for) > '0'), q.is_special,
           array(select l.id from pgq.lane l where l.queue_id = q.id order by l.priority desc),
           (select r.ready from pgq.ring r order by r.gen desc limit 1),
           (pg_sequence_last_value('pgq.next_tick') between v_now_ms and v_now_ms + 1000)
               is not true or v_lease_ms < 500
      into v_max, v_bits, v_is_special, v_lanes, v_slots, v_tick
      from pgq.queue q
     where q.name = v_queue and (pgq._is_owner() or pgq._may(q.id, 'consume'));
    if not found then
        perform pgq._raise_unknown_queue(v_queue, 'consume');
    end if;
    if v_tick then
        perform pgq._want_tick(v_lease_ms);
    end if;
    if v_is_special then
        return query
        select * from pgq._dequeue_special(v_queue, v_lanes, batch, v_lease_ms, worker);
        return;
    end if;
    foreach v_lane in array v_lanes loop
        foreach v_slot in array v_slots loop
            case v_slot
            --@ each ring
            when {slot} then
                return query update pgq.job_{slot} j
                   set token = nextval('pgq.token') << 20 | v_bits
                               | pgq._token_bits({slot}, j.group_id is not null),
                       attempt = j.attempt + 1, claimed_at = f.now, lease_ms = v_lease_ms,
                       lease_expires_at = f.now + v_lease, worker = v_worker, pid = pg_backend_pid()
                  from (select i.ctid, pgq._now() as now from pgq.job_{slot} i
                         where i.lane = v_lane and i.token is null
                           and i.pos > coalesce((
                                   select f.floor from pgq.floor_{slot} f
                                    where f.lane = v_lane order by f.n desc limit 1
                               ), 0)
                           and (i.start_by is null or i.start_by > v_now or i.attempt > 0)
                         order by i.pos limit v_left for update skip locked) f
                 where j.ctid = f.ctid
                returning j.id, j.token, v_queue, pgq._priority_of(j.lane)::integer, 'active',
                          j.attempt::integer, coalesce(j.max_attempts, v_max), j.payload, j.headers,
                          j.group_key, j.dedupe_key, j.worker, j.enqueued_at,
                          coalesce(j.run_at, j.enqueued_at), j.claimed_at, j.lease_expires_at,
                          j.last_error, false, j.checkpoint;
            --@ end
            end case;
            get diagnostics v_count = row_count;
            -- Raising a floor costs as much as passing by the jobs that were claimed since the last
            -- time: after about 32 claims of one job, 10 of ten, 3 of a hundred.
            if random() * 32 < sqrt(v_count) then
                perform pgq._raise_floor(v_slot, v_lane);
            end if;
            v_left := v_left - v_count;
            if v_left = 0 then
                return;
            end if;
        end loop;
    end loop;
    perform pgq._check_snapshot();
end
$$;
revoke all on function @extschema@.pgq_dequeue(integer, interval, text, text) from public;
comment on function @extschema@.pgq_dequeue(integer, interval, text, text) is
'Claims up to batch jobs of a queue, and leases them for timeout.

The highest priority comes first, then the order in which jobs became ready. For jobs that never
waited this is the order of their ids. The call waits for no job: an empty result means that
there is nothing to do now.

A job whose lease has expired is ready again at the next maintenance, within half a second while
pgq is called. After the second expired lease in a row the backoff of the queue comes first.

* timeout: the lease, up to 24 days. Renew it with pgq_heartbeat.
* worker: a name for the operator, of at most 200 characters.

Errors:

* 22004: an argument other than worker is null.
* 22023: batch or timeout is out of range, or worker is too long.
* 25001: the queue has limits, and the isolation level is REPEATABLE READ or SERIALIZABLE.
* 42704: there is no such queue.';

--@ each ring
create function pgq._lease_{slot}(
    p_lane bigint, p_after bigint, p_until bigint, p_batch integer, p_now timestamptz,
    p_lease_ms integer, p_worker text, p_bits bigint
)
returns setof pgq.job
language sql
begin atomic
    update pgq.job_{slot} j
       set token = nextval('pgq.token') << 20 | p_bits
                   | pgq._token_bits({slot}, j.group_id is not null),
           attempt = j.attempt + 1, claimed_at = f.now,
           lease_expires_at = f.now + p_lease_ms * interval '1 millisecond',
           lease_ms = p_lease_ms, worker = p_worker, pid = pg_backend_pid()
      from (
               select i.ctid, pgq._now() as now from pgq.job_{slot} i
                where i.lane = p_lane and i.token is null and i.pos > p_after and i.pos < p_until
                  and i.pos > coalesce((
                          select f.floor from pgq.floor_{slot} f
                           where f.lane = p_lane and p_until - p_after > 2 order by f.n desc limit 1
                      ), 0)
                  and (i.start_by is null or i.start_by > p_now or i.attempt > 0)
                order by i.pos limit p_batch for update skip locked
           ) f
     where j.ctid = f.ctid
    returning j.*;
end;
comment on function
    pgq._lease_{slot}(bigint, bigint, bigint, integer, timestamptz, integer, text, bigint) is
'Claims as pgq_dequeue does, between two positions.

A claim of one given job also looks below the floor.';
--@ end

-- Stable, or PostgreSQL would not make it part of the query that calls it: without pgq._dequeue and
-- pgq._complete in between pgq_complete_and_dequeue takes 63,000 instructions less, a tenth.
create function pgq._dequeue(p_batch integer, p_timeout interval, p_queue text, p_worker text)
returns setof @extschema@.pgq_job
language sql
stable
begin atomic
    select * from @extschema@.pgq_dequeue(p_batch, p_timeout, p_queue, p_worker);
end;
comment on function pgq._dequeue(integer, interval, text, text) is
'Claims as pgq_dequeue does, for other functions.

It is bound when it is created. A call by name would be ambiguous once others have created a
function like it in the same schema.';

create function @extschema@.pgq_dequeue(
    batch integer,
    timeout interval,
    queues text[],
    worker text default null
)
returns setof @extschema@.pgq_job
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue text;
    v_left integer := batch;
    v_count integer;
begin
    perform pgq._check_array('queues', queues), pgq._lease_limit_ms(batch, timeout, worker);
    perform pgq._queue_id(q, 'consume') from unnest(queues) q;
    foreach v_queue in array queues loop
        exit when v_left = 0;
        return query select d.* from pgq._dequeue(v_left, timeout, v_queue, worker) d;
        get diagnostics v_count = row_count;
        v_left := v_left - v_count;
    end loop;
end
$$;
revoke all on function @extschema@.pgq_dequeue(integer, interval, text[], text) from public;
comment on function @extschema@.pgq_dequeue(integer, interval, text[], text) is
'Claims up to batch jobs of several queues, and leases them for timeout.

All jobs of the first queue come first, then those of the second, and so on. Otherwise the call
is as pgq_dequeue of one queue.

* queues: in the order in which to look.

Errors:

* those of pgq_dequeue of one queue.';

create function @extschema@.pgq_pop(
    batch integer default 1,
    queue text default 'default'
)
returns setof @extschema@.pgq_job
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_jobs @extschema@.pgq_job[];
begin
    -- A claim and its completion in one transaction: nobody else ever sees the lease.
    v_jobs := array(
        select d from pgq._dequeue(batch, interval '30 seconds', queue, null) d
    );
    perform from pgq._complete(
        array(select j.id from unnest(v_jobs) j), array(select j.token from unnest(v_jobs) j)
    );
    return query
    select j.id, null::bigint, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.payload,
           j.headers, j.group_key, j.dedupe_key, j.worker, j.enqueued_at, j.run_at, j.claimed_at,
           null::timestamptz, j.last_error, false, j.checkpoint
      from unnest(v_jobs) j;
end
$$;
revoke all on function @extschema@.pgq_pop(integer, text) from public;
comment on function @extschema@.pgq_pop(integer, text) is
'Removes up to batch jobs in the caller''s transaction, and returns them.

The jobs are completed when the transaction commits. They are back at once when it rolls back or
its connection ends. They stay locked while it is prepared.

There is no lease and no receipt: the token is null. An attempt that is rolled back does not count.
Completed jobs are kept for keep_completed of the queue.

Errors:

* those of pgq_dequeue.';
