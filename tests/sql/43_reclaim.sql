/*
 * pgq_reclaim, and what maintenance does with leases that have expired.
 */
begin;
select plan(26);
\ir support/clock.psql

select pgq_create_queue('q', max_attempts => 2), pgq_create_queue('other') \g /dev/null
select pg_temp.add(l, 'q') from unnest('{a,b,c}'::text[]) l \g /dev/null
select pg_temp.add('o', 'other') \g /dev/null
select is(array(select pgq_reclaim()), '{}', 'there is nothing to reclaim while nothing is leased');
select pg_temp.take(2, 'q', '10 s'), pg_temp.take(1, 'other', '10 s') \g /dev/null
select is(pg_temp.take(1, 'q', '1 hour'), '{c}', 'one lease that lasts longer');
select pg_temp.wait('9.999 s') \g /dev/null
select is(array(select pgq_reclaim()), '{}', 'a lease that has not expired is not reclaimed');
select pg_temp.pass('0.001 s') \g /dev/null
select is(
    array(select j.payload #>> '{}' from pgq_reclaim('q', 1) r join pgq.job j on j.id = r), '{a}',
    'max limits how many, lowest ids first');
select is(
    array(select j.payload #>> '{}' from pgq_reclaim('q') r join pgq.job j on j.id = r), '{b}',
    'a queue limits which');
select is(array(select pgq_reclaim('q')), '{}', 'what was reclaimed is not reclaimed again');
select results_eq(
    $$ select j.payload #>> '{}', j.attempt::integer, j.token, j.worker, j.lease_expires_at
         from pgq.job j where j.payload in ('"a"', '"b"') order by j.id $$,
    $$ values ('a', 1, null::bigint, null::text, null::timestamptz),
              ('b', 1, null::bigint, null::text, null::timestamptz) $$,
    'a reclaimed job is ready again, and the attempt counts');
select is(
    (select count(*)
      from pgq.job j where j.last_error ~ '^lease expired at .*attempt 1'), 2::bigint,
    'its error says that the lease expired');
select is(
    array(select j.payload #>> '{}' from pgq_reclaim() r join pgq.job j on j.id = r), '{o}',
    'without a queue all of them are looked at');
select results_eq(
    $$ select d.payload #>> '{}', d.attempt from pgq_dequeue(9, '10 s', 'q') d $$,
    $$ values ('a', 2), ('b', 2) $$, 'the next claim is the next attempt');

-- Death by expiry.
select pg_temp.pass('10 s') \g /dev/null
select is(pg_temp.take(9, 'q'), '{}', 'a job whose last attempt expired is not claimed');
select is((select count(*) from pgq_reclaim('q')), 2::bigint, 'but reclaimed');
select results_eq(
    $$ select a.payload #>> '{}', a.state, a.attempt, a.last_error ~ 'lease expired.*attempt 2'
         from pgq.archive a order by a.id $$,
    $$ values ('a', 'dead', 2, true), ('b', 'dead', 2, true) $$,
    'it is dead, so that a job that kills its worker does not loop for ever');
select is(
    array(select pgq_retry_dead('q') is not null), '{t,t}', 'and can be retried like any dead job');
select is(pg_temp.take(9, 'q', '10 s'), '{a,b}', 'with all its attempts');

-- Maintenance.
select pg_temp.wait('10 s'), pg_temp.tick() \g /dev/null
select is(
    array(select j.payload #>> '{}' from pgq.job j where j.token is not null), '{c}',
    'maintenance takes expired leases back, and no others');
select is(pg_temp.take(9, 'q', '10 s'), '{a,b}', 'for those who claim');
select pg_temp.wait('10 s'), pg_temp.tick() \g /dev/null
select is(
    (select count(*) from pgq.archive a where a.state = 'dead'), 2::bigint,
    'maintenance buries jobs whose last attempt has expired');
select is(
    (select count(*) from pgq.job j), 2::bigint, 'and no others');
select pgq_pause('other') \g /dev/null
select pg_temp.take(1, 'other') \g /dev/null
select pgq_resume('other'), pg_temp.take(1, 'other', '1 s'), pgq_pause('other') \g /dev/null
select pg_temp.pass('1 s') \g /dev/null
select is((select count(*) from pgq_reclaim('other')), 1::bigint,
    'a paused queue is reclaimed, too');
select pgq_resume('other') \g /dev/null
select is(
    array(select j.attempt::integer from pgq.job j where j.run_at > pgq._now()), '{2}',
    'a second lost lease in a row comes back after the backoff');
select pg_temp.wait('8 s') \g /dev/null
select is(pg_temp.take(1, 'other', '1 s'), '{o}', 'its job is there when it is resumed');
select pg_temp.pass('1 s') \g /dev/null
savepoint before;
select pgq_reclaim() \g /dev/null
rollback to before;
select is(
    (select pgq_complete(j.id, j.token) from pgq.job j where j.payload = '"o"'), true,
    'a rollback undoes the reclaim');

-- Errors.
select throws_ok('select pgq_reclaim(' || arguments || ')', code, null, 'reclaim: ' || description)
  from (values
    ($$ 'nowhere' $$, '42704', 'an unknown queue is refused'),
    ($$ max => 0 $$, '22023', 'a max below 1 is refused'),
    ($$ max => null $$, '22004', 'a null max is refused')
  ) c (arguments, code, description);

select * from finish();
rollback;
