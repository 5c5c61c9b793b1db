/*
 * Retention: partitions of the archive are truncated when all that is in them has expired.
 */
begin;
select plan(31);
\ir support/clock.psql

create temp table kept (id bigint, expires_at timestamptz);

-- Keeps a job at every step of two cycles, with maintenance each time, and says what went wrong.
create function pg_temp.drive(p_keep interval, p_step interval, p_steps integer)
returns setof text language plpgsql as $$
declare
    v_expected bigint;
    v_found bigint;
begin
    truncate pgq.archive;
    truncate kept;
    perform pgq_configure_queue('default', keep_completed => p_keep, keep_dead => p_keep);
    for v_step in 1..p_steps loop
        perform pg_temp.wait(p_step);
        insert into kept values (pgq_enqueue('1'), pgq._now() + p_keep);
        if v_step % 2 = 0 then
            perform pgq_complete(d.id, d.token) from pgq_dequeue() d;
        else
            perform pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue() d;
        end if;
        perform pgq._tick();
        select count(*) into v_expected from kept k where k.expires_at > pgq._now();
        select count(*) into v_found from pgq.archive a where a.expires_at > pgq._now();
        if v_found <> v_expected then
            return next format('%s: %s of %s are left at %s', p_keep, v_found, v_expected,
            pgq._now());
            return;
        end if;
    end loop;
    return;
end
$$;

create function pg_temp.left_over(p_late interval) returns bigint language sql as $$
    select count(*) from pgq.archive a where a.expires_at < pgq._now() - p_late
$$;

select is_empty(
    format('select pg_temp.drive(%L, %L, %s)', keep, step, steps),
    format('with a retention of %s no job is lost before it expires', keep))
  from (values
    ('10 minutes', '2 minutes 7 s', 80),
    ('1 hour 1 s', '37 minutes', 100),
    ('24 hours', '37 minutes', 100),
    ('7 days', '17 hours', 115),
    ('1 month', '17 hours', 115),
    ('32 days', '23 hours', 85),
    ('60 days', '9 days', 105),
    ('1 year', '9 days', 105),
    ('2 years', '30 days', 60)
  ) c (keep, step, steps);

-- A day of 25 hours.
set local time zone 'Europe/Berlin';
select pg_temp.now_is('2040-10-27 00:10:00') \g /dev/null
select is_empty(
    $$ select pg_temp.drive('1 day', '13 minutes', 216) $$,
    'not even when the clocks are set back in the night');
set local time zone 'UTC';

-- And what has expired goes.
select unnest(array[
           is_empty(
               format('select pg_temp.drive(%L, %L, %s)', keep, step, steps),
               format('with a retention of %s no job is lost before it expires', keep)),
           is(pg_temp.left_over(late::interval), 0::bigint,
               format('with a retention of %s it is gone %s after it has expired', keep, late))])
  from (values
    ('1 hour', '3 minutes 11 s', 55, '20 minutes'),
    ('1 day', '40 minutes', 95, '6 hours'),
    ('30 days', '17 hours', 115, '8 days'),
    ('360 days', '9 days', 105, '80 days')
  ) c (keep, step, steps, late);

-- Neighbours: jobs of different retention side by side.
truncate pgq.archive;
select pgq_create_queue('short', keep_completed => '10 minutes'),
       pgq_create_queue('long', keep_completed => '10 days') \g /dev/null
select pg_temp.add('s', 'short'), pg_temp.add('l', 'long') \g /dev/null
select pgq_pop(1, q) from unnest('{short,long}'::text[]) q \g /dev/null
select pg_temp.wait('1 minute'), pgq._tick() from generate_series(1, 31) \g /dev/null
select is(
    array(select a.payload #>> '{}' from pgq.archive a), '{l}',
    'a short retention of one queue leaves the jobs of another alone');
select pgq_configure_queue('long', keep_completed => '1 minute') \g /dev/null
select pg_temp.wait('1 hour'), pgq._tick() from generate_series(1, 24) \g /dev/null
select is(
    array(select a.payload #>> '{}' from pgq.archive a), '{l}',
    'a changed retention counts for jobs that finish from then on');
select pg_temp.wait('1 day'), pgq._tick() from generate_series(1, 20) \g /dev/null
select is((select count(*) from pgq.archive), 0::bigint, 'in the end all are gone');

-- Somebody reads the archive.
select pg_temp.add('read') \g /dev/null
select pgq_configure_queue('default', keep_completed => '1 minute'), pgq_pop() \g /dev/null
declare reader cursor for select from pgq.archive;
fetch reader \g /dev/null
select pg_temp.wait('10 minutes') \g /dev/null
select lives_ok('select pgq._tick()', 'a partition that is being read is not waited for');
select is((select count(*) from pgq.archive), 1::bigint, 'it is left as it is');
close reader;
set local application_name = 'pg_dump';
select pgq._tick() \g /dev/null
select is((select count(*) from pgq.archive), 1::bigint, 'also while pg_dump is at work');
set local application_name = 'other';
select pgq._tick() \g /dev/null
select is((select count(*) from pgq.archive), 0::bigint, 'and truncated at a later tick');

-- A tick that began before a window of three hours ended, or when the clock was ahead.
select pg_temp.now_is('2041-01-01 00:00:01'), pg_temp.add('new') \g /dev/null
select pgq_configure_queue('default', keep_completed => '1 day'), pgq_pop() \g /dev/null
select pgq._expire_archive(timestamptz '2040-12-31 23:59:59') \g /dev/null
select is(
    array(select a.payload #>> '{}' from pgq.archive a), '{new}',
    'a tick of the last window leaves what has come since');
select pg_temp.now_is('2041-01-02 03:00:01'), pgq._tick() \g /dev/null
select is((select count(*) from pgq.archive), 0::bigint, 'until that has expired');
select pgq_configure_queue('default', keep_dead => '1 day'),
       pgq_enqueue_many(array_fill(to_jsonb(repeat('x', 500)), array[60])) \g /dev/null
select pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue(60) d \g /dev/null
select pgq._now() as now, a.expires_at - interval '27 hours' as earlier from pgq.archive a limit 1 \gset
select pg_temp.now_is(:'earlier') \g /dev/null
select is(
    (select min(a.bucket) from pgq.archive a) = any (pgq._passed_buckets(pgq._now())), true,
    'the day before the window of that partition had passed, too');
select pgq._expire_archive(pgq._now()) \g /dev/null
select is((select count(*) from pgq.archive), 60::bigint,
    'which says nothing when the clock was set back');
select pg_temp.now_is(:'now') \g /dev/null
select max((a.ctid::text::point)[0]) as last_page from pgq.archive a \gset
select pgq_retry(a.id) from pgq.archive a where (a.ctid::text::point)[0] = :last_page \g /dev/null
select count(*) as left from pgq.archive \gset
select pgq._expire_archive(timestamptz '2041-01-02 02:59:59') \g /dev/null
select is((select count(*) from pgq.archive), :left::bigint,
    'nor does that of a tick that began before, also if the last jobs were retried');
truncate pgq.archive;
delete from pgq.job;
select is(
    (select count(distinct pgq._archive_bucket(t, k::interval))
       from unnest('{1 minute,2 hours,2 days,40 days,2 years}'::text[]) k,
            generate_series(timestamptz '2040-01-01', '2045-01-01', '599 s') t),
    40::bigint, 'every partition has its use');

select * from finish();
rollback;
