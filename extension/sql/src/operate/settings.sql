/*
 * Public: pgq_create_queue, pgq_configure_queue.
 */

create function pgq._check_range(
    p_name text, p_value double precision, p_min double precision, p_max double precision
)
returns void
language plpgsql
immutable
as $$
begin
    if p_value not between p_min and p_max then
        raise exception '"%" must be between % and %, not %', p_name, p_min, p_max, p_value
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
comment on function
    pgq._check_range(text, double precision, double precision, double precision) is
'Raises 22023; null passes.';

create function pgq._check_settings(p_queue pgq.queue)
returns void
language plpgsql
immutable
as $$
begin
    perform pgq._check_range('max_attempts', p_queue.max_attempts, 1, 32767),
            pgq._check_range('backoff_factor', p_queue.backoff_factor, 1, 1000),
            pgq._check_interval('backoff_base', p_queue.backoff_base, true),
            pgq._check_interval('backoff_max', p_queue.backoff_max, true),
            pgq._check_interval('keep_completed', p_queue.keep_completed, true),
            pgq._check_interval('keep_dead', p_queue.keep_dead, true),
            pgq._check_interval('dedupe_for', p_queue.dedupe_for, true),
            pgq._check_range('group_concurrency', p_queue.group_concurrency, 1, 2147483647),
            pgq._check_range('max_active', p_queue.max_active, 0, 10000),
            pgq._check_range('rate_limit', p_queue.rate_limit, 0, 1000000),
            pgq._check_interval('rate_interval', p_queue.rate_interval, false),
            pgq._check_range('rate_burst', p_queue.rate_burst, 0, 10000),
            pgq._check_interval('priority_ageing', p_queue.priority_ageing, true),
            pgq._check_range('max_ready', p_queue.max_ready, 0, 2147483647),
            pgq._check_range('max_payload', p_queue.max_payload, 0, 1073741824),
            pgq._check_length('description', p_queue.description, 10000);
    if p_queue.backoff_max < p_queue.backoff_base then
        raise exception '"backoff_max" must not be shorter than "backoff_base"'
            using errcode = 'invalid_parameter_value',
                  detail = format(
                      'They are %s and %s.', p_queue.backoff_max, p_queue.backoff_base
                  );
    end if;
    if p_queue.group_on_dead not in ('continue', 'block') then
        raise exception '"group_on_dead" must be continue or block, not "%"', p_queue.group_on_dead
            using errcode = 'invalid_parameter_value';
    end if;
    -- Or the numbers of moments outgrow bigint, see pgq._moment.
    if extract(epoch from p_queue.rate_interval) < 0.001 then
        raise exception '"rate_interval" must be at least a millisecond, not %',
                p_queue.rate_interval
            using errcode = 'invalid_parameter_value';
    end if;
    if p_queue.rate_burst = 0 and p_queue.rate_limit > 10000 then
        raise exception '"rate_burst" must be set for a "rate_limit" above 10000'
            using errcode = 'invalid_parameter_value',
                  detail = 'Its default is the rate limit, and its maximum is 10000.';
    end if;
end
$$;
comment on function pgq._check_settings(pgq.queue) is 'Raises 22023 for bad settings.';

create function @extschema@.pgq_configure_queue(
    name text,
    max_attempts integer default null,
    backoff_base interval default null,
    backoff_factor double precision default null,
    backoff_max interval default null,
    keep_completed interval default null,
    keep_dead interval default null,
    max_active integer default null,
    dedupe_for interval default null,
    group_concurrency integer default null,
    group_on_dead text default null,
    rate_limit integer default null,
    rate_interval interval default null,
    rate_burst integer default null,
    priority_ageing interval default null,
    max_ready integer default null,
    max_payload integer default null,
    description text default null
)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
    perform pgq._check_not_null('name', name is null);
    perform pgq._raise_unknown_queue(name, 'manage') where not pgq._configure_queue(row(
        pgq._queue_id(name, 'manage'), name, max_attempts, backoff_base, backoff_factor,
        backoff_max, keep_completed, keep_dead, dedupe_for, group_concurrency, group_on_dead,
        max_active, rate_limit, rate_interval, rate_burst, priority_ageing, max_ready, max_payload,
        null, null, null, null, null, description, null
    )::pgq.queue);  -- dropped meanwhile
end
$$;
revoke all on function
    @extschema@.pgq_configure_queue(
        text, integer, interval, double precision, interval, interval, interval, integer, interval,
        integer, text, integer, interval, integer, interval, integer, integer, text
    ) from public;
comment on function
    @extschema@.pgq_configure_queue(
        text, integer, interval, double precision, interval, interval, interval, integer, interval,
        integer, text, integer, interval, integer, interval, integer, integer, text
    ) is
'Changes the settings of a queue that are given; see pgq_create_queue.

A change counts for what is enqueued or claimed from then on. Claims that are not committed yet
go by the old settings. Exceptions:

* keep_completed, keep_dead: for jobs that finish from then on. If the queue kept no completed
  jobs, for jobs that are claimed from then on.
* group_concurrency: a lower one counts for a group when its jobs end.
* max_active: counts running jobs, too, 10,000 of them if there was no limit. A lower one is
  reached as they end.
