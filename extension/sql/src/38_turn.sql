/*
 * Which jobs of a group may be claimed: decided at COMMIT, see 38_group.sql.
 */

create function pgq._turn_group(p_group_id bigint, p_from bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_xid constant bigint := pg_current_xact_id()::text::bigint;
    v_from bigint := p_from;
    v_queue pgq.queue;
    v_heads bigint; v_last bigint; v_hint bigint;
    v_job record;
begin
    loop
        v_job := pgq._follower(p_group_id, v_from);
        exit when v_job.id is null;
        -- One that was new when its transaction committed may lie below a floor.
        if v_job.by_xid <> v_xid
            and (pgq._lock(v_job.slot, v_job.lane, v_job.id, true)).id is null
        then
            insert into pgq.group_hint (group_id, id)
            values (p_group_id, least(v_from, v_job.place));
            exit;
        end if;
        if v_heads is null then
            select q.* into v_queue
              from pgq.lane l join pgq.queue q on q.id = l.queue_id where l.id = v_job.lane;
            select case when exists (select from pgq.group_block b where b.group_id = p_group_id)
                        then v_queue.group_concurrency else h.heads end,
                   coalesce(h.last, 0), h.hint
              into v_heads, v_last, v_hint from pgq._heads(v_queue.id, array[p_group_id]) h;
            -- Left since the bucket was locked, by one who has not locked it.
            if v_hint < v_from then
                v_from := v_hint;
                continue;
            end if;
        end if;
        if v_job.by_xid <> v_xid
            or (v_job.by_xid is not null and v_heads >= v_queue.group_concurrency)
        then
            perform pgq._wait(r)
               from pgq._remove(v_job.slot, v_job.lane, array[v_job.id]) r;
            v_from := least(v_from, v_job.id);
        elsif v_heads < v_queue.group_concurrency then
            if pgq._make_heads(v_job.slot, v_job.lane, array[v_job.id]) <> '{}' then
                v_heads := v_heads + 1;
                v_last := greatest(v_last, v_job.id);
            else
                -- Its followers wait with it for whoever is about to cancel or replace it.
                insert into pgq.group_hint (group_id, id) values (p_group_id, v_job.place);
                exit;
            end if;
        else
            if v_job.place < v_last and not pgq._come_late(p_group_id, v_from, v_last) then
                insert into pgq.group_hint (group_id, id) values (p_group_id, v_from);
            end if;
            exit;
        end if;
    end loop;
end
$$;
comment on function pgq._turn_group(bigint, bigint) is
'lets as many jobs of a group be claimed as may be; its bucket is locked. p_from: of the waiting '
'jobs none lies before it';

create function pgq._lock_groups(p_group_ids bigint[], p_skip boolean)
returns setof bigint
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    if p_skip then
        return query
        select g.id
          from (select id, 16384 + (id & 16383)::integer as bucket from unnest(p_group_ids) id
                 order by 2) g,
               lateral (
                   select from pgq.bucket b where b.id = g.bucket for update skip locked
               ) b;
    else
        return query
        select g.id
          from (select id, 16384 + (id & 16383)::integer as bucket from unnest(p_group_ids) id
                 order by 2) g,
               lateral (select from pgq.bucket b where b.id = g.bucket for update) b;
    end if;
end
$$;
comment on function pgq._lock_groups(bigint[], boolean) is
'locks the buckets of groups and returns the groups; p_skip: those that can be had at once';
