/*
 * Public: pgq_reclaim. Ticks take expired leases back by themselves: see core/tick.sql.
 */

create function @extschema@.pgq_reclaim(
    queue text default null,
    max integer default 1000
)
returns setof bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_mine integer[];
    v_slot smallint;
    v_ids bigint[];
    v_left integer := max;
    v_count integer;
begin
    perform pgq._check_batch('max', max);
    v_mine := case when queue is not null then array[pgq._queue_id(queue, 'consume')]
                   else pgq._mine('consume') end;
    foreach v_slot in array '{0,1,2,3}'::smallint[] loop
        exit when v_left = 0;
        continue when pg_relation_size(pgq._slot_table(v_slot)) = 0;
        execute format(
            'select array('
            ' select e.id'
            ' from (select distinct l.id from pgq.lane l where pgq._is_mine(l.id, $1)) l, lateral ('
            ' select j.id from pgq.job_%1$s j'
            ' where j.lane = l.id and j.lease_expires_at <= pgq._now()'
            ' and j.pos > coalesce((select f.base from pgq.floor_%1$s f'
            ' where f.lane = l.id order by f.n desc limit 1), 0)'
            ' order by j.pos limit $2 for update skip locked) e'
            ' limit $2)', v_slot
        ) into v_ids using v_mine, v_left;
        return query select unnest(pgq._reclaim(v_slot, v_ids, pgq._now()));
        get diagnostics v_count = row_count;
        v_left := v_left - v_count;
    end loop;
    perform pgq._check_snapshot();
end
$$;
revoke all on function @extschema@.pgq_reclaim(text, integer) from public;
comment on function @extschema@.pgq_reclaim(text, integer) is
'Takes back up to max expired leases, and returns the ids of the jobs.

Maintenance does so by itself. It can miss leases behind a thousand ready jobs, which claims do
not leave. A job without an attempt left is dead. After the second expired lease in a row the job
is ready after the backoff of the queue. Every other job is ready at once.

* queue: null for all queues that the caller may consume from.

Errors:

* 22004: max is null.
* 22023: max is out of range.
* 42704: there is no such queue.';
