/*
 * pgq_enqueue, pgq_enqueue_many.
 */
begin;
select plan(77);
\ir support/clock.psql

-- What a job is like.
select pgq_enqueue('{"a": [1]}', headers => '{"trace": "t"}', max_attempts => 7) as first \gset
select results_eq(
    $$ select j.payload, j.headers, j.max_attempts::integer, j.attempt::integer, j.enqueued_at,
              j.token, j.last_error
         from pgq.job j $$,
    $$ values ('{"a": [1]}'::jsonb, '{"trace": "t"}'::jsonb, 7, 0, pgq._now(), null::bigint,
               null::text) $$,
    'enqueue stores payload, headers and max_attempts, with the time of the server');
select is(pgq_enqueue('1') > :first, true, 'ids grow');
select is(pg_temp.take(2), '{"{\"a\": [1]}",1}', 'what was enqueued is ready at once');
select lives_ok($$ select pgq_enqueue('null') $$, 'a JSON null is a payload');
select is(pg_temp.take(), '{null}'::text[], 'and comes back as such');

-- run_at.
select pg_temp.add('due', p_delay => '10 seconds'), pg_temp.add('plain'),
       pg_temp.add('past', p_delay => '-10 seconds'), pg_temp.add('now', p_delay => '0')
    \g /dev/null
select results_eq(
    $$ select d.payload #>> '{}', d.run_at from pgq_dequeue(10) d $$,
    $$ values ('plain', pgq._now()), ('past', pgq._now()), ('now', pgq._now()) $$,
    'run_at in the past, or none, means now');
select pg_temp.wait('9.999999 seconds') \g /dev/null
select is(pg_temp.take(), '{}', 'a job does not run before run_at');
select pg_temp.wait('0.000001 seconds') \g /dev/null
select is(pg_temp.take(), '{due}', 'and runs at run_at');

-- pgq_enqueue_many.
select array_agg(m) as ids
  from pgq_enqueue_many(array(select to_jsonb(i) from generate_series(1000, 1, -1) i)) m \gset
select is(
    :'ids'::bigint[], array(select unnest(:'ids'::bigint[]) order by 1),
    'the ids of enqueue_many grow');
select is(
    array(select d.id from pgq_dequeue(1000) d order by d.payload::integer desc), :'ids'::bigint[],
    'and are in the order of the payloads');
select is_empty(
    $$ select pgq_enqueue_many('{}') $$, 'no payloads, no jobs');
select pgq_enqueue_many(
    array['1', '2']::jsonb[], priority => 3, run_at => pgq._now() + '1 hour', max_attempts => 2,
    headers => '{"h": 1}'
) \g /dev/null
select results_eq(
    $$ select j.payload, l.priority::integer, j.run_at, j.max_attempts::integer, j.headers
         from pgq.job j join pgq.lane l on l.id = j.lane where l.priority = 3 order by j.id $$,
    $$ select to_jsonb(i), 3, pgq._now() + '1 hour', 2, '{"h": 1}'::jsonb
         from generate_series(1, 2) i $$,
    'all jobs of enqueue_many get the same settings');

