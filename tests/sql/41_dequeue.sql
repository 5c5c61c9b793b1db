/*
 * pgq_dequeue: order, batches, what it returns, what it passes by.
 */
begin;
select plan(56);
\ir support/clock.psql

select is(pg_temp.take(5), '{}', 'an empty queue gives nothing');

-- What it returns.
select pgq_enqueue('{"n": 1}', priority => -3, headers => '{"h": "x"}', max_attempts => 4) as id
    \gset one_
select pg_temp.wait('5 seconds') \g /dev/null
create temp table got as select d.* from pgq_dequeue(3, '90 seconds', worker => 'w-1') d;
select results_eq(
    $$ select g.queue, g.priority, g.state, g.attempt, g.max_attempts, g.payload, g.headers,
              g.group_key, g.dedupe_key, g.worker, g.last_error, g.cancel_requested from got g $$,
    $$ values ('default', -3, 'active', 1, 4, '{"n": 1}'::jsonb, '{"h": "x"}'::jsonb,
               null::text, null::text, 'w-1', null::text, false) $$,
    'a claimed job comes with all that it was enqueued with');
select results_eq(
    $$ select g.enqueued_at, g.run_at, g.claimed_at, g.lease_expires_at from got g $$,
    $$ select t - interval '5 s', t - interval '5 s', t, t + interval '90 s' from pgq._now() t $$,
    'its times are the server''s, and the lease lasts for the timeout');
select is((select g.id from got g), :one_id::bigint, 'its id is the one that enqueue returned');
select isnt((select g.token from got g), null, 'it has a token');
select is(pg_temp.take(), '{}', 'nobody else gets it while the lease lasts');
select pg_temp.add('defaults') \g /dev/null
select results_eq(
    $$ select d.max_attempts, d.worker, d.lease_expires_at, d.headers from pgq_dequeue() d $$,
    $$ values (20, null::text, pgq._now() + interval '30 s', null::jsonb) $$,
    'by default the lease is 30 seconds and max_attempts the queue''s');

-- Order.
select pgq_create_queue('order') \g /dev/null
select pg_temp.add(label, 'order', priority)
  from (values (1, 'a', 0), (2, 'b', 5), (3, 'c', -5), (4, 'd', 5), (5, 'e', 0), (6, 'f', 32767),
               (7, 'g', -32768)) v (n, label, priority) order by n \g /dev/null
select is(pg_temp.take(3, 'order'), '{f,b,d}', 'higher priorities first, in each the lower id');
select is(pg_temp.take(1, 'order'), '{a}', 'a batch of one');
select pg_temp.add('late', 'order', 7) \g /dev/null
select is(pg_temp.take(1, 'order'), '{late}', 'a later job of a higher priority overtakes');
select is(pg_temp.take(10, 'order'), '{e,c,g}', 'a batch takes what there is, across priorities');
select is(pg_temp.take(10, 'order'), '{}', 'and leaves nothing');

-- Several queues.
select pgq_create_queue(name) from unnest('{A,B}'::text[]) name \g /dev/null
select pg_temp.add(q || i, q, case q when 'B' then 100 else 0 end)
  from unnest('{A,B}'::text[]) q, generate_series(1, 3) i \g /dev/null
