/*
 * Finished jobs: into the archive, and out of it by whole partitions. See pgq.archive.
 *
 * Rows have the name of their queue. Dead ones go with it; the others stay, and are not of a new
 * queue that gets the name.
 */

create function pgq._archive_bucket(p_expires_at timestamptz, p_keep interval)
returns smallint
language plpgsql
immutable
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
'Says which archive partition takes rows that expire at a time.

p_keep (days, hours) from now, in windows of 10 minutes, 3 hours, 4 days and 41 days, for up to
6, 8, 8 and 9 windows ahead. Each class has at least two partitions more, so the window that
passed last is not in use and can be truncated. More than 369 days: kept.';

create function pgq._retention(
    p_queue_id integer, out now timestamptz, out name text, out sample integer, out keep interval,
    out expires timestamptz, out bucket smallint, out keep_key interval,
    out expires_key timestamptz, out bucket_key smallint
)
language plpgsql
as $$
begin
    now := pgq._now();
    select q.name, q.sample, q.keep_completed, greatest(q.keep_completed, q.dedupe_for)
      into name, sample, keep, keep_key from pgq.queue q where q.id = p_queue_id;
    expires := now + keep;
    expires_key := now + keep_key;
    bucket := pgq._archive_bucket(expires, expires - now);
    bucket_key := case when keep_key > keep then pgq._archive_bucket(expires_key, expires_key - now)
                       else bucket end;
end
$$;
comment on function pgq._retention(integer) is
'For how long a queue keeps jobs that complete now, and those with a dedupe key.';

create function pgq._archived(
    p_job pgq.job, p_queue text, p_state text, p_finished_at timestamptz, p_keep interval,
    p_result jsonb
)
returns pgq.archive
language sql
stable
begin atomic
    select row(
        p_job.id, p_job.enqueued_at, p_finished_at, p_finished_at + p_keep, p_job.run_at,
        case when p_job.token is not null then p_job.claimed_at end, p_job.token,
        pgq._archive_bucket(p_finished_at + p_keep, p_finished_at + p_keep - p_finished_at),
        pgq._priority_of(p_job.lane), p_job.attempt, p_job.max_attempts, p_state, p_queue,
        p_job.worker, p_job.payload, p_job.headers, p_job.last_error, p_job.dedupe_key,
        p_job.group_key, p_job.checkpoint, p_result, p_job.history
    )::pgq.archive;
end;
comment on function pgq._archived(pgq.job, text, text, timestamptz, interval, jsonb) is
'A job as the archive keeps it.';

create function pgq._passed_buckets(p_now timestamptz)
returns bigint[]
language plpgsql
immutable
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
'Says which partition of each archive class has the window that passed last.

See pgq._archive_bucket.';

create function pgq._expire_archive(p_now timestamptz)
returns void
language plpgsql
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
'Truncates archive partitions whose window has passed.';
