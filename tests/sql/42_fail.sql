/*
 * pgq_fail: retries with backoff and jitter, and death.
 */
begin;
select plan(37);
\ir support/clock.psql

-- Fails attempt after attempt of one job of a queue and returns the waits, in seconds.
create function pg_temp.waits(p_queue text, p_tries integer) returns double precision[]
language plpgsql as $$
declare
    v_waits double precision[] := '{}';
    v_run_at timestamptz;
begin
    for v_try in 1..p_tries loop
        perform pgq_fail(d.id, d.token) from pgq_dequeue(1, '1 s', p_queue) d;
        select j.run_at into v_run_at
          from pgq.job j join pgq.lane l on l.id = j.lane join pgq.queue q on q.id = l.queue_id
         where q.name = p_queue;
        v_waits := v_waits || extract(epoch from v_run_at - pgq._now())::double precision;
        perform pg_temp.wait(v_run_at - pgq._now());
    end loop;
    return v_waits;
end
$$;

-- One failure.
select pgq_enqueue('{"a": 1}', headers => '{"h": 1}') as one \gset
select id, token from pgq_dequeue(1, worker => 'w') \gset
select is(pgq_fail(:id, :token, 'no luck'), 'scheduled', 'a job with attempts left is tried again');
select results_eq(
    $$ select j.id, j.payload, j.headers, j.last_error, j.attempt::integer, j.token, j.worker,
              j.lease_expires_at
         from pgq.job j $$,
    format($$ values (%s::bigint, '{"a": 1}'::jsonb, '{"h": 1}'::jsonb, 'no luck', 1, null::bigint,
                      null::text, null::timestamptz) $$, :one),
    'it keeps what it came with, and the error');
select is(pgq_fail(:id, :token, 'again'), null, 'the same receipt fails nothing again');
select is((select j.last_error from pgq.job j), 'no luck', 'and leaves no error');
select is(pg_temp.take(), '{}', 'the job waits for its backoff');
select pg_temp.wait('1 s') \g /dev/null
create temp table again as select d.* from pgq_dequeue() d;
select results_eq(
    $$ select a.id, a.attempt, a.last_error, a.enqueued_at, a.run_at > a.enqueued_at
      from again a $$,
    format($$ values (%s::bigint, 2, 'no luck', timestamptz '2040-01-01', true) $$, :one),
    'the next attempt sees the error of the last one');
select is((select a.token > :token from again a), true, 'its token is higher');
select is(
    (select pgq_fail(a.id, a.token) from again a), 'scheduled', 'an error text is optional');
select is((select j.last_error from pgq.job j), 'no luck', 'without one the last error stays');

-- Backoff.
select pgq_create_queue('backoff', 100, '2 s', 3, '100 s') \g /dev/null
select pg_temp.add('x', 'backoff') \g /dev/null
select pg_temp.waits('backoff', 30) as waits \gset
select is(
    array(select n from unnest(:'waits'::double precision[]) with ordinality w (w, n)
           where w not between least(2 * 3 ^ (n - 1), 100) / 2 and least(2 * 3 ^ (n - 1), 100)),
    '{}'::bigint[],
    'the n-th wait lies between half and all of base * factor ^ (n - 1), and of the cap');
select cmp_ok(
    (select count(distinct w) from unnest(:'waits'::double precision[]) w), '>', 25::bigint,
    'jitter makes the waits differ');
select cmp_ok(
    (select max(w) - min(w) from unnest((:'waits'::double precision[])[5:]) w), '>', 20::float,
    'and spreads them over that range');
select pgq_create_queue('default backoff') \g /dev/null
select pg_temp.add('x', 'default backoff') \g /dev/null
select is(
    array(select n from unnest(pg_temp.waits('default backoff', 19)) with ordinality w (w, n)
           where w not between least(2 ^ (n - 1), 3600) / 2 and least(2 ^ (n - 1), 3600)),
    '{}'::bigint[], 'by default the waits double from a second up to an hour');
select pgq_create_queue('steep', 32767, '1 s', 1000, '1000 s') \g /dev/null
select pg_temp.add('x', 'steep') \g /dev/null
select is(
    array(select n from unnest(pg_temp.waits('steep', 500)) with ordinality w (w, n)
           where n > 2 and w not between 500 and 1000),
    '{}'::bigint[], 'a steep backoff overflows nothing after hundreds of attempts');
select pgq_create_queue('zero', 9, '0') \g /dev/null
select pg_temp.add('x', 'zero') \g /dev/null
select is(pg_temp.waits('zero', 3), '{0,0,0}', 'a base of zero means no wait');
select pgq_create_queue('flat', 9, '0', 1, '0') \g /dev/null
select pg_temp.add('x', 'flat') \g /dev/null
select is(pg_temp.waits('flat', 3), '{0,0,0}', 'and so does a cap of zero');

