/*
 * Times around a change of the clock, asked for long before it; and what is computed without one.
 */
begin;
select plan(8);
\ir support/clock.psql

create function pg_temp.next(p_cron text, p_after text, p_timezone text) returns text
language plpgsql as $$
begin
    return to_char(
        pgq._next_time_of(p_cron, p_timezone, p_after::timestamptz) at time zone 'UTC',
        'MM-DD HH24:MI'
    );
end
$$;
create function pg_temp.instants() returns bigint language sql as $$
    select coalesce(pg_stat_get_xact_function_calls(
               'pgq._instants(timestamp, text, boolean)'::regprocedure
           ), 0)
$$;
set local track_functions = 'all';

-- On the 28th of October 2040 clocks in Berlin show 02:30 twice, at 00:30 and 01:30 UTC.
select is(
    pg_temp.next('30 2 28 10 *', '2040-10-' || d, 'Europe/Berlin'), '10-28 00:30',
    format('the first of two times counts, asked for on the %sth', d))
  from unnest('{20,26,27}'::integer[]) d;
select is(
    pg_temp.next('30 2 25 3 *', '2040-03-20', 'Europe/Berlin'), '03-25 01:30',
    'a time that is skipped counts as without the change');
select cmp_ok(pg_temp.instants(), '>', 0::bigint, 'such times are looked at one by one');

-- Far from a change none is.
select pg_temp.instants() as before \gset
select is(
    pg_temp.next('* * * * *', '2040-06-01 12:00', 'Europe/Berlin'), '06-01 12:01',
    'a minute is followed by the next');
select is(pg_temp.next('0 0 * * *', '2040-06-01', 'UTC'), '06-02 00:00', 'and a day');
select is(pg_temp.instants(), :before::bigint, 'for which no time is looked at that has passed');

select * from finish();
rollback;
