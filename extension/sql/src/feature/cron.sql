/*
 * Cron expressions: the five fields of Vixie cron (minute, hour, day of month, month, day of week),
 * with lists, ranges, steps, names and the @-words, see crontab(5). As there, when both day fields
 * are restricted, a day matches if either does. A sixth field before them is for seconds. "@every"
 * and an interval names the multiples of that interval since 1970: so nothing need be remembered,
 * and nothing drifts.
 *
 * Times are local times of a time zone. One that a change of the clock skips counts as it would be
 * without the change; of one that comes twice the first counts, unless the hour is "*" or "*" with
 * a step: then the schedule goes on in real time.
 */

create function pgq._raise_cron(p_cron text, p_name text, p_part text, p_reason text)
returns void
language plpgsql
immutable
as $$
begin
    raise exception 'bad cron expression "%"', p_cron
        using errcode = 'invalid_parameter_value',
              detail = format('In the field "%s", "%s" %s.', p_name, p_part, p_reason),
              hint = 'The fields are minute, hour, day of month, month and day of week, '
                     'for example "30 9 * * mon-fri"; seconds may stand before them. Or '
                     '"@every" and an interval, for example "@every 90 seconds".';
end
$$;
comment on function pgq._raise_cron(text, text, text, text) is 'Raises 22023.';

create function pgq._cron_number(
    p_cron text, p_name text, p_part text, p_min integer, p_max integer, p_names text[]
)
returns integer
language plpgsql
immutable
as $$
declare
    v_number integer := array_position(p_names, lower(p_part collate "C")) - 1 + p_min;
begin
    if v_number is null and p_part ~ '^[0-9]{1,3}$' then
        v_number := p_part::integer;
    end if;
    if v_number is null then
        perform pgq._raise_cron(p_cron, p_name, p_part, 'is not known');
    elsif v_number not between p_min and p_max then
        perform pgq._raise_cron(
            p_cron, p_name, p_part, format('is not between %s and %s', p_min, p_max)
        );
    end if;
    return v_number;
end
$$;
comment on function pgq._cron_number(text, text, text, integer, integer, text[]) is
'The number of one value in a field; raises 22023.';

create function pgq._cron_field(
    p_cron text, p_name text, p_field text, p_min integer, p_max integer, p_names text[]
)
returns integer[]
language plpgsql
immutable
as $$
declare
    v_part text; v_range text[]; v_first integer; v_last integer; v_step integer;
    v_numbers integer[] := array[]::integer[];
begin
    foreach v_part in array string_to_array(p_field, ',') loop
        v_range := regexp_match(
            v_part, '^(?:([*])|([[:alnum:]]+)(?:-([[:alnum:]]+))?)(?:/([0-9]{1,3}))?$'
        );
        if v_range is null or (v_range[4] is not null and v_range[1] is null and v_range[3] is null)
        then
            perform pgq._raise_cron(p_cron, p_name, v_part, 'is not a value, range or step');
        end if;
        v_step := coalesce(v_range[4], '1')::integer;
        if v_range[1] = '*' then
            v_first := p_min;
            v_last := p_max;
        else
            v_first := pgq._cron_number(p_cron, p_name, v_range[2], p_min, p_max, p_names);
            v_last := pgq._cron_number(
                p_cron, p_name, coalesce(v_range[3], v_range[2]), p_min, p_max, p_names
            );
        end if;
        if v_step = 0 or v_first > v_last then
            perform pgq._raise_cron(p_cron, p_name, v_part, 'is empty');
        end if;
        v_numbers := v_numbers || array(select generate_series(v_first, v_last, v_step));
    end loop;
    return array(select distinct n from unnest(v_numbers) n);
end
$$;
comment on function pgq._cron_field(text, text, text, integer, integer, text[]) is
'The numbers that one field of a cron expression stands for; raises 22023.';

