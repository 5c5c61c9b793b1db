/*
 * pgq_claim, one given job, and pgq_pop, jobs removed in the caller's transaction.
 */
begin;
select plan(48);
\ir support/clock.psql
\ir support/commit.psql

create function pg_temp.claim(p_id bigint, p_rest text default '') returns text
language sql as $$ select format('select pgq_claim(%s%s)', coalesce(p_id::text, 'null'), p_rest) $$;

create function pg_temp.detail(p_statement text) returns text
language plpgsql as $$
declare
    v_detail text;
begin
    execute p_statement;
    return null;
exception when lock_not_available then
    get stacked diagnostics v_detail = pg_exception_detail;
    return v_detail;
end
$$;

-- pgq_claim.
select pg_temp.add('low'), pg_temp.add('wanted'), pg_temp.add('high', p_priority => 9)
    \g /dev/null
select j.id as wanted from pgq.job j where j.payload = '"wanted"' \gset
select pgq_enqueue('1', run_at => pgq._now() + '1 hour') as scheduled \gset
create temp table got as select c.* from pgq_claim(:wanted, '1 minute', 'moderator') c;
select results_eq(
    $$ select g.id, g.state, g.attempt, g.worker, g.lease_expires_at, g.payload from got g $$,
    format($$ values (%s::bigint, 'active', 1, 'moderator', pgq._now() + interval '1 minute',
                      '"wanted"'::jsonb) $$, :wanted),
    'a ready job is claimed by its id, whatever is before it in the queue');
select throws_ok(pg_temp.claim(:wanted), '55P03', null, 'a job that is held is refused at once');
select is(
    pg_temp.detail(pg_temp.claim(:wanted)),
    format('It is leased to "moderator" until %s.', pgq._now() + interval '1 minute'),
    'and the detail says to whom, until when');
select is(pg_temp.take(9), '{high,low}', 'the others are still there');
select pg_temp.pass('1 minute') \g /dev/null
create temp table again as select c.* from pgq_claim(:wanted) c;
select is(
    (select (a.attempt, a.lease_expires_at) = (2, pgq._now() + interval '30 s')
        and a.token > (select g.token from got g) from again a), true,
    'an expired lease is claimed as the next attempt, for 30 seconds by default');
select is(
    (select pgq_complete(g.id, g.token) from got g), false, 'and the receipt before is stale then');
select throws_ok(pg_temp.claim(:scheduled), '55000', null, 'a scheduled job is refused');
select pg_temp.wait('1 hour') \g /dev/null
select is((select (pgq_claim(:scheduled)).id), :scheduled::bigint, 'but not when it is due');

-- The same for the head of a group, whose row stays in the line.
select pgq_enqueue('"head"', group_key => 'g') as head, pgq_enqueue('"next"', group_key => 'g') \gset
select pg_temp.commit(), pg_temp.tick() \g /dev/null
select pgq_release(c.id, c.token, '1 minute') from pgq_claim(:head) c \g /dev/null
select pg_temp.pass('2 minutes') \g /dev/null
select c.id, c.token from pgq_claim(:head) c \gset
select is(:id::bigint, :head::bigint, 'a head that is due is claimed, too');
select pgq_complete(:id, :token) \g /dev/null
select is(
    (select count(*) from pgq.job j where j.id = :head), 0::bigint,
    'and leaves its line when it completes');

select pgq_create_queue('off'), pgq_create_queue('once', max_attempts => 1) \g /dev/null
select pg_temp.add('paused', 'off') as paused, pg_temp.add('exhausted', 'once') as exhausted \gset
select pgq_pause('off') \g /dev/null
select throws_ok(pg_temp.claim(:paused), '55000', null, 'a job in a paused queue is refused');
select pgq_resume('off') \g /dev/null
select lives_ok(pg_temp.claim(:paused), 'but not when the queue is resumed');
select pgq_pause('off') \g /dev/null
select throws_ok(pg_temp.claim(:paused), '55P03', null, 'a job held in a paused queue is held');
select is(
    pg_temp.detail(pg_temp.claim(:paused)),
    format('It is leased until %s.', pgq._now() + interval '30 s'),
    'by somebody who has given no name');
select lives_ok(pg_temp.claim(:exhausted, $$, '1 s'$$), 'the only attempt');
select pg_temp.pass('1 s') \g /dev/null
select throws_ok(
    pg_temp.claim(:exhausted), '55000', null, 'an expired job without an attempt left is refused');
