/*
 * Dedupe keys: unique among the live jobs of a queue, and those it has completed within dedupe_for.
 *
 * The key is a column of the job, so that to complete it costs nothing and what is left of it goes
 * with its slot. No index spans the slots: whoever wants a key locks the bucket of all keys with
 * its hash, until the end of the transaction, and then looks into all slots with one snapshot. (Who
 * writes a watched row, which nobody else can, shares the lock with others who write rows.) Jobs
 * move between slots without that lock; in one snapshot each is in one place.
 *
 * Lock order: buckets in id order, before everything else.
 */

create function pgq._lock_keys(p_queue_id integer, p_keys text[], p_is_row boolean default false)
returns void
language plpgsql
as $$
begin
    if p_keys is null then
        return;
    end if;
    if p_is_row then
        perform
           from pgq.bucket b
          where b.id = (hashtextextended(p_keys[1] collate "C", p_queue_id) & 16383)::integer
            for key share;
        return;
    end if;
    perform
       from (
                select distinct
                       (hashtextextended(k collate "C", p_queue_id) & 16383)::integer as id
                  from unnest(p_keys) k order by 1
            ) h,
            lateral (select from pgq.bucket b where b.id = h.id for update) b;
end
$$;
comment on function pgq._lock_keys(integer, text[], boolean) is
'Keeps others from using these dedupe keys of a queue.

Waits for transactions that are using one of them, or one of the same hash: one in 16384.
p_is_row: the only key is that of a row, which the caller has written: that keeps others who
write the row away, so that only retries need be. Bulk writes of rows, one key after the other,
would deadlock otherwise.';

create function pgq._probe_keys(p_queue_id integer, p_keys text[])
returns void
language plpgsql
set lock_timeout = '200ms'
as $$
begin
    insert into pgq.job (id, enqueued_at, lane, slot, payload, dedupe_key, dedupe_queue_id)
    select nextval('pgq.number'), '-infinity', 0, s, 'null', k, p_queue_id
      from generate_series(0, 5) s, (select distinct k collate "C" from unnest(p_keys) k) k (k)
        on conflict do nothing;
exception
    -- It is about to be freed, or moved.
    when lock_not_available then
        raise exception 'could not serialize access: a job with the dedupe key is being changed'
            using errcode = 'serialization_failure',
                  hint = 'The transaction might succeed if retried.';
end
$$;
comment on function pgq._probe_keys(integer, text[]) is
'Raises 40001 if a dedupe key that the snapshot shows as free was taken since.

The unique indexes know. The caller takes it back.';

create function pgq._live_keys(p_queue_id integer, p_keys text[])
returns bigint[]
language plpgsql
as $$
declare
    v_ids bigint[];
begin
    v_ids := array(
        select l.id
          from unnest(p_keys) with ordinality k (key, n)
          left join lateral (
                  select j.id from pgq.job j
                   where j.dedupe_queue_id = p_queue_id and j.dedupe_key = k.key collate "C"
                   limit 1
               ) l on true
         order by k.n
    );
    perform pgq._probe_keys(
        p_queue_id,
        array(select k.key from unnest(p_keys, v_ids) k (key, id) where k.id is null)
    ) where not pgq._read_committed();
    -- Rolls back to here, so that no lock on a slot remains.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return v_ids;
end
$$;
comment on function pgq._live_keys(integer, text[]) is
'Returns the live jobs with these dedupe keys, or null, in their order.

The caller has locked the keys. 40001 if an old snapshot cannot tell.';

create function pgq._is_late(p_job pgq.job)
returns boolean
language sql
begin atomic
    select p_job.start_by <= pgq._now() and p_job.attempt = 0 and p_job.token is null;
end;
comment on function pgq._is_late(pgq.job) is 'Whether a job has not started by its expires_at.';

create function pgq._without_late(p_live bigint[])
returns bigint[]
language plpgsql
as $$
declare
    v_id bigint;
    v_job pgq.job;
begin
    if array_remove(p_live, null) = '{}' then
        return p_live;
    end if;
    for v_id in
        select j.id
          from (select distinct l as id from unnest(p_live) l where l is not null) g,
               pgq._find(g.id) j
         where pgq._is_late(j) order by j.slot, j.id
    loop
        v_job := pgq._find_and_lock(v_id, false);
        if v_job.id is null then
            p_live := array_replace(p_live, v_id, null);
        elsif pgq._is_late(v_job) then
            -- Of the head of a group a copy dies, so that its row in the line can block the group.
            if v_job.is_head then
                perform pgq._promote_head(v_job);
                v_job := pgq._find_and_lock(v_id, false);
            end if;
            perform pgq._put_back(pgq._remove(v_job.slot, v_job.id), null, 'expired', false);
            p_live := array_replace(p_live, v_id, null);
        end if;
    end loop;
    return p_live;
end
$$;
comment on function pgq._without_late(bigint[]) is
'Returns p_live (from pgq._live_keys) with null for jobs that are late to start.

They are dead then: no tick looks at jobs that wait, nor at any while nobody calls.';

