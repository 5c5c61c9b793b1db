/*
 * Public: pgq_reclaim.
 */

create function pgq._reclaim(
    p_queue_id integer, p_batch integer, p_window integer, p_exhausted boolean
)
returns setof bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_slot smallint;
    v_lane record;
    v_ids bigint[];
    v_left integer := p_batch;
begin
    foreach v_slot in array pgq._slots() loop
        for v_lane in
            select l.id, q.max_attempts
              from pgq.lane l
              join pgq.queue q on q.id = l.queue_id
             where p_queue_id is null or q.id = p_queue_id
             order by l.id
        loop
            v_ids := pgq._take_expired(
                v_slot, v_lane.id, v_left, p_window, v_now, v_lane.max_attempts, p_exhausted
            );
            if v_ids <> '{}' then
                return query select e.* from pgq._expire(v_slot, v_lane.id, v_ids) e;
                v_left := v_left - cardinality(v_ids);
                if v_left = 0 then
                    return;
                end if;
            end if;
        end loop;
    end loop;
end
$$;
comment on function pgq._reclaim(integer, integer, integer, boolean) is
'takes back expired leases of a queue (null: of all), and returns the ids; see pgq._take_expired';

create function @extschema@.pgq_reclaim(
    queue text default null,
    max integer default 1000
)
returns setof bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_batch('max', max);
    return query
    select r.*
      from pgq._reclaim(
               case when queue is not null then pgq._queue_id(queue) end, max, null, false
           ) r;
end
$$;
revoke all on function @extschema@.pgq_reclaim(text, integer) from public;
comment on function @extschema@.pgq_reclaim(text, integer) is
'Takes back up to max expired leases of a queue, or of all, and returns the ids of the jobs: '
'each is ready again or, without an attempt left, dead. Not needed for progress: pgq_dequeue '
'claims expired jobs by itself. Errors: 42704 unknown queue; 22004 and 22023 max.';