-- Names are data.
create temp table name (name text);
insert into name values
    ('q'), ('Q'), ('"; drop table pgq.job; --'), ('it''s'), (' '), ('a.b'), ('100%'), ('%s %I'),
    ('\'), ('🐘'), (repeat('🐘', 200)), (repeat('x', 200)), (E'line\nbreak'), ('{a,b}'), ('null');
select lives_ok(
    format('select pgq_create_queue(%L)', n.name),
    format('a queue may be called <%s>', left(regexp_replace(n.name, '\s', '_'), 10))
) from name n;
select pgq_enqueue(to_jsonb(n.name), n.name) from name n \g /dev/null
select is(
    array(select d.payload #>> '{}' from name n, pgq_dequeue(10, '1 minute', n.name) d order by n),
    array(select n.name from name n order by n),
    'each of them has its own jobs');

-- Errors, each with nothing written.
create temp table before as select count(*) from pgq.job;
select throws_ok('select pgq_enqueue(' || arguments || ')', code, null, 'enqueue: ' || description)
  from (values
    ($$ null $$, '22004', 'a null payload is refused'),
    ($$ '1', null $$, '22004', 'a null queue is refused'),
    ($$ '1', priority => null $$, '22004', 'a null priority is refused'),
    ($$ '1', 'nowhere' $$, '42704', 'an unknown queue is refused'),
    ($$ '1', priority => 32768 $$, '22003', 'a priority above smallint is refused'),
    ($$ '1', priority => -32769 $$, '22003', 'a priority below smallint is refused'),
    ($$ '1', run_at => 'infinity' $$, '22023', 'an infinite run_at is refused'),
    ($$ '1', run_at => '-infinity' $$, '22023', 'an infinite past run_at is refused'),
    ($$ '1', max_attempts => 0 $$, '22023', 'no attempt at all is refused'),
    ($$ '1', max_attempts => 32768 $$, '22023', 'more attempts than smallint are refused'),
    ($$ '1', headers => '[]' $$, '22023', 'headers that are no object are refused'),
    ($$ '1', headers => 'null' $$, '22023', 'JSON null is no object'),
    ($$ '1', dedupe_key => '' $$, '22023', 'an empty key is refused'),
    ($$ '1', dedupe_key => repeat('k', 501) $$, '22023', 'a long key is refused'),
    ($$ '1', dedupe_key => 'k', on_duplicate => null $$, '22004', 'a null on_duplicate is refused'),
    ($$ '1', dedupe_key => 'k', on_duplicate => 'drop' $$, '22023', 'another one is refused'),
    ($$ '1', on_duplicate => null $$, '22004', 'a null one is refused without a key, too'),
    ($$ '1', on_duplicate => 'drop' $$, '22023', 'as is another one'),
    ($$ '1', after_on_dead => null $$, '22004', 'a null after_on_dead is refused'),
    ($$ '1', after_on_dead => 'stop' $$, '22023', 'another one is, too, with nothing to wait for'),
    ($$ null, dedupe_key => 'k' $$, '22004', 'a null payload with a key is refused'),
    ($$ '1', 'nowhere', dedupe_key => 'k' $$, '42704', 'an unknown queue with a key is refused'),
    ($$ '1', group_key => '' $$, '22023', 'an empty group is refused')
  ) c (arguments, code, description);
select throws_ok(
    'select pgq_enqueue_many(' || arguments || ')', code, null, 'enqueue_many: ' || description)
  from (values
    ($$ null $$, '22004', 'a null array is refused'),
    ($$ array['1', null]::jsonb[] $$, '22004', 'a null element is refused'),
    ($$ '{}', null $$, '22004', 'a null queue is refused'),
    ($$ '{}', 'nowhere' $$, '42704', 'an unknown queue is refused, also without payloads'),
    ($$ '{1}', priority => 40000 $$, '22003', 'a priority outside smallint is refused'),
    ($$ '{1}', run_at => 'infinity' $$, '22023', 'an infinite run_at is refused'),
    ($$ '{1}', max_attempts => 0 $$, '22023', 'no attempt at all is refused'),
    ($$ '{1}', headers => '1' $$, '22023', 'headers that are no object are refused'),
    ($$ '{1}', dedupe_keys => '{k,l}' $$, '22023', 'more keys than payloads are refused'),
    ($$ '{1,2}', dedupe_keys => '{k}' $$, '22023', 'fewer keys than payloads are refused'),
    ($$ '{1,2}', dedupe_keys => '{k,""}' $$, '22023', 'an empty key is refused'),
    ($$ '{1,2}', dedupe_keys => '{k,k}', on_duplicate => 'error' $$, '23505',
     'one key twice in a call is refused if asked for'),
    ($$ '{1}', on_duplicate => 'drop' $$, '22023', 'a bad on_duplicate without keys is refused'),
    ($$ '{1}', after_on_dead => 'stop' $$, '22023', 'a bad after_on_dead is refused'),
    ($$ '{1}', group_keys => '{g,h}' $$, '22023', 'more groups than payloads are refused')
  ) c (arguments, code, description);
select throws_ok(
    $$ select pgq_enqueue_many(array['1', null]::jsonb[]) $$, '22004',
    '"payloads" must not contain null', 'an error tells a null element from a null array');
select throws_ok(
    $$ select pgq_enqueue_many(null) $$, '22004', '"payloads" must not be null',
    'and a null array from a null element');
select is(
    (select count(*) from pgq.job), (select count from before),
    'nothing is written after an error');

-- The HINT is what its reader would type next.
do $do$
declare
    v_hint text;
begin
    perform pgq_enqueue('1', 'it''s new');
exception when undefined_object then
    get stacked diagnostics v_hint = pg_exception_hint;
    perform set_config('test.hint', v_hint, true);
end
$do$;
select matches(
    current_setting('test.hint'), $$pgq_create_queue\('it''s new'\)$$,
    'the HINT for an unknown queue is the call that creates it');
select is(
    (select pg_temp.take(1, 'q', '1 ms') from pgq_enqueue('-32768', 'q', -32768)), '{-32768}',
    'the lowest priority works');
select is(
    (select pg_temp.take(1, 'q', '1 ms') from pgq_enqueue('32767', 'q', 32767)), '{32767}',
    'and the highest');

-- Lanes are of all queues together: none takes more than its share.
select pgq_create_queue('wide'), pgq_create_queue('other') \g /dev/null
select count(pgq_enqueue('1', 'wide', p)) from generate_series(1, 999) p \g /dev/null
select throws_ok(
    $$ select pgq_enqueue('1', 'wide', 1000) $$, '54000',
    'queue "wide" has 1000 priorities already', 'a queue has at most 1000 priorities');
select throws_ok(
    $$ select pgq_enqueue_many('{1,2}', 'wide', -1, run_at => pgq._now() + '1 hour') $$, '54000',
    null, 'whichever call would use one more');
select lives_ok(
    $$ select pgq_enqueue('1', 'wide', 0), pgq_enqueue('1', 'wide', 999) $$,
    'those that it has stay usable');
select lives_ok(
    $$ select pgq_enqueue('1', 'wide', 999, expires_at => pgq._now() + '1 hour') $$,
    'also for jobs that must start by a time');
select lives_ok(
    $$ select pgq_enqueue('1', 'other', 1000) $$, 'and other queues do not notice');

select * from finish();
rollback;
