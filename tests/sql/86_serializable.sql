/*
 * Under SERIALIZABLE every call works, and maintenance never runs: an old snapshot must not decide
 * that a slot is empty.
 */
begin isolation level serializable;
select plan(22);
\ir support/clock.psql

create temp table ring_before as select r.* from pgq.ring r;
select throws_ok('select pgq_maintain()', '25001', null, 'maintenance is refused');
select throws_ok(
    $$ select pgq_drop_queue('default') $$, '25001', null, 'and so is dropping a queue');
select is((select count(*) from pgq.chore), 0::bigint, 'no maintenance has been queued');

select pgq_enqueue_many(array_fill(jsonb '1', array[200])) \g /dev/null
select is(
    (select count(*) from pgq_dequeue(100, '1 s') d where d.id is not null), 100::bigint,
    'jobs are enqueued and claimed');
select is((select count(*) from pgq_pop(50)), 50::bigint, 'popped');
select id, token from pgq_dequeue(1, '1 minute') \gset
select is(pgq_heartbeat(:id, :token), pgq._now() + '1 minute', 'a lease is renewed');
select is(pgq_complete(:id, :token), true, 'a job is completed');
select is(pgq_complete(:id, :token), false, 'a stale receipt is told');
select is(pgq_heartbeat(:id, :token), null, 'by every function');
select is(pgq_release(:id, :token), false, 'that takes');
select is(pgq_fail(:id, :token), null, 'a receipt');
select id, token from pgq_dequeue(1, '1 minute') \gset
select is(pgq_fail(:id, :token, retry_in => '0'), 'scheduled', 'a job fails');
select is((select (pgq_claim(:id)).attempt), 2, 'and is claimed again');
select pg_temp.add('release', p_priority => 9) \g /dev/null
select id, token from pgq_dequeue(1, '1 minute') \gset
select is(pgq_release(:id, :token), true, 'a job is given back');
select is(pg_temp.take(1, p_timeout => '1 hour'), '{release}', 'and claimed again');
select pg_temp.wait('1 s') \g /dev/null
select is(
    (select count(*) from pgq_dequeue(100, '1 s') d where d.attempt = 2), 100::bigint,
    'expired leases are claimed');
select pg_temp.wait('1 s') \g /dev/null
select is((select count(*) from pgq_reclaim(max => 10)), 10::bigint, 'or taken back');
select pg_temp.add('scheduled', p_priority => 9, p_delay => '1 minute'), pg_temp.wait('1 minute')
    \g /dev/null
select is(pg_temp.take(1, p_timeout => '1 hour'), '{scheduled}', 'scheduled jobs fall due');

select is((select count(*) from pgq.chore), 0::bigint, 'all that has queued no maintenance');
select set_config('pgq.slot_size', '1', true) \g /dev/null
insert into pgq.chore default values;
set constraints all immediate;
select results_eq(
    'select r.* from pgq.ring r', 'select b.* from ring_before b', 'what was queued does not run');
select is(
    (select count(*) from pgq.floor_0) + (select count(*) from pgq.floor_4), 0::bigint,
    'no claim position has been raised');
select is(
    array(select a.state from pgq.archive a group by a.state order by 1), '{completed}',
    'finished jobs are in the archive');

select * from finish();
rollback;
