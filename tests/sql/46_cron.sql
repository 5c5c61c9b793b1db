/*
 * Cron expressions: what they mean, what is refused, and which moments they name in time zones.
 */
begin;
select plan(108);
\ir support/clock.psql

create function pg_temp.next(
    p_cron text, p_after text default '2040-01-01 00:00', p_timezone text default 'UTC'
) returns text language plpgsql as $$
begin
    return to_char(
        pgq._next_time_of(p_cron, p_timezone, p_after::timestamptz) at time zone 'UTC',
        'YYYY-MM-DD HH24:MI:SS'
    );
end
$$;
-- The next times in a row, as UTC, without the year.
create function pg_temp.row_of(
    p_cron text, p_after text, p_timezone text default 'UTC', p_number integer default 4
) returns text[] language plpgsql as $$
declare
    v_at timestamptz := p_after::timestamptz;
    v_row text[];
begin
    for v_try in 1..p_number loop
        v_at := pgq._next_time_of(p_cron, p_timezone, v_at);
        v_row := v_row || to_char(v_at at time zone 'UTC', 'MM-DD HH24:MI');
    end loop;
    return v_row;
end
$$;
create function pg_temp.refusal(p_cron text, p_timezone text default 'UTC')
returns text language plpgsql as $$
declare
    v_detail text;
begin
    perform pgq._next_time_of(p_cron, p_timezone, '2040-01-01');
    return 'none';
exception
    when invalid_parameter_value then
        get stacked diagnostics v_detail = pg_exception_detail;
        return coalesce(substring(v_detail from '^In the field "(.*?)"'), 'no field');
end
$$;

-- What can be written.
select is(pg_temp.next('* * * * *'), '2040-01-01 00:01:00', 'every minute: the next, not this one');
select is(pg_temp.next('* * * * *', '2040-01-01 00:00:59.999'), '2040-01-01 00:01:00', 'on the minute');
select is(pg_temp.next('* * * * *', '2039-12-31 23:59:59.999999'), '2040-01-01 00:00:00', 'also after 59.999999 s');
select is(pg_temp.next('7 * * * *'), '2040-01-01 00:07:00', 'a minute');
select is(pg_temp.next('0 5 * * *'), '2040-01-01 05:00:00', 'an hour');
select is(pg_temp.next('0 0 17 * *'), '2040-01-17 00:00:00', 'a day of the month');
select is(pg_temp.next('0 0 1 5 *'), '2040-05-01 00:00:00', 'a month');
select is(pg_temp.next('0 0 * * 3'), '2040-01-04 00:00:00', 'a day of the week');
select is(pg_temp.next('0 0 * * 0'), '2040-01-08 00:00:00', '0 is Sunday');
select is(pg_temp.next('0 0 * * 7'), '2040-01-08 00:00:00', 'and so is 7');
select is(pg_temp.row_of('0 0 * * 5-7', '2040-01-01'), '{01-06 00:00,01-07 00:00,01-08 00:00,01-13 00:00}', 'which ends a range');
select is(pg_temp.row_of('10,40,20 * * * *', '2040-01-01'), '{01-01 00:10,01-01 00:20,01-01 00:40,01-01 01:10}', 'a list in any order');
select is(pg_temp.row_of('58-59 * * * *', '2040-01-01'), '{01-01 00:58,01-01 00:59,01-01 01:58,01-01 01:59}', 'a range');
select is(pg_temp.row_of('5-5 * * * *', '2040-01-01', p_number => 2), '{01-01 00:05,01-01 01:05}', 'a range of one');
select is(pg_temp.row_of('*/25 * * * *', '2040-01-01'), '{01-01 00:25,01-01 00:50,01-01 01:00,01-01 01:25}', 'a step');
select is(pg_temp.row_of('10-50/20 * * * *', '2040-01-01'), '{01-01 00:10,01-01 00:30,01-01 00:50,01-01 01:10}', 'a range with a step');
select is(pg_temp.row_of('*/999 * * * *', '2040-01-01', p_number => 2), '{01-01 01:00,01-01 02:00}', 'a step beyond the end names the first');
select is(pg_temp.row_of('1,2,1,1-2 * * * *', '2040-01-01', p_number => 3), '{01-01 00:01,01-01 00:02,01-01 01:01}', 'what is named twice comes once');
select is(pg_temp.row_of('1,10-12,*/30 0 * * *', '2040-01-01', p_number => 5), '{01-01 00:01,01-01 00:10,01-01 00:11,01-01 00:12,01-01 00:30}', 'all of it in a list');
select is(pg_temp.row_of('0 0 */10 * *', '2040-01-01'), '{01-11 00:00,01-21 00:00,01-31 00:00,02-01 00:00}', 'steps of days begin at the 1st');
select is(pg_temp.row_of('0 0 1 */5 *', '2040-01-01'), '{06-01 00:00,11-01 00:00,01-01 00:00,06-01 00:00}', 'those of months in January');
select is(
    array(select pg_temp.next('0 0 1 ' || m || ' *', '2039-12-31') from unnest(
        '{jan,feb,mar,apr,may,jun,jul,aug,sep,oct,nov,dec}'::text[]) with ordinality u (m, n) order by n),
    array(select format('2040-%s-01 00:00:00', lpad(n::text, 2, '0')) from generate_series(1, 12) n),
    'months have names');
