/*
 * pgq_heartbeat.
 */
begin;
select plan(33);
\ir support/clock.psql

select pg_temp.add('x') \g /dev/null
select id, token from pgq_dequeue(1, '45 s') \gset
select pg_temp.wait('40 s') \g /dev/null
select is(
    pgq_heartbeat(:id, :token), pgq._now() + '45 s',
    'a heartbeat renews the lease from now on, for the timeout of the claim');
select is(
    (select j.lease_expires_at from pgq.job j), pgq._now() + '45 s', 'and the job says so');
select pg_temp.wait('44.999 s') \g /dev/null
select is(pg_temp.take(), '{}', 'nobody gets the job before the new expiry');
select is(
    pgq_heartbeat(:id, :token, '2 hours'), pgq._now() + '2 hours',
    'a heartbeat can ask for another timeout');
select is(
    pgq_heartbeat(:id, :token), pgq._now() + '45 s', 'which the next one does not remember');
select is(
    pgq_heartbeat(:id, :token, '1 s'), pgq._now() + '1 s', 'a lease can be shortened');
select pg_temp.pass('1 hour') \g /dev/null
select is(
    pgq_heartbeat(:id, :token), pgq._now() + '45 s',
    'an expired lease that nobody has taken is still good');
select is(pg_temp.take(), '{}', 'and is not up for others then');
select results_eq(
    $$ select j.attempt::integer, j.worker from pgq.job j $$, $$ values (1, null::text) $$,
    'a heartbeat is no attempt');
select is(pgq_heartbeat(:id, :token + 1048576), null, 'a wrong token renews nothing');
select is(pgq_heartbeat(:id + 1, :token), null, 'nor does a wrong id');
select is(
    array(select pgq_heartbeat(t, t) from unnest('{0,-1,-8,6,9223372036854775807}'::bigint[]) t),
    array_fill(null::timestamptz, array[5]), 'nor what never was a receipt');
select pg_temp.wait('45 s') \g /dev/null
select is(pg_temp.take(), '{x}', 'somebody else takes the expired job');
select is(pgq_heartbeat(:id, :token), null, 'then the lease is lost');
select is(
    (select j.lease_expires_at from pgq.job j), pgq._now() + '30 s',
    'and the new holder''s is untouched');

-- Arrays.
select pg_temp.add(i::text) from generate_series(1, 4) i \g /dev/null
create temp table got as
select d.*, row_number() over () as n from pgq_dequeue(2, '10 s') d
union all
select d.*, 2 + row_number() over () from pgq_dequeue(2, '20 s') d;
select pgq_complete(g.id, g.token) from got g where g.n = 2 \g /dev/null
select pg_temp.wait('5 s') \g /dev/null
select set_eq(
    $$ select h.id, h.lease_expires_at, h.cancel_requested
         from (select array_agg(g.id) as ids, array_agg(g.token) as tokens from got g) g,
              pgq_heartbeat(g.ids, g.tokens) h $$,
    $$ select g.id, pgq._now() + case when g.n = 1 then interval '10 s' else interval '20 s' end
                  as lease_expires_at, false as cancel_requested
         from got g where g.n <> 2 $$,
    'many leases are renewed in one call, each for its claim''s timeout; lost ones are left out');
select bag_eq(
    $$ select h.id, h.lease_expires_at
         from (select array_agg(g.id) as ids, array_agg(g.token) as tokens from got g) g,
              pgq_heartbeat(g.ids || g.ids, g.tokens || g.tokens, '1 minute') h $$,
    $$ select g.id, pgq._now() + interval '1 minute' from got g where g.n <> 2 $$,
    'a duplicate comes once');
select is_empty(
    $$ select pgq_heartbeat(array_agg(g.id order by g.n), array_agg(g.token order by g.n desc))
         from got g where g.n >= 3 $$,
    'nothing is renewed with another job''s token');
select is_empty($$ select pgq_heartbeat('{}'::bigint[], '{}') $$, 'no receipts, nothing to renew');

select pg_temp.add('parked', p_priority => 9) \g /dev/null
select pgq_fail(d.id, d.token, retry_in => '0') from pgq_dequeue() d \g /dev/null
select id, token from pgq_dequeue() \gset
select is(
    array(select h.id from pgq_heartbeat(array[:id, 0], array[:token, 0]) h), array[:id]::bigint[],
    'a good receipt of a job that has been tried before comes once, too, beside a lost one');

-- Errors.
select throws_ok('select pgq_heartbeat(' || arguments || ')', code, null,
    'heartbeat: ' || description)
  from (values
    ($$ null, 1 $$, '22004', 'a null id is refused'),
    ($$ 1, null $$, '22004', 'a null token is refused'),
    ($$ 1, 1, '0' $$, '22023', 'a timeout of zero is refused'),
    ($$ 1, 1, '-1 s' $$, '22023', 'a negative timeout is refused'),
    ($$ 1, 1, '25 days' $$, '22023', 'a longer timeout than 24 days is refused'),
    ($$ 1, 1, 'infinity' $$, pg_temp.code_of_infinity(), 'an infinite timeout is refused'),
    ($$ null::bigint[], '{1}' $$, '22004', 'a null array of ids is refused'),
    ($$ '{1}'::bigint[], null $$, '22004', 'a null array of tokens is refused'),
    ($$ '{null}'::bigint[], '{1}' $$, '22004', 'a null among the ids is refused'),
    ($$ '{1}'::bigint[], '{null}' $$, '22004', 'a null among the tokens is refused'),
    ($$ '{1}'::bigint[], '{1,2}' $$, '22023', 'arrays of different length are refused'),
    ($$ '{1}'::bigint[], '{1}', '0' $$, '22023', 'a timeout of zero is refused for many'),
    ($$ '{}'::bigint[], '{}', '-1 s' $$, '22023', 'also without receipts')
  ) c (arguments, code, description);

select * from finish();
rollback;
