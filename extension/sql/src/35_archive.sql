/*
 * Finished jobs: into the archive, and out of it by whole partitions. See pgq.archive.
 *
 * Rows have the name of their queue. Dead ones go with it; the others stay, and are not of a new
 * queue that gets the name.
 */

--@ define its_queue
a.queue = q.name and a.id > q.first_job
--@ end
--@ define archive
pgq.archive (
        id, enqueued_at, finished_at, expires_at, run_at, claimed_at, token, bucket, priority,
        attempt, max_attempts, state, queue, worker, payload, headers, last_error, dedupe_key,
        group_key, checkpoint, result
    )
--@ end

create function pgq._archive_bucket(p_expires_at timestamptz, p_keep interval)
returns smallint
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_seconds constant bigint := floor(extract(epoch from p_expires_at))::bigint;
begin
    return case when p_keep <= '1 hour' then v_seconds / 600 % 8
                when p_keep <= '24 hours' then 8 + v_seconds / 10800 % 10
                when p_keep <= '32 days' then 18 + v_seconds / 345600 % 10
                when p_keep <= '369 days' then 28 + v_seconds / 3542400 % 11
                else 39 end::smallint;
end
$$;
comment on function pgq._archive_bucket(timestamptz, interval) is
'the archive partition for rows that expire then, p_keep (days, hours) from now: windows of 10 '
'minutes, 3 hours, 4 days and 41 days, for up to 6, 8, 8 and 9 windows ahead. There are at least '
'two partitions more than that in each class, so the window that passed last is not in use and can '
'be truncated. More than 369 days: kept';

create function pgq._keep(p_jobs pgq.job[], p_state text, p_results jsonb[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
declare
    v_now constant timestamptz := pgq._now();
begin
    insert into {archive}
    select j.id, j.enqueued_at, v_now, v_now + k.keep, j.run_at,
           case when j.token is not null then j.claimed_at end, j.token,
           pgq._archive_bucket(v_now + k.keep, v_now + k.keep - v_now), l.priority, j.attempt,
           j.max_attempts, p_state, q.name, j.worker, j.payload, j.headers, j.last_error,
           j.dedupe_key, j.group_key, j.checkpoint, p_results[j.ordinality::integer]
      from unnest(p_jobs) with ordinality j
      join pgq.lane l on l.id = j.lane
      join pgq.queue q on q.id = l.queue_id,
           lateral (
               select case when p_state <> 'completed' then q.keep_dead
                           when j.dedupe_key is null then q.keep_completed
                           else greatest(q.keep_completed, q.dedupe_for) end
           ) k (keep)
     where k.keep > '0';
end
$$;
comment on function pgq._keep(pgq.job[], text, jsonb[]) is
'writes jobs that have just been deleted from pgq.job to the archive, if their queue keeps such '
'jobs; completed ones with a dedupe key for dedupe_for at least. p_results: in the order of the '
'jobs, or null';

create function pgq._passed_buckets(p_now timestamptz)
returns bigint[]
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_seconds constant bigint := floor(extract(epoch from p_now))::bigint;
begin
    return array[
        (v_seconds / 600 - 1) % 8,
        8 + (v_seconds / 10800 - 1) % 10,
        18 + (v_seconds / 345600 - 1) % 10,
        28 + (v_seconds / 3542400 - 1) % 11
    ];
end
$$;
comment on function pgq._passed_buckets(timestamptz) is
'in each class of archive partitions that of the window that passed last; see pgq._archive_bucket';

create function pgq._expire_archive(p_now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_bucket bigint;
    v_name text;
    v_is_in_use boolean;
begin
    foreach v_bucket in array pgq._passed_buckets(p_now) loop
        begin
            v_name := format('archive_%s', v_bucket);
            execute format('lock table pgq.%I in access share mode nowait', v_name);
            if pg_relation_size(format('pgq.%I', v_name)::regclass) > 0
                and not pgq._is_dumped()
            then
                execute format('lock table pgq.%I in access exclusive mode nowait', v_name);
                -- The window may have ended since p_now, or the clock has been set back: what came
                -- in another window is on the last page, if jobs there were not retried since.
                execute format(
                    'select exists (select from pgq.%I a where a.ctid >= $1 and a.expires_at > $2)',
                    v_name
                ) into v_is_in_use
                  using format(
                            '(%s,0)', pg_relation_size(format('pgq.%I', v_name)::regclass)
                                      / current_setting('block_size')::bigint - 1
                        )::tid, p_now;
                if not v_is_in_use and v_bucket = any (pgq._passed_buckets(pgq._now())) then
                    execute format('truncate pgq.%I', v_name);
                end if;
            end if;
        exception when lock_not_available or object_in_use then
            continue;
        end;
    end loop;
end
$$;
comment on function pgq._expire_archive(timestamptz) is
'truncates archive partitions whose window has passed';