select is(
    array(select pg_temp.next('0 0 * * ' || d) from unnest(
        '{mon,tue,wed,thu,fri,sat,sun}'::text[]) with ordinality u (d, n) order by n),
    array(select format('2040-01-0%s 00:00:00', n + 1) from generate_series(1, 7) n),
    'and so have days of the week');
select is(pg_temp.next('0 0 1 FeB-mAr MON'), '2040-02-01 00:00:00', 'in any case, and in ranges');
select is(pg_temp.row_of('0 0 * * mon,fri-sat', '2040-01-01'), '{01-02 00:00,01-06 00:00,01-07 00:00,01-09 00:00}', 'and lists');
select is(pg_temp.next('0 0 1 feb-12/10 *'), '2040-02-01 00:00:00', 'beside numbers');
select is(pg_temp.next(E' \t 007   008\t*  *   * \t'), '2040-01-01 08:07:00', 'blanks, tabs and leading zeros do not matter');
select is(pg_temp.next('@hourly'), '2040-01-01 01:00:00', '@hourly');
select is(pg_temp.next('@daily'), '2040-01-02 00:00:00', '@daily');
select is(pg_temp.next(' @Midnight '), '2040-01-02 00:00:00', '@midnight');
select is(pg_temp.next('@weekly'), '2040-01-08 00:00:00', '@weekly');
select is(pg_temp.next('@monthly'), '2040-02-01 00:00:00', '@monthly');
select is(pg_temp.next('@yearly'), '2041-01-01 00:00:00', '@yearly');
select is(pg_temp.next('@ANNUALLY'), '2041-01-01 00:00:00', '@annually');

-- The two day fields.
select is(pg_temp.row_of('0 0 10 * tue', '2040-01-01'), '{01-03 00:00,01-10 00:00,01-17 00:00,01-24 00:00}', 'of two day fields either will do');
select is(pg_temp.row_of('0 0 4 * tue', '2040-01-01'), '{01-03 00:00,01-04 00:00,01-10 00:00,01-17 00:00}', 'or');
select is(pg_temp.row_of('0 0 13 * *', '2040-01-01', p_number => 2), '{01-13 00:00,02-13 00:00}', 'a * leaves it to the day of the month');
select is(pg_temp.row_of('0 0 * * fri', '2040-01-01', p_number => 2), '{01-06 00:00,01-13 00:00}', 'or to the day of the week');
select is(pg_temp.row_of('0 0 */2 * mon', '2040-01-01', p_number => 3), '{01-09 00:00,01-23 00:00,02-13 00:00}', 'after a * with a step both must match');
select is(pg_temp.row_of('0 0 13 * */5', '2040-01-01', p_number => 3), '{01-13 00:00,04-13 00:00,05-13 00:00}', 'also if it is in the day of the week');
select is(pg_temp.row_of('0 0 1-31 * mon', '2040-01-01', p_number => 2), '{01-02 00:00,01-03 00:00}', 'a range over all days is a restriction');
select is(pg_temp.row_of('0 0 30 2 mon', '2040-01-01', p_number => 2), '{02-06 00:00,02-13 00:00}', 'a date that never comes leaves the other');