create function pgq._held_keys(p_queue_id integer, p_keys text[], p_live bigint[])
returns bigint[]
language plpgsql
as $$
declare
    v_queue pgq.queue;
    v_since timestamptz;
    v_ids bigint[];
begin
    select q.* into v_queue from pgq.queue q where q.id = p_queue_id;
    if v_queue.dedupe_for = '0' then
        return p_live;
    end if;
    if not pgq._read_committed() then
        raise exception 'a dedupe key in queue "%" needs the isolation level READ COMMITTED',
                v_queue.name
            using errcode = 'active_sql_transaction',
                  detail = 'The queue has a "dedupe_for": an older snapshot may not show jobs that '
                           'have completed.';
    end if;
    v_since := pgq._now() - v_queue.dedupe_for;
    v_ids := array(
        select coalesce(k.id, a.id)
          from unnest(p_live, p_keys) with ordinality k (id, key, n)
          left join lateral (
                  select a.id from pgq.archive a
                   where k.id is null and a.queue = v_queue.name
                     and a.dedupe_key = k.key collate "C" and a.state = 'completed'
                     and a.finished_at > v_since and a.id > v_queue.first_job
                     -- Not what has completed before the clock was set back.
                     and a.finished_at < v_since + v_queue.dedupe_for + interval '1 minute'
                   limit 1
               ) a on true
         order by k.n
    );
    -- As in pgq._live_keys.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return v_ids;
end
$$;
comment on function pgq._held_keys(integer, text[], bigint[]) is
'Returns p_live (from pgq._live_keys), with completed jobs in place of null.

Those with these keys that completed within dedupe_for. Looks after the live ones: a job that
completes in between is found here.';

create function pgq._replace(p_id bigint, p_payload jsonb, p_run_at timestamptz)
returns boolean
language plpgsql
as $$
declare
    v_job pgq.job := pgq._find_and_lock(p_id, false);
    v_slot smallint;
begin
    if v_job.id is null or v_job.token is not null then
        return v_job.id is not null;
    end if;
    if v_job.group_id is not null or pgq._waits_for_jobs(v_job) then
        v_slot := pgq._lock_parked_one(p_id);
        update pgq.job j
           set payload = p_payload, due = null,
               run_at = case when j.is_head is null then p_run_at else j.run_at end
         where j.slot in (4, 5) and j.slot = v_slot and j.id = p_id;
    end if;
    if v_job.pos is null and v_job.due is null then
        return true;
    elsif v_job.pos is not null and p_run_at is null then
        -- A ready job keeps its place.
        execute format(
            'update pgq.job_%s j set payload = $2, run_at = $3 where j.id = $1', v_job.slot
        ) using p_id, p_payload, pgq._now();
        return true;
    elsif v_job.place is null then
        v_job := pgq._remove(v_job.slot, v_job.id);
    else
        v_job.place := null;
        v_job.is_head := null;
        v_job.dedupe_queue_id := null;
    end if;
    v_job.payload := p_payload;
    perform pgq._park(v_job, coalesce(p_run_at, pgq._now()), p_run_at is not null);
    return true;
end
$$;
comment on function pgq._replace(bigint, jsonb, timestamptz) is
'Gives a job that is not active another payload and time (null: now).

Waits for whoever is about to claim or cancel it. false: it has ended.';

create function pgq._replace_live(p_payloads jsonb[], p_run_at timestamptz, p_live bigint[])
returns bigint[]
language plpgsql
as $$
declare
    v_old record;
begin
    -- In the lock order.
    for v_old in
        select g.id, g.payload
          from (select distinct on (u.id) u.id, u.payload
                  from unnest(p_live, p_payloads) with ordinality u (id, payload, n)
                 where u.id is not null order by u.id, u.n desc) g, pgq._find(g.id) j
         order by j.slot, g.id
    loop
        if not pgq._replace(v_old.id, v_old.payload, p_run_at) then
            p_live := array_replace(p_live, v_old.id, null);
        end if;
    end loop;
    return p_live;
end
$$;
comment on function pgq._replace_live(jsonb[], timestamptz, bigint[]) is
'Replaces live jobs as pgq._replace does, each with its last payload.

Null for those that have ended.';

create function pgq._raise_duplicate(
    p_queue text, p_keys text[], p_taken bigint[], p_ids bigint[]
)
returns void
language plpgsql
as $$
declare
    v_old record;
begin
    select g.id, g.key into v_old
      from (
               select u.*, min(u.n) over (partition by u.id) as first
                 from unnest(p_keys, p_taken, p_ids) with ordinality u (key, taken, id, n)
           ) g
     where g.taken is not null or g.n > g.first
     order by g.n
     limit 1;
    if found then
        raise exception 'queue "%" has a job with the dedupe key "%"', p_queue, v_old.key
            using errcode = 'unique_violation',
                  detail = format('It is job %s.', v_old.id);
    end if;
end
$$;
comment on function pgq._raise_duplicate(text, text[], bigint[], bigint[]) is
'Raises 23505 if a key was taken (p_taken) or is there twice.';
