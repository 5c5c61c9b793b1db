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
    perform pgq._check_not_null('id', p_id is null), pgq._check_not_null('token', p_token is null),
            pgq._check_restricted();
    -- Without a delay it is ready again where it is, before the jobs that became ready after it.
    foreach v_slot in array pgq._looks(array[p_token]) loop
        exit when p_delay <> '0';
        execute format(
            'update pgq.job_%s j set token = null, lease_expires_at = null, worker = null,'
            ' attempt = j.attempt - 1'
            ' where j.id = $1 and j.token = $2 and j.cancel_requested is null'
            ' and pgq._is_mine(j.lane, $3) returning j.*', v_slot
        ) into v_job using p_id, p_token, v_mine;
        if v_job.id is not null then
            perform pgq._lower(v_slot, v_job.lane, v_job.pos), pgq._wake_lane(v_job.lane);
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
as $$
begin
    perform pgq._check_not_null('delay', delay is null);
    perform pgq._check_interval('delay', delay, true);
    return pgq._release(id, token, delay);
end
$$;
revoke all on function @extschema@.pgq_release(bigint, bigint, interval) from public;
comment on function @extschema@.pgq_release(bigint, bigint, interval) is
'Gives a job back in the caller''s transaction: ready at once, or after delay; the attempt does '
'not count. If pgq_cancel was called for it, it is cancelled. false: the lease is lost, nothing '
'was changed. Errors: 22004 null receipt or delay; 22023 negative or infinite delay; PQ002 the job '
'is of another shard; 40001.';

create function @extschema@.pgq_release_unheld(
    worker text,
    tokens bigint[],
    pid integer default null
)
returns setof bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
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
'Gives back, as pgq_release, what is leased to a worker under a token that is not in tokens, and '
'returns the ids: for a worker that may have lost the answer to a claim, and for whoever outlives '
'one. tokens: of all jobs that the worker has begun and not ended. pid: only what that session has '
'claimed, where several workers share a name; null for any. A claim that is still under way is not '
'seen: call it once more. Looks at the first 10,000 live jobs of each priority in each of six '
'tables. Errors: 22004 null worker or tokens; 40001.';
