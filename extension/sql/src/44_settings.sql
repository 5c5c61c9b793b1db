/*
 * Public: pgq_create_queue, pgq_configure_queue.
 */

create function pgq._check_settings(p_queue pgq.queue)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if length(p_queue.name) not between 1 and 200 then
        raise exception 'a queue''s name must have 1 to 200 characters, not %',
                length(p_queue.name)
            using errcode = 'invalid_parameter_value';
    end if;
    if p_queue.max_attempts not between 1 and 32767 then
        raise exception '"max_attempts" must be between 1 and 32767, not %', p_queue.max_attempts
            using errcode = 'invalid_parameter_value';
    end if;
    if not p_queue.backoff_factor between 1 and 1000 then
        raise exception '"backoff_factor" must be between 1 and 1000, not %',
                p_queue.backoff_factor
            using errcode = 'invalid_parameter_value';
    end if;
    perform pgq._check_interval('backoff_base', p_queue.backoff_base, true);
    perform pgq._check_interval('backoff_max', p_queue.backoff_max, true);
    if p_queue.backoff_max < p_queue.backoff_base then
        raise exception '"backoff_max" must not be shorter than "backoff_base"'
            using errcode = 'invalid_parameter_value',
                  detail = format(
                      'They are %s and %s.', p_queue.backoff_max, p_queue.backoff_base
                  );
    end if;
    perform pgq._check_interval('keep_completed', p_queue.keep_completed, true);
    perform pgq._check_interval('keep_dead', p_queue.keep_dead, true);
    perform pgq._check_interval('dedupe_for', p_queue.dedupe_for, true);
    if p_queue.group_concurrency < 1 then
        raise exception '"group_concurrency" must be at least 1, not %', p_queue.group_concurrency
            using errcode = 'invalid_parameter_value';
    end if;
    if p_queue.group_on_dead not in ('continue', 'block') then
        raise exception '"group_on_dead" must be continue or block, not "%"', p_queue.group_on_dead
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
comment on function pgq._check_settings(pgq.queue) is 'raises 22023 for bad settings';

create function pgq._check_max_active(p_max_active integer)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_max_active < 0 then
        raise exception '"max_active" must be 0 (no limit) or more, not %', p_max_active
            using errcode = 'invalid_parameter_value';
    end if;
    if p_max_active > 0 then
        perform pgq._raise_unsupported('max_active');
    end if;
end
$$;
comment on function pgq._check_max_active(integer) is 'raises 22023 or 0A000; null passes';

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
    group_on_dead text default 'continue'
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgq.queue;
    v_id integer;
begin
    perform pgq._check_not_null('name', name is null);
    if num_nulls(
        max_attempts, backoff_base, backoff_factor, backoff_max, keep_completed, keep_dead,
        max_active, dedupe_for, group_concurrency, group_on_dead
    ) > 0 then
        raise exception 'settings must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Leave an argument out for its default.';
    end if;
    v_queue.name := name;
    v_queue.max_attempts := max_attempts;
    v_queue.backoff_base := backoff_base;
    v_queue.backoff_factor := backoff_factor;
    v_queue.backoff_max := backoff_max;
    v_queue.keep_completed := keep_completed;
    v_queue.keep_dead := keep_dead;
    v_queue.dedupe_for := dedupe_for;
    v_queue.group_concurrency := group_concurrency;
    v_queue.group_on_dead := group_on_dead;
    perform pgq._check_settings(v_queue), pgq._check_max_active(max_active);
    insert into pgq.queue as q (
        name, max_attempts, backoff_base, backoff_factor, backoff_max, keep_completed, keep_dead,
        dedupe_for, group_concurrency, group_on_dead
    )
    select name, max_attempts, backoff_base, backoff_factor, backoff_max, keep_completed,
           keep_dead, dedupe_for, group_concurrency, group_on_dead
    on conflict on constraint queue_name_key do nothing
    returning q.id into v_id;
    if v_id is null then
        raise exception 'queue "%" exists already', name
            using errcode = 'duplicate_object',
                  hint = 'Use pgq_configure_queue to change its settings.';
    end if;
    perform pgq._add_lane(v_id, 0::smallint);
