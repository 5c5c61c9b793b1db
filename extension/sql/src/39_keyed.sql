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
    perform pgq._check_array(p_name, p_keys);
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
'raises 22004 and 22023; a null array passes';

create function pgq._check_on_duplicate(p_value text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null('on_duplicate', p_value is null);
    if p_value not in ('keep', 'replace', 'error') then
        raise exception '"on_duplicate" must be keep, replace or error, not "%"', p_value
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
comment on function pgq._check_on_duplicate(text) is 'raises 22004 and 22023';

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
'groups the parked one, too';

create function pgq._add_keyed(
    p_at pgq.target, p_ids bigint[], p_payloads jsonb[], p_dedupe_keys text[], p_group_keys text[],
    p_max_attempts integer, p_headers jsonb
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_xid constant bigint := pg_current_xact_id()::text::bigint;
    v_waits constant boolean := p_at.run_at is not null or not pgq._read_committed();
    v_busy bigint[] := array[]::bigint[];
    v_group_ids bigint[];
begin
    if p_group_keys is not null then
        v_group_ids := array(
            select pgq._group_id(p_at.queue_id, k) from unnest(p_group_keys) k
        );
        if not v_waits then
            v_busy := pgq._busy_groups(array(select distinct g from unnest(v_group_ids) g));
        end if;
    end if;
    with given as (
        select g.*, g.group_id is not null and (
                   v_waits or g.group_id = any (v_busy)
                   or row_number() over (partition by g.group_id order by g.id) > 1
               ) as waits
          from unnest(p_ids, p_payloads, p_dedupe_keys, p_group_keys, v_group_ids)
               g (id, payload, key, group_key, group_id)
    )
    insert into pgq.job (
        id, enqueued_at, lane, slot, max_attempts, run_at, due, lease_expires_at, payload, headers,
        dedupe_key, dedupe_queue_id, group_key, group_id, wait
    )
    select g.id, v_now, p_at.lane, case when g.waits then p_at.parked else p_at.slot end,
           p_max_attempts, p_at.run_at,
           case when g.waits then null
                when g.group_id is not null then v_xid
                when p_at.run_at is not null
                then pgq._due(greatest(p_at.run_at, v_now), g.id) end,
           case when g.group_id is not null and not g.waits then timestamptz 'infinity' end,
           g.payload, p_headers, g.key, case when g.key is not null then p_at.queue_id end,
           g.group_key, g.group_id, case when g.waits then g.id end
      from given g;
    perform pgq._note_groups(
                array_agg(n.group_id), array_agg(n.id),
                array_agg(case when v_waits or n.group_id = any (v_busy) then smallint '-1'
                               else p_at.slot end),
                array_agg(p_at.lane)
            )
       from (select g.group_id, min(g.id) as id
               from unnest(v_group_ids, p_ids) g (group_id, id)
              where g.group_id is not null group by g.group_id) n;
end
$$;
comment on function
    pgq._add_keyed(pgq.target, bigint[], jsonb[], text[], text[], integer, jsonb) is
'inserts jobs with keys, with drawn ids, where pgq._target says (p_at); notes their groups';

create function pgq._pick_free(
    p_payloads jsonb[], p_dedupe_keys text[], p_group_keys text[], p_taken bigint[],
    p_last boolean, out payloads jsonb[], out dedupe_keys text[], out group_keys text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    select array_agg(g.payload order by g.n), array_agg(g.key order by g.n),
           array_agg(g.group_key order by g.n) filter (where g.group_key is not null)
      into payloads, dedupe_keys, group_keys
      from (
               select distinct on (u.key collate "C") u.*
                 from unnest(p_payloads, p_dedupe_keys, p_group_keys, p_taken)
                      with ordinality u (payload, key, group_key, taken, n)
                where u.taken is null
                order by u.key collate "C", case when p_last then -u.n else u.n end
           ) g;
end
$$;
comment on function pgq._pick_free(jsonb[], text[], text[], bigint[], boolean) is
'of each dedupe key that is not taken the first payload, or the last one';

create function pgq._enqueue_keyed(
    p_payloads jsonb[], p_queue text, p_priority integer, p_run_at timestamptz,
    p_dedupe_keys text[], p_group_keys text[], p_max_attempts integer, p_headers jsonb,
    p_on_duplicate text
)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = on
set enable_mergejoin = on
as $$
declare
    v_queue_id constant integer := pgq._queue_id(p_queue);
    v_at pgq.target;
    v_payloads jsonb[]; v_dedupe_keys text[]; v_group_keys text[];
    v_taken bigint[]; v_ids bigint[]; v_all bigint[];
begin
    perform pgq._check_keys('dedupe_keys', p_dedupe_keys, p_payloads),
            pgq._check_keys('group_keys', p_group_keys, p_payloads),
            pgq._check_on_duplicate(p_on_duplicate), pgq._lock_keys(v_queue_id, p_dedupe_keys);
    v_at := pgq._target(p_queue, p_priority, p_run_at, p_max_attempts, p_headers);
    if p_dedupe_keys is null then
        v_all := pgq._draw_ids(v_at, cardinality(p_payloads), true);
        perform pgq._add_keyed(
            v_at, v_all, p_payloads, null, p_group_keys, p_max_attempts, p_headers
        );
        return v_all;
    end if;
    v_taken := pgq._live_keys(v_queue_id, p_dedupe_keys);
    if p_on_duplicate = 'replace' then
        v_taken := pgq._replace_live(p_payloads, v_at.run_at, v_taken);
    end if;
    v_taken := pgq._held_keys(v_queue_id, p_dedupe_keys, v_taken);
    select f.payloads, f.dedupe_keys, f.group_keys
      into v_payloads, v_dedupe_keys, v_group_keys
      from pgq._pick_free(
               p_payloads, p_dedupe_keys, p_group_keys, v_taken, p_on_duplicate = 'replace'
           ) f;
    v_ids := pgq._draw_ids(
        v_at, coalesce(cardinality(v_payloads), 0), v_group_keys is not null
    );
    perform pgq._add_keyed(
        v_at, v_ids, v_payloads, v_dedupe_keys, v_group_keys, p_max_attempts, p_headers
    );
    v_all := array(
        select coalesce(g.taken, f.id)
          from unnest(p_dedupe_keys, v_taken) with ordinality g (key, taken, n)
          left join unnest(v_dedupe_keys, v_ids) f (key, id) on f.key = g.key collate "C"
         order by g.n
    );
    if p_on_duplicate = 'error' then
        perform pgq._raise_duplicate(p_queue, p_dedupe_keys, v_taken, v_all);
    end if;
    return v_all;
end
$$;
comment on function
    pgq._enqueue_keyed(
        jsonb[], text, integer, timestamptz, text[], text[], integer, jsonb, text
    ) is
'enqueues jobs with dedupe keys, group keys (null: without) or both; returns for each the id of '
'the job that has the dedupe key now';
