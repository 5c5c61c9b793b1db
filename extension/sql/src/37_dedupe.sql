/*
 * Dedupe keys: unique among the live jobs of a queue, and those it has completed within dedupe_for.
 *
 * The key is a column of the job, so that to complete it costs nothing and what is left of it goes
 * with its slot. No index spans the slots: whoever wants a key locks the bucket of all keys with
 * its hash, until the end of the transaction, and then looks into all slots with one snapshot. Jobs
 * move between slots without that lock; in one snapshot each is in one place.
 *
 * Lock order: buckets in id order, before everything else.
 */

create function pgq._lock_keys(p_queue_id integer, p_keys text[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    perform
       from (
                select distinct (hashtextextended(k, p_queue_id) & 16383)::integer as id
                  from unnest(p_keys) k order by 1
            ) h,
            lateral (select from pgq.bucket b where b.id = h.id for update) b;
end
$$;
comment on function pgq._lock_keys(integer, text[]) is
'keeps others from using these dedupe keys of a queue; waits for transactions that are using one '
'of them, or one of the same hash: one in 16384';

create function pgq._live_keys(p_queue_id integer, p_keys text[])
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_ids bigint[];
begin
    v_ids := array(
        select l.id
          from unnest(p_keys) with ordinality k (key, n)
          left join lateral (
                  select null::bigint as id where false
                  --@ each slot
                  union all
                  select j.id from pgq.job_{slot} j
                   where j.dedupe_queue_id = p_queue_id and j.dedupe_key = k.key
                  --@ end
                  limit 1
               ) l on true
         order by k.n
    );
    -- An old snapshot may not show a job that has come since; a unique index knows of it (40001).
    if not pgq._read_committed() then
        --@ each slot
        insert into pgq.job_{slot} (
            id, enqueued_at, lane, slot, payload, dedupe_key, dedupe_queue_id
        )
        select nextval('pgq.job_id'), '-infinity', 0, {slot}, 'null', k, p_queue_id
          from unnest(p_keys) k
            on conflict (dedupe_queue_id, dedupe_key) where dedupe_key is not null do nothing;
        --@ end
    end if;
    -- Rolls back to here, so that no lock on a slot remains.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return v_ids;
end
$$;
comment on function pgq._live_keys(integer, text[]) is
'the live jobs that have these dedupe keys, or null, in the order of the keys; the caller has '
'locked them. 40001 if an old snapshot cannot tell';

create function pgq._held_keys(p_queue text, p_keys text[], p_for interval)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_since constant timestamptz := pgq._now() - p_for;
begin
    return array(
        select a.id
          from unnest(p_keys) with ordinality k (key, n)
          left join lateral (
                  select a.id from pgq.archive a
                   where a.queue = p_queue and a.dedupe_key = k.key and a.state = 'completed'
                     and a.finished_at > v_since
                   limit 1
               ) a on true
         order by k.n
    );
end
$$;
comment on function pgq._held_keys(text, text[], interval) is
'the jobs with these dedupe keys that have completed within p_for, or null';

create function pgq._replace(p_id bigint, p_payload jsonb, p_run_at timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_job pgq.job;
begin
    -- Whoever has it locked is about to claim, cancel or replace it; or it was moved meanwhile.
    for v_try in 1..3 loop
        v_job := pgq._find(p_id);
        exit when v_job.id is null or v_job.token is not null;
        v_job := pgq._lock(v_job.slot, v_job.lane, v_job.id, true);
        continue when v_job.id is null;
        exit when v_job.token is not null;
        select r.* into v_job from pgq._remove(v_job.slot, v_job.lane, array[v_job.id]) r;
        v_job.payload := p_payload;
        perform pgq._park(v_job, coalesce(p_run_at, pgq._now()));
        exit;
    end loop;
end
$$;
comment on function pgq._replace(bigint, jsonb, timestamptz) is
'gives a job that is not active another payload and time (null: now); does not wait for it';

create function pgq._check_keys(p_keys text[], p_payloads jsonb[], p_on_duplicate text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_key text;
begin
    perform pgq._check_array('dedupe_keys', p_keys);
    perform pgq._check_lengths(
        'dedupe_keys', cardinality(p_keys), 'payloads', cardinality(p_payloads)
    );
    select k into v_key from unnest(p_keys) k where length(k) not between 1 and 500;
    if found then
        raise exception 'a dedupe key must have 1 to 500 characters, not %', length(v_key)
            using errcode = 'invalid_parameter_value',
                  hint = 'A long key can be hashed, for example with sha256().';
    end if;
    perform pgq._check_not_null('on_duplicate', p_on_duplicate is null);
    if p_on_duplicate not in ('keep', 'replace', 'error') then
        raise exception '"on_duplicate" must be keep, replace or error, not "%"', p_on_duplicate
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
comment on function pgq._check_keys(text[], jsonb[], text) is 'raises 22004 and 22023';

create function pgq._meet_duplicates(
    p_queue text, p_payloads jsonb[], p_keys text[], p_run_at timestamptz, p_on_duplicate text,
    p_taken bigint[], p_ids bigint[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_old record;
begin
    for v_old in
        select distinct on (g.id) g.id, g.key, g.payload, g.taken is not null as live
          from (
                   select *, count(*) over (partition by u.id) as times
                     from unnest(p_payloads, p_keys, p_taken, p_ids)
                          with ordinality u (payload, key, taken, id, n)
               ) g
         where g.taken is not null or g.times > 1
         order by g.id, g.n desc
    loop
        if p_on_duplicate = 'error' then
            raise exception 'queue "%" has a job with the dedupe key "%"', p_queue, v_old.key
                using errcode = 'unique_violation',
                      detail = format('It is job %s.', v_old.id);
        elsif v_old.live then
            perform pgq._replace(v_old.id, v_old.payload, p_run_at);
        end if;
    end loop;
end
$$;
comment on function
    pgq._meet_duplicates(text, jsonb[], text[], timestamptz, text, bigint[], bigint[]) is
'what on_duplicate asks for, where p_taken is not null or p_ids has an id twice';

create function pgq._enqueue_unique(
    p_payloads jsonb[], p_queue text, p_priority integer, p_run_at timestamptz, p_keys text[],
    p_max_attempts integer, p_headers jsonb, p_on_duplicate text
)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue_id constant integer := pgq._queue_id(p_queue);
    v_for interval;
    v_now timestamptz;
    v_at record;
    v_taken bigint[];
    v_ids bigint[];
begin
    perform pgq._check_keys(p_keys, p_payloads, p_on_duplicate);
    perform pgq._lock_keys(v_queue_id, p_keys);
    v_at := pgq._target(p_queue, p_priority, p_run_at, p_max_attempts, p_headers);
    v_now := pgq._now();
    v_taken := pgq._live_keys(v_queue_id, p_keys);
    select q.dedupe_for into v_for from pgq.queue q where q.id = v_queue_id;
    -- After the live ones: a job that completes in between is found here.
    if v_for > '0' then
        v_taken := array(
            select coalesce(t.live, t.held)
              from unnest(v_taken, pgq._held_keys(p_queue, p_keys, v_for)) t (live, held)
        );
    end if;
    with given as materialized (
        select g.*, min(g.n) over w as first, max(g.n) over w as last
          from unnest(p_payloads, p_keys, v_taken) with ordinality g (payload, key, taken, n)
        window w as (partition by g.key)
    ), fresh as materialized (
        select f.*, nextval('pgq.job_id') as id
          from (select g.key, case p_on_duplicate when 'replace' then g.last else g.first end as n
                  from given g where g.n = g.first and g.taken is null order by g.n) f
    ), added as (
        insert into pgq.job (
            id, enqueued_at, lane, slot, max_attempts, run_at, due, payload, headers, dedupe_key,
            dedupe_queue_id
        )
        select f.id, v_now, v_at.v_lane, v_at.v_slot, p_max_attempts, v_at.p_run_at,
               case when v_at.p_run_at is not null then pgq._due(v_at.p_run_at, f.id) end,
               g.payload, p_headers, g.key, v_queue_id
          from fresh f join given g on g.n = f.n order by f.id
    )
    select array_agg(coalesce(g.taken, f.id) order by g.n) into v_ids
      from given g left join fresh f on f.key = g.key;
    if p_on_duplicate <> 'keep' then
        perform pgq._meet_duplicates(
            p_queue, p_payloads, p_keys, v_at.p_run_at, p_on_duplicate, v_taken, v_ids
        );
    end if;
    return v_ids;
end
$$;
comment on function
    pgq._enqueue_unique(
        jsonb[], text, integer, timestamptz, text[], integer, jsonb, text
    ) is
'enqueues jobs with dedupe keys; returns for each the id of the job that has the key now';
