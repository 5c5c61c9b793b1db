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

create function pgq._taken_keys(p_queue_id integer, p_keys text[])
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
    v_queue pgq.queue;
    v_since timestamptz;
begin
    if p_keys is null then
        return null;
    end if;
    v_ids := pgq._live_keys(p_queue_id, p_keys);
    select q.* into v_queue from pgq.queue q where q.id = p_queue_id;
    if v_queue.dedupe_for = '0' then
        return v_ids;
    end if;
    -- After the live ones: a job that completes in between is found here.
    v_since := pgq._now() - v_queue.dedupe_for;
    return array(
        select coalesce(k.id, a.id)
          from unnest(v_ids, p_keys) with ordinality k (id, key, n)
          left join lateral (
                  select a.id from pgq.archive a
                   where k.id is null and a.queue = v_queue.name and a.dedupe_key = k.key
                     and a.state = 'completed' and a.finished_at > v_since
                   limit 1
               ) a on true
         order by k.n
    );
end
$$;
comment on function pgq._taken_keys(integer, text[]) is
'the jobs that have these dedupe keys, live or completed within dedupe_for, or null, in the order '
'of the keys; the caller has locked them';

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
        if pgq._is_waiting(v_job) then
            v_job.run_at := p_run_at;
            insert into pgq.job select v_job.*;
        else
            perform pgq._park(v_job, coalesce(p_run_at, pgq._now()));
        end if;
        exit;
    end loop;
end
$$;
comment on function pgq._replace(bigint, jsonb, timestamptz) is
'gives a job that is not active another payload and time (null: now); does not wait for it';

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
