/*
 * Queues with bounds: what counts as ready, and what a schedule may add at once.
 */
begin;
select plan(9);
\ir support/clock.psql

select pgq_create_queue('small', max_ready => 2, max_payload => 10) \g /dev/null
select pgq_schedule('s', '0 0 1 1 *', '"12345678"', 'small') \g /dev/null
select isnt(pgq_run_schedule('s'), null, 'a schedule can be run while there is room');
select pg_temp.add('1', 'small') \g /dev/null
select throws_ok(
    $$ select pgq_run_schedule('s') $$, '53400', 'queue "small" is full',
    'but not in a full queue');
select throws_ok(
    $$ select pg_temp.add('2', 'small') $$, '53400', null, 'which takes no job either');
select pgq_configure_queue('small', max_payload => 9), pg_temp.take(9, 'small') \g /dev/null
select throws_ok(
    $$ select pgq_run_schedule('s') $$, '54000',
    'a payload of 10 bytes is too long for queue "small"',
    'nor with a payload that is too long by now');

-- The arguments of a schedule.
select throws_ok(
    $$ select pgq_schedule('x', null) $$, '22004', '"cron" must not be null', 'null is no times');
select throws_ok(
    $$ select pgq_schedule('x', '* * * * *', to_jsonb(repeat('x', 67108864))) $$, '54000',
    '"payload" is too large', 'a payload has at most 64 MB');
select is((select count(*) from pgq.schedule s where s.name = 'x'), 0::bigint, 'neither is kept');

-- Jobs that have ended take time to count: none is looked at below the floor.
select pg_temp.add('1', 'small'), pg_temp.add('2', 'small') \g /dev/null
select throws_ok($$ select pg_temp.add('3', 'small') $$, '53400', null, 'the queue is full');
insert into pgq.floor (slot, n, lane, floor, base, mark)
select pgq._head_slot(), nextval('pgq.floor_n'), l.id, currval('pgq.number'), 0, currval('pgq.number')
  from pgq.lane l where l.queue = 'small';
select lives_ok(
    $$ select pg_temp.add('3', 'small') $$, 'what lies below the floor of its lane does not count');

select * from finish();
rollback;
