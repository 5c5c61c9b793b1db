/*
 * Public: how jobs are given back without counting the attempt: pgq_release, pgq_release_unheld.
 */

create function pgq._release(p_id bigint, p_token bigint, p_delay interval)
returns boolean
language plpgsql
as $$
declare
    v_mine constant integer[] := case when not pgq._is_owner() then pgq._mine('consume') end;
    v_slot smallint;
    v_job pgq.job;
begin
    perform pgq._check_restricted();
    -- Without a delay it is ready again where it is, before the jobs that became ready after it.
    foreach v_slot in array pgq._looks(array[p_token]) loop
        exit when p_delay <> '0';
        execute format(
            'update pgq.job_%s j set token = null, lease_expires_at = null, worker = null,'
            ' lost = 0, attempt = j.attempt - 1'
            ' where j.id = $1 and j.token = $2 and j.cancel_requested is null'
            ' and pgq._is_mine(j.lane, $3) returning j.*', v_slot
        ) into v_job using p_id, p_token, v_mine;
        if v_job.id is not null then
            perform pgq._lower_floor(v_slot, v_job.lane, v_job.pos), pgq._wake_lane(v_job.lane);
            return true;
        end if;
    end loop;
    v_job := pgq._settle(p_id, p_token);
    if v_job.id is null then
        return false;
    end if;
    if v_job.cancel_requested then
        perform pgq._end(v_job, 'cancelled');
    else
        v_job.attempt := (v_job.attempt - 1)::smallint;
        v_job.lost := 0;
        perform pgq._park(v_job, pgq._now() + p_delay);
    end if;
    return true;
end
$$;
comment on function pgq._release(bigint, bigint, interval) is 'As pgq_release.';

create function @extschema@.pgq_release(
    id bigint,
    token bigint,
    delay interval default '0'
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
begin
    perform pgq._check_not_null('delay', delay is null);
    perform pgq._check_interval('delay', delay, true);
    return pgq._release(id, token, delay);
end
$$;
revoke all on function @extschema@.pgq_release(bigint, bigint, interval) from public;
comment on function @extschema@.pgq_release(bigint, bigint, interval) is
'Gives a job back in the caller''s transaction. The attempt does not count.

The job is ready at once, or after delay; claims that pass by its slot find it after the next tick.
If pgq_cancel was called for the job, this call cancels the job.

* Returns false if the lease is lost. Then nothing was changed.

Errors:

* 22004: the id, the token or the delay is null.
* 22023: the delay is negative or infinite.
* 40001: the snapshot of REPEATABLE READ or SERIALIZABLE is too old. Run the transaction again.
* PQ002: the job is of another shard.';

create function @extschema@.pgq_release_unheld(
    worker text,
    tokens bigint[],
    pid integer default null
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
    perform pgq._check_not_null('worker', worker is null), pgq._check_array('tokens', tokens),
            pgq._check_restricted();
    return query
    select j.id
      from (
               select l.id, l.token
                 from generate_series(0, 3) s, pgq._leased(s::smallint) l
                where l.worker = pgq_release_unheld.worker and l.token <> all (tokens)
                  and (pgq_release_unheld.pid is null or l.pid = pgq_release_unheld.pid)
                order by l.slot, l.id offset 0
           ) j
     where pgq._release(j.id, j.token, '0');
end
$$;
revoke all on function @extschema@.pgq_release_unheld(text, bigint[], integer) from public;
comment on function @extschema@.pgq_release_unheld(text, bigint[], integer) is
'Gives back the leased jobs that a worker does not hold. Returns their ids.

A worker calls it when the answer to a claim may be lost. Another program may call it for a
worker that has ended. Jobs come back as by pgq_release.

The call does not see a claim that is still under way: call it once more. It looks at the first
10,000 live jobs of each priority in each of four tables.

* tokens: of all jobs that the worker has begun and not ended. Jobs with other tokens are given
  back.
* pid: give back only what this session has claimed, where several workers share a name. Null: of
  any session.

Errors:

* 22004: the worker, the array or a token is null.
* 40001: the snapshot of REPEATABLE READ or SERIALIZABLE is too old. Run the transaction again.';
