/*
 * Small helpers: settings that pin plans, the clock, checks of arguments, and lanes.
 */

-- Plans are cached, and some are made while a slot is empty or was truncated a moment ago: they are
-- to be index scans then, too. A setting costs each call some 2,000 instructions: what is called by
-- functions that have them, and by no others, does without.
--@ define index_scans
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
--@ end
-- And look at the index for each row of the other side.
--@ define nested_loops
{index_scans}
set enable_hashjoin = off
set enable_mergejoin = off
--@ end

-- It becomes part of the calling expression, as it would not if it pinned search_path.
create function pgq._now()
returns timestamptz
language sql
volatile
as $$
select pg_catalog.clock_timestamp()
$$;
comment on function pgq._now() is 'the only clock; tests replace it';

create function pgq._ms(p_at timestamptz)
returns bigint
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (extract(epoch from p_at) * 1000)::bigint;
end
$$;
comment on function pgq._ms(timestamptz) is 'milliseconds since 1970';

create function pgq._us(p_at timestamptz)
returns bigint
language plpgsql
immutable
strict
set search_path = pg_catalog, pg_temp
as $$
begin
    return (extract(epoch from p_at) * 1000000)::bigint;
end
$$;
comment on function pgq._us(timestamptz) is 'microseconds since 1970, exact';

-- Places in a parked slot are spread over 4 milliseconds, so that a claim position can pass some of
-- a million jobs which fall due at one moment: this is added to the microseconds.
--@ define spread
% 4096
--@ end

--@ define is_read_committed
current_setting('transaction_isolation') in ('read committed', 'read uncommitted')
--@ end

create function pgq._read_committed()
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return {is_read_committed};
end
$$;
comment on function pgq._read_committed() is
'whether every statement sees what has committed before it';

create function pgq._is_preparing(p_query text default current_query())
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A commit by a Sync message has no current query. Strings are looked into, too: to know them
    -- one had to know all that ends or hides a quote, as the server does.
    return coalesce(p_query, '')
        ~* E'[[:<:]]prepare([[:space:]]|--[^\n\r]*[\n\r]|/[*].*[*]/)+transaction[[:>:]]';
end
$$;
comment on function pgq._is_preparing(text) is
'for deferred triggers: whether it may be PREPARE TRANSACTION, which locks outlive: whether the '
'text that the client has sent has these words anywhere';

create function pgq._check_not_null(p_name text, p_is_null boolean)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_is_null then
        raise exception '"%" must not be null', p_name
            using errcode = 'null_value_not_allowed';
    end if;
end
$$;
comment on function pgq._check_not_null(text, boolean) is 'raises 22004 for a null argument';

create function pgq._check_array(p_name text, p_value anyarray, p_nulls boolean default false)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null(p_name, p_value is null);
    if array_ndims(p_value) > 1 then
        raise exception '"%" must have one dimension, not %', p_name, array_ndims(p_value)
            using errcode = 'invalid_parameter_value';
    end if;
    if not p_nulls and array_position(p_value, null) is not null then
        raise exception '"%" must not contain null', p_name
            using errcode = 'null_value_not_allowed',
                  detail = format('Its element %s is null.', array_position(p_value, null));
    end if;
end
$$;
comment on function pgq._check_array(text, anyarray, boolean) is
'raises 22004 for a null array or, unless p_nulls, element, and 22023 for more than one dimension';

