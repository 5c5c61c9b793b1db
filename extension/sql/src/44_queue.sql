/*
 * Public: pgq_create_queue, pgq_configure_queue, pgq_drop_queue, pgq_pause, pgq_resume.
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
    dedupe_for interval default '0'
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
        max_active, dedupe_for
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
    perform pgq._check_settings(v_queue);
    perform pgq._check_max_active(max_active);
    insert into pgq.queue as q (
        name, max_attempts, backoff_base, backoff_factor, backoff_max, keep_completed, keep_dead,
        dedupe_for
    )
    values (
        name, max_attempts, backoff_base, backoff_factor, backoff_max, keep_completed, keep_dead,
        dedupe_for
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
        text, integer, interval, double precision, interval, interval, interval, integer, interval
    ) from public;
comment on function
    @extschema@.pgq_create_queue(
        text, integer, interval, double precision, interval, interval, interval, integer, interval
    ) is
'Creates a queue. max_attempts: tries before a job is dead (1 to 32767). The wait before the '
'next try is backoff_base * backoff_factor ^ (attempt - 1), at most backoff_max, of that a '
'random share between a half and all. keep_completed, keep_dead: how long finished jobs stay in '
'the archive (0: not at all). max_active: 0, limits are not supported by this version. '
'dedupe_for: how long a dedupe key stays taken after its job has completed; such jobs stay in the '
'archive for that long at least. Errors: 42710 exists already; 22004; 22023; 0A000.';

create function @extschema@.pgq_configure_queue(
    name text,
    max_attempts integer default null,
    backoff_base interval default null,
    backoff_factor double precision default null,
    backoff_max interval default null,
    keep_completed interval default null,
    keep_dead interval default null,
    max_active integer default null,
    dedupe_for interval default null
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
    perform pgq._check_settings(v_queue);
    perform pgq._check_max_active(max_active);
    update pgq.queue q
       set max_attempts = v_queue.max_attempts, backoff_base = v_queue.backoff_base,
           backoff_factor = v_queue.backoff_factor, backoff_max = v_queue.backoff_max,
           keep_completed = v_queue.keep_completed, keep_dead = v_queue.keep_dead,
           dedupe_for = v_queue.dedupe_for
     where q.id = v_queue.id;
end
$$;
revoke all on function
    @extschema@.pgq_configure_queue(
        text, integer, interval, double precision, interval, interval, interval, integer, interval
    ) from public;
comment on function
    @extschema@.pgq_configure_queue(
        text, integer, interval, double precision, interval, interval, interval, integer, interval
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
