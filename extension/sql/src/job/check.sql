/*
 * What pgq_enqueue and pgq_enqueue_many refuse, and the lease of a claim or heartbeat.
 */

create function pgq._lease_ms(p_timeout interval)
returns integer
language plpgsql
immutable
as $$
declare
    v_ms constant numeric := extract(epoch from p_timeout) * 1000;
begin
    if p_timeout > '0' and p_timeout <= '24 days' and v_ms between 1 and 2073600000 then
        return ceil(v_ms)::integer;
    end if;
    perform pgq._check_interval('timeout', p_timeout, false);
    if p_timeout > '24 days' or v_ms > 2073600000 then
        raise exception '"timeout" must be at most 24 days, not %', p_timeout
            using errcode = 'invalid_parameter_value',
                  hint = 'A lease is renewed with pgq_heartbeat for as long as the job runs.';
    end if;
    return case when p_timeout is not null then 1 end;
end
$$;
comment on function pgq._lease_ms(interval) is
'A checked lease in milliseconds, at least 1; null for null.';

create function pgq._check_settings_of_job(
    p_priority integer, p_run_at timestamptz, p_max_attempts integer, p_headers jsonb
)
returns void
language plpgsql
as $$
begin
    perform pgq._check_not_null('priority', p_priority is null);
    if p_priority not between -32768 and 32767 then
        raise exception '"priority" must be between -32768 and 32767, not %', p_priority
            using errcode = 'numeric_value_out_of_range';
    end if;
    if p_run_at = '-infinity' or p_run_at > pgq._now() + interval '1000 years' then
        raise exception '"run_at" must be within 1000 years, not %', p_run_at
            using errcode = 'invalid_parameter_value';
    end if;
    if jsonb_typeof(p_headers) <> 'object' then
        raise exception '"headers" must be a JSON object, not %', jsonb_typeof(p_headers)
            using errcode = 'invalid_parameter_value';
    end if;
    perform pgq._check_range('max_attempts', p_max_attempts, 1, 32767),
            pgq._check_size('headers', array[p_headers], 1048576);
end
$$;
comment on function pgq._check_settings_of_job(integer, timestamptz, integer, jsonb) is
'Raises 22004, 22003, 22023 or 54000 for bad settings of a job.

Null passes, but for the priority.';

create function pgq._check_keys(p_name text, p_keys text[], p_payloads jsonb[])
returns void
language plpgsql
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
'Raises 22023; null passes, as the array or as a key.';

create function pgq._check_keyed(
    p_queue_id integer, p_payloads jsonb[], p_dedupe_keys text[], p_group_keys text[],
    p_on_duplicate text, p_expires_at timestamptz, p_after bigint[], p_after_on_dead text
)
returns void
language plpgsql
as $$
begin
    perform pgq._check_not_null('on_duplicate', p_on_duplicate is null),
            pgq._check_not_null('after_on_dead', p_after_on_dead is null);
    if p_on_duplicate not in ('keep', 'replace', 'error') then
        raise exception '"on_duplicate" must be keep, replace or error, not "%"', p_on_duplicate
            using errcode = 'invalid_parameter_value';
    end if;
    if p_after_on_dead not in ('die', 'wait', 'run') then
        raise exception '"after_on_dead" must be die, wait or run, not "%"', p_after_on_dead
            using errcode = 'invalid_parameter_value';
    end if;
    perform pgq._check_keys('dedupe_keys', p_dedupe_keys, p_payloads),
            pgq._check_keys('group_keys', p_group_keys, p_payloads),
            pgq._check_after(p_after, p_group_keys);
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
    pgq._check_keyed(integer, jsonb[], text[], text[], text, timestamptz, bigint[], text) is
'Raises what pgq_enqueue says of the arguments that plain jobs do not have.';