-- retry_in.
select pgq_create_queue('override', 5, '1 hour', 2, '1 day') \g /dev/null
select pg_temp.add('x', 'override') \g /dev/null
select pgq_fail(d.id, d.token, retry_in => '90 s')
  from pgq_dequeue(1, '1 s', 'override') d \g /dev/null
select pg_temp.wait('89.999999 s') \g /dev/null
select is(pg_temp.take(1, 'override'), '{}', 'retry_in overrides the backoff');
select pg_temp.wait('0.000001 s') \g /dev/null
select results_eq(
    $$ select d.attempt, d.run_at from pgq_dequeue(1, '1 s', 'override') d $$,
    $$ values (2, pgq._now()) $$, 'to the microsecond');
select is(
    (select pgq_fail(j.id, j.token, retry_in => '0')
       from pgq.job j where j.token is not null and j.payload = '"x"' order by j.id desc limit 1),
    'scheduled', 'retry_in may be zero');
select is(pg_temp.take(1, 'override'), '{x}', 'which means at once');

-- Death.
select pgq_create_queue('short', max_attempts => 2, backoff_base => '0') \g /dev/null
select pgq_enqueue('{"p": 1}', 'short', headers => '{"h": 1}') as dead \gset
select is(
    (select pgq_fail(d.id, d.token, 'first') from pgq_dequeue(1, '1 s', 'short') d), 'scheduled',
    'the first of two attempts');
select is(
    (select pgq_fail(d.id, d.token, 'second', '1 s') from pgq_dequeue(1, '1 s', 'short', 'w') d),
    'dead', 'after the last attempt a job is dead, whatever retry_in says');
select results_eq(
    $$ select a.id, a.state, a.last_error, a.payload, a.headers, a.attempt, a.worker, a.finished_at,
              a.expires_at - a.finished_at
         from pgq.archive a $$,
    format($$ values (%s::bigint, 'dead', 'second', '{"p": 1}'::jsonb, '{"h": 1}'::jsonb, 2, 'w',
                      pgq._now(), interval '30 days') $$, :dead),
    'it is kept with its payload and last error, for as long as the queue keeps dead jobs');
select is_empty($$ select pgq_dequeue(9, '1 s', 'short') $$, 'and is not tried again');
select pgq_enqueue('1', 'short', max_attempts => 1) \g /dev/null
select is(
    (select pgq_fail(d.id, d.token) from pgq_dequeue(1, '1 s', 'short') d), 'dead',
    'a job''s own max_attempts wins over the queue''s');
select pgq_enqueue('2', 'short') \g /dev/null
select is(
    (select pgq_fail(d.id, d.token, 'poison', '1 s', false) from pgq_dequeue(1, '1 s', 'short') d),
    'dead', 'an error that is not retryable kills at once');
select pgq_configure_queue('short', keep_dead => '0') \g /dev/null
select pgq_enqueue('3', 'short') as gone \gset
select is(
    (select pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue(1, '1 s', 'short') d),
    'dead', 'a queue may keep no dead jobs');
select is_empty(
    format('select from pgq.archive a where a.id = %s', :gone), 'then nothing is archived');
select pgq_enqueue('4', 'short', max_attempts => 2) \g /dev/null
select pgq_configure_queue('short', max_attempts => 1, keep_dead => '1 day') \g /dev/null
select is(
    (select pgq_fail(d.id, d.token) from pgq_dequeue(1, '1 s', 'short') d), 'scheduled',
    'a changed max_attempts of the queue leaves a job''s own alone');

-- The caller's transaction.
select pg_temp.add('undone') \g /dev/null
select id, token from pgq_claim((select max(j.id) from pgq.job j)) \gset
savepoint before;
select pgq_fail(:id, :token, retryable => false) \g /dev/null
rollback to before;
select is(pgq_complete(:id, :token), true, 'a rollback undoes the failure');

-- Errors.
select throws_ok('select pgq_fail(' || arguments || ')', code, null, 'fail: ' || description)
  from (values
    ($$ null, 1 $$, '22004', 'a null id is refused'),
    ($$ 1, null $$, '22004', 'a null token is refused'),
    ($$ 1, 1, retryable => null $$, '22004', 'null for retryable is refused'),
    ($$ 1, 1, retry_in => '-1 s' $$, '22023', 'a negative retry_in is refused'),
    ($$ 1, 1, retry_in => 'infinity' $$, pg_temp.code_of_infinity(),
     'an infinite retry_in is refused'),
    ($$ 1, 1, retry_in => '100000 years' $$, '22023', 'a huge retry_in is refused')
  ) c (arguments, code, description);
select is(pgq_fail(0, 0), null, 'an unknown receipt is a lost lease');

select * from finish();
rollback;