select is(
    array(select d.payload #>> '{}' from pgq_dequeue(4, '1 s', '{A,B}'::text[]) d), '{A1,A2,A3,B1}',
    'of several queues the first one goes first, whatever the priorities');
select pg_temp.add('A4', 'A') \g /dev/null
select is(
    array(select d.payload #>> '{}' from pgq_dequeue(2, '1 s', '{B,A}'::text[], 'w') d), '{B2,B3}',
    'the order of the array is the order of the queues');
select is(
    array(select d.payload #>> '{}' from pgq_dequeue(9, '1 s', '{order,A,default,A}'::text[]) d),
    '{A4}', 'a queue named twice is no harm');
select is(
    array(select d.id from pgq_dequeue(9, '1 s', '{}'::text[]) d), '{}', 'no queue, no job');
select is(
    (select count(distinct g.token) from pgq.job g where g.token is not null),
    (select count(*) from pgq.job g where g.token is not null),
    'all tokens differ');

-- Expired leases.
select pgq_create_queue('lease') \g /dev/null
select pg_temp.add('x', 'lease'), pg_temp.add('y', 'lease') \g /dev/null
select id, token from pgq_dequeue(1, '10 s', 'lease', 'first') \gset first_
select pg_temp.wait('9.999 s') \g /dev/null
select is(pg_temp.take(1, 'lease', '1 hour'), '{y}', 'a lease holds until its last millisecond');
select pg_temp.wait('0.001 s') \g /dev/null
select pg_temp.add('z', 'lease') \g /dev/null
create temp table again as select d.* from pgq_dequeue(2, '10 s', 'lease', 'second') d;
select is(array(select a.payload #>> '{}' from again a), '{x,z}',
    'fresh and expired jobs come in one call, in id order');
select results_eq(
    $$ select a.attempt, a.worker, a.id from again a order by a.id limit 1 $$,
    format($$ values (2, 'second', %s::bigint) $$, :first_id),
    'a claim after an expiry is the next attempt');
select is((select min(a.token) > :first_token from again a), true, 'with a higher token');

-- Exhausted jobs.
select pgq_create_queue('tries', max_attempts => 2) \g /dev/null
select pgq_enqueue('"queue"', 'tries'), pgq_enqueue('"own"', 'tries', max_attempts => 3)
    \g /dev/null
select is(pg_temp.take(9, 'tries', '1 s'), '{queue,own}', 'first attempts');
select pg_temp.wait('1 s') \g /dev/null
select is(pg_temp.take(9, 'tries', '1 s'), '{queue,own}', 'second attempts');
select pg_temp.forgive(), pg_temp.wait('1 s') \g /dev/null
select is(pg_temp.take(9, 'tries', '1 s'), '{own}',
    'a job without an attempt left is not claimed; a job''s own max_attempts wins');
select pg_temp.forgive(), pg_temp.wait('1 s') \g /dev/null
select is(pg_temp.take(9, 'tries', '1 s'), '{}', 'in the end nothing is left to claim');

-- Scheduled jobs.
select pgq_create_queue('due') \g /dev/null
select pg_temp.add(i::text, 'due', p_delay => make_interval(secs => 10 - i))
  from generate_series(1, 4) i \g /dev/null
select is(pg_temp.take(9, 'due'), '{}', 'scheduled jobs are not claimed');
select pg_temp.wait('7 s') \g /dev/null
select pg_temp.add('5', 'due') \g /dev/null
select is(pg_temp.take(9, 'due', '1 day'), '{4,3,5}',
    'those that are due come with the others, in the order of becoming ready');
select pg_temp.wait('1 hour') \g /dev/null
select is(pg_temp.take(1, 'due', '1 day'), '{2}', 'also if all have fallen due since the last tick');

-- Paused queues.
select pgq_pause('due'), pg_temp.add('6', 'due') \g /dev/null
select is(pg_temp.take(9, 'due'), '{}', 'a paused queue gives nothing');
select is(
    array(select d.payload from pgq_dequeue(9, '1 s', '{due,lease}'::text[]) d
           where d.queue = 'due'), '{}', 'nor among several');
select pgq_resume('due') \g /dev/null
select is(pg_temp.take(1, 'due'), '{1}', 'until it is resumed');

-- Tokens.
select pgq_create_queue('token') \g /dev/null
select pg_temp.add('t', 'token') \g /dev/null
create temp table seen (n serial, token bigint, attempt integer);
do $$ begin
    for v_try in 1..5 loop
        insert into seen (token, attempt)
        select d.token, d.attempt from pgq_dequeue(1, '1 s', 'token') d;
        perform pg_temp.wait('1 s'), pg_temp.forgive();
    end loop;
end $$;
select is(
    array(select s.attempt from seen s order by s.token), '{1,2,3,4,5}',
    'the token grows with every claim of a job');
savepoint before;
select max(token) as rolled_back from pgq_dequeue(1, '1 s', 'token') \gset
rollback to before;
select pg_temp.wait('1 s'), pg_temp.forgive() \g /dev/null
select isnt(
    (select d.token from pgq_dequeue(1, '1 s', 'token') d), :rolled_back::bigint,
    'a token is not used again, not even when the claim was rolled back');

-- Timeouts at the edges.
select pg_temp.add(i::text, 'token') from generate_series(1, 2) i \g /dev/null
select is(
    (select d.lease_expires_at from pgq_dequeue(1, '0.1 ms', 'token') d),
    pgq._now() + '1 ms', 'a lease is a millisecond at least');
select is(
    (select d.lease_expires_at from pgq_dequeue(1, '24 days', 'token') d),
    pgq._now() + '24 days', 'and 24 days at most');

-- Errors.
select throws_ok('select pgq_dequeue(' || arguments || ')', code, null, 'dequeue: ' || description)
  from (values
    ($$ 0 $$, '22023', 'a batch below 1 is refused'),
    ($$ -1 $$, '22023', 'a negative batch is refused'),
    ($$ null $$, '22004', 'a null batch is refused'),
    ($$ 1, '0' $$, '22023', 'a timeout of zero is refused'),
    ($$ 1, '-1 s' $$, '22023', 'a negative timeout is refused'),
    ($$ 1, '24 days 1 s' $$, '22023', 'a longer timeout is refused'),
    ($$ 1, '200000 years' $$, '22023', 'a huge timeout is refused'),
    ($$ 1, 'infinity' $$, pg_temp.code_of_infinity(), 'an infinite timeout is refused'),
    ($$ 1, null, 'default' $$, '22004', 'a null timeout is refused'),
    ($$ 1, '1 s', null::text $$, '22004', 'a null queue is refused'),
    ($$ 1, '1 s', 'nowhere' $$, '42704', 'an unknown queue is refused'),
    ($$ 0, '1 s', '{default}'::text[] $$, '22023', 'a batch below 1 is refused with queues'),
    ($$ null, '1 s', '{default}'::text[] $$, '22004', 'a null batch is refused with queues'),
    ($$ 1, '0', '{default}'::text[] $$, '22023', 'a timeout of zero is refused with queues'),
    ($$ 1, null, '{default}'::text[] $$, '22004', 'a null timeout is refused with queues'),
    ($$ 1, '1 s', null::text[] $$, '22004', 'null for the queues is refused'),
    ($$ 1, '1 s', '{default,null}'::text[] $$, '22004', 'a null among the queues is refused'),
    ($$ 1, '1 s', '{default,nowhere}'::text[] $$, '42704', 'an unknown one among them is refused')
  ) c (arguments, code, description);
select pg_temp.add('untouched', p_priority => 9) \g /dev/null
select throws_ok(
    $$ select pgq_dequeue(1, '1 s', '{default,nowhere}'::text[]) $$, '42704', null,
    'an unknown queue is refused even if the others could fill the batch');
select is(pg_temp.take(), '{untouched}', 'and nothing has been claimed then');

-- A job that comes back while a batch is being claimed: a claim now and then raises the position of
-- a lane, and here brings it back.
select pgq_create_queue('back') \g /dev/null
select pg_temp.add('back', 'back', 1), pg_temp.add('one', 'back', 1) \g /dev/null
select pg_temp.take(2, 'back') \g /dev/null
select pgq_release(j.id, j.token) from pgq.job j where j.payload = '"one"' \g /dev/null
select pg_temp.add('two', 'back'), pg_temp.add('three', 'back') \g /dev/null
create or replace function pgq._raise_floor(p_slot smallint, p_lane bigint)
returns void language plpgsql as $$
begin
    perform public.pgq_release(j.id, j.token) from pgq.job j where j.payload = '"back"' and j.token is not null;
end
$$;
-- The next random number is below a thirty-second.
do $$
declare
    v_n integer := 0;
begin
    loop
        perform setseed(v_n / 1000.0);
        exit when random() < 0.03;
        v_n := v_n + 1;
    end loop;
    perform setseed(v_n / 1000.0);
end
$$;
select is(
    pg_temp.take(3, 'back'), '{one,two,three}', 'does not follow those that have been returned');

select * from finish();
rollback;
