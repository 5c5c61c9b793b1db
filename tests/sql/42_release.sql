/*
 * pgq_release: a job given back.
 */
begin;
select plan(33);
\ir support/clock.psql

select pgq_create_queue('q', max_attempts => 2) \g /dev/null
select pgq_enqueue('{"a": 1}', 'q', headers => '{"h": 1}') as one \gset
select id, token from pgq_dequeue(1, '1 minute', 'q', 'w') \gset
select is(pgq_release(:id, :token), true, 'a good receipt gives the job back');
select is(pgq_release(:id, :token), false, 'but only once');
select results_eq(
    $$ select j.id, j.payload, j.headers, j.attempt::integer, j.token, j.worker, j.last_error
         from pgq.job j $$,
    format($$ values (%s::bigint, '{"a": 1}'::jsonb, '{"h": 1}'::jsonb, 0, null::bigint,
                      null::text, null::text) $$, :one),
    'the job is as it was before');
create temp table got as select d.* from pgq_dequeue(1, '1 minute', 'q') d;
select is((select g.id from got g), :one::bigint, 'it is ready at once');
select is((select g.attempt from got g), 1, 'the attempt that was given back does not count');
select is((select g.token > :token from got g), true, 'the token grows all the same');
select is(pgq_complete(:id, :token), false, 'so that the receipt before stays stale');

select is(
    (select pgq_release(g.id, g.token, '10 s') from got g), true, 'it can be given back for later');
select pg_temp.wait('9.999999 s') \g /dev/null
select is(pg_temp.take(1, 'q'), '{}', 'then it is not claimed before the delay is over');
select pg_temp.wait('0.000001 s') \g /dev/null
select results_eq(
    $$ select d.attempt, d.run_at from pgq_dequeue(1, '1 minute', 'q') d $$,
    $$ values (1, pgq._now()) $$, 'but when it is');

-- Attempts.
do $$ begin
    perform pgq_release(j.id, j.token) from pgq.job j;
    for v_try in 1..10 loop
        perform pgq_release(d.id, d.token) from pgq_dequeue(1, '1 minute', 'q') d;
    end loop;
    perform pgq_fail(d.id, d.token, 'boom', '0') from pgq_dequeue(1, '1 minute', 'q') d;
end $$;
select results_eq(
    $$ select d.attempt, d.last_error from pgq_dequeue(1, '1 minute', 'q') d $$,
    $$ values (2, 'boom') $$, 'a job can be given back for ever, failures count as before');
select pgq_release(j.id, j.token) from pgq.job j \g /dev/null
select is(
    (select j.last_error from pgq.job j), 'boom', 'the error of an earlier attempt stays');
select is(
    (select pgq_fail(d.id, d.token) from pgq_dequeue(1, '1 s', 'q') d), 'dead',
    'the last attempt is the last one again');

-- Order, and a lease that has expired.
select pg_temp.add(l, 'q') from unnest('{a,b,c}'::text[]) l \g /dev/null
select id, token from pgq_dequeue(1, '1 s', 'q') \gset
select pgq_release(:id, :token) \g /dev/null
select is(pg_temp.take(9, 'q', '1 s'), '{a,b,c}', 'a job given back keeps its place');
select id, token from pgq.job where payload = '"a"' \gset
select pg_temp.pass('1 s') \g /dev/null
select is(pgq_release(:id, :token), true, 'an expired lease that nobody took can be given back');
select is(
    (select d.attempt from pgq_dequeue(1, '1 s', 'q') d), 1, 'and does not count either');
select id, token from pgq.job where payload = '"a"' \gset
savepoint before;
select pgq_release(:id, :token) \g /dev/null
rollback to before;
select is(pgq_complete(:id, :token), true, 'a rollback undoes the release');

-- Errors.
select throws_ok('select pgq_release(' || arguments || ')', code, null, 'release: ' || description)
  from (values
    ($$ null, 1 $$, '22004', 'a null id is refused'),
    ($$ 1, null $$, '22004', 'a null token is refused'),
    ($$ 1, 1, null $$, '22004', 'a null delay is refused'),
    ($$ 1, 1, '-1 s' $$, '22023', 'a negative delay is refused'),
    ($$ 1, 1, 'infinity' $$, pg_temp.code_of_infinity(), 'an infinite delay is refused'),
    ($$ 1, 1, '100000 years' $$, '22023', 'a huge delay is refused')
  ) c (arguments, code, description);
select is(pgq_release(0, 0), false, 'an unknown receipt is a lost lease');
select pgq_pause('q') \g /dev/null
select is(
    array(select pgq_release(j.id, j.token) from pgq.job j), '{t,t}',
    'jobs of a paused queue can be given back');
select is(pg_temp.take(9, 'q'), '{}', 'and then stay there');

-- What a worker does not hold.
select pgq_resume('q'), pgq_purge('q'), pgq_create_queue('late', max_attempts => 1) \g /dev/null
select pg_temp.add(l, 'q') from unnest('{1,2,3,4,5}'::text[]) l \g /dev/null
select pg_temp.add('6', 'q', 0, '1 s'), pg_temp.add('7', 'late', 5) \g /dev/null
select pg_temp.wait('1 s') \g /dev/null
select array_agg(d.token) as held from pgq_dequeue(2, '1 minute', 'q', 'w') d \gset
select pgq_dequeue(1, '1 minute', 'q', 'other'), pgq_dequeue(1, '1 minute', 'q') \g /dev/null
select pgq_dequeue(9, '1 minute', '{q,late}'::text[], 'w') \g /dev/null
create temp view lost as select j.payload #>> '{}' as label, j.attempt from pgq.job j
  join pgq.lane l on l.id = j.lane and l.queue in ('q', 'late') where j.token is null;
savepoint taken;
select is(
    array(select pgq_release_unheld('w', :'held', -1)), '{}', 'nothing of another session is');
select is(
    (select count(*) from pgq_release_unheld('w', :'held', pg_backend_pid())), 3::bigint,
    'what a session has claimed for a worker that does not hold it is given back');
select results_eq(
    $$ select l.label, l.attempt::integer from lost l order by l.label $$,
    $$ values ('5', 0), ('6', 0), ('7', 0) $$, 'of any queue, and the attempt does not count');
select is(
    array(select pgq_release_unheld('w', :'held')), '{}', 'it is given back once');
rollback to taken;
select is(
    (select count(*) from pgq_release_unheld('w', '{}')), 5::bigint,
    'a worker that holds nothing gives all back that has its name');
select is(pgq_release_unheld('nobody', '{}'), null, 'nobody gives nothing back');
select throws_ok(
    $$ select pgq_release_unheld(null, '{}') $$, '22004', null, 'a null worker is refused');
select throws_ok(
    $$ select pgq_release_unheld('w', null) $$, '22004', null, 'null tokens are refused');

select * from finish();
rollback;
