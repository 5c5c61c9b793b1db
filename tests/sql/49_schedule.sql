/*
 * Recurring jobs: each time that a schedule names gives one job, whenever somebody calls.
 */
begin;
select plan(67);
\ir support/clock.psql

create function pg_temp.jobs(p_name text default null) returns text[] language plpgsql as $$
begin
    return array(
        select format('%s %s', j.headers ->> 'pgq_schedule',
                      to_char((j.headers ->> 'pgq_scheduled_at')::timestamptz, 'HH24:MI'))
          from pgq.job j
         where p_name is null or j.headers ->> 'pgq_schedule' = p_name
         order by j.id
    );
end
$$;
create function pg_temp.clear() returns void language plpgsql as $$
begin
    delete from pgq.job;
    delete from pgq.schedule;
end
$$;
create function pg_temp.next_of(p_name text) returns text language plpgsql as $$
begin
    return (select to_char(s.next_at, 'MM-DD HH24:MI:SS') from pgq.schedule s where s.name = p_name);
end
$$;
-- Maintenance at a time of the first day.
create function pg_temp.at(p_time text) returns void language plpgsql as $$
begin
    perform pg_temp.now_is(('2040-01-01 ' || p_time)::timestamptz), pgq._tick();
end
$$;

-- Each time once.
select is(pgq_schedule('s', '*/10 * * * *', '{"a": 1}'), '2040-01-01 00:10'::timestamptz, 'the first time is returned');
select pg_temp.at('00:09:59.999999') \g /dev/null
select is(pg_temp.jobs(), '{}', 'nothing comes before it');
select pg_temp.at('00:10:00') \g /dev/null
select is(pg_temp.jobs(), '{s 00:10}', 'then a job comes');
select results_eq(
    'select d.payload, d.queue, d.priority, d.max_attempts, d.state from pgq_dequeue() d',
    $$ values ('{"a": 1}'::jsonb, 'default', 0, 20, 'active') $$, 'as an ordinary one');
select pg_temp.at('00:10:00'), pg_temp.at('00:10:59'), pg_temp.at('00:19:59') \g /dev/null
select is(pg_temp.jobs(), '{s 00:10}', 'no second one however often maintenance runs');
select is((select s.last_at from pgq.schedule s), '2040-01-01 00:10'::timestamptz, 'it is noted');
select pg_temp.at('00:20:03') \g /dev/null
select is(pg_temp.jobs(), '{"s 00:10","s 00:20"}', 'the next one a little late');
select pg_temp.at('00:15:00') \g /dev/null
select pg_temp.at('00:20:03') \g /dev/null
select is(pg_temp.jobs(), '{"s 00:10","s 00:20"}', 'none comes again when the clock is set back');
select is(
    pgq_schedule('now', '* * * * *'), '2040-01-01 00:21'::timestamptz,
    'a schedule begins with the next time, not with the one that is just over');
select pg_temp.clear() \g /dev/null

-- What becomes of missed times.
select pg_temp.now_is('2040-01-01 00:00') \g /dev/null
select pgq_schedule(m, '*/10 * * * *', missed => m) from unnest('{once,all,skip}'::text[]) m \g /dev/null
select pg_temp.at('00:41:30') \g /dev/null
select is(pg_temp.jobs('once'), '{once 00:10}', 'once: one job for all of them, which tells the first');
select is(pg_temp.next_of('once'), '01-01 00:50:00', 'and then it goes on');
select is(pg_temp.jobs('skip'), '{}', 'skip: none that is more than a minute late');
select is(pg_temp.next_of('skip'), '01-01 00:50:00', 'and then it goes on');
select pg_temp.at('00:41:31'), pg_temp.at('00:41:32'), pg_temp.at('00:41:33'), pg_temp.at('00:41:34') \g /dev/null
select is(pg_temp.jobs('all'), '{"all 00:10","all 00:20","all 00:30","all 00:40"}', 'all: one for each');
select is(pg_temp.next_of('all'), '01-01 00:50:00', 'and then it goes on');
select is(cardinality(pg_temp.jobs()), 5, 'no other has come meanwhile');
select pg_temp.at('00:50:59') \g /dev/null
select is(pg_temp.jobs('skip'), '{skip 00:50}', 'what is less than a minute late is not skipped');
select pg_temp.at('01:01:00.000001') \g /dev/null
select is(pg_temp.jobs('skip'), '{skip 00:50}', 'what is more late is');
select pgq_schedule('minutes', '* * * * *', missed => 'skip') \g /dev/null
select pg_temp.at('01:05:30') \g /dev/null
select is(pg_temp.jobs('minutes'), '{minutes 01:05}', 'of every minute, the last one is not too late');
select pg_temp.at('01:05:59.9'), pg_temp.at('01:06:00'), pg_temp.at('01:06:01') \g /dev/null
select is(pg_temp.jobs('minutes'), '{"minutes 01:05","minutes 01:06"}', 'and does not come again');
select pg_temp.clear() \g /dev/null

