/*
 * pgq_create_queue, pgq_configure_queue, pgq_drop_queue, pgq_pause, pgq_resume.
 */
begin;
select plan(120);
\ir support/clock.psql

create temp view setting as
select q.name, q.max_attempts, q.backoff_base, q.backoff_factor, q.backoff_max, q.keep_completed,
       q.keep_dead, q.paused
  from pgq.queue q;

-- Creating.
select results_eq(
    'select s.* from setting s',
    $$ values ('default', 20, interval '1 s', 2::float8, interval '1 hour', interval '1 day',
               interval '30 days', false) $$,
    'the queue "default" exists from the start, with the default settings');
select pgq_create_queue('plain'),
       pgq_create_queue('full', 3, '5 s', 1.5, '1 minute', '2 hours', '0', 0) \g /dev/null
select results_eq(
    $$ select s.* from setting s where s.name = 'plain' $$,
    $$ select 'plain', s.max_attempts, s.backoff_base, s.backoff_factor, s.backoff_max,
              s.keep_completed, s.keep_dead, s.paused from setting s where s.name = 'default' $$,
    'a queue is created with defaults');
select results_eq(
    $$ select s.* from setting s where s.name = 'full' $$,
    $$ values ('full', 3, interval '5 s', 1.5::float8, interval '1 minute', interval '2 hours',
               interval '0', false) $$,
    'or with own settings');
select throws_ok(
    $$ select pgq_create_queue('plain') $$, '42710', null, 'a queue cannot be created twice');
select last_value as number from pgq.queue_id_seq \gset
select is(
    pgq_create_queue('full', 9, if_not_exists => true), false,
    'with if_not_exists it is said that there is one');
select is(
    (select s.last_value from pgq.queue_id_seq s), :number::bigint,
    'and that takes no number of a queue, however often a program begins so');
select is(
    (select s.max_attempts from setting s where s.name = 'full'), 3, 'and that stays as it is');
select is(pgq_create_queue('Plain', if_not_exists => true), true, 'names differ by case');
select throws_ok(
    $$ select pgq_create_queue('default') $$, '42710', null, 'nor can "default"');
select lives_ok(
    format('select pgq_create_queue(%L)', repeat('x', 200)), 'a name may have 200 characters');
select throws_ok(
    format('select pgq_create_queue(%L)', repeat('x', 201)), '22023', null, 'but not 201');
select throws_ok($$ select pgq_create_queue('') $$, '22023', null, 'nor none');
select throws_ok(
    $$ select pgq_create_queue('*', if_not_exists => true) $$, '22023',
    'a queue''s name must not be "*"', 'nor be what stands for all queues in grants');

create temp table bad (arguments text, code text, description text);
insert into bad values
    ('max_attempts => 0', '22023', 'no attempt at all is refused'),
    ('max_attempts => 32768', '22023', 'more attempts than smallint are refused'),
    ($$backoff_base => '-1 s'$$, '22023', 'a negative backoff_base is refused'),
    ($$backoff_base => '2 hours'$$, '22023', 'a backoff_base above backoff_max is refused'),
    ($$backoff_max => '0.5 s'$$, '22023', 'a backoff_max below backoff_base is refused'),
    ($$backoff_max => '100000 years'$$, '22023', 'a huge backoff_max is refused'),
    ('backoff_factor => 0.99', '22023', 'a backoff_factor below 1 is refused'),
    ('backoff_factor => 1001', '22023', 'a huge backoff_factor is refused'),
    ($$backoff_factor => 'NaN'$$, '22023', 'a backoff_factor that is no number is refused'),
    ($$backoff_factor => 'Infinity'$$, '22023', 'an infinite backoff_factor is refused'),
    ($$keep_completed => '-1 s'$$, '22023', 'a negative keep_completed is refused'),
    ($$keep_dead => '-1 s'$$, '22023', 'a negative keep_dead is refused'),
    ($$keep_dead => '100000 years'$$, '22023', 'a huge keep_dead is refused'),
    ($$keep_dead => 'infinity'$$, pg_temp.code_of_infinity(), 'an infinite keep_dead is refused'),
    ('max_active => -1', '22023', 'a negative max_active is refused'),
    ('max_active => 10001', '22023', 'a huge max_active is refused'),
    ('rate_limit => -1', '22023', 'a negative rate_limit is refused'),
    ('rate_limit => 10001', '22023', 'a rate_limit above 10000 without rate_burst is refused'),
    ($$rate_interval => '0'$$, '22023', 'an empty rate_interval is refused'),
    ('rate_burst => 10001', '22023', 'a huge rate_burst is refused'),
    ($$priority_ageing => '-1 s'$$, '22023', 'a negative priority_ageing is refused'),
    ('max_ready => -1', '22023', 'a negative max_ready is refused'),
    ('max_payload => -1', '22023', 'a negative max_payload is refused');
