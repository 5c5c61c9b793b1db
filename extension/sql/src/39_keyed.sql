/*
 * Enqueue with dedupe or group keys.
 */

create function pgq._check_keys(p_name text, p_keys text[], p_payloads jsonb[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_key text;
begin
    if p_keys is null then
        return;
    end if;
    perform pgq._check_array(p_name, p_keys, true);
    perform pgq._check_lengths(p_name, cardinality(p_keys), 'payloads', cardinality(p_payloads));
    select k into v_key from unnest(p_keys) k where length(k) not between 1 and 250;
    if found then
        raise exception 'a key in "%" must have 1 to 250 characters, not %', p_name, length(v_key)
            using errcode = 'invalid_parameter_value',
                  hint = 'A long key can be hashed, for example with sha256().';
    end if;
end
$$;
comment on function pgq._check_keys(text, text[], jsonb[]) is
'raises 22023; null passes, as the array or as a key';

create function pgq._draw_ids(p_at pgq.target, p_number integer, p_grouped boolean)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._open_slot(p_at.slot);
    perform pgq._open_slot(p_at.parked) where p_grouped;
    return array(select nextval('pgq.job_id') from generate_series(1, p_number));
end
$$;
comment on function pgq._draw_ids(pgq.target, integer, boolean) is
'ids of jobs that are about to be inserted there; the slots are locked for writing first, for '
'p_grouped the parked one, too';

create function pgq._note_added(
    p_at pgq.target, p_ids bigint[], p_group_ids bigint[], p_waiting bigint[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._note_groups(
                array_agg(n.group_id), array_agg(n.id),
                array_agg(case when w.id is null then p_at.slot else smallint '-2' end),
                array_agg(p_at.lane)
            )
       from (select g.group_id, min(g.id) as id
               from unnest(p_group_ids, p_ids) g (group_id, id)
              where g.group_id is not null group by g.group_id) n
       left join unnest(p_waiting) w (id) on w.id = n.id;
end
$$;
comment on function pgq._note_added(pgq.target, bigint[], bigint[], bigint[]) is
'pgq._note_groups for jobs that have just been added, of which some wait';

create function pgq._add_keyed(
    p_at pgq.target, p_ids bigint[], p_payloads jsonb[], p_dedupe_keys text[], p_group_keys text[],
    p_max_attempts integer, p_headers jsonb, p_start_by timestamptz, p_after boolean
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_hashjoin = on
set enable_mergejoin = on
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_due constant bigint := pgq._us(greatest(p_at.run_at, v_now));
    v_xid constant bigint := pg_current_xact_id()::text::bigint;
    v_waits constant boolean := p_at.run_at is not null or not pgq._read_committed();
    v_group_ids constant bigint[] := pgq._group_ids(p_at.queue_id, p_group_keys);
    v_idle bigint[];
    v_waiting bigint[];
begin
    if v_group_ids is not null and not v_waits then
        v_idle := pgq._idle_groups(
            p_at, array(select distinct g from unnest(v_group_ids) g where g is not null)
        );
    end if;
    v_waiting := array(
        select g.id
          from (select u.*, row_number() over (partition by u.group_id order by u.id) > 1 as later
                  from unnest(p_ids, v_group_ids) u (id, group_id)) g
          left join unnest(v_idle) i (id) on i.id = g.group_id
         where p_after or (g.group_id is not null and (i.id is null or g.later))
    );
    insert into pgq.job (
        id, enqueued_at, lane, slot, max_attempts, run_at, due, lease_expires_at, payload, headers,
        dedupe_key, dedupe_queue_id, group_key, group_id, wait, start_by
    )
    select g.id, v_now, p_at.lane, case when w.id is null then p_at.slot else p_at.parked end,
           p_max_attempts, p_at.run_at,
           case when w.id is not null then null
                when g.group_id is not null then v_xid
                when p_at.run_at is not null
                then v_due + g.id {spread} end,
           case when g.group_id is not null and w.id is null then timestamptz 'infinity' end,
           g.payload, p_headers, g.key, case when g.key is not null then p_at.queue_id end,
           g.group_key, g.group_id, w.id, p_start_by
      from unnest(p_ids, p_payloads, p_dedupe_keys, p_group_keys, v_group_ids)
           g (id, payload, key, group_key, group_id)
      left join unnest(v_waiting) w (id) on w.id = g.id;
    perform pgq._note_added(p_at, p_ids, v_group_ids, v_waiting);
    perform pgq._wake_lane(p_at.lane, p_at.run_at)
      where p_at.is_awaited and not p_after and p_ids <> '{}';
end
$$;
comment on function
    pgq._add_keyed(
        pgq.target, bigint[], jsonb[], text[], text[], integer, jsonb, timestamptz, boolean
    ) is
'inserts jobs with drawn ids where pgq._target says (p_at); notes their groups. p_after: they wait '
'for jobs';

create function pgq._pick_free(
    p_payloads jsonb[], p_dedupe_keys text[], p_group_keys text[], p_taken bigint[],
    p_last boolean, out payloads jsonb[], out dedupe_keys text[], out group_keys text[],
    out places bigint[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    select array_agg(g.payload order by g.n), array_agg(g.key order by g.n),
           case when p_group_keys is not null then array_agg(g.group_key order by g.n) end,
           array_agg(g.n order by g.n)
      into payloads, dedupe_keys, group_keys, places
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
'of each dedupe key that is not taken the first payload, or the last one, and all that have none; '
'places: which of p_payloads these are';

create function pgq._add_jobs(
    p_at pgq.target, p_payloads jsonb[], p_dedupe_keys text[], p_group_keys text[],
    p_max_attempts integer, p_headers jsonb, p_start_by timestamptz, p_after bigint[],
    p_on_dead text, p_is_hopeless boolean
)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_number constant integer := coalesce(cardinality(p_payloads), 0);
    v_after constant boolean := p_after <> '{}';
    v_ids bigint[];
begin
    perform pgq._check_bounds(p_at.queue_id, null, v_number)
      where p_at.is_bounded and p_at.run_at is null and not v_after;
    v_ids := pgq._draw_ids(p_at, v_number, p_group_keys is not null or v_after);
    perform pgq._add_keyed(
        p_at, v_ids, p_payloads, p_dedupe_keys, p_group_keys, p_max_attempts, p_headers, p_start_by,
        v_after
    );
    perform pgq._add_dependencies(v_ids, p_at.lane, p_after, p_is_hopeless, p_on_dead);
    return v_ids;
end
$$;
comment on function
    pgq._add_jobs(
        pgq.target, jsonb[], text[], text[], integer, jsonb, timestamptz, bigint[], text, boolean
    ) is
'adds jobs that wait for those in p_after (from pgq._await), if there are any; returns their ids';

create function pgq._check_keyed(
    p_queue_id integer, p_payloads jsonb[], p_dedupe_keys text[], p_group_keys text[],
    p_expires_at timestamptz, p_after bigint[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_keys('dedupe_keys', p_dedupe_keys, p_payloads),
            pgq._check_keys('group_keys', p_group_keys, p_payloads),
            pgq._check_after(p_after, p_group_keys);
    if not isfinite(p_expires_at) then
        raise exception '"expires_at" must be finite'
            using errcode = 'invalid_parameter_value';
    end if;
    if p_expires_at not between pgq._now() - interval '1000 years'
                            and pgq._now() + interval '1000 years'
    then
        raise exception '"expires_at" must be within 1000 years, not %', p_expires_at
            using errcode = 'invalid_parameter_value';
    end if;
    perform pgq._check_bounds(p_queue_id, p_payloads, 0);
end
$$;
comment on function
    pgq._check_keyed(integer, jsonb[], text[], text[], timestamptz, bigint[]) is
'raises what pgq_enqueue says of the arguments that plain jobs do not have';

create function pgq._enqueue_keyed(
    p_payloads jsonb[], p_queue text, p_priority integer, p_run_at timestamptz,
    p_dedupe_keys text[], p_group_keys text[], p_max_attempts integer, p_headers jsonb,
    p_on_duplicate text, p_expires_at timestamptz, p_after bigint[], p_after_on_dead text,
    p_is_row boolean default false
)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = on
set enable_mergejoin = on
as $$
declare
    v_queue_id constant integer := (select q.id from pgq.queue q where q.name = p_queue);
    v_at pgq.target; v_after bigint[]; v_is_hopeless boolean;
    v_taken bigint[]; v_ids bigint[]; v_free record;
begin
    perform pgq._check_keyed(
                v_queue_id, p_payloads, p_dedupe_keys, p_group_keys, p_expires_at, p_after
            ), pgq._lock_keys(v_queue_id, p_dedupe_keys, p_is_row);
    select a.open, a.is_hopeless into v_after, v_is_hopeless from pgq._await(p_after) a;
    v_at := pgq._target(
        p_queue, p_priority, p_run_at, p_max_attempts, p_headers, p_expires_at is not null
    );
    v_at.is_awaited := true;  -- who goes to sleep until the slot is locked is looked for then
    if p_dedupe_keys is null then
        return pgq._add_jobs(
            v_at, p_payloads, null, p_group_keys, p_max_attempts, p_headers, p_expires_at, v_after,
            p_after_on_dead, v_is_hopeless
        );
    end if;
    v_taken := pgq._without_late(v_queue_id, pgq._live_keys(v_queue_id, p_dedupe_keys));
    if p_on_duplicate = 'replace' then
        v_taken := pgq._replace_live(p_payloads, v_at.run_at, v_taken);
    end if;
    v_taken := pgq._held_keys(v_queue_id, p_dedupe_keys, v_taken);
    v_free := pgq._pick_free(
        p_payloads, p_dedupe_keys, p_group_keys, v_taken, p_on_duplicate = 'replace'
    );
    v_ids := pgq._add_jobs(
        v_at, v_free.payloads, v_free.dedupe_keys, v_free.group_keys, p_max_attempts, p_headers,
        p_expires_at, v_after, p_after_on_dead, v_is_hopeless
    );
    v_ids := array(
        select coalesce(g.taken, p.id, f.id)
          from unnest(p_dedupe_keys, v_taken) with ordinality g (key, taken, n)
          left join unnest(v_free.places, v_ids) p (n, id) on p.n = g.n
          left join unnest(v_free.dedupe_keys, v_ids) f (key, id) on f.key = g.key collate "C"
         order by g.n
    );
    perform pgq._raise_duplicate(p_queue, p_dedupe_keys, v_taken, v_ids)
      where p_on_duplicate = 'error';
    return v_ids;
end
$$;
comment on function
    pgq._enqueue_keyed(
        jsonb[], text, integer, timestamptz, text[], text[], integer, jsonb, text, timestamptz,
        bigint[], text, boolean
    ) is
'enqueues jobs with dedupe keys, group keys, a time to start by or jobs to wait for (null: '
'without); returns for each the id of the job that has the dedupe key now';
