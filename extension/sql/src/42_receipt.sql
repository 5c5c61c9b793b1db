/*
 * Public: what the holder of a lease may do with its receipt: pgq_heartbeat, pgq_complete,
 * pgq_fail, pgq_release.
 *
 * A receipt is looked up in the slot that its token names. If it is not there it is either stale,
 * or maintenance has moved the job to a parked slot, perhaps this very moment: each look is a
 * statement of its own, with a new snapshot, and the parked slots are looked at until a job that
 * is being moved from one to the other cannot have been missed.
 */

create function pgq._looks(p_tokens bigint[])
returns smallint[]
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slots constant smallint[] := array(
        select distinct (t.token & 7)::smallint
          from unnest(p_tokens) t (token) where t.token & 7 <= 5 order by 1
    ) || '{4,5}'::smallint[];
begin
    return v_slots || v_slots || v_slots;
end
$$;
comment on function pgq._looks(bigint[]) is
'the slots in which to look for receipts, in this order, which is the lock order';

create function pgq._settle(p_ids bigint[], p_tokens bigint[])
returns setof pgq.job
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slot smallint := (p_tokens[1] & 7)::smallint;
    v_lane integer;
    v_lanes integer[];
    v_looks smallint[];
    v_left integer := cardinality(p_ids);
    v_count integer;
begin
    if v_left > 1 then
        select array_agg(r.id), array_agg(r.token), count(*)::integer, min(r.token & 7)::smallint
          into p_ids, p_tokens, v_left, v_slot
          from (select distinct r.id, r.token from unnest(p_ids, p_tokens) r (id, token)
                 order by r.id, r.token) r;
    end if;
    -- Nearly always the first look finds all.
    v_lanes := pgq._lanes(p_tokens);
    v_looks := array[v_slot];
    for v_round in 1..2 loop
        foreach v_slot in array v_looks loop
            continue when v_slot > 5;
            foreach v_lane in array v_lanes loop
                return query select f.* from pgq._finish(v_slot, v_lane, p_ids, p_tokens) f;
                get diagnostics v_count = row_count;
                v_left := v_left - v_count;
            end loop;
            if v_left = 0 then
                return;
            end if;
        end loop;
        v_looks := pgq._looks(p_tokens);
    end loop;
    perform pgq._check_moved();
end
$$;
comment on function pgq._settle(bigint[], bigint[]) is
'deletes and returns the jobs whose receipts are good; waits while another session settles the '
'same receipt';

create function pgq._settle_one(p_id bigint, p_token bigint, out job pgq.job)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null('id', p_id is null);
    perform pgq._check_not_null('token', p_token is null);
    select s.* into job from pgq._settle(array[p_id], array[p_token]) s;
end
$$;
comment on function pgq._settle_one(bigint, bigint) is
'the same for one receipt; null if it is stale';

create function pgq._complete(p_ids bigint[], p_tokens bigint[], p_result jsonb)
returns setof bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_token bigint;
    v_jobs pgq.job[];
begin
    -- A bit of the token says whether the queue kept completed jobs when it was claimed.
    foreach v_token in array p_tokens loop
        if v_token & 524288 <> 0 then
            v_jobs := array(select s from pgq._settle(p_ids, p_tokens) s);
            perform pgq._keep(v_jobs, 'completed', p_result);
            return query select j.id from unnest(v_jobs) j;
            return;
        end if;
    end loop;
    return query select s.id from pgq._settle(p_ids, p_tokens) s;
end
$$;
comment on function pgq._complete(bigint[], bigint[], jsonb) is 'completes and returns the ids';

