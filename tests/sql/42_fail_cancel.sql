/*
 * pgq_fail with cancel.
 */
begin;
select plan(24);
\ir support/clock.psql

create function pg_temp.commit() returns void language plpgsql as $$
begin
    for v_round in 1..2 loop
        perform set_config('pgq.decided', '', true);
        set constraints all immediate;
        set constraints all deferred;
        perform pgq._take_hints();
    end loop;
end
$$;
create function pg_temp.give_up(p_label text, p_error text default null) returns text
language sql as $$
    select pgq_fail(j.id, j.token, p_error, cancel => true)
      from pgq.job j where j.payload = to_jsonb(p_label)
$$;

-- It ends, whatever attempts are left.
select pgq_enqueue('"one"', 'default', 3, dedupe_key => 'k') as one \gset
select d.token from pgq_dequeue(1, worker => 'w') d \gset
select is(pgq_fail(:one, :token, 'an attempt', '0'), 'scheduled', 'a job has been tried once');
select d.token from pgq_dequeue(1, worker => 'w') d \gset
select is(pgq_fail(:one, :token, 'not wanted', cancel => true), 'cancelled', 'and is cancelled then');
select is(
    (select row(g.state, g.last_error, g.attempt, g.worker, g.finished_at)::text
       from pgq_get(:one) g),
    row('cancelled', 'not wanted', 2, 'w', pgq._now())::text, 'it is kept, with the reason');
select is(
    (select a.expires_at - a.finished_at from pgq.archive a), interval '30 days',
    'for as long as the queue keeps dead jobs');
select is_empty('select from pgq.job', 'there is no other attempt');
select is(pgq_fail(:one, :token, 'again', cancel => true), null, 'its receipt is good for nothing');
select is(pgq_retry(:one), false, 'nor is it retried as a dead one');
select isnt(pgq_enqueue('"two"', dedupe_key => 'k', max_attempts => 1), :one::bigint,
    'its dedupe key is free');
select pg_temp.take() \g /dev/null
select is(pg_temp.give_up('two'), 'cancelled', 'so it is with the last attempt');
select pg_temp.add('three'), pg_temp.take() \g /dev/null
select is(
    (select pgq_fail(j.id, j.token, retryable => false, cancel => true) from pgq.job j),
    'cancelled', 'and if it is not retryable');
select pg_temp.add('four'), pg_temp.take() \g /dev/null
select pgq_cancel(j.id) from pgq.job j \g /dev/null
select is(pg_temp.give_up('four', 'told to'), 'cancelled', 'and if pgq_cancel was called for it');
select is(
    (select v.failed_last_minute from pgq_queues v where v.queue = 'default'), 1::bigint,
    'which does not count as a failure');
select pgq_create_queue('none', keep_dead => '0') \g /dev/null
select pg_temp.add('five', 'none'), pg_temp.take(1, 'none') \g /dev/null
select is(pg_temp.give_up('five'), 'cancelled', 'a queue may keep no such jobs');
select is_empty($$ select from pgq.archive a where a.queue = 'none' $$, 'then there is none');

-- Those who wait for it: as after pgq_cancel.
select pgq_create_queue(q, group_on_dead => 'block')
  from unnest('{failed,cancelled}'::text[]) q \g /dev/null
select pgq_enqueue('"head"', q, group_key => 'g'), pgq_enqueue('"next"', q, group_key => 'g'),
       pgq_enqueue('"third"', q, group_key => 'g')
  from unnest('{failed,cancelled}'::text[]) q \g /dev/null
select pg_temp.commit() \g /dev/null
select pgq_enqueue('"die"', a.queue, after => array[a.id]),
       pgq_enqueue('"wait"', a.queue, after => array[a.id], after_on_dead => 'wait')
  from pgq_dequeue(9, '1 hour', '{failed,cancelled}'::text[]) a \g /dev/null
select pg_temp.commit() \g /dev/null
create function pg_temp.shown(p_queue text) returns setof text language sql as $$
    select concat_ws(' ', j.payload, j.state, j.last_error, j.attempt)
      from pgq_jobs j where j.queue = p_queue
$$;
select bag_eq(
    $$ select pg_temp.shown('failed') $$, $$ select pg_temp.shown('cancelled') $$,
    'of two groups with jobs that come after their heads');
select is(
    (select pgq_fail(j.id, j.token, cancel => true) from pgq_jobs j
      where j.queue = 'failed' and j.state = 'active'),
    'cancelled', 'one gives up');
select is(
    (select pgq_cancel(j.id, true) from pgq_jobs j
      where j.queue = 'cancelled' and j.state = 'active'),
    true, 'the other one is cancelled by force');
select pg_temp.commit() \g /dev/null
select set_eq(
    $$ select pg_temp.shown('failed') $$,
    array['"head" cancelled 1', '"next" ready 0', '"third" waiting 0', '"wait" waiting 0',
          '"die" dead a job that it was to run after is dead 0'],
    'the next job of the group is ready, and those that come after it die or wait');
select bag_eq(
    $$ select pg_temp.shown('failed') $$, $$ select pg_temp.shown('cancelled') $$,
    'either way');
select is_empty('select from pgq.job j where j.is_blocked', 'no group is blocked');

-- The caller's transaction.
select pg_temp.add('undone'), pg_temp.take() \g /dev/null
savepoint before;
select pg_temp.give_up('undone') \g /dev/null
rollback to before;
select is(
    (select pgq_complete(j.id, j.token) from pgq.job j where j.payload = '"undone"'), true,
    'a rollback undoes it');

-- Errors.
select throws_ok('select pgq_fail(' || arguments || ')', code, null, description)
  from (values
    ($$ 1, 1, cancel => null $$, '22004', 'null for cancel is refused'),
    ($$ 1, 1, retry_in => '1 s', cancel => true $$, '22023', 'and another try of a cancelled job'),
    ($$ null, 1, cancel => true $$, '22004', 'and a null id')
  ) c (arguments, code, description);

select * from finish();
rollback;