select throws_ok(pg_temp.claim(0), 'P0002', null, 'an unknown job is refused');
select pg_temp.add('completed') as id \gset
select pgq_complete(c.id, c.token) from pgq_claim(:id) c \g /dev/null
select throws_ok(pg_temp.claim(:id), 'P0002', null, 'a completed job is refused');
select pg_temp.add('dead') as id \gset
select pgq_fail(c.id, c.token, retryable => false) from pgq_claim(:id) c \g /dev/null
select throws_ok(pg_temp.claim(:id), 'P0002', null, 'a dead job is refused');
select pg_temp.add('cancelled') as id \gset
select pgq_cancel(:id) \g /dev/null
select throws_ok(pg_temp.claim(:id), 'P0002', null, 'a cancelled job is refused');
select pg_temp.add('x') as id \gset
select throws_ok(pg_temp.claim(null), '22004', null, 'a null id is refused');
select throws_ok(pg_temp.claim(:id, ', null'), '22004', null, 'a null timeout is refused');
select throws_ok(pg_temp.claim(:id, $$, '0'$$), '22023', null, 'a timeout of zero is refused');
select throws_ok(
    pg_temp.claim(:id, $$, '25 days'$$), '22023', null, 'a longer timeout than 24 days is refused');
select lives_ok(pg_temp.claim(:id), 'and nothing has been claimed by these');
select id, token from pgq_claim(pg_temp.add('back')) \gset back_
select is(pgq_release(:back_id, :back_token), true, 'a claimed job can be released');
select lives_ok(pg_temp.claim(:back_id), 'and claimed again');
select pgq_fail(j.id, j.token, retry_in => '0') from pgq.job j where j.id = :back_id \g /dev/null
select lives_ok(pg_temp.claim(:back_id), 'also when it has been tried again');

-- pgq_pop.
select pgq_create_queue('pop') \g /dev/null
select pg_temp.add(i::text, 'pop', i % 2) from generate_series(1, 4) i \g /dev/null
savepoint before;
create temp table popped as select p.* from pgq_pop(3, 'pop') p;
select is(
    array(select p.payload #>> '{}' from popped p), '{1,3,2}',
    'pop takes what dequeue would, in its order');
select results_eq(
    $$ select p.token, p.lease_expires_at, p.attempt, p.queue, p.max_attempts, p.priority
         from popped p where p.payload = '"1"' $$,
    $$ values (null::bigint, null::timestamptz, 1, 'pop', 20, 1) $$,
    'there is no lease and no receipt');
select is(pg_temp.take(9, 'pop'), '{4}', 'what is popped is gone');
rollback to before;
select is(
    array(select p.payload #>> '{}' from pgq_pop(2, 'pop') p), '{1,3}',
    'what a rolled back transaction popped is back at once');
select is(
    (select p.attempt from pgq_pop(1, 'pop') p), 1,
    'and the try that was rolled back does not count');
select is(array(select p.payload #>> '{}' from pgq_pop(queue => 'pop') p), '{4}', 'pop takes one');
select is(array(select p.payload from pgq_pop(9, 'pop') p), '{}', 'until there is nothing left');
select results_eq(
    $$ select a.payload #>> '{}', a.state, a.attempt, a.finished_at
         from pgq.archive a where a.queue = 'pop' order by a.id $$,
    $$ select i::text, 'completed', 1, pgq._now() from generate_series(1, 4) i $$,
    'popped jobs are archived as completed');
select pgq_configure_queue('pop', keep_completed => '0'), pg_temp.add('5', 'pop') \g /dev/null
select is(array(select p.payload #>> '{}' from pgq_pop(9, 'pop') p), '{5}', 'one more');
select is(
    (select count(*) from pgq.archive a where a.queue = 'pop'), 4::bigint,
    'but not where completed jobs are not kept');
select pg_temp.add('6', 'pop') \g /dev/null
select is(pg_temp.take(1, 'pop', '5 s'), '{6}', 'a job that was leased');
select is(array(select p.payload from pgq_pop(9, 'pop') p), '{}', 'is not popped');
select pg_temp.wait('5 s') \g /dev/null
select is(
    (select p.attempt from pgq_pop(9, 'pop') p), 2, 'but is when its lease has expired');
select pg_temp.add('7', 'pop', p_delay => '1 minute') \g /dev/null
select is(array(select p.payload from pgq_pop(9, 'pop') p), '{}', 'a scheduled job is not popped');
select pg_temp.wait('1 minute') \g /dev/null
select pgq_pause('pop') \g /dev/null
select is(
    array(select p.payload from pgq_pop(9, 'pop') p), '{}',
    'nothing is popped from a paused queue');
select pgq_resume('pop') \g /dev/null
select is(array(select p.payload #>> '{}' from pgq_pop(9, 'pop') p), '{7}',
    'but when it is resumed');
select throws_ok('select pgq_pop(' || arguments || ')', code, null, 'pop: ' || description)
  from (values
    ($$ 0 $$, '22023', 'a batch below 1 is refused'),
    ($$ null $$, '22004', 'a null batch is refused'),
    ($$ 1, null $$, '22004', 'a null queue is refused'),
    ($$ 1, 'nowhere' $$, '42704', 'an unknown queue is refused')
  ) c (arguments, code, description);

select * from finish();
rollback;