create function @extschema@.pgq_complete(
    id bigint,
    token bigint,
    result jsonb default null
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null('id', id is null);
    perform pgq._check_not_null('token', token is null);
    perform pgq._complete(array[id], array[token], result);
    return found;
end
$$;
revoke all on function @extschema@.pgq_complete(bigint, bigint, jsonb) from public;
comment on function @extschema@.pgq_complete(bigint, bigint, jsonb) is
'Ends a job in the caller''s transaction. false: the lease is lost, nothing was changed. result '
'is kept with the job for the queue''s keep_completed. A second session with the same receipt '
'waits for the first one''s transaction. Errors: 22004 null receipt; 40001 under REPEATABLE READ '
'and SERIALIZABLE.';

create function @extschema@.pgq_complete(
    ids bigint[],
    tokens bigint[]
)
returns setof bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_receipts(ids, tokens);
    return query select c.* from pgq._complete(ids, tokens, null) c;
end
$$;
revoke all on function @extschema@.pgq_complete(bigint[], bigint[]) from public;
comment on function @extschema@.pgq_complete(bigint[], bigint[]) is
'Ends jobs in the caller''s transaction and returns the ids of those that were completed, each '
'once; receipts whose lease is lost are left out. Errors: 22004 null array or element; 22023 '
'different lengths; 40001.';

create function @extschema@.pgq_heartbeat(
    ids bigint[],
    tokens bigint[],
    timeout interval default null
)
returns table (id bigint, lease_expires_at timestamptz, cancel_requested boolean)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slot smallint;
    v_lease_ms integer;
    v_now constant timestamptz := pgq._now();
    v_lanes integer[];
    v_renewed pgq.renewal[];
    v_left integer;
begin
    perform pgq._check_receipts(ids, tokens);
    v_lease_ms := pgq._lease_ms(timeout);
    perform pgq._wants_tick(v_lease_ms);
    select array_agg(r.id), array_agg(r.token), count(*)::integer
      into ids, tokens, v_left
      from (select distinct r.id, r.token from unnest(ids, tokens) r (id, token)
             order by r.id, r.token) r;
    v_lanes := pgq._lanes(tokens);
    foreach v_slot in array pgq._looks(tokens) loop
        v_renewed := array(
            select r
              from unnest(v_lanes) l, pgq._renew(v_slot, l, ids, tokens, v_lease_ms, v_now) r
        );
        return query select r.id, r.lease_expires_at, false from unnest(v_renewed) r;
        v_left := v_left - cardinality(v_renewed);
        exit when v_left = 0;
        select array_agg(r.id order by r.id), array_agg(r.token order by r.id)
          into ids, tokens
          from unnest(ids, tokens) r (id, token)
          left join unnest(v_renewed) d on d.token = r.token and d.id = r.id
         where d.id is null;
    end loop;
    if v_left > 0 then
        perform pgq._check_moved();
    end if;
end
$$;
revoke all on function @extschema@.pgq_heartbeat(bigint[], bigint[], interval) from public;
comment on function @extschema@.pgq_heartbeat(bigint[], bigint[], interval) is
'Renews leases from now on for timeout, or for as long as each claim asked for, and returns the '
'new expiry of each once; receipts whose lease is lost are left out. Errors: 22004 null array or '
'element; 22023 different lengths or timeout out of range; 40001.';

create function @extschema@.pgq_heartbeat(
    id bigint,
    token bigint,
    timeout interval default null
)
returns timestamptz
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null('id', id is null);
    perform pgq._check_not_null('token', token is null);
    return (select h.lease_expires_at
              from @extschema@.pgq_heartbeat(array[id], array[token], timeout) h);
end
$$;
revoke all on function @extschema@.pgq_heartbeat(bigint, bigint, interval) from public;
comment on function @extschema@.pgq_heartbeat(bigint, bigint, interval) is
'Renews a lease from now on for timeout, or for as long as the claim asked for, and returns its '
'new expiry. null: the lease is lost. An expired lease that nobody has taken is still good. '
'Errors: 22004 null receipt; 22023 timeout out of range; 40001.';

create function @extschema@.pgq_fail(
    id bigint,
    token bigint,
    error text default null,
    retry_in interval default null,
    retryable boolean default true
)
returns text
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_job pgq.job;
begin
    perform pgq._check_interval('retry_in', retry_in, true);
    perform pgq._check_not_null('retryable', retryable is null);
    v_job := pgq._settle_one(id, token);
    if v_job.id is null then
        return null;
    end if;
    return pgq._put_back(v_job, retry_in, error, retryable);
end
$$;
revoke all on function @extschema@.pgq_fail(bigint, bigint, text, interval, boolean) from public;
comment on function @extschema@.pgq_fail(bigint, bigint, text, interval, boolean) is
'Ends an attempt in the caller''s transaction. ''scheduled'': the job is tried again after '
'retry_in, or after the queue''s backoff with jitter. ''dead'': it had no attempt left, or '
'retryable is false; it is kept with its payload and last error, and pgq_retry brings it back. '
'null: the lease is lost, nothing was changed. Errors: 22004 null receipt or retryable; 22023 '
'negative or infinite retry_in; 40001.';

create function @extschema@.pgq_release(
    id bigint,
    token bigint,
    delay interval default '0'
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_job pgq.job;
begin
    perform pgq._check_not_null('delay', delay is null);
    perform pgq._check_interval('delay', delay, true);
    v_job := pgq._settle_one(id, token);
    if v_job.id is null then
        return false;
    end if;
    v_job.attempt := (v_job.attempt - 1)::smallint;
    perform pgq._park(v_job, delay);
    return true;
end
$$;
revoke all on function @extschema@.pgq_release(bigint, bigint, interval) from public;
comment on function @extschema@.pgq_release(bigint, bigint, interval) is
'Gives a job back in the caller''s transaction: ready at once, or after delay; the attempt does '
'not count. false: the lease is lost, nothing was changed. Errors: 22004 null receipt or delay; '
'22023 negative or infinite delay; 40001.';