-- Many at once, and more than a tick takes.
select pg_temp.now_is('2040-01-01 00:00') \g /dev/null
select pgq_schedule('n' || n, '5 * * * *') from generate_series(1, 150) n \g /dev/null
select pg_temp.at('00:05:00') \g /dev/null
select is(cardinality(pg_temp.jobs()), 100, 'a tick takes a hundred');
select pg_temp.at('00:05:01'), pg_temp.at('00:05:02') \g /dev/null
select is(
    (select count(distinct j) from unnest(pg_temp.jobs()) j), 150::bigint, 'the next one the others');
select is(cardinality(pg_temp.jobs()), 150, 'each once');
select pg_temp.clear() \g /dev/null

-- What the job is like.
select pg_temp.now_is('2040-01-01 00:00') \g /dev/null
select pgq_create_queue('it''s a "queue"') \g /dev/null
select pgq_schedule(
    'a ''name'' "quoted" ü', '0 * * * *', '[1, null]', 'it''s a "queue"', 'UTC', -7, 3,
    '{"trace": "x", "pgq_schedule": "forged"}') \g /dev/null
set local time zone 'Asia/Tokyo';
select pg_temp.at('01:00:00+00') \g /dev/null
set local time zone 'UTC';
select results_eq(
    $$ select d.payload, d.priority, d.max_attempts, d.headers ->> 'trace',
              d.headers ->> 'pgq_schedule', d.headers ->> 'pgq_scheduled_at'
         from pgq_dequeue(queue => 'it''s a "queue"') d $$,
    $$ values ('[1, null]'::jsonb, -7, 3, 'x', 'a ''name'' "quoted" ü', '2040-01-01T01:00:00+00:00') $$,
    'it has the payload, priority, attempts and headers, and tells of its schedule');
select is(
    pgq_schedule('zone', '30 8 * * *', timezone => 'Asia/Kolkata'), '2040-01-01 03:00'::timestamptz,
    'times are those of the zone');
select set_config('timezone', 'Asia/Tokyo', true), pg_temp.at('03:00:00+00') \g /dev/null
select set_config('timezone', 'UTC', true) \g /dev/null
select is(pg_temp.jobs('zone'), '{zone 03:00}', 'whatever zone the session has that fires');
select pg_temp.clear() \g /dev/null

-- Pause and resume.
select pg_temp.now_is('2040-01-01 00:00') \g /dev/null
select pgq_schedule('p', '*/10 * * * *', missed => 'all') \g /dev/null
select is(pgq_pause_schedule('p'), true, 'a schedule is paused');
select pg_temp.at('00:35:00') \g /dev/null
select is(pg_temp.jobs(), '{}', 'then nothing comes');
select is(pgq_pause_schedule('p'), true, 'also when it is paused twice');
select is(pgq_resume_schedule('p'), true, 'it is resumed');
select pg_temp.at('00:35:01') \g /dev/null
select is(pg_temp.jobs(), '{}', 'what came in between was not missed');
select is(pgq_resume_schedule('p'), true, 'to resume it again changes nothing');
select pg_temp.at('00:40:00') \g /dev/null
select is(pg_temp.jobs(), '{p 00:40}', 'the next one comes');
select pg_temp.now_is('2040-01-01 00:55') \g /dev/null
select pgq_resume_schedule('p') \g /dev/null
select is(pg_temp.next_of('p'), '01-01 00:50:00', 'nor does it forget one that is due');
select is(pgq_pause_schedule('q') or pgq_resume_schedule('q'), false, 'false: there is none of that name');

