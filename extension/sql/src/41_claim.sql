/*
 * Public: pgq_dequeue, pgq_pop.
 */

/*
 * The ordinary case in three statements: the queue has one priority, nothing is parked that could
 * be claimed now, and all jobs are in the oldest slot of the ring that is not spent, up to the
 * first id of the next, or in that one. 33_due.sql has another one, pgq._grab does the rest.
 */

-- False if pgq._wants_tick needs not even be asked: the next tick is within half a second, after
-- which no lease will have expired.
--@ define tick
(
               abs(2 * pg_sequence_last_value('pgq.next_tick') - v_us / 500 - 501) < 501
               and v_lease_ms >= 500
               and pg_sequence_last_value('pgq.last_tick') > v_us / 1000 - 2500
               and current_setting('transaction_isolation') = 'read committed'
           ) is not true
--@ end

--@ define look
{check_restricted};
    select q.max_attempts, {tick},
           l.lanes = 1 and not q.is_special, q.is_serial, r.parked, r.ready[1],
           cardinality(r.ready) > 1, case cardinality(r.ready) when 2 then r.ready[2] end,
           coalesce(r.firsts[r.ready[2] + 1] + 1, {no_bound}),
           l.lane, l.priority,
           (((greatest(q.keep_completed, q.dedupe_for) > '0')::integer << 19) | (l.lane << 3)
            | r.ready[1])::bigint, v_now + v_lease_ms * interval '1 millisecond'
      into v_max, v_tick, v_simple, v_serial, v_parkeds, v_first, v_more, v_second, v_until,
           v_lane, v_priority, v_place, v_expiry
      from pgq.queue q,
           lateral (select o.* from pgq.ring o order by o.gen desc limit 1) r,
           lateral (
               select max(o.id) as lane, max(o.priority)::integer as priority, count(*) as lanes
                 from pgq.lane o where o.queue_id = q.id
           ) l
     where q.name = pgq_dequeue.queue and ({is_owner} or pgq._may(q.id, 'consume'))
--@ end

-- With the order, and without sorts, only one index will do. Mostly the slot is empty: that spares
-- this look, and none is missed whose transaction had committed. It is not spared in ticks, which
-- all claims under SERIALIZABLE do: they must be seen to have read the slot. Of many jobs that are
-- in no group those that fell due first tell nothing.
--@ define parked
if v_tick or pg_sequence_last_value('pgq.empty_{slot}') is null then
                select i.group_id is not null into v_do
                  from pgq.job_{slot} i where {due} order by i.due limit 1;
                if found then
                    v_dues := v_dues || v_slot;
                    v_serial := v_serial and v_do;
                end if;
            end if
--@ end

-- For two seconds after a turn of the ring somebody may still write to the slot before. If it has
-- nothing at all, also above v_until, the claim is made in the other one. Or parked jobs are due,
-- and the next one is in the ring.
--@ define pass_by
exit when v_count > 0 or v_tick or v_second is null;
        if v_first >= 4 then
            v_after := v_until - 1;
            v_until := v_until + 1;
        else
            exit when pgq._peek(v_first, v_lane, 0, {no_bound}, v_now, v_max, false) is not null;
            v_until := {no_bound};
            v_more := false;
        end if;
        v_first := v_second;
        v_second := null;
        v_place := (v_place & ~7::bigint) | v_first
--@ end

--@ define claim
{lease}
              from (
                       {first}
                   ) f
             {leased}
--@ end

-- What is put off (by this call: after v_now) waits a tenth of a second for one that has not
-- returned all that there is.
--@ define catch_up
if pg_sequence_last_value('pgq.put_off') > 1
            and (v_count = 0 or v_count = batch
                 or v_us / 1000 - pg_sequence_last_value('pgq.put_off') not between -999 and 99)
        then
            perform pgq._catch_up();
        end if
--@ end

-- Jobs that have come back since must not follow those that have been returned already.
--@ define rest
if v_count < batch or pg_sequence_last_value('pgq.put_off') > 1 then
        if v_count < batch and v_more then
            -- What may have come back to the parked slot must not follow what was returned.
            if v_dues is not null and (v_count = 0 or v_until is null) then
                v_until := 1;
            end if;
            return query
            select g.* from pgq._grab(
                       queue, batch - v_count, v_lease_ms, worker, v_tick, v_until - 1,
                       p_priority => v_priority
                   ) g;
            get diagnostics v_rest = row_count;
            v_count := v_count + v_rest;
        elsif v_count < batch and v_tick then
            perform pgq._check_moved();
        end if;
        {catch_up};
    end if
--@ end

--@ define elsewhere
if v_dues is not null or v_simple is not true then
        if v_dues is null or v_tick or v_more or (batch > 100 and not v_serial) then
            return query select g.* from pgq._grab(queue, batch, v_lease_ms, worker, v_tick) g;
            get diagnostics v_count = row_count;
            {catch_up};
            return;
        end if;
        {from_due};
    end if
--@ end
-- In milliseconds.
--@ define for_how_long
if batch >= 1 and extract(epoch from timeout) between 0.001 and 86400
        and (octet_length(worker) <= 200) is not false
    then
        v_lease_ms := ceil(extract(epoch from timeout) * 1000)::integer;
    else
        perform pgq._check_batch('batch', batch);
        perform pgq._check_not_null('timeout', timeout is null);
        perform pgq._check_length('worker', worker, 200);
        v_lease_ms := pgq._lease_ms(timeout);
    end if
