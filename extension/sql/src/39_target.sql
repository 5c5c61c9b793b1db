/*
 * Enqueue where it is not the ordinary case: see 40_produce.sql.
 */

create function pgq._check_settings_of_job(
    p_priority integer, p_run_at timestamptz, p_max_attempts integer, p_headers jsonb
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null('priority', p_priority is null);
    if p_priority not between -32768 and 32767 then
        raise exception '"priority" must be between -32768 and 32767, not %', p_priority
            using errcode = 'numeric_value_out_of_range';
    end if;
    if not isfinite(p_run_at) then
        raise exception '"run_at" must be finite'
            using errcode = 'invalid_parameter_value';
    end if;
    if p_run_at > pgq._now() + interval '1000 years' then
        raise exception '"run_at" must be within 1000 years, not %', p_run_at
            using errcode = 'invalid_parameter_value';
    end if;
    if p_max_attempts not between 1 and 32767 then
        raise exception '"max_attempts" must be between 1 and 32767, not %', p_max_attempts
            using errcode = 'invalid_parameter_value';
    end if;
    if jsonb_typeof(p_headers) <> 'object' then
        raise exception '"headers" must be a JSON object, not %', jsonb_typeof(p_headers)
            using errcode = 'invalid_parameter_value';
    end if;
    perform pgq._check_size('headers', array[p_headers], {most_of_headers});
end
$$;
comment on function pgq._check_settings_of_job(integer, timestamptz, integer, jsonb) is
'raises 22004, 22003, 22023 or 54000 for bad settings of a job; null passes, but for the priority';

create function pgq._check_policies(p_on_duplicate text, p_after_on_dead text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null('on_duplicate', p_on_duplicate is null),
            pgq._check_not_null('after_on_dead', p_after_on_dead is null);
    if p_on_duplicate not in ('keep', 'replace', 'error') then
        raise exception '"on_duplicate" must be keep, replace or error, not "%"', p_on_duplicate
            using errcode = 'invalid_parameter_value';
    end if;
    if p_after_on_dead not in ('die', 'wait') then
        raise exception '"after_on_dead" must be die or wait, not "%"', p_after_on_dead
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
comment on function pgq._check_policies(text, text) is
'raises 22004 and 22023, also where there is no dedupe key and nothing to wait for';

create function pgq._target(
    p_queue text, p_priority integer, p_run_at timestamptz, p_max_attempts integer,
    p_headers jsonb, p_expiring boolean default false
)
returns pgq.target
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
declare
    v_at pgq.target;
begin
    perform pg_current_xact_id();
    if p_priority is null or p_priority not between -32768 and 32767
        or p_max_attempts not between 1 and 32767 or p_headers is not null or p_run_at is not null
    then
        perform pgq._check_settings_of_job(p_priority, p_run_at, p_max_attempts, p_headers);
        if p_run_at > pgq._now() then
            v_at.run_at := p_run_at;
        end if;
    end if;
    select q.id, l.id, r.live[cardinality(r.live)], r.parked[cardinality(r.parked)], q.is_bounded,
           l.id is null or l.awaited_until > pgq._now() or not pgq._read_committed()
      into v_at.queue_id, v_at.lane, v_at.slot, v_at.parked, v_at.is_bounded, v_at.is_awaited
      from pgq.queue q
      left join lateral (
              select l.id, l.awaited_until from pgq.lane l
               where l.queue_id = q.id and l.priority = p_priority and l.expiring = p_expiring
               order by l.priority, l.id limit 1
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
        v_at.lane := pgq._add_lane(v_at.queue_id, p_priority::smallint, p_expiring);
    end if;
    if v_at.run_at is not null then
        v_at.slot := v_at.parked;
        perform pgq._admit(v_at.slot, v_at.lane, pgq._us(v_at.run_at));
    end if;
    return v_at;
end
$$;
comment on function pgq._target(text, integer, timestamptz, integer, jsonb, boolean) is
'checks what both forms of enqueue share and says where the jobs go; run_at comes back null for '
'now. p_expiring: they are to start by a time';

create function pgq._enqueue_many(
    p_payloads jsonb[], p_queue text, p_priority integer, p_run_at timestamptz,
    p_dedupe_keys text[], p_group_keys text[], p_max_attempts integer, p_headers jsonb,
    p_on_duplicate text, p_expires_at timestamptz, p_after bigint[], p_after_on_dead text
)
returns setof bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_at pgq.target;
    v_now constant timestamptz := pgq._now();
    v_due bigint;
begin
    perform pgq._queue_id(p_queue, 'enqueue'),
            pgq._check_policies(p_on_duplicate, p_after_on_dead);
    if num_nonnulls(p_dedupe_keys, p_group_keys, p_expires_at, p_after) > 0 then
        return query select unnest(pgq._enqueue_keyed(
            p_payloads, p_queue, p_priority, p_run_at, p_dedupe_keys, p_group_keys,
            p_max_attempts, p_headers, p_on_duplicate, p_expires_at, p_after, p_after_on_dead
        ));
        return;
    end if;
    v_at := pgq._target(p_queue, p_priority, p_run_at, p_max_attempts, p_headers);
    if v_at.is_bounded then
        perform pgq._check_bounds(
            v_at.queue_id, p_payloads,
            case when v_at.run_at is null then cardinality(p_payloads) else 0 end
        );
    end if;
    v_due := pgq._us(greatest(v_at.run_at, pgq._open_slot(v_at.slot)));
    -- The bounds take time, in which somebody may have gone to sleep.
    v_at.is_awaited := v_at.is_awaited or v_at.is_bounded;
    return query
    insert into pgq.job as j (
        id, enqueued_at, lane, slot, max_attempts, run_at, due, payload, headers
    )
    select n.id, v_now, v_at.lane, v_at.slot, p_max_attempts, v_at.run_at,
           case when v_at.run_at is not null then v_due + n.id {spread} end,
           n.payload, p_headers
      from (select nextval('pgq.job_id'), p from unnest(p_payloads) p) n (id, payload)
    returning j.id;
    perform pgq._wake_lane(v_at.lane, v_at.run_at) where v_at.is_awaited;
end
$$;
comment on function
    pgq._enqueue_many(
        jsonb[], text, integer, timestamptz, text[], text[], integer, jsonb, text, timestamptz,
        bigint[], text
    ) is
'pgq_enqueue_many where it is not the ordinary case';