create type pgq.cron as (
    minutes integer[],
    hours integer[],
    days integer[],
    months integer[],
    weekdays integer[],
    any_hour boolean,
    any_day boolean
);
comment on type pgq.cron is
'A cron expression.

weekdays: 0 is Sunday. any_hour: the hour is not restricted by values. any_day: both day
fields must match.';

create function pgq._parse_cron(p_cron text)
returns pgq.cron
language plpgsql
immutable
as $$
declare
    v_word constant text := lower(btrim(p_cron, E' \t') collate "C");
    v_fields constant text[] := regexp_split_to_array(btrim(case v_word
        when '@yearly' then '0 0 1 1 *'
        when '@annually' then '0 0 1 1 *'
        when '@monthly' then '0 0 1 * *'
        when '@weekly' then '0 0 * * 0'
        when '@daily' then '0 0 * * *'
        when '@midnight' then '0 0 * * *'
        when '@hourly' then '0 * * * *'
        else p_cron
    end, E' \t'), E'[ \t]+');
    v_cron pgq.cron;
begin
    if cardinality(v_fields) <> 5 then
        perform pgq._raise_cron(
            p_cron, 'all', p_cron, format('has %s fields, not 5', cardinality(v_fields))
        );
    end if;
    v_cron.minutes := pgq._cron_field(p_cron, 'minute', v_fields[1], 0, 59, null);
    v_cron.hours := pgq._cron_field(p_cron, 'hour', v_fields[2], 0, 23, null);
    v_cron.days := pgq._cron_field(p_cron, 'day of month', v_fields[3], 1, 31, null);
    v_cron.months := pgq._cron_field(
        p_cron, 'month', v_fields[4], 1, 12,
        '{jan,feb,mar,apr,may,jun,jul,aug,sep,oct,nov,dec}'
    );
    -- Sunday is 0 or 7.
    v_cron.weekdays := array_replace(pgq._cron_field(
        p_cron, 'day of week', v_fields[5], 0, 7, '{sun,mon,tue,wed,thu,fri,sat}'
    ), 7, 0);
    v_cron.any_hour := v_fields[2] like '*%';
    v_cron.any_day := v_fields[3] like '*%' or v_fields[5] like '*%';
    return v_cron;
end
$$;
comment on function pgq._parse_cron(text) is 'Raises 22023 with the field that is bad.';

create function pgq._instants(p_local timestamp, p_timezone text, p_both boolean)
returns setof timestamptz
language plpgsql
stable
as $$
declare
    -- Of two it is the second, of none the one by the clock before the change.
    v_at constant timestamptz := p_local at time zone p_timezone;
    v_first timestamptz := v_at;
    v_shift interval;
begin
    foreach v_shift in array '{30 minutes,1 hour,2 hours}'::interval[] loop
        if (v_at - v_shift) at time zone p_timezone = p_local then
            v_first := v_at - v_shift;
        end if;
    end loop;
    return next v_first;
    if p_both and v_first <> v_at then
        return next v_at;
    end if;
end
$$;
comment on function pgq._instants(timestamp, text, boolean) is
'When a clock in a time zone shows a local time: the first time, or both.';

create function pgq._next_minute_of(p_cron text, p_timezone text, p_after timestamptz)
returns timestamptz
language plpgsql
stable
set timezone = 'UTC'  -- in which abbreviations of time zones are looked for first
set timezone_abbreviations = 'Default'
as $$
declare
    v_cron constant pgq.cron := pgq._parse_cron(p_cron);
    v_local constant timestamp := p_after at time zone p_timezone;
    -- A clock that is not changed on the days around tells one time for each, in order.
    v_changes constant boolean := (p_after + interval '25 hours') at time zone p_timezone
        - (p_after - interval '25 hours') at time zone p_timezone <> interval '50 hours';
    v_day timestamp := date_trunc('day', v_local) - interval '1 day';
    v_end constant timestamp := v_day + interval '41 years';
    v_on_day boolean;
    v_on_weekday boolean;
    v_next timestamptz;