--@ end

--@ twice pgq._dequeue
create function @extschema@.pgq_dequeue(
    batch integer default 1,
    timeout interval default '30 seconds',
    queue text default 'default',
    worker text default null
)
returns setof @extschema@.pgq_job
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
{index_scans}
set enable_sort = off
as $$
declare
    v_now constant timestamptz := pgq._now(); v_after bigint := bigint '0'; v_until bigint;
    v_us constant bigint := (extract(epoch from v_now) * 1000000)::bigint;
    v_worker alias for worker; v_queue alias for queue; v_left alias for batch;
    v_slot smallint; v_first smallint; v_second smallint; v_parkeds smallint[]; v_dues smallint[];
    v_lane integer; v_priority integer; v_max integer; v_lease_ms integer; v_expiry timestamptz;
    v_tick boolean; v_simple boolean; v_serial boolean; v_more boolean; v_do boolean;
    v_lower boolean; v_count integer; v_rest integer; v_limit integer; v_place bigint;
begin
    {for_how_long};
    {look};
    if found and v_tick then
        v_tick := pgq._wants_tick(v_lease_ms, true);
        v_simple := v_simple and not (v_tick and pgq._has_spent_slots());
    end if;
    foreach v_slot in array case when v_simple then v_parkeds else '{}' end loop
        case v_slot
        --@ each parked
        when {slot} then
            {parked};
        --@ end
        end case;
    end loop;
    {elsewhere};
    loop
        case v_first
        --@ each ring
        when {slot} then
            return query {claim};
            get diagnostics v_count = row_count;
        --@ end
        --@ each parked
        when {slot} then
            return query {claim_due};
            get diagnostics v_count = row_count;
            {more_due};
        --@ end
        end case;
        {pass_by};
    end loop;
    if {raise_floor} then
        perform pgq._raise_floor(v_first, v_lane);
    end if;
    {rest};
end
$$;
comment on function pgq._dequeue(integer, interval, text, text) is 'see pgq_dequeue';
revoke all on function @extschema@.pgq_dequeue(integer, interval, text, text) from public;
comment on function @extschema@.pgq_dequeue(integer, interval, text, text) is
'Claims up to batch jobs of a queue, highest priority first, then in id order (of more than a '
'thousand that were delayed, retried or released, and are due, those that fell due first), and '
'leases them for timeout (up to 24 days; renew with pgq_heartbeat). Takes fresh jobs and those '
'whose lease has expired. A job that loses a second lease in a row comes back after the queue''s '
'backoff instead. Never waits: an empty result means that there is nothing to do now. worker: a '
'name for the operator, of at most 200 characters. '
'Errors: 42704 unknown queue; 22004 null argument; 22023 batch or timeout out of range, worker too '
'long; 25001 under REPEATABLE READ and SERIALIZABLE if the queue has limits.';

create function @extschema@.pgq_dequeue(
    batch integer,
    timeout interval,
    queues text[],
    worker text default null
)
returns setof @extschema@.pgq_job
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_lease_ms integer;
    v_tick boolean;
    v_queue text;
    v_left integer := batch;
    v_count integer;
begin
    perform pgq._check_batch('batch', batch);
    perform pgq._check_not_null('timeout', timeout is null);
    perform pgq._check_array('queues', queues);
    perform pgq._check_length('worker', worker, 200);
    v_lease_ms := pgq._lease_ms(timeout);
    v_tick := pgq._wants_tick(v_lease_ms);
    foreach v_queue in array queues loop
        perform pgq._queue_id(v_queue, 'consume');
    end loop;
    foreach v_queue in array queues loop
        exit when v_left = 0;
        return query
        select g.* from pgq._grab(v_queue, v_left, v_lease_ms, worker, v_tick) g;
        get diagnostics v_count = row_count;
        v_left := v_left - v_count;
    end loop;
end
$$;
revoke all on function @extschema@.pgq_dequeue(integer, interval, text[], text) from public;
comment on function @extschema@.pgq_dequeue(integer, interval, text[], text) is
'Claims up to batch jobs from several queues: all that the first one has, then the second, and '
'so on. Otherwise as pgq_dequeue of one queue.';

create function @extschema@.pgq_pop(
    batch integer default 1,
    queue text default 'default'
)
returns setof @extschema@.pgq_job
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_jobs @extschema@.pgq_job[];
begin
    perform pgq._check_batch('batch', batch);
    -- A claim and its completion in one transaction: nobody else ever sees the lease.
    v_jobs := array(
        select g from pgq._grab(queue, batch, 30000, null) g
    );
    perform from pgq._complete(
        array(select j.id from unnest(v_jobs) j), array(select j.token from unnest(v_jobs) j), null
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
'Removes up to batch jobs in the caller''s transaction: done when it commits, back at once when '
'it rolls back or its connection dies, locked while it is prepared. There is no lease and no '
'receipt (token is null), and a rolled back try is not counted. The queue''s keep_completed '
'applies. Errors as pgq_dequeue.';
