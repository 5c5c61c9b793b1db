/*
 * Public: pgq_pause, pgq_resume, pgq_unblock.
 */

create function pgq._set_paused(p_queue text, p_paused boolean)
returns void
language plpgsql
as $$
declare
    v_id constant integer := pgq._queue_id(p_queue, 'manage');
begin
    update pgq.queue q set paused = p_paused where q.id = v_id;
    perform pgq._raise_unknown_queue(p_queue, 'manage') where not found;  -- dropped meanwhile
    perform pgq._wake(v_id) where not p_paused;
end
$$;
comment on function pgq._set_paused(text, boolean) is 'For pgq_pause and pgq_resume.';

create function @extschema@.pgq_pause(queue text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._set_paused(queue, true);
end
$$;
revoke all on function @extschema@.pgq_pause(text) from public;
comment on function @extschema@.pgq_pause(text) is
'Stops claims of jobs of a queue until pgq_resume.

Running jobs go on, and enqueue works.

Errors:

* 22004: the queue is null.
* 42704: there is no such queue.';

create function @extschema@.pgq_resume(queue text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._set_paused(queue, false);
end
$$;
revoke all on function @extschema@.pgq_resume(text) from public;
comment on function @extschema@.pgq_resume(text) is
'Lets the jobs of a paused queue be claimed again.

Errors:

* 22004: the queue is null.
* 42704: there is no such queue.';

create function @extschema@.pgq_unblock(queue text, group_key text)
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
    v_group_id bigint;
begin
    perform pgq._check_not_null('group_key', group_key is null);
    v_group_id := (pgq._group_ids(pgq._queue_id(queue, 'manage'), array[group_key]))[1];
    return pgq._unblock(array(
        select j.id from pgq.job j
         where j.slot in (4, 5) and j.group_id = v_group_id and j.place is not null and j.is_blocked
    ));
end
$$;
revoke all on function @extschema@.pgq_unblock(text, text) from public;
comment on function @extschema@.pgq_unblock(text, text) is
'Lets a group go on that waits because one of its jobs has died.

Such a group waits where group_on_dead is block. The dead job stays dead.

* Returns false if the group is not blocked.

Errors:

* 22004: an argument is null.
* 42704: there is no such queue.';
