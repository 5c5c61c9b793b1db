/*
 * How large may be what a caller stores with a job. A job that no client could read would come back
 * to the head of its queue again and again; maintenance handles the jobs of all in one transaction.
 */

create function pgq._check_size(
    p_name text, p_values jsonb[], p_max bigint default 67108864
)
returns void
language plpgsql
stable
as $$
declare
    v_size integer;
begin
    begin
        v_size := (
            select max(case when pg_column_size(v) > p_max then pg_column_size(v)
                            else octet_length(v::text) end)
              from unnest(p_values) v
             -- A number of 131072 digits can take 16 bytes.
             where pg_column_size(v) > p_max / 10000
        );
    exception
        -- It cannot be text at all.
        when program_limit_exceeded then
            v_size := 1073741824;
    end;
    if v_size > p_max then
        raise exception '"%" is too large', p_name
            using errcode = 'program_limit_exceeded',
                  detail = format('It has %s bytes, of at most %s.', v_size, p_max),
                  hint = 'Store the data elsewhere, and only a reference here.';
    end if;
end
$$;
comment on function pgq._check_size(text, jsonb[], bigint) is
'Raises 54000 for a value with more than p_max bytes; null passes.

The bytes count as text and in memory.';

create function pgq._check_length(p_name text, p_value text, p_max integer)
returns void
language plpgsql
immutable
as $$
begin
    if length(p_value) > p_max then
        raise exception '"%" must have at most % characters, not %', p_name, p_max, length(p_value)
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
comment on function pgq._check_length(text, text, integer) is 'Raises 22023; null passes.';

create function pgq._shorten(p_error text, p_max integer default 20000)
returns text
language plpgsql
immutable
as $$
begin
    if octet_length(p_error) <= p_max or length(p_error) <= p_max then
        return p_error;
    end if;
    return left(p_error, p_max / 2) || format(' [%s characters] ', length(p_error) - p_max)
        || right(p_error, p_max / 2);
end
$$;
comment on function pgq._shorten(text, integer) is
'An error as it is kept: of a long one the beginning and the end.

The last line of a traceback of Python is the error.';