* rate_limit, rate_interval: another one begins with all starts.
* description: at once. An empty one removes it.

Errors:

* 22004: the name is null.
* 22023: a setting is out of range.
* 42704: there is no such queue.';

create function @extschema@.pgq_create_queue(
    name text,
    max_attempts integer default 20,
    backoff_base interval default '1 second',
    backoff_factor double precision default 2,
    backoff_max interval default '1 hour',
    keep_completed interval default '1 day',
    keep_dead interval default '30 days',
    max_active integer default 0,
    dedupe_for interval default '0',
    group_concurrency integer default 1,
    group_on_dead text default 'continue',
    rate_limit integer default 0,
    rate_interval interval default '1 second',
    rate_burst integer default 0,
    priority_ageing interval default '0',
    max_ready integer default 0,
    max_payload integer default 0,
    if_not_exists boolean default false,
    description text default null
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
    v_id integer;
begin
    perform pgq._check_may('manage'), pgq._check_not_null('name', name is null);
    if length(name) not between 1 and 200 then
        raise exception 'a queue''s name must have 1 to 200 characters, not %', length(name)
            using errcode = 'invalid_parameter_value';
    end if;
    if name = '*' then
        raise exception 'a queue''s name must not be "*"'
            using errcode = 'invalid_parameter_value',
                  detail = 'In pgq_grant "*" means all queues.', hint = 'Choose another name.';
    end if;
    if num_nulls(
        max_attempts, backoff_base, backoff_factor, backoff_max, keep_completed, keep_dead,
        max_active, dedupe_for, group_concurrency, group_on_dead, rate_limit, rate_interval,
        rate_burst, priority_ageing, max_ready, max_payload, if_not_exists
    ) > 0 then
        raise exception 'settings must not be null'
            using errcode = 'null_value_not_allowed', hint = 'Leave a setting out for its default.';
    end if;
    insert into pgq.queue as q (name, created_at, first_job)
    select pgq_create_queue.name, pgq._now(), coalesce(pg_sequence_last_value('pgq.number'), 0)
     where not exists (select from pgq.queue o where o.name = pgq_create_queue.name)
    on conflict on constraint queue_name_key do nothing returning q.id into v_id;
    if v_id is null and if_not_exists then
        return false;
    elsif v_id is null then
        raise exception 'queue "%" exists already', name
            using errcode = 'duplicate_object',
                  hint = 'Use pgq_configure_queue to change its settings.';
    end if;
    perform pgq._add_lane(v_id, 0::smallint);
    perform pgq._configure_queue(row(
        v_id, name, max_attempts, backoff_base, backoff_factor, backoff_max, keep_completed,
        keep_dead, dedupe_for, group_concurrency, group_on_dead, max_active, rate_limit,
        rate_interval, rate_burst, priority_ageing, max_ready, max_payload,
        null, null, null, null, null, description, null
    )::pgq.queue);
    return true;
end
$$;
revoke all on function
    @extschema@.pgq_create_queue(
        text, integer, interval, double precision, interval, interval, interval, integer, interval,
        integer, text, integer, interval, integer, interval, integer, integer, boolean, text
    ) from public;
comment on function
    @extschema@.pgq_create_queue(
        text, integer, interval, double precision, interval, interval, interval, integer, interval,
        integer, text, integer, interval, integer, interval, integer, integer, boolean, text
    ) is
'Creates a queue.

* max_attempts: attempts before a job is dead, 1 to 32767.
* backoff_base, backoff_factor, backoff_max: the wait before the next attempt is backoff_base *
  backoff_factor ^ (attempt - 1), and at most backoff_max. A random share between a half and all
  of it counts. backoff_factor is 1 to 1000, backoff_max is not less than backoff_base.
* keep_completed: how long completed jobs stay in the archive. 0: not at all.
* keep_dead: how long dead and cancelled jobs stay in the archive.
* max_active: how many jobs may be active at a time, over all workers, up to 10000. 0: no limit.
  Needs READ COMMITTED.
* dedupe_for: how long a dedupe key stays taken after its job has completed. Such jobs stay in
  the archive for this long at least.
* group_concurrency: how many jobs of a group may be active at a time.
* group_on_dead: what happens when a job of a group dies. ''continue'': the next job runs.
  ''block'': the group waits until somebody retries the job or calls pgq_unblock.
* rate_limit, rate_interval, rate_burst: a token bucket. rate_limit jobs may start in
  rate_interval, which is a millisecond or more. After a pause rate_burst jobs may start at once,
  up to 10000; 0: as many as rate_limit. A claim that is rolled back has used no start, any other
  attempt has used one. rate_limit 0: no limit. Needs READ COMMITTED.
* priority_ageing: for each such time that its oldest ready job is late, a priority counts as one
  higher. The time for which the job has waited for others counts, too. 0: never.
* max_ready: with this number of ready jobs enqueue fails. 0: no bound.
* max_payload: bytes of a payload as text. 0: no bound.
* if_not_exists: an existing queue stays as it is, whatever its settings.
* description: what the queue is for.
* Returns false if the queue exists already, with if_not_exists.

Errors:

* 22004: a setting is null.
* 22023: a setting is out of range.
* 42710: there is a queue of this name.';
