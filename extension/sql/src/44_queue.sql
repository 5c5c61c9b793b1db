/*
 * Public: pgq_drop_queue, pgq_pause, pgq_resume, pgq_unblock.
 */

create function pgq._set_paused(p_queue text, p_paused boolean)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id constant integer := pgq._queue_id(p_queue, 'manage');
begin
    update pgq.queue q set paused = p_paused where q.id = v_id;
    perform pgq._wake(v_id) where not p_paused;
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

create function @extschema@.pgq_unblock(queue text, group_key text)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue_id integer;
    v_group_id bigint;
begin
    perform pgq._check_not_null('group_key', group_key is null);
    v_queue_id := pgq._queue_id(queue, 'manage');
    v_group_id := (pgq._group_ids(v_queue_id, array[group_key]))[1];
    delete from pgq.group_block b where b.group_id = v_group_id and b.queue_id = v_queue_id;
    if not found then
        return false;
    end if;
    insert into pgq.group_hint (group_id, id) values (v_group_id, 0);
    insert into pgq.chore default values;
    return true;
end
$$;
revoke all on function @extschema@.pgq_unblock(text, text) from public;
comment on function @extschema@.pgq_unblock(text, text) is
'Lets a group go on that waits because one of its jobs has died, where group_on_dead is block; the '
'dead job stays dead. false: the group is not blocked. Errors: 42704 unknown queue; 22004.';

create function pgq._check_may_drop(p_queue text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._queue_id(p_queue, 'manage');
    -- As in pgq._live_keys.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return;
end
$$;
comment on function pgq._check_may_drop(text) is
'raises what pgq._queue_id does; leaves no lock, which could not be raised then';

-- Foreign keys would see to it, too, but a parallel pg_restore fills the tables in any order.
create function pgq._delete_queue(p_id integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgq.start s where s.queue_id = p_id;
    delete from pgq.permit p where p.queue_id = p_id;
    delete from pgq.group_block b where b.queue_id = p_id;
    delete from pgq.schedule s where s.queue_id = p_id;
    delete from pgq.lane l where l.queue_id = p_id;
    delete from pgq.queue q where q.id = p_id;
end
$$;
comment on function pgq._delete_queue(integer) is
'deletes a queue without jobs and grants; the caller holds pgq.queue and pgq.lane';

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
    perform pgq._check_may_drop(name);
    -- Every enqueue reads the lanes, so that none is under way once the locks are had.
    begin
        lock table pgq.queue, pgq.lane in access exclusive mode;
    exception when lock_not_available then
        raise exception 'queue "%" cannot be dropped while a transaction is open that has used pgq',
                name
            using errcode = 'lock_not_available',
                  hint = 'Try again; pg_stat_activity shows transactions that stay open.';
    end;
    v_id := pgq._queue_id(name, 'manage');
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
    perform pgq._note_ended(array_agg(pgq._bare(j)))
       from pgq.lane l join pgq.job j on j.lane = l.id
      where l.queue_id = v_id and (j.is_awaited or j.wait is not null);
    -- A delete that waits for a transaction which moves a job does not see where to.
    while exists (
        select from pgq.lane l join pgq.job j on j.lane = l.id where l.queue_id = v_id
    ) loop
        delete from pgq.job j using pgq.lane l where j.lane = l.id and l.queue_id = v_id;
    end loop;
    delete from pgq.archive a where a.queue = name and a.state = 'dead';
    perform pgq._drop_grants(v_id);
    perform pgq._delete_queue(v_id);
    perform pgq._use_pg_cron();
end
$$;
revoke all on function @extschema@.pgq_drop_queue(text, boolean) from public;
comment on function @extschema@.pgq_drop_queue(text, boolean) is
'Drops a queue and its schedules. Completed and cancelled jobs stay in the archive until they '
'expire, and are shown to those who may observe all queues; they are not of a new queue of that '
'name. For tables that are watched for it call pgq_unwatch, or their inserts fail. Until its '
'transaction ends, all calls of others wait: commit at once. force: also if it holds live or dead '
'jobs, which are deleted. Errors: 42704 unknown queue; 55006 it holds jobs; 55P03 some transaction '
'that has used pgq stayed open for 200 ms; 25001 under REPEATABLE READ and SERIALIZABLE.';
