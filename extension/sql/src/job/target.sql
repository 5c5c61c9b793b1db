/*
 * Enqueue where it is not the ordinary case: times, keys, groups, jobs to wait for.
 */

create function pgq._target(
    p_queue text, p_priority integer, p_run_at timestamptz, p_max_attempts integer, p_headers jsonb
)
returns pgq.target
language plpgsql
as $$
declare
    v_at pgq.target;
begin
    perform pg_current_xact_id(),
            pgq._check_settings_of_job(p_priority, p_run_at, p_max_attempts, p_headers);
    select q.id, l.id, r.live[cardinality(r.live)], r.parked[cardinality(r.parked)],
           case when p_run_at > pgq._now() then p_run_at end, q.is_bounded,
           l.id is null or l.awaited_until > pgq._now() or not pgq._read_committed()
      into v_at
      from pgq.queue q
      left join lateral (
              select l.id, l.awaited_until from pgq.lane l
               where l.queue_id = q.id and l.priority = p_priority limit 1
           ) l on true,
           lateral (select r.live, r.parked from pgq.ring r order by r.gen desc limit 1) r
     where q.name = p_queue;
    if not found then
        perform pgq._raise_unknown_queue(p_queue, 'enqueue');
    end if;
    -- An old snapshot may show a queue that has been dropped; locking its row tells (40001). And a
    -- drop must find all lanes.
    if v_at.lane is null or not pgq._read_committed() then
        perform pgq._hold_queue(p_queue, v_at.queue_id, 'enqueue');
    end if;
    if v_at.lane is null then
        v_at.lane := pgq._add_lane(v_at.queue_id, p_priority::smallint);
    end if;
    return v_at;
end
$$;
comment on function pgq._target(text, integer, timestamptz, integer, jsonb) is
'Checks what all jobs share and says where they go.

run_at comes back null for now.';

create function pgq._add_jobs(
    p_at pgq.target, p_payloads jsonb[], p_dedupe_keys text[], p_group_keys text[],
    p_max_attempts integer, p_headers jsonb, p_start_by timestamptz, p_waits boolean
)
returns bigint[]
language plpgsql
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_group_ids constant bigint[] := pgq._group_ids(p_at.queue_id, p_group_keys);
    v_is_parked constant boolean := p_waits or p_at.run_at is not null;
    v_ids bigint[]; v_groups bigint[]; v_places bigint[];
begin
    if coalesce(cardinality(p_payloads), 0) = 0 then
        return array[]::bigint[];
    end if;
    if v_is_parked or v_group_ids is not null then
        perform pgq._open(p_at.parked);
    end if;
    if not v_is_parked
        and (v_group_ids is null or array_position(v_group_ids, null) is not null)
    then
        perform pgq._open(p_at.slot);
    end if;
    with added as (
        insert into pgq.job as j (
            id, pos, enqueued_at, lane, slot, max_attempts, run_at, start_by, due, group_id, place,
            payload, headers, dedupe_key, dedupe_queue_id, group_key
        )
        select n.id, case when not n.is_parked then n.id end, v_now, p_at.lane,
               case when n.is_parked then p_at.parked else p_at.slot end, p_max_attempts,
               p_at.run_at, p_start_by,
               case when n.group_id is null and not p_waits and n.is_parked
                    then pgq._due(p_at.run_at) end,
               n.group_id, case when n.group_id is not null then 2 * n.id end, n.payload, p_headers,
               n.key, case when n.key is not null then p_at.queue_id end, n.group_key
          from (
                   select nextval('pgq.number') as id, u.payload, u.key, u.group_key, u.group_id,
                          v_is_parked or u.group_id is not null as is_parked
                     from unnest(p_payloads, p_dedupe_keys, p_group_keys, v_group_ids)
                          u (payload, key, group_key, group_id)
               ) n
        returning j.id, j.group_id, j.place
    )
    select array_agg(a.id), array_agg(a.group_id) filter (where a.group_id is not null),
           array_agg(-a.place) filter (where a.group_id is not null)
      into v_ids, v_groups, v_places from added a;
    perform pgq._note(p_at.parked, 'g', v_groups, v_places);
    perform pgq._expect(p_at.run_at) where p_at.run_at is not null and not p_waits;
    perform pgq._wake_lane(p_at.lane, p_at.run_at) where p_at.is_awaited and not p_waits;
    return v_ids;
end
$$;
comment on function
    pgq._add_jobs(pgq.target, jsonb[], text[], text[], integer, jsonb, timestamptz, boolean) is
'Inserts jobs where pgq._target says (p_at) and returns their ids, in order.

p_waits: they wait for other jobs.';

create function pgq._pick_free(
    p_payloads jsonb[], p_dedupe_keys text[], p_group_keys text[], p_taken bigint[],
    p_last boolean, out payloads jsonb[], out dedupe_keys text[], out group_keys text[],
    out ordinals bigint[]
)
language plpgsql
as $$
begin
    select array_agg(g.payload order by g.n), array_agg(g.key order by g.n),
           case when p_group_keys is not null then array_agg(g.group_key order by g.n) end,
           array_agg(g.n order by g.n)
      into payloads, dedupe_keys, group_keys, ordinals
      from (
               select distinct on (u.key collate "C", case when u.key is null then u.n end) u.*
                 from unnest(p_payloads, p_dedupe_keys, p_group_keys, p_taken)
                      with ordinality u (payload, key, group_key, taken, n)
                where u.taken is null
                order by u.key collate "C", case when u.key is null then u.n end,
                         case when p_last then -u.n else u.n end
           ) g;