select throws_ok(
    format('select pgq_create_queue(%L, %s)', 'new', b.arguments), b.code, null,
    'create_queue: ' || b.description)
  from bad b;
select throws_ok(
    format('select pgq_configure_queue(%L, %s)', 'plain', b.arguments), b.code, null,
    'configure_queue: ' || b.description)
  from bad b;
select throws_ok(
    format('select pgq_create_queue(%L, %s => null)', 'new', argument), '22004', null,
    format('create_queue: null for %s is refused', argument))
  from unnest('{max_attempts,backoff_base,backoff_factor,backoff_max,keep_completed,keep_dead,'
              'max_active,rate_limit,rate_interval,rate_burst,priority_ageing,max_ready,'
              'max_payload,if_not_exists}'::text[]) argument;
select throws_ok('select pgq_create_queue(null)', '22004', null, 'a null name is refused');
select is_empty(
    $$ select s.name from setting s where s.name = 'new' $$, 'an error creates no queue');
select results_eq(
    $$ select s.max_attempts, s.backoff_base, s.backoff_max
      from setting s where s.name = 'plain' $$,
    $$ values (20, interval '1 s', interval '1 hour') $$, 'and changes none');

-- Configuring.
select pgq_configure_queue('plain', max_attempts => 5),
       pgq_configure_queue('full', 9, '1 s', 3, '2 s', '3 s', '4 s', 0),
       pgq_configure_queue('default') \g /dev/null
select results_eq(
    $$ select s.* from setting s where s.name in ('plain', 'full', 'default') order by s.name $$,
    $$ values ('default', 20, interval '1 s', 2::float8, interval '1 hour', interval '1 day',
               interval '30 days', false),
              ('full', 9, '1 s', 3, '2 s', '3 s', '4 s', false),
              ('plain', 5, '1 s', 2, '1 hour', '1 day', '30 days', false) $$,
    'configuring changes what is given, and nothing else');
select pg_temp.add('old', 'plain') \g /dev/null
select pgq_configure_queue('plain', max_attempts => 1) \g /dev/null
select is(
    (select d.max_attempts from pgq_dequeue(1, '1 s', 'plain') d), 1,
    'jobs that name no max_attempts follow their queue''s');

-- Pausing.
select pg_temp.add('p', 'full') \g /dev/null
select id, token from pgq_dequeue(1, '1 minute', 'full') \gset
select pgq_pause('full'), pgq_pause('full') \g /dev/null
select is((select s.paused from setting s where s.name = 'full'), true,
    'a queue can be paused, twice');
select isnt(pgq_heartbeat(:id, :token), null, 'its running jobs may go on');
select is(pgq_complete(:id, :token), true, 'and be completed');
select isnt(pg_temp.add('q', 'full'), null, 'and it takes jobs');
select is(pg_temp.take(9, 'full'), '{}', 'but gives none');
select pgq_resume('full'), pgq_resume('full') \g /dev/null
select is(pg_temp.take(9, 'full', '1 s'), '{q}', 'until it is resumed');

-- Dropping.
select throws_ok(
    $$ select pgq_drop_queue('full') $$, '55006', null,
    'a queue with an active job is not dropped');
select pg_temp.wait('1 s') \g /dev/null
select throws_ok(
    $$ select pgq_drop_queue('full') $$, '55006', null, 'nor one with an expired lease');
select id, token from pgq_dequeue(1, '1 s', 'full') \gset
select pgq_release(:id, :token, '1 minute') \g /dev/null
select throws_ok(
    $$ select pgq_drop_queue('full') $$, '55006', null, 'nor one with a scheduled job');
select pg_temp.wait('1 minute') \g /dev/null
select throws_ok(
    $$ select pgq_drop_queue('full') $$, '55006', null, 'nor one with a ready job');
select pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue(1, '1 s', 'full') d \g /dev/null
select throws_ok(
    $$ select pgq_drop_queue('full') $$, '55006', null, 'nor one with a dead job');
