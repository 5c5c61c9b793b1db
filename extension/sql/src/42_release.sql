/*
 * Public: how jobs are given back without counting the attempt: pgq_release, pgq_release_unheld.
 */

create function pgq._release(p_id bigint, p_token bigint, p_delay interval)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_job pgq.job;
begin
    v_job := pgq._settle_one(p_id, p_token);
    if v_job.id is null then
        return false;
    end if;
    if v_job.cancel_requested then
        perform pgq._put_back(v_job, null, null, false);
    else
        v_job.attempt := (v_job.attempt - 1)::smallint;
        perform pgq._park(v_job, pgq._now() + p_delay);
    end if;
    return true;
end
$$;
comment on function pgq._release(bigint, bigint, interval) is 'pgq_release';

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
'was changed. Errors: 22004 null receipt or delay; 22023 negative or infinite delay; 40001.';

create function @extschema@.pgq_release_unheld(
    worker text,
    tokens bigint[],
    pid integer default null
)
returns setof bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_job pgq.job;
begin
    perform pgq._check_not_null('worker', worker is null);
    perform pgq._check_array('tokens', tokens);
    {check_restricted};
    foreach v_job in array array(
        select l
          from unnest(pgq._slots()) s, pgq._leased(s) l
         where l.worker = pgq_release_unheld.worker and l.token <> all (tokens)
           and (pgq_release_unheld.pid is null or l.pid = pgq_release_unheld.pid)
         order by l.slot, l.lane, l.id
    ) loop
        if pgq._release(v_job.id, v_job.token, '0') then
            return next v_job.id;
        end if;
    end loop;
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
