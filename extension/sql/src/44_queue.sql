/*
 * Public: pgq_create_queue, pgq_configure_queue, pgq_drop_queue, pgq_pause, pgq_resume.
 */

create function pgq._check_settings(
    p_name text, p_max_attempts integer, p_backoff_base interval, p_backoff_factor double precision,
    p_backoff_max interval, p_keep_completed interval, p_keep_dead interval, p_max_active integer
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null('name', p_name is null);
    if length(p_name) not between 1 and 200 then
        raise exception 'a queue''s name must have 1 to 200 characters, not %', length(p_name)
            using errcode = 'invalid_parameter_value';
    end if;
    if p_max_attempts not between 1 and 32767 then
        raise exception '"max_attempts" must be between 1 and 32767, not %', p_max_attempts
            using errcode = 'invalid_parameter_value';
    end if;
    if not p_backoff_factor between 1 and 1000 then
        raise exception '"backoff_factor" must be between 1 and 1000, not %', p_backoff_factor
            using errcode = 'invalid_parameter_value';
    end if;
    perform pgq._check_interval('backoff_base', p_backoff_base, true);
    perform pgq._check_interval('backoff_max', p_backoff_max, true);
    if p_backoff_max < p_backoff_base then
        raise exception '"backoff_max" must not be shorter than "backoff_base"'
            using errcode = 'invalid_parameter_value',
                  detail = format('They are %s and %s.', p_backoff_max, p_backoff_base);
    end if;
    perform pgq._check_interval('keep_completed', p_keep_completed, true);
    perform pgq._check_interval('keep_dead', p_keep_dead, true);
    if p_max_active < 0 then
        raise exception '"max_active" must be 0 (no limit) or more, not %', p_max_active
            using errcode = 'invalid_parameter_value';
    end if;
    if p_max_active > 0 then
        perform pgq._raise_unsupported('max_active');
    end if;
end
$$;
comment on function
    pgq._check_settings(
        text, integer, interval, double precision, interval, interval, interval, integer
    ) is
'raises 22004, 22023 or 0A000 for bad settings; null passes';

create function @extschema@.pgq_create_queue(
    name text,
    max_attempts integer default 20,
    backoff_base interval default '1 second',
    backoff_factor double precision default 2,
    backoff_max interval default '1 hour',
    keep_completed interval default '1 day',
    keep_dead interval default '30 days',
    max_active integer default 0
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id integer;
begin
    if num_nulls(
        max_attempts, backoff_base, backoff_factor, backoff_max, keep_completed, keep_dead,
        max_active
    ) > 0 then
        raise exception 'settings must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Leave an argument out for its default.';
    end if;
    perform pgq._check_settings(
        name, max_attempts, backoff_base, backoff_factor, backoff_max, keep_completed, keep_dead,
        max_active
    );
    insert into pgq.queue as q (
        name, max_attempts, backoff_base, backoff_factor, backoff_max, keep_completed, keep_dead
    )
    values (
        name, max_attempts, backoff_base, backoff_factor, backoff_max, keep_completed, keep_dead
    )
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
        text, integer, interval, double precision, interval, interval, interval, integer
    ) from public;
comment on function
    @extschema@.pgq_create_queue(
        text, integer, interval, double precision, interval, interval, interval, integer
    ) is
'Creates a queue. max_attempts: tries before a job is dead (1 to 32767). The wait before the '
'next try is backoff_base * backoff_factor ^ (attempt - 1), at most backoff_max, of that a '
'random share between a half and all. keep_completed, keep_dead: how long finished jobs stay in '
'the archive (0: not at all). max_active: 0, limits are not supported by this version. Errors: '
'42710 exists already; 22004; 22023; 0A000.';

create function @extschema@.pgq_configure_queue(
    name text,
    max_attempts integer default null,
    backoff_base interval default null,
    backoff_factor double precision default null,
    backoff_max interval default null,
    keep_completed interval default null,
    keep_dead interval default null,
    max_active integer default null
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
    perform pgq._check_settings(
        name, max_attempts, coalesce(backoff_base, v_queue.backoff_base), backoff_factor,
        coalesce(backoff_max, v_queue.backoff_max), keep_completed, keep_dead, max_active
    );
    update pgq.queue q
       set max_attempts = coalesce(pgq_configure_queue.max_attempts, q.max_attempts),
           backoff_base = coalesce(pgq_configure_queue.backoff_base, q.backoff_base),
           backoff_factor = coalesce(pgq_configure_queue.backoff_factor, q.backoff_factor),
           backoff_max = coalesce(pgq_configure_queue.backoff_max, q.backoff_max),
           keep_completed = coalesce(pgq_configure_queue.keep_completed, q.keep_completed),
           keep_dead = coalesce(pgq_configure_queue.keep_dead, q.keep_dead)
     where q.id = v_queue.id;
end
$$;
revoke all on function
    @extschema@.pgq_configure_queue(
        text, integer, interval, double precision, interval, interval, interval, integer
    ) from public;
comment on function
    @extschema@.pgq_configure_queue(
        text, integer, interval, double precision, interval, interval, interval, integer
    ) is
'Changes those settings of a queue that are given (see pgq_create_queue). Retention counts for '
'jobs that finish from then on; if the queue kept no completed jobs, for those claimed from then '
'on. Errors: 42704 unknown queue; 22004; 22023; 0A000.';

create function pgq._set_paused(p_queue text, p_paused boolean)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    update pgq.queue q set paused = p_paused where q.name = p_queue;
    if not found then
        perform pgq._raise_unknown_queue(p_queue);
    end if;
end
$$;
comment on function pgq._set_paused(text, boolean) is 'for pgq_pause and pgq_resume';

create function @extschema@.pgq_pause(queue text)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._set_paused(queue, true);
end
$$;
revoke all on function @extschema@.pgq_pause(text) from public;
comment on function @extschema@.pgq_pause(text) is
'Lets no more jobs of a queue be claimed; running ones go on, and enqueue works. Errors: 42704 '
'unknown queue.';

create function @extschema@.pgq_resume(queue text)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._set_paused(queue, false);
end
$$;
revoke all on function @extschema@.pgq_resume(text) from public;
comment on function @extschema@.pgq_resume(text) is
'Lets the jobs of a paused queue be claimed again. Errors: 42704 unknown queue.';

create function @extschema@.pgq_drop_queue(
    name text,
    force boolean default false
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '200ms'
as $$
declare
    v_id integer;
begin
    perform pgq._check_not_null('name', name is null);
    perform pgq._check_not_null('force', force is null);
    if not pgq._read_committed() then
        raise exception 'a queue can be dropped under READ COMMITTED only'
            using errcode = 'active_sql_transaction',
                  detail = 'An older snapshot may not show all of its jobs.';
    end if;
    -- Every enqueue reads this table, so that none is under way once the lock is had.
    begin
        lock table pgq.queue in access exclusive mode;
    exception when lock_not_available then
        raise exception 'queue "%" cannot be dropped while a transaction is open that has used pgq',
                name
            using errcode = 'lock_not_available',
                  hint = 'Try again; pg_stat_activity shows transactions that stay open.';
    end;
    v_id := pgq._queue_id(name);
    if not force and (
        exists (select from pgq.lane l join pgq.job j on j.lane = l.id where l.queue_id = v_id)
        or exists (
            select from pgq.archive a
             where a.queue = name and a.state = 'dead' and a.expires_at > pgq._now()
        )
    ) then
        raise exception 'queue "%" holds jobs', name
            using errcode = 'object_in_use',
                  hint = 'Drop it with "force" to delete its live and dead jobs, too.';
    end if;
    -- A delete that waits for a transaction which moves a job does not see where to.
    while exists (
        select from pgq.lane l join pgq.job j on j.lane = l.id where l.queue_id = v_id
    ) loop
        delete from pgq.job j using pgq.lane l where j.lane = l.id and l.queue_id = v_id;
    end loop;
    delete from pgq.archive a where a.queue = name and a.state = 'dead';
    delete from pgq.queue q where q.id = v_id;
end
$$;
revoke all on function @extschema@.pgq_drop_queue(text, boolean) from public;
comment on function @extschema@.pgq_drop_queue(text, boolean) is
'Drops a queue. force: also if it holds live or dead jobs, which are deleted. Completed jobs stay '
'in the archive until they expire. Until its transaction ends, all calls of others wait: commit at '
'once. Errors: 42704 unknown queue; 55006 it holds jobs; 55P03 some transaction that has used pgq '
'stayed open for 200 ms; 25001 under REPEATABLE READ and SERIALIZABLE.';
