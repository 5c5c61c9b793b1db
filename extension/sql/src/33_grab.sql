/*
 * The claim in one queue, priority by priority: what pgq_dequeue does not do by itself.
 */

--@ define granted
c.id, c.token, p_queue, v_queue.priority, 'active', c.attempt::integer,
                   coalesce(c.max_attempts, v_queue.max_attempts), c.payload, c.headers,
                   c.group_key, c.dedupe_key, c.worker, c.enqueued_at,
                   coalesce(c.run_at, c.enqueued_at), c.claimed_at, c.lease_expires_at,
                   c.last_error, false, c.checkpoint
--@ end
--@ define gather
(
                       v_queue.lanes, case when p_tick then v_queue.live else v_queue.ready end,
                       v_queue.parked, v_queue.firsts, p_after, p_until, v_left, v_now,
                       v_queue.max_attempts, p_tick, p_lease_ms, p_worker, v_queue.keep
                   )
--@ end

create function pgq._age_bonus(
    p_queue pgq.queue, p_lanes integer[], p_slots smallint[], p_now timestamptz, p_tick boolean
)
returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_since timestamptz;
begin
    if p_queue.priority_ageing = '0' then
        return 0;
    end if;
    select min(pgq._oldest(s, l, p_now, p_queue.max_attempts, p_tick)) into v_since
      from unnest(p_lanes) l, unnest(p_slots) s;
    -- Intervals of years and days with opposite signs may be above zero and have no seconds.
    return least(65536, floor(coalesce(greatest(
        extract(epoch from p_now - v_since)
            / nullif(extract(epoch from p_queue.priority_ageing), 0), 0
    ), 0)))::integer;
end
$$;
comment on function pgq._age_bonus(pgq.queue, integer[], smallint[], timestamptz, boolean) is
'by how much a priority is raised because its oldest job has been ready for long';

create function pgq._grab(
    p_queue text, p_batch integer, p_lease_ms integer, p_worker text, p_tick boolean default null,
    p_after bigint default 0, p_until bigint default 9223372036854775807,
    p_priority integer default null, p_permitted boolean default false
)
returns setof @extschema@.pgq_job
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_left integer := p_batch; v_count integer;
    v_queue record;
begin
    {check_restricted};
    -- One row per priority; more than one lane only if two sessions used it first at the same time.
    for v_queue in
        select q.max_attempts, q.paused, q.is_limited, q as row, l.priority::integer as priority,
               l.lanes, l.expiring, r.live, r.ready, r.parked, r.firsts,
               greatest(q.keep_completed, q.dedupe_for) > '0' as keep
          from pgq.queue q,
               lateral (select o.* from pgq.ring o order by o.gen desc limit 1) r,
               lateral (
                   select o.priority, array_agg(o.id) as lanes, bool_or(o.expiring) as expiring
                     from pgq.lane o
                    where o.queue_id = q.id and (p_priority is null or o.priority = p_priority)
                    group by o.priority
               ) l
         where q.name = p_queue and ({is_owner} or pgq._may(q.id, 'consume'))
         order by l.priority + pgq._age_bonus(
                      q, l.lanes, r.live || r.parked, v_now, coalesce(p_tick, false)
                  ) desc, l.priority desc
    loop
        p_tick := coalesce(p_tick, pgq._wants_tick(p_lease_ms));
        exit when v_left = 0 or v_queue.paused;
        if v_queue.is_limited and not p_permitted then
            return query
            select g.* from pgq._grab_limited(
                       v_queue.row, p_batch, p_lease_ms, p_worker, p_tick, p_after, p_until
                   ) g;
            return;
        end if;
        if v_queue.expiring then
            return query select {granted} from pgq._gather_in_time{gather} c;
        else
            return query select {granted} from pgq._gather{gather} c;
        end if;
        get diagnostics v_count = row_count;
        v_left := v_left - v_count;
    end loop;
    perform pgq._raise_unknown_queue(p_queue, 'consume') where not found;
    perform pgq._check_moved() where v_left > 0;
end
$$;
comment on function
    pgq._grab(text, integer, integer, text, boolean, bigint, bigint, integer, boolean) is
'leases up to p_batch jobs of a queue, or of one priority of it, with p_after < id < p_until, '
'highest priority first, then in id order. p_permitted: the permits for a queue with limits have '
'been taken';
