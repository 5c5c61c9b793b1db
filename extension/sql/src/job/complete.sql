/*
 * Public: how the holder of a lease ends it with its receipt: pgq_complete,
 * pgq_complete_and_dequeue, pgq_fail. See core/settle.sql, and job/release.sql.
 *
 * A job without a group, of a queue that keeps none, is deleted in one statement: its token says
 * so. So are up to 400 of them. For more, it takes longer to find each token in the array than what
 * pgq._complete_rest does.
 */

create function @extschema@.pgq_complete(
    id bigint,
    token bigint,
    result jsonb default null
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
    v_mine constant integer[] := case when not pgq._is_owner() then pgq._mine('consume') end;
    v_job pgq.job;
begin
    if result is not null then
        perform pgq._check_size('result', array[result]);
    end if;
    perform pgq._check_restricted();
    -- No slot where the end of the job is more than a DELETE.
    case pgq._bits_of(token)
    --@ each ring
    when {slot} then
        delete from pgq.job_{slot} j
         where j.id = pgq_complete.id and j.token = pgq_complete.token and j.is_awaited is null
           and pgq._is_mine(j.lane, v_mine);
        if found then
            return true;
        end if;
    --@ end
    else
    end case;
    v_job := pgq._settle(id, token);
    perform pgq._finish(v_job, result) where v_job.id is not null;
    return v_job.id is not null;
end
$$;
revoke all on function @extschema@.pgq_complete(bigint, bigint, jsonb) from public;
comment on function @extschema@.pgq_complete(bigint, bigint, jsonb) is
'Completes a job in the caller''s transaction.

A second session with the same receipt waits for the transaction of the first one.

* result: kept with the job for keep_completed of the queue.
* Returns false if the lease is lost. Then nothing was changed.

Errors:

* 22004: the id or the token is null.
* 40001: the snapshot of REPEATABLE READ or SERIALIZABLE is too old. Run the transaction again.
* 54000: the result is larger than 64 MB.
* PQ002: the job is of another shard.';

create function @extschema@.pgq_complete(
    ids bigint[],
    tokens bigint[],
    results jsonb[] default null
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
    v_mine constant integer[] := case when not pgq._is_owner() then pgq._mine('consume') end;
    v_count integer := 0;
begin
    if pgq._are_good(ids, tokens) is not true then
        perform pgq._check_receipts(ids, tokens);
        ids := ids[:];
        tokens := tokens[:];
    end if;
    if results is not null then
        perform pgq._check_array('results', results, true),
                pgq._check_lengths('results', cardinality(results), 'ids', cardinality(ids)),
                pgq._check_size('results', results);
        results := results[:];
    end if;
    perform pgq._check_restricted();
    -- All of one slot, and none for which others wait, so that jobs are locked in one order.
    if cardinality(ids) <= 400 then
        case pgq._bits_of(tokens[1])
        --@ each ring
        when {slot} then
            return query
            delete from pgq.job_{slot} j
             where j.id = any (ids) and j.token = tokens[array_position(ids, j.id)]
               and j.is_awaited is null and pgq._is_mine(j.lane, v_mine)
               and (select bool_and(pgq._bits_of(t) = {slot}) from unnest(tokens) t)
               and not exists (
                   select from pgq.job_{slot} a where a.id = any (ids) and a.is_awaited
               )
            returning j.id;
            get diagnostics v_count = row_count;
        --@ end
        else
        end case;
    end if;
    if v_count < cardinality(ids) then
        return query select c.* from pgq._complete_rest(ids, tokens, results, v_mine, v_count) c;
    end if;
end
$$;
revoke all on function @extschema@.pgq_complete(bigint[], bigint[], jsonb[]) from public;
comment on function @extschema@.pgq_complete(bigint[], bigint[], jsonb[]) is
'Completes jobs in the caller''s transaction. Returns their ids, each once.

The result has no receipt whose lease is lost.

* results: one for each receipt, null for none, kept as by pgq_complete(id, token, result). For a
  receipt that is given twice, the first result that is not null counts.

Errors:

* 22004: an array of ids or tokens, an id or a token is null.
* 22023: the arrays have different lengths.
* 40001: the snapshot of REPEATABLE READ or SERIALIZABLE is too old. Run the transaction again.
* 40P01: rarely, pgq_cancel_all works on the same jobs. Run the transaction again.
* 54000: a result is larger than 64 MB.
* PQ002: the job is of another shard.';

create function pgq._complete(p_ids bigint[], p_tokens bigint[])
returns setof bigint
language sql
stable
begin atomic
    select * from @extschema@.pgq_complete(p_ids, p_tokens, null::jsonb[]);
end;
comment on function pgq._complete(bigint[], bigint[]) is
'As pgq_complete, for pgq_complete_and_dequeue: see pgq._dequeue.';

create function pgq._complete_one(p_id bigint, p_token bigint)
returns boolean
language sql
begin atomic
    select @extschema@.pgq_complete(p_id, p_token, null::jsonb);
end;
comment on function pgq._complete_one(bigint, bigint) is
'As pgq_complete of one receipt, for pgq_complete_and_dequeue: see pgq._dequeue.';

create function @extschema@.pgq_complete_and_dequeue(
    ids bigint[],
    tokens bigint[],
    batch integer default 1,
    timeout interval default '30 seconds',
    queue text default 'default',
    worker text default null
)
returns setof @extschema@.pgq_job
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_done bigint[];
    v_lost bigint[];
begin
    if cardinality(ids) = 1 and cardinality(tokens) = 1 and num_nulls(ids[1], tokens[1]) = 0 then
        v_done := case when pgq._complete_one(ids[1], tokens[1]) then ids else '{}' end;
    else
        v_done := array(select c from pgq._complete(ids, tokens) c);
    end if;
    if cardinality(v_done) < cardinality(ids) then
        v_lost := array(
            select r.id from unnest(ids, tokens) r (id, token)
             group by r.id having count(distinct r.token) > (r.id = any (v_done))::integer
             order by r.id
        );
        if v_lost <> '{}' then
            raise exception 'the leases of % of % jobs are lost', cardinality(v_lost),
                    cardinality(ids)
                using errcode = 'PQ001',
                      detail = format('The lost leases are those of %s. Nothing was done.', v_lost),
                      hint = 'Call pgq_complete: it completes the others and returns their ids.';
        end if;
    end if;
    return query select d.* from pgq._dequeue(batch, timeout, queue, worker) d;
end
$$;
revoke all on function
    @extschema@.pgq_complete_and_dequeue(bigint[], bigint[], integer, interval, text, text)
    from public;
comment on function
    @extschema@.pgq_complete_and_dequeue(bigint[], bigint[], integer, interval, text, text) is
'Completes the jobs of the last batch and claims the next one.

Both happen in one transaction, as by pgq_complete and pgq_dequeue: one round trip and one flush
to disk instead of two. The arrays may be empty.

Errors:

* PQ001: a lease is lost. Then the call completes and claims nothing.
* those of pgq_complete and pgq_dequeue.';

create function @extschema@.pgq_fail(
    id bigint,
    token bigint,
    error text default null,
    retry_in interval default null,
    retryable boolean default true,
    cancel boolean default false
)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    v_job pgq.job;
begin
    perform pgq._check_interval('retry_in', retry_in, true);
    perform pgq._check_not_null('retryable', retryable is null);
    perform pgq._check_not_null('cancel', cancel is null);
    if cancel and retry_in is not null then
        raise exception '"cancel" and "retry_in" must not be given together'
            using errcode = 'invalid_parameter_value',
                  detail = 'A cancelled job is not tried again.';
    end if;
    v_job := pgq._settle(id, token);
    if v_job.id is null then
        return null;
    end if;
    v_job.cancel_requested := v_job.cancel_requested or cancel;
    v_job.lost := 0;
    return pgq._put_back(v_job, retry_in, pgq._shorten(error), retryable);
end
$$;
revoke all on function @extschema@.pgq_fail(bigint, bigint, text, interval, boolean, boolean)
    from public;
comment on function @extschema@.pgq_fail(bigint, bigint, text, interval, boolean, boolean) is
'Ends an attempt that failed, in the caller''s transaction.

* error: kept with the job. Of more than 20,000 characters the first and last 10,000 are kept.
* retry_in: the wait before the next attempt. Null: the backoff of the queue, with jitter.
* retryable: false lets the job die at once.
* cancel: true ends the job as pgq_cancel does, whatever attempts are left. The error says why.
* Returns ''scheduled'' if the job is tried again.
* Returns ''dead'' if the job had no attempt left, or retryable is false. The job is kept with
  its payload and last error, and pgq_retry brings it back.
* Returns ''cancelled'' if pgq_cancel was called for the job, or cancel is true.
* Returns null if the lease is lost. Then nothing was changed.

Errors:

* 22004: the id, the token, retryable or cancel is null.
* 22023: retry_in is negative or infinite, or is given together with cancel.
* 40001: the snapshot of REPEATABLE READ or SERIALIZABLE is too old. Run the transaction again.
* PQ002: the job is of another shard.';