select pg_temp.wait('4 s') \g /dev/null
select lives_ok(
    $$ select pgq_drop_queue('full') $$, 'but when its dead jobs have expired');
select is_empty($$ select from setting s where s.name = 'full' $$, 'then it is gone');
select pgq_create_queue('full') \g /dev/null
select pg_temp.add('c', 'full') \g /dev/null
select pgq_complete(d.id, d.token) from pgq_dequeue(1, '1 s', 'full') d \g /dev/null
select lives_ok(
    $$ select pgq_drop_queue('full') $$, 'a queue with completed jobs only can be dropped');
select is(
    (select count(*) from pgq.archive a where a.queue = 'full' and a.state = 'completed'
        and a.payload = '"c"'),
    1::bigint, 'they stay in the archive');

select pgq_create_queue('force') \g /dev/null
select pg_temp.add('s', 'force', p_delay => '1 day'), pg_temp.add('d', 'force'),
       pg_temp.add('a', 'force'), pg_temp.add('r', 'force'), pg_temp.add('stays') \g /dev/null
select pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue(1, '1 s', 'force') d
    \g /dev/null
select pg_temp.take(1, 'force') \g /dev/null
select lives_ok($$ select pgq_drop_queue('force', true) $$,
    'force drops a queue with all its jobs');
select is(
    array(select j.payload #>> '{}' from pgq.job j order by j.id), '{stays}',
    'the jobs of others stay');
select is_empty(
    $$ select from pgq.archive a where a.queue = 'force' $$, 'the dead ones are gone, too');
select throws_ok(
    $$ select pgq_enqueue('1', 'force') $$, '42704', null, 'it takes no jobs any more');
select pgq_create_queue('force') \g /dev/null
select is(pg_temp.take(9, 'force'), '{}', 'a new one of that name starts empty');

-- A new queue of that name has none of the finished jobs either.
select pgq_create_queue('twice', dedupe_for => '1 day') \g /dev/null
select pgq_enqueue('"old"', 'twice', dedupe_key => 'k') as old \gset
select pgq_pop(1, 'twice') \g /dev/null
select pgq_cancel(pg_temp.add('no', 'twice')), pg_temp.wait('1 s') \g /dev/null
select pgq_drop_queue('twice') \g /dev/null
select pgq_create_queue('twice', dedupe_for => '1 day') \g /dev/null
select is(
    (select q.created_at from pgq.queue q where q.name = 'twice'), pgq._now(),
    'a queue is as old as the clock says');
select is(
    pgq_purge('twice', '{completed,cancelled,dead}'), 0::bigint,
    'a new queue of the name of a dropped one has nothing to purge');
select is((select g.state from pgq_get(:old) g), 'completed',
    'what the old one has completed is there for who may observe all queues');
select pgq_enqueue('"new"', 'twice', dedupe_key => 'k') as new \gset
select isnt(:new::bigint, :old::bigint, 'its dedupe keys are not held');
select pgq_pop(1, 'twice'), pg_temp.wait('1 s') \g /dev/null
select is(pgq_enqueue('1', 'twice', dedupe_key => 'k'), :new::bigint, 'those of the new one are');
select is(pgq_purge('twice', '{completed}'), 1::bigint, 'until its jobs are purged');
select isnt(pgq_enqueue('1', 'twice', dedupe_key => 'k'), :new::bigint, 'and the keys with them');

-- Unknown queues, in every function.
select throws_ok('select ' || call, '42704', null, call || ' refuses an unknown queue')
  from unnest(array[
    $$pgq_configure_queue('nowhere')$$, $$pgq_drop_queue('nowhere')$$,
    $$pgq_drop_queue('nowhere', true)$$, $$pgq_pause('nowhere')$$, $$pgq_resume('nowhere')$$,
    $$pgq_purge('nowhere')$$, $$pgq_retry_dead('nowhere')$$, $$pgq_reclaim('nowhere')$$
  ]) call;
select throws_ok('select ' || call, '22004', null, call || ' refuses null')
  from unnest(array[
    'pgq_configure_queue(null)', 'pgq_drop_queue(null)', $$pgq_drop_queue('plain', null)$$,
    'pgq_pause(null)', 'pgq_resume(null)', 'pgq_purge(null)', 'pgq_retry_dead(null)'
  ]) call;

select * from finish();
rollback;