-- Ends of months, leap days, and what never comes.
select is(pg_temp.row_of('0 0 31 * *', '2040-01-01'), '{01-31 00:00,03-31 00:00,05-31 00:00,07-31 00:00}', 'short months have no 31st');
select is(pg_temp.row_of('0 0 29 * *', '2041-01-01', p_number => 3), '{01-29 00:00,03-29 00:00,04-29 00:00}', 'nor a 29th of February');
select is(pg_temp.next('59 23 28-31 2 *', '2040-02-28 23:59'), '2040-02-29 23:59:00', 'but in a leap year');
select is(pg_temp.next('0 0 29 2 *', '2040-02-29'), '2044-02-29 00:00:00', 'it comes every four years');
select is(pg_temp.next('0 0 29 feb *', '2096-02-29'), '2104-02-29 00:00:00', 'or eight');
select is(pg_temp.next('0 0 29 2 */7', '2032-02-29'), '2060-02-29 00:00:00', 'on a Sunday every 28');
select is(pg_temp.next('0 0 29 2 */7', '2088-02-29'), '2128-02-29 00:00:00', 'or 40');
select is(pg_temp.refusal('0 0 30 2 *'), 'day of month', 'the 30th of February never comes');
select is(pg_temp.refusal('0 0 31 4,6,9,nov *'), 'day of month', 'nor the 31st of short months');
select is(pg_temp.refusal('0 0 31 2 */2'), 'day of month', 'on no day of the week');
select is(pg_temp.next('0 0 31 dec *', '2040-12-31'), '2041-12-31 00:00:00', 'a year goes over');

select is(
    (select array_agg(n order by n) from unnest(pgq._cron_field('', '', '5,1-3,2,*/30,5', 0, 59, null)) n),
    '{0,1,2,3,5,30}', 'a value that is named more than once counts once');

-- What is refused, and which field it blames.
select is(
    array(select c || ': ' || pg_temp.refusal(replace(c, '#', '* * * *')) from unnest(array[
        '', '*', '* * * *', '* * * * * * *', '@reboot', '@never', '@everyday', '0 0 0 1 1 * root'
    ]) c where pg_temp.refusal(c) <> 'all'), '{}', 'five fields, or six, or a known word');