-- Run now.
savepoint now;
select pgq_schedule('now', '0 4 * * *', '{"a": 1}'), pgq_pause_schedule('now') \g /dev/null
select is(
    (select array[j.state, j.headers ->> 'pgq_schedule', j.headers ->> 'pgq_scheduled_at']
       from pgq_run_schedule('now') i, pgq_get(i) j),
    '{ready,now,2040-01-01T00:55:00+00:00}', 'a job is added now, also of a schedule that is paused');
select is(pg_temp.next_of('now'), '01-01 04:00:00', 'and the next time stays');
select is(pgq_run_schedule('none'), null, 'null: there is none of that name');
rollback to now;

-- Replace and remove.
select pgq_pause_schedule('p') \g /dev/null
select is(pgq_schedule('p', '0 * * * *', '2', missed => 'once'), '2040-01-01 01:00'::timestamptz, 'a schedule is replaced');
select is((select count(*) from pgq.schedule), 1::bigint, 'it is the same one');
select pg_temp.at('01:00:00') \g /dev/null
select is(pg_temp.jobs(), '{p 00:40}', 'and stays paused');
select pgq_resume_schedule('p'), pg_temp.at('02:00:00') \g /dev/null
select is(pg_temp.jobs(), '{"p 00:40","p 02:00"}', 'resumed, it has the new times');
select is((select j.payload from pgq.job j order by j.id desc limit 1), '2', 'and the new payload');
select pg_temp.now_is('2040-01-01 03:30') \g /dev/null
select is(pgq_schedule('p', '0 * * * *', '3'), '2040-01-01 03:00'::timestamptz, 'a time that is due is not forgotten');
select is(pgq_schedule('p', '0 * * * *', '3', timezone => 'Asia/Kolkata'), '2040-01-01 04:30'::timestamptz, 'unless the times are others');
select is(pgq_unschedule('p'), true, 'it is removed');
select pg_temp.at('05:00:00') \g /dev/null
select is(pg_temp.jobs(), '{"p 00:40","p 02:00"}', 'its jobs stay, and no more come');
select is(pgq_unschedule('p'), false, 'false: there is no such schedule');
select pgq_schedule('d', '* * * * *', queue => 'it''s a "queue"') \g /dev/null
select pgq_drop_queue('it''s a "queue"', true) \g /dev/null
select is((select count(*) from pgq.schedule), 0::bigint, 'a queue takes its schedules with it');
select pg_temp.clear() \g /dev/null

-- Bounds, pauses and lost zones do not fail the commit of whoever fires.
select pgq_create_queue('small', max_ready => 1, max_payload => 10) \g /dev/null
select pg_temp.add('x', 'small') \g /dev/null
select pg_temp.now_is('2040-01-01 00:00') \g /dev/null
select throws_ok($$ select pgq_schedule('b', '* * * * *', '"12345678901"', 'small') $$, '54000', null, 'a long payload is refused at once');
select lives_ok($$ select pgq_schedule('b', '* * * * *', '1', 'small') $$, 'a full queue is not looked at');
select lives_ok($$ select pg_temp.at('00:01:00') $$, 'nor when it fires');
select is(pg_temp.jobs('b'), '{b 00:01}', 'the job comes');
select pgq_pause('small'), pg_temp.at('00:02:00') \g /dev/null
select is(pg_temp.jobs('b'), '{"b 00:01","b 00:02"}', 'and so it does in a paused queue');
select pgq_schedule('lost', '* * * * *'), pgq_schedule('kept', '* * * * *') \g /dev/null
update pgq.schedule set timezone = 'Gone/Away' where name = 'lost';
set local client_min_messages = error;
select lives_ok($$ select pg_temp.at('00:03:00') $$, 'a zone that an update took away fails nobody');
reset client_min_messages;
select is((select s.paused from pgq.schedule s where s.name = 'lost'), true, 'its schedule is paused');
select is(pg_temp.jobs('kept'), '{kept 00:03}', 'the others go on');