end
$$;
revoke all on function
    @extschema@.pgq_create_queue(
        text, integer, interval, double precision, interval, interval, interval, integer, interval,
        integer, text
    ) from public;
comment on function
    @extschema@.pgq_create_queue(
        text, integer, interval, double precision, interval, interval, interval, integer, interval,
        integer, text
    ) is
'Creates a queue. max_attempts: tries before a job is dead (1 to 32767). The wait before the '
'next try is backoff_base * backoff_factor ^ (attempt - 1), at most backoff_max, of that a '
'random share between a half and all. keep_completed, keep_dead: how long finished jobs stay in '
'the archive (0: not at all). max_active: 0, limits are not supported by this version. '
'dedupe_for: how long a dedupe key stays taken after its job has completed; such jobs stay in the '
'archive for that long at least. group_concurrency: how many jobs of a group may be active at a '
'time. group_on_dead: when a job of a group dies the next one runs (continue), or waits until it '
'is retried or pgq_unblock is called (block). Errors: 42710 exists already; 22004; 22023; 0A000.';

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
    group_on_dead text default null
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgq.queue;
begin
    perform pgq._check_not_null('name', name is null);
    select q.* into v_queue
      from pgq.queue q where q.name = pgq_configure_queue.name for no key update;
    if not found then
        perform pgq._raise_unknown_queue(name);
    end if;
    v_queue.max_attempts := coalesce(max_attempts, v_queue.max_attempts);
    v_queue.backoff_base := coalesce(backoff_base, v_queue.backoff_base);
    v_queue.backoff_factor := coalesce(backoff_factor, v_queue.backoff_factor);
    v_queue.backoff_max := coalesce(backoff_max, v_queue.backoff_max);
    v_queue.keep_completed := coalesce(keep_completed, v_queue.keep_completed);
    v_queue.keep_dead := coalesce(keep_dead, v_queue.keep_dead);
    v_queue.dedupe_for := coalesce(dedupe_for, v_queue.dedupe_for);
    v_queue.group_concurrency := coalesce(group_concurrency, v_queue.group_concurrency);
    v_queue.group_on_dead := coalesce(group_on_dead, v_queue.group_on_dead);
    perform pgq._check_settings(v_queue);
    perform pgq._check_max_active(max_active);
    update pgq.queue q
       set max_attempts = v_queue.max_attempts, backoff_base = v_queue.backoff_base,
           backoff_factor = v_queue.backoff_factor, backoff_max = v_queue.backoff_max,
           keep_completed = v_queue.keep_completed, keep_dead = v_queue.keep_dead,
           dedupe_for = v_queue.dedupe_for, group_concurrency = v_queue.group_concurrency,
           group_on_dead = v_queue.group_on_dead
     where q.id = v_queue.id;
    if group_concurrency is not null then
        insert into pgq.group_hint (group_id, id)
        select distinct j.group_id, 0
          from pgq.lane l join pgq.job j on j.lane = l.id
         where l.queue_id = v_queue.id and j.wait is not null;
        insert into pgq.chore default values;
    end if;
end
$$;
revoke all on function
    @extschema@.pgq_configure_queue(
        text, integer, interval, double precision, interval, interval, interval, integer, interval,
        integer, text
    ) from public;
comment on function
    @extschema@.pgq_configure_queue(
        text, integer, interval, double precision, interval, interval, interval, integer, interval,
        integer, text
    ) is
'Changes those settings of a queue that are given (see pgq_create_queue). Retention counts for '
'jobs that finish from then on; if the queue kept no completed jobs, for those claimed from then '
'on; a lower group_concurrency for a group when its jobs end. Errors: 42704 unknown queue; 22004; '
'22023; 0A000.';