select is(
    array(select f || ' ' || pg_temp.refusal(f || ' * * * *') from unnest(array[
        '60', '-1', '1-', '-', ',', '1,', ',1', '1,,2', '5-1', '*/0', '1-2/0', '5/2', '*/', '/', '*-5', '1-2-3',
        '*/1000', '1/2/3', '1000', '99999999999999999999', 'a', 'mon', 'jan', '?', 'L', '1.5', '**', '*5', '+1',
        '0x1', '1_0', E'1\n', E'1\n2', '1;2', '٣', '''', '"', '%s', '\', 'NULL', '1e1', 'H', '#'
    ]) f where pg_temp.refusal(f || ' * * * *') <> 'minute'), '{}', 'minutes');
select is(
    array(select f || ' ' || pg_temp.refusal('* ' || f || ' * * *') from unnest('{24,0-24,x,mon,*/x}'::text[]) f
           where pg_temp.refusal('* ' || f || ' * * *') <> 'hour'), '{}', 'hours');
select is(
    array(select f from unnest('{0,32,0-5,31-32,L,15W,jan}'::text[]) f
           where pg_temp.refusal('* * ' || f || ' * *') <> 'day of month'), '{}', 'days of the month');
select is(
    array(select f from unnest('{0,13,january,mon,dec-jan,jan-,feb-0}'::text[]) f
           where pg_temp.refusal('* * * ' || f || ' *') <> 'month'), '{}', 'months');
select is(
    array(select f from unnest('{8,-1,monday,jan,fri-mon,5-sun,mon#2,5L,0-8}'::text[]) f
           where pg_temp.refusal('* * * * ' || f) <> 'day of week'), '{}', 'days of the week');
select is(pg_temp.refusal('61 24 32 13 8'), 'minute', 'of several bad fields the first is told');
select is(pg_temp.refusal('1 24 32 13 8'), 'hour', 'then the next');
select throws_ok(
    $$ select pgq._next_time_of('1 2 3 4 x', 'UTC', now()) $$, '22023', 'bad cron expression "1 2 3 4 x"',
    'the message shows the expression');
select throws_ok(
    $$ select pgq._next_time_of('0 0 * * *', 'Nowhere/Land', now()) $$, '22023', null, 'an unknown time zone is refused');
select throws_ok($$ select pgq._next_time_of('0 0 * * *', '', now()) $$, '22023', null, 'and so is none');

-- Time zones.
select is(pg_temp.next('0 9 * * *', '2040-01-01', 'Asia/Kolkata'), '2040-01-01 03:30:00', 'the hour is one of the zone');
select is(pg_temp.next('0 0 1 1 *', '2039-12-31 10:00', 'Pacific/Kiritimati'), '2040-12-31 10:00:00', 'and so is the day: the new year comes');
select is(pg_temp.next('0 0 1 1 *', '2039-12-31 09:59', 'Pacific/Kiritimati'), '2039-12-31 10:00:00', '14 hours before');
select is(pg_temp.next('30 23 31 12 *', '2039-12-31 23:59', 'Pacific/Pago_Pago'), '2040-01-01 10:30:00', 'or later');
select is(pg_temp.next('0 0 * * sun', '2040-01-01', 'America/New_York'), '2040-01-01 05:00:00', 'so is the day of the week');
set local time zone 'Asia/Tokyo';
select is(pg_temp.next('0 9 * * *', '2040-01-01 00:00+00'), '2040-01-01 09:00:00', 'that of the session does not matter');
set local time zone 'UTC';

-- Spring: 07:00 UTC on March 14th 2027 is 3 o'clock in New York, not 2.
select is(pg_temp.row_of('30 2 * * *', '2027-03-13 12:00', 'America/New_York', 3), '{03-14 07:30,03-15 06:30,03-16 06:30}', 'a time that is skipped comes as if there were no change');
select is(pg_temp.row_of('15 * * * *', '2027-03-14 05:30', 'America/New_York', 3), '{03-14 06:15,03-14 07:15,03-14 08:15}', 'every hour goes on');
select is(pg_temp.row_of('30 2,3 * * *', '2027-03-13 12:00', 'America/New_York', 3), '{03-14 07:30,03-15 06:30,03-15 07:30}', 'two that become one come once');
select is(pg_temp.row_of('30 2 * * *', '2027-03-27 12:00', 'Europe/Berlin', 2), '{03-28 01:30,03-29 00:30}', 'the same in Berlin');
select is(pg_temp.row_of('15 2 * * *', '2027-10-01 16:00', 'Australia/Lord_Howe', 3), '{10-02 15:45,10-03 15:15,10-04 15:15}', 'and on Lord Howe Island, by 30 minutes');
-- Autumn: 06:00 UTC on November 7th 2027 is one o'clock for the second time.
select is(pg_temp.row_of('30 1 * * *', '2027-11-06 12:00', 'America/New_York', 3), '{11-07 05:30,11-08 06:30,11-09 06:30}', 'of two times the first one counts');
select is(pg_temp.row_of('30 1 * * *', '2027-11-07 05:45', 'America/New_York', 1), '{11-08 06:30}', 'also for one who asks between them');
select is(pg_temp.row_of('30 * * * *', '2027-11-07 05:00', 'America/New_York', 3), '{11-07 05:30,11-07 06:30,11-07 07:30}', 'every hour counts both');
select is(pg_temp.row_of('*/30 */1 * * *', '2027-11-07 05:00', 'America/New_York', 4), '{11-07 05:30,11-07 06:00,11-07 06:30,11-07 07:00}', 'and so does a step');
select is(pg_temp.row_of('30 0-23 * * *', '2027-11-07 05:00', 'America/New_York', 2), '{11-07 05:30,11-07 07:30}', 'but not a range');
select is(pg_temp.row_of('30 2 * * *', '2027-10-30 12:00', 'Europe/Berlin', 2), '{10-31 00:30,11-01 01:30}', 'the same in Berlin');
select is(pg_temp.row_of('45 1 * * *', '2027-04-02 16:00', 'Australia/Lord_Howe', 2), '{04-03 14:45,04-04 15:15}', 'and on Lord Howe Island');
select is(pg_temp.row_of('*/15 * * * *', '2027-04-03 14:20', 'Australia/Lord_Howe', 6), '{04-03 14:30,04-03 14:45,04-03 15:00,04-03 15:15,04-03 15:30,04-03 15:45}', 'where a quarter of an hour comes twice');

-- Against brute force: which minutes match, in a table of all minutes.
create function pg_temp.says(p_field text, p_value integer, p_min integer, p_max integer)
returns boolean language plpgsql as $$
declare
    v_part text; v_span text; v_step integer; v_low integer; v_high integer;
begin
    foreach v_part in array string_to_array(p_field, ',') loop
        v_span := split_part(v_part, '/', 1);
        v_step := coalesce(nullif(split_part(v_part, '/', 2), ''), '1')::integer;
        v_low := case when v_span = '*' then p_min else split_part(v_span, '-', 1)::integer end;
        v_high := case when v_span = '*' then p_max when strpos(v_span, '-') = 0 then v_low
                       else split_part(v_span, '-', 2)::integer end;
        if p_value >= v_low and p_value <= v_high and (p_value - v_low) % v_step = 0 then
            return true;
        end if;
    end loop;
    return false;
end
$$;
create function pg_temp.some(p_min integer, p_max integer, p_stars double precision)
returns text language plpgsql as $$
declare
    v_low integer := p_min + floor(random() * (p_max - p_min + 1))::integer;
    v_high integer := v_low + floor(random() * (p_max - v_low + 1))::integer;
    v_step integer := 1 + floor(random() * (p_max - p_min))::integer;
begin
    if random() < p_stars then
        return '*';
    end if;
    return case floor(random() * 6)
        when 0 then '*/' || v_step
        when 1 then v_low || '-' || v_high
        when 2 then format('%s-%s/%s', v_low, v_high, v_step)
        when 3 then format('%s,%s-%s', pg_temp.some(p_min, p_max, 0), v_low, v_high)
        else v_low::text end;
end
$$;
create temp table minute (zone text, t timestamptz, local timestamp, again boolean);
insert into minute
select z.zone, t, t at time zone z.zone,
       row_number() over (partition by z.zone, t at time zone z.zone order by t) > 1
  from (values ('UTC', '2027-12-01'::timestamptz, '2028-04-30 23:59'::timestamptz),
               ('America/New_York', '2027-03-12', '2027-03-19'),
               ('America/New_York', '2027-11-05', '2027-11-12'),
               ('Europe/Berlin', '2027-03-26', '2027-04-02'),
               ('Europe/Berlin', '2027-10-29', '2027-11-05'),
               ('Australia/Lord_Howe', '2027-04-01', '2027-04-08'),
               ('Australia/Lord_Howe', '2027-09-30', '2027-10-07')) z (zone, first, last),
       generate_series(z.first, z.last, '1 minute') t;
-- A skipped minute comes as long after the last one before the change as the clock says.
insert into minute
select m.zone, m.t + n * interval '1 minute', m.local + n * interval '1 minute', false
  from (select m.*, lead(m.local) over w - m.local as jump, lead(m.t) over w - m.t as pause
          from minute m window w as (partition by m.zone order by m.t)) m,
       generate_series(1, extract(epoch from m.jump)::integer / 60 - 1) n
 where m.pause = '1 minute' and m.jump > '1 minute';

create function pg_temp.oracle(p_cron text, p_zone text, p_after timestamptz, p_until timestamptz)
returns timestamptz language plpgsql as $$
declare
    f constant text[] := string_to_array(p_cron, ' ');
    v_minutes integer[] := array(select n from generate_series(0, 59) n where pg_temp.says(f[1], n, 0, 59));
    v_hours integer[] := array(select n from generate_series(0, 23) n where pg_temp.says(f[2], n, 0, 23));
    v_days integer[] := array(select n from generate_series(1, 31) n where pg_temp.says(f[3], n, 1, 31));
    v_months integer[] := array(select n from generate_series(1, 12) n where pg_temp.says(f[4], n, 1, 12));
    v_weekdays integer[] := array(select n % 7 from generate_series(0, 7) n where pg_temp.says(f[5], n, 0, 7));
begin
    return (
        select min(m.t) from part m
         where m.zone = p_zone and m.t > p_after and m.t <= p_until
           and (not m.again or left(f[2], 1) = '*')
           and m.minute = any (v_minutes)
           and m.hour = any (v_hours)
           and m.month = any (v_months)
           and case when left(f[3], 1) = '*' or left(f[5], 1) = '*'
                    then m.day = any (v_days)
                         and m.dow = any (v_weekdays)
                    else m.day = any (v_days)
                         or m.dow = any (v_weekdays) end
    );
end
$$;
create function pg_temp.answer(p_cron text, p_zone text, p_after timestamptz, p_until timestamptz)
returns timestamptz language plpgsql as $$
declare
    v_next constant timestamptz := pgq._next_time_of(p_cron, p_zone, p_after);
begin
    return case when v_next <= p_until then v_next end;
exception
    when invalid_parameter_value then
        return null;
end
$$;
create temp table part as
select m.zone, m.t, m.again, date_part('minute', m.local)::integer as minute,
       date_part('hour', m.local)::integer as hour, date_part('day', m.local)::integer as day,
       date_part('month', m.local)::integer as month, date_part('dow', m.local)::integer as dow
  from minute m;
create index on part (zone, month, t);
analyze part;
select setseed(0.4711) \g /dev/null
create temp table trial as
select e.cron, z.zone, z.after, z.until
  from generate_series(1, 30) n,
       lateral (select concat_ws(' ', pg_temp.some(0, 59, 0.2), pg_temp.some(0, 23, 0.3),
                                 pg_temp.some(1, 31, 0.5), pg_temp.some(1, 12, 0.7),
                                 pg_temp.some(0, 7, 0.5)) as cron where n > 0) e,
       lateral (select 'UTC' as zone, '2027-12-01'::timestamptz + random() * interval '120 days' as after,
                       '2028-04-30 23:59'::timestamptz as until where e.cron > ''
                 union all
                select z.zone, z.change - interval '30 hours' + random() * interval '40 hours',
                       z.change + interval '4 days'
                  from (values ('America/New_York', '2027-03-14 07:00'::timestamptz),
                               ('America/New_York', '2027-11-07 06:00'),
                               ('Europe/Berlin', '2027-03-28 01:00'),
                               ('Europe/Berlin', '2027-10-31 01:00'),
                               ('Australia/Lord_Howe', '2027-04-03 15:00'),
                               ('Australia/Lord_Howe', '2027-10-02 15:30')) z (zone, change),
                       generate_series(1, 3)
                 where e.cron > '') z;
-- Near a change of the clock only minutes and hours matter.
update trial t set cron = regexp_replace(t.cron, '^(\S+ \S+) .*$', '\1 * * *') where t.zone <> 'UTC';
create temp table verdict as
select t.*, pg_temp.oracle(t.cron, t.zone, t.after, t.until) as expected,
       pg_temp.answer(t.cron, t.zone, t.after, t.until) as got
  from trial t;
select is_empty(
    'select v.* from verdict v where v.expected is distinct from v.got',
    'the next time is the one that brute force finds');
select cmp_ok(
    (select count(*) from verdict v where v.expected is not null), '>', 450::bigint,
    'and mostly there is one');

-- Seconds.
select is(pg_temp.next(cron, after), next, format('%s after %s', cron, after))
  from (values ('* * * * * *', '2040-01-01 00:00', '2040-01-01 00:00:01'),
               ('* * * * * *', '2040-01-01 23:59:59.5', '2040-01-02 00:00:00'),
               ('*/15 * * * * *', '2040-01-01 00:00:15', '2040-01-01 00:00:30'),
               ('*/15 * * * * *', '2040-01-01 00:00:45', '2040-01-01 00:01:00'),
               ('30,5 2 * * * *', '2040-01-01 00:02:04', '2040-01-01 00:02:05'),
               ('30,5 2 * * * *', '2040-01-01 00:02:05', '2040-01-01 00:02:30'),
               ('30,5 2 * * * *', '2040-01-01 00:02:30', '2040-01-01 01:02:05'),
               (' 0  0 0 29 2 * ', '2041-01-01', '2044-02-29 00:00:00'),
               ('10 30 2 * * mon', '2040-01-02 02:30:09', '2040-01-02 02:30:10')) v (cron, after, next);
select is(pg_temp.next('10 30 2 * * *', '2040-06-01', 'Europe/Berlin'), '2040-06-01 00:30:10', 'in a time zone');
-- Every so often.
select is(pg_temp.next(cron, after), next, format('%s after %s', cron, after))
  from (values ('@every 1s', '2040-01-01 00:00:00.25', '2040-01-01 00:00:01'),
               ('@EVERY  90 seconds', '2040-01-01 00:00', '2040-01-01 00:01:30'),
               ('@every 90 seconds', '2040-01-01 00:01:30', '2040-01-01 00:03:00'),
               (' @every 1h30m', '2040-01-01 00:00', '2040-01-01 01:30:00')) v (cron, after, next);
select is(pg_temp.refusal(cron), field, format('%s is refused', cron))
  from (values ('60 * * * * *', 'second'), ('x * * * * *', 'second'), ('* 60 * * * *', 'minute'),
               ('@every', 'every'), ('@every 0.5 s', 'every'), ('@every month', 'every'),
               ('@every 2 months', 'every')) v (cron, field);

select set_config('timezone', 'Asia/Kolkata', true) \g /dev/null
select pgq._next_time_of('0 9 * * *', 'IST', '2040-01-01') as at \gset
select set_config('timezone', 'UTC', true) \g /dev/null
select is(
    pgq._next_time_of('0 9 * * *', 'IST', timestamptz '2039-12-31 18:30:00'), :'at',
    'an abbreviation is the same time zone for all sessions');

select * from finish();
rollback;