-- Bad input.
select is(
    array(select c || ' ' || pg_temp.code(format('pgq_schedule(%s)', c)) from unnest(array[
        'null, $$* * * * *$$', '$$x$$, null', '$$x$$, $$* * * * *$$, null', '$$x$$, $$* * * * *$$, queue => null',
        '$$x$$, $$* * * * *$$, timezone => null', '$$x$$, $$* * * * *$$, priority => null',
        '$$x$$, $$* * * * *$$, missed => null'
    ]) c where pg_temp.code(format('pgq_schedule(%s)', c)) <> '22004'), '{}', 'what must not be null');
select is(
    array(select c || ' ' || pg_temp.code(format('pgq_schedule(%s)', c)) from unnest(array[
        '$$$$, $$* * * * *$$', 'repeat($$x$$, 201), $$* * * * *$$', '$$x$$, $$* * * *$$', '$$x$$, $$$$',
        '$$x$$, $$0 0 30 2 *$$', '$$x$$, $$* * * * *$$, timezone => $$Mars/Olympus$$', '$$x$$, $$* * * * *$$, timezone => $$$$',
        '$$x$$, $$* * * * *$$, missed => $$never$$', '$$x$$, $$* * * * *$$, max_attempts => 0',
        '$$x$$, $$* * * * *$$, max_attempts => 32768', '$$x$$, $$* * * * *$$, headers => $$[]$$',
        '$$x$$, $$* * * * *$$, headers => $$1$$',
        'repeat($$x$$, 201), $$* * * * *$$', '$$x$$, repeat($$0,$$, 500) || $$0 * * * *$$'
    ]) c where pg_temp.code(format('pgq_schedule(%s)', c)) <> '22023'), '{}', 'what is not valid');
select is(pg_temp.code('pgq_schedule($$x$$, $$* * * * *$$, queue => $$none$$)'), '42704', 'an unknown queue');
select is(
    array(select pg_temp.code(format('pgq_schedule($$x$$, $$* * * * *$$, priority => %s)', p))
            from unnest('{32768,-32769}'::integer[]) p), '{22003,22003}', 'a priority out of range');
select is(
    array(select pg_temp.code(f || '(null)') from unnest('{pgq_unschedule,pgq_pause_schedule,pgq_resume_schedule,pgq_run_schedule}'::text[]) f),
    '{22004,22004,22004,22004}', 'a name that is null');
select is((select count(*) from pgq.schedule s where s.name in ('x', '')), 0::bigint, 'none of it has made a schedule');
select is(
    pg_temp.code('pgq_schedule(repeat($$x$$, 200), $$* * * * *$$)')
        || pg_temp.code('pgq_schedule($$max$$, $$* * * * *$$, priority => 32767, max_attempts => 32767, payload => $$null$$)'),
    'nonenone', 'the largest values');

-- By seconds, of which some have passed.
create function pg_temp.fired(p_name text) returns text[] language sql as $$
    select array(
        select to_char((j.headers ->> 'pgq_scheduled_at')::timestamptz, 'MI:SS') from pgq_jobs j
         where j.headers ->> 'pgq_schedule' = p_name order by j.id
    )
$$;
select pg_temp.now_is('2041-01-01 00:00:00+00') \g /dev/null
select pgq_schedule('once', '*/10 * * * * *'),
       pgq_schedule('skip', '*/10 * * * * *', missed => 'skip'),
       pgq_schedule('all', '@every 10s', missed => 'all') \g /dev/null
select pg_temp.wait('10 seconds'), pg_temp.wait('25 seconds'), pg_temp.wait('0'), pg_temp.wait('5 seconds') \g /dev/null
select is(pg_temp.fired('once'), '{00:10,00:20,00:40}', 'a schedule by seconds fires once for those missed');
select is(pg_temp.fired('skip'), '{00:10,00:20,00:40}', 'or for those of the last minute');
select is(pg_temp.fired('all'), '{00:10,00:20,00:30,00:40}', 'or for all');

select * from finish();
rollback;
