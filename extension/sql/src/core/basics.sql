/*
 * Small helpers: the clock, numbers that encode something, checks of arguments.
 *
 * Functions of one expression, with a body that begins with "begin atomic", become part of the
 * expression that calls them. Internal functions inherit the settings of the public function,
 * trigger or view that calls them. Those settings pin plans: a plan may be made while a slot is
 * empty, and is an index scan nevertheless.
 */

-- It becomes part of the calling expression, as it would not if it pinned search_path.
create function pgq._now()
returns timestamptz
language sql
as $$
select pg_catalog.clock_timestamp()
$$;
comment on function pgq._now() is 'The only clock; tests replace it.';

create function pgq._ms(p_at timestamptz)
returns bigint
language sql
stable
begin atomic
    select (extract(epoch from p_at) * 1000)::bigint;
end;
comment on function pgq._ms(timestamptz) is 'Milliseconds since 1970.';

create function pgq._us(p_at timestamptz)
returns bigint
language sql
stable
begin atomic
    select (extract(epoch from p_at) * 1000000)::bigint;
end;
comment on function pgq._us(timestamptz) is 'Microseconds since 1970, exact.';

create function pgq._lane_of(p_queue_id integer, p_priority integer)
returns bigint
language sql
immutable
begin atomic
    select (p_queue_id::bigint << 16) + p_priority + 32768;
end;
comment on function pgq._lane_of(integer, integer) is 'The number of a priority of a queue.';

create function pgq._queue_of(p_lane bigint)
returns integer
language sql
immutable
begin atomic
    select (p_lane >> 16)::integer;
end;
comment on function pgq._queue_of(bigint) is 'The queue of a lane.';

create function pgq._is_of(p_lane bigint, p_queue_id bigint)
returns boolean
language sql
immutable
begin atomic
    select p_lane between p_queue_id << 16 and (p_queue_id << 16) + 65535;
end;
comment on function pgq._is_of(bigint, bigint) is
'Whether a lane is of a queue, for a look by an index.';

create function pgq._priority_of(p_lane bigint)
returns smallint
language sql
immutable
begin atomic
    select ((p_lane & 65535) - 32768)::smallint;
end;
comment on function pgq._priority_of(bigint) is 'The priority of a lane.';

-- A token is a number of pgq.token << 20, and these bits. In 0.1 bits 3 to 18 were the lane.
create function pgq._token_bits(p_slot integer, p_is_kept boolean)
returns bigint
language sql
immutable
begin atomic
    select p_slot::bigint | case when p_is_kept then 524288 else 0 end;
end;
comment on function pgq._token_bits(integer, boolean) is
'Says what a token tells: the slot, and whether the end is more than a DELETE.';

create function pgq._bits_of(p_token bigint)
returns integer
language sql
immutable
begin atomic
    select (p_token & 524295)::integer;
end;
comment on function pgq._bits_of(bigint) is
'What pgq._token_bits has put into a token.

A slot alone if the end of the job is a DELETE and no more.';

create function pgq._slot_of(p_token bigint)
returns smallint
language sql
immutable
begin atomic
    select (p_token & 7)::smallint;
end;
comment on function pgq._slot_of(bigint) is 'The slot in which the job of a token was claimed.';

create function pgq._is_kept(p_token bigint)
returns boolean
language sql
immutable
begin atomic
    select p_token & 524288 <> 0;
end;
comment on function pgq._is_kept(bigint) is
'Whether the end of its job is more than a DELETE: it is kept, or of a group.';

-- An id is the number of its shard << 48, and a number of pgq.number below that.
create function pgq._shard_of(p_id bigint)
returns integer
language sql
immutable
begin atomic
    select (p_id >> 48)::integer;
end;
comment on function pgq._shard_of(bigint) is 'The shard of a job.';

create function pgq._read_committed()
returns boolean
language sql
stable
begin atomic
    select current_setting('transaction_isolation') in ('read committed', 'read uncommitted');
end;
comment on function pgq._read_committed() is
'Whether every statement sees what has committed before it.';

create function pgq._is_preparing(p_query text default
    case when current_setting('max_prepared_transactions') <> '0' then current_query() end
)
returns boolean
language plpgsql
as $$
begin
    -- A commit by a Sync message has no current query. Strings are looked into, too.
    return coalesce(p_query, '')
        ~* E'[[:<:]]prepare([[:space:]]|--[^\n\r]*[\n\r]|/[*].*[*]/)+transaction[[:>:]]';
end
$$;
comment on function pgq._is_preparing(text) is
'Says whether the transaction may be prepared, for deferred triggers.

A prepared transaction keeps its locks. The client''s text has these words anywhere.';

create function pgq._check_not_null(p_name text, p_is_null boolean)
returns void
language plpgsql
immutable
as $$
begin
    if p_is_null then
        raise exception '"%" must not be null', p_name
            using errcode = 'null_value_not_allowed';
    end if;
end
$$;
comment on function pgq._check_not_null(text, boolean) is 'Raises 22004 for a null argument.';

create function pgq._check_array(p_name text, p_value anyarray, p_nulls boolean default false)
returns void
language plpgsql
immutable
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
'Raises 22004 for a null array or element, 22023 for two dimensions.

With p_nulls, elements may be null.';

create function pgq._check_lengths(
    p_name text, p_length integer, p_other_name text, p_other_length integer
)
returns void
language plpgsql
immutable
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
'Raises 22023 for arrays of different lengths.';

create function pgq._check_interval(p_name text, p_value interval, p_zero_allowed boolean)
returns void
language plpgsql
immutable
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
'Raises 22023 for a negative or infinite interval; null passes.

An empty interval passes only if it is allowed.';

create function pgq._check_batch(p_name text, p_value integer)
returns void
language plpgsql
immutable
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
'Raises 22004 for null and 22023 for less than 1.';

create function pgq._are_good(p_ids bigint[], p_tokens bigint[])
returns boolean
language sql
immutable
begin atomic
    select array_ndims(p_ids) = 1 and array_ndims(p_tokens) = 1
           and array_lower(p_ids, 1) = 1 and array_lower(p_tokens, 1) = 1
           and cardinality(p_ids) = cardinality(p_tokens)
           and array_position(p_ids, null) is null and array_position(p_tokens, null) is null;
end;
comment on function pgq._are_good(bigint[], bigint[]) is
'Whether these are some receipts, and nothing is bad about them.';

create function pgq._check_receipts(p_ids bigint[], p_tokens bigint[])
returns void
language plpgsql
immutable
as $$
begin
    perform pgq._check_array('ids', p_ids);
    perform pgq._check_array('tokens', p_tokens);
    perform pgq._check_lengths('ids', cardinality(p_ids), 'tokens', cardinality(p_tokens));
end
$$;
comment on function pgq._check_receipts(bigint[], bigint[]) is
'Raises 22004 for a null array or element and 22023 for different lengths.';