begin
    -- The 29th of February falls on a certain weekday after 40 years at the latest.
    while v_day < v_end loop
        if extract(month from v_day)::integer <> all (v_cron.months) then
            v_day := date_trunc('month', v_day) + interval '1 month';
            continue;
        end if;
        v_on_day := extract(day from v_day)::integer = any (v_cron.days);
        v_on_weekday := extract(dow from v_day)::integer = any (v_cron.weekdays);
        if (v_on_day and v_on_weekday) or (not v_cron.any_day and (v_on_day or v_on_weekday)) then
            select min(l.at) at time zone p_timezone into v_next
              from unnest(v_cron.hours) h, unnest(v_cron.minutes) m,
                   lateral (select v_day + make_interval(hours => h, mins => m) as at) l
             where not v_changes and l.at > v_local and l.at <= v_local + interval '24 hours';
            if v_next is null then
                select min(i) into v_next
                  from unnest(v_cron.hours) h, unnest(v_cron.minutes) m,
                       lateral (select v_day + make_interval(hours => h, mins => m) as at) l,
                       pgq._instants(l.at, p_timezone, v_cron.any_hour) i
                 where (v_changes or l.at > v_local) and i > p_after;
            end if;
            if v_next is not null then
                return v_next;
            end if;
        end if;
        v_day := v_day + interval '1 day';
    end loop;
    perform pgq._raise_cron(p_cron, 'day of month', p_cron, 'never comes');
    return null;
end
$$;
comment on function pgq._next_minute_of(text, text, timestamptz) is
'Returns the first time after one that a cron expression without seconds names.

Raises 22023 for a bad expression or time zone.';

create function pgq._next_multiple(p_cron text, p_every text, p_after timestamptz)
returns timestamptz
language plpgsql
stable
as $$
declare
    v_us bigint;
begin
    v_us := (extract(epoch from p_every::interval) * 1000000)::bigint;
    if v_us not between 1000000 and 604800000000 then
        raise exception using errcode = 'PQ000';
    end if;
    return timestamptz 'epoch'
        + (pgq._us(p_after) / v_us + 1) * v_us * interval '1 microsecond';
exception
    when data_exception or sqlstate 'PQ000' then
        perform pgq._raise_cron(p_cron, 'every', p_every, 'is not between a second and a week');
        return null;
end
$$;
comment on function pgq._next_multiple(text, text, timestamptz) is
'Returns the first multiple of an interval since 1970 after a time.

Raises 22023 for a bad interval.';

create function pgq._next_time_of(p_cron text, p_timezone text, p_after timestamptz)
returns timestamptz
language plpgsql
stable
as $$
declare
    v_words constant text[] := regexp_split_to_array(btrim(p_cron, E' \t'), E'[ \t]+');
    v_rest constant text := array_to_string(v_words[2:], ' ');
    v_seconds integer[]; v_minute timestamptz; v_next timestamptz;
begin
    if lower(v_words[1]) = '@every' and p_after at time zone p_timezone is not null then
        return pgq._next_multiple(p_cron, v_rest, p_after);
    elsif cardinality(v_words) <> 6 then
        return pgq._next_minute_of(p_cron, p_timezone, p_after);
    end if;
    v_seconds := pgq._cron_field(p_cron, 'second', v_words[1], 0, 59, null);
    v_minute := date_trunc('minute', p_after) - interval '1 microsecond';
    -- The minute of p_after, or else the one that follows it.
    for v_try in 1..2 loop
        v_minute := pgq._next_minute_of(v_rest, p_timezone, v_minute);
        select min(t) into v_next
          from unnest(v_seconds) s, lateral (select v_minute + make_interval(secs => s)) t (t)
         where t.t > p_after;
        exit when v_next is not null;
    end loop;
    return v_next;
end
$$;
comment on function pgq._next_time_of(text, text, timestamptz) is
'Returns the first time after one that an expression names, also with seconds.

Raises 22023 for a bad expression or time zone.';