end
$$;
comment on function pgq._pick_free(jsonb[], text[], text[], bigint[], boolean) is
'Picks one payload of each dedupe key that is not taken: the first, or the last.

All that have no key are picked, too. ordinals: which of p_payloads these are.';

create function pgq._to_change(p_queue_id integer, p_keys text[], p_on_duplicate text)
returns bigint[]
language plpgsql
as $$
begin
    return array_remove(array(
        select j.id from unnest(pgq._live_keys(p_queue_id, p_keys)) l (id), pgq._find(l.id) j
         where p_on_duplicate = 'replace' or pgq._is_late(j)
    ), null);
end
$$;
comment on function pgq._to_change(integer, text[], text) is
'Returns the live jobs with these keys that an enqueue is about to change.

It replaces them, or they are late to start. The caller has locked the keys.';

create function pgq._enqueue(
    p_payloads jsonb[], p_queue text, p_priority integer, p_run_at timestamptz,
    p_dedupe_keys text[], p_group_keys text[], p_max_attempts integer, p_headers jsonb,
    p_on_duplicate text, p_expires_at timestamptz, p_after bigint[], p_after_on_dead text,
    p_is_row boolean default null
)
returns setof bigint
language plpgsql
as $$
declare
    v_queue_id integer; v_at pgq.target; v_waits_for pgq.awaited; v_taken bigint[];
    v_free pgq.picked;
    v_ids bigint[];
begin
    -- A watched row is enqueued on behalf of the owner of its table, who has been looked at.
    v_queue_id := case when p_is_row is null then pgq._queue_id(p_queue, 'enqueue')
                       else (select q.id from pgq.queue q where q.name = p_queue) end;
    perform pgq._check_keyed(
                v_queue_id, p_payloads, p_dedupe_keys, p_group_keys, p_on_duplicate, p_expires_at,
                p_after, p_after_on_dead
            ),
            pgq._lock_keys(v_queue_id, p_dedupe_keys, p_is_row);
    v_waits_for := pgq._await(p_after, p_after_on_dead, case
        when cardinality(p_after) > 0
        then pgq._to_change(v_queue_id, p_dedupe_keys, p_on_duplicate) end);
    v_at := pgq._target(p_queue, p_priority, p_run_at, p_max_attempts, p_headers);
    -- Who goes to sleep until the slot is locked is looked for then.
    v_at.is_awaited := v_at.is_awaited or num_nonnulls(p_dedupe_keys, p_after) > 0
        or v_at.is_bounded;
    if p_dedupe_keys is not null then
        v_taken := pgq._without_late(pgq._live_keys(v_queue_id, p_dedupe_keys));
        if p_on_duplicate = 'replace' then
            v_taken := pgq._replace_live(p_payloads, v_at.run_at, v_taken);
        end if;
        v_taken := pgq._held_keys(v_queue_id, p_dedupe_keys, v_taken);
        v_free := pgq._pick_free(
            p_payloads, p_dedupe_keys, p_group_keys, v_taken, p_on_duplicate = 'replace'
        );
    else
        v_free := row(
            p_payloads, null::text[], p_group_keys, null::bigint[]
        )::pgq.picked;
    end if;
    perform pgq._check_bounds(v_at.queue_id, null, cardinality(v_free.payloads))
      where v_at.is_bounded and v_at.run_at is null and v_waits_for.open is null;
    v_ids := pgq._add_jobs(
        v_at, v_free.payloads, v_free.dedupe_keys, v_free.group_keys, p_max_attempts, p_headers,
        p_expires_at, v_waits_for.open is not null
    );
    perform pgq._add_dependencies(v_ids, v_at, v_waits_for, p_after_on_dead)
      where v_waits_for.open is not null;
    if p_dedupe_keys is not null then
        v_ids := array(
            select coalesce(g.taken, p.id, f.id)
              from unnest(p_dedupe_keys, v_taken) with ordinality g (key, taken, n)
              left join unnest(v_free.ordinals, v_ids) p (n, id) on p.n = g.n
              left join unnest(v_free.dedupe_keys, v_ids) f (key, id) on f.key = g.key collate "C"
             order by g.n
        );
        perform pgq._raise_duplicate(p_queue, p_dedupe_keys, v_taken, v_ids)
          where p_on_duplicate = 'error';
    end if;
    return query select unnest(v_ids);
end
$$;
comment on function
    pgq._enqueue(
        jsonb[], text, integer, timestamptz, text[], text[], integer, jsonb, text, timestamptz,
        bigint[], text, boolean
    ) is
'Adds jobs as pgq_enqueue_many does, in all cases.

With dedupe keys it returns for each payload the job that has the key now. p_is_row: see
pgq._lock_keys.';