create function pgq._check_lengths(
    p_name text, p_length integer, p_other_name text, p_other_length integer
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_length <> p_other_length then
        raise exception '"%" and "%" must have the same length, not % and %', p_name, p_other_name,
                p_length, p_other_length
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
comment on function pgq._check_lengths(text, integer, text, integer) is
'raises 22023 for arrays of different lengths';

create function pgq._check_interval(p_name text, p_value interval, p_zero_allowed boolean)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_value is null then
        return;
    end if;
    -- Two looks: with years, days and hours of both signs, one can be above zero, the other not.
    if p_value < '0' or extract(epoch from p_value) < 0
        or (extract(epoch from p_value) = 0 and not p_zero_allowed)
    then
        raise exception '"%" must be %, not %', p_name,
                case when p_zero_allowed then 'zero or a positive interval'
                     else 'a positive interval' end,
                p_value
            using errcode = 'invalid_parameter_value';
    end if;
    -- Infinite ones (PostgreSQL 17) included; adding them to a time would give 22008 or infinity.
    if p_value > '1000 years' then
        raise exception '"%" must be at most 1000 years, not %', p_name, p_value
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
comment on function pgq._check_interval(text, interval, boolean) is
'raises 22023 for a negative, an infinite and, unless allowed, an empty interval; null passes';

create function pgq._check_batch(p_name text, p_value integer)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null(p_name, p_value is null);
    if p_value < 1 then
        raise exception '"%" must be at least 1, not %', p_name, p_value
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
comment on function pgq._check_batch(text, integer) is
'raises 22004 for null and 22023 for less than 1';

create function pgq._lease_ms(p_timeout interval)
returns integer
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
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
'a checked lease in milliseconds, at least 1; null for null';

-- Some receipts, and nothing is bad about them.
--@ define good_receipts
array_ndims(ids) = 1 and array_ndims(tokens) = 1
        and cardinality(ids) = cardinality(tokens)
        and array_position(ids, null) is null and array_position(tokens, null) is null
--@ end

create function pgq._check_receipts(p_ids bigint[], p_tokens bigint[])
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    ids alias for p_ids; tokens alias for p_tokens;
begin
    if {good_receipts} then
        return;
    end if;
    perform pgq._check_array('ids', p_ids);
    perform pgq._check_array('tokens', p_tokens);
    perform pgq._check_lengths('ids', cardinality(p_ids), 'tokens', cardinality(p_tokens));
end
$$;
comment on function pgq._check_receipts(bigint[], bigint[]) is
'raises 22004 for a null array or element and 22023 for different lengths';

-- Of one queue, so that no role that may enqueue into it can take all lanes of the database.
--@ define most_priorities
1000
--@ end

create function pgq._add_lane(p_queue_id integer, p_priority smallint, p_expiring boolean)
returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
set lock_timeout = '1ms'
as $$
declare
    v_lane integer;
begin
    if (select count(distinct l.priority) >= {most_priorities} and every(l.priority <> p_priority)
          from pgq.lane l where l.queue_id = p_queue_id)
    then
        raise exception 'queue "%" has {most_priorities} priorities already',
                (select q.name from pgq.queue q where q.id = p_queue_id)
            using errcode = 'program_limit_exceeded',
                  detail = 'A priority that was used once counts until the queue is dropped.',
                  hint = 'Use a few priorities, and group_key to tell customers apart.';
    end if;
    -- A token has 16 bits for the lane. When the sequence comes round, open transactions may have
    -- lanes that do not show: each of them costs a wait for as long as lock_timeout.
    for v_try in 1..65535 loop
        v_lane := nextval('pgq.lane_id')::integer;
        continue when exists (select from pgq.lane l where l.id = v_lane);
        begin
            insert into pgq.lane (
                id, queue_id, priority, queue, expiring, is_bounded, awaited_until
            )
            select v_lane, q.id, p_priority, q.name, p_expiring, q.is_bounded,
                   (select max(l.awaited_until) from pgq.lane l where l.queue_id = q.id)
              from pgq.queue q where q.id = p_queue_id;
            return v_lane;
        exception
            when unique_violation or lock_not_available then
                continue;
        end;
    end loop;
    raise exception 'too many priorities are in use'
        using errcode = 'program_limit_exceeded',
              detail = 'Each priority of each queue takes one of 65535 lanes.',
              hint = 'Drop queues that are no longer used.';
end
$$;
comment on function pgq._add_lane(integer, smallint, boolean) is
'gives a queue a lane for a priority. No unique index guards it: a second session would wait for '
'the first one''s transaction. Two lanes of one priority are merged by claims';
