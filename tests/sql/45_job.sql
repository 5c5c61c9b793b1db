/*
 * pgq_cancel, pgq_retry, pgq_retry_dead, pgq_purge.
 */
begin;
select plan(67);
\ir support/clock.psql
\ir support/commit.psql

-- A job of each state in a queue, called by the state.
create function pg_temp.fill(p_queue text) returns void language plpgsql as $$
begin
    perform pg_temp.add('dead', p_queue), pg_temp.add('completed', p_queue),
            pg_temp.add('expired', p_queue), pg_temp.add('active', p_queue);
    perform pgq_fail(d.id, d.token, 'boom', retryable => false)
      from pgq_dequeue(1, '1 s', p_queue) d;
    perform pgq_complete(d.id, d.token) from pgq_dequeue(1, '1 s', p_queue) d;
    perform pg_temp.take(1, p_queue, '1 s'), pg_temp.take(1, p_queue, '1 day'),
            pg_temp.now_is(pgq._now() + '1 s');
    perform pg_temp.add('ready', p_queue), pg_temp.add('scheduled', p_queue, p_delay => '1 hour'),
            pg_temp.add('released', p_queue, 1);
    perform pgq_release(d.id, d.token) from pgq_dequeue(1, '1 s', p_queue) d;
end
$$;
create function pg_temp.id(p_label text, p_queue text default 'default') returns bigint
language sql as $$
    select j.id
      from pgq.job j join pgq.lane l on l.id = j.lane join pgq.queue q on q.id = l.queue_id
     where j.payload = to_jsonb(p_label) and q.name = p_queue
    union all
    select a.id from pgq.archive a where a.payload = to_jsonb(p_label) and a.queue = p_queue
$$;
create function pg_temp.alive(p_queue text) returns text[] language sql as $$
    select array(
        select j.payload #>> '{}'
          from pgq.job j join pgq.lane l on l.id = j.lane join pgq.queue q on q.id = l.queue_id
         where q.name = p_queue order by 1
    )
$$;

-- Cancelling.
select pg_temp.fill('default') \g /dev/null
select is(pgq_cancel(pg_temp.id(label)), true, format('a %s job can be cancelled', label))
  from unnest('{ready,scheduled,released}'::text[]) label;
select is(pgq_cancel(pg_temp.id(label)), false, format('a %s job cannot be cancelled', label))
  from unnest('{active,completed,dead}'::text[]) label;
select is(pgq_cancel(0), false, 'nor can an unknown one');
select is(pgq_cancel(pg_temp.id('ready')), false, 'nor a cancelled one');
select is(pg_temp.alive('default'), '{active,expired}', 'what was cancelled is not live any more');
select results_eq(
    $$ select a.payload #>> '{}', a.state, a.finished_at, a.expires_at
         from pgq.archive a where a.state = 'cancelled' order by 1 $$,
    $$ select s, 'cancelled', t, t + interval '30 days'
         from pgq._now() t, unnest('{ready,released,scheduled}'::text[]) s $$,
    'but in the archive for as long as the queue keeps dead jobs');
select pg_temp.wait('1 hour') \g /dev/null
select is(pg_temp.take(9), '{expired}', 'and never runs');
select throws_ok('select pgq_cancel(null)', '22004', null, 'a null id is refused');
select pg_temp.add('undone') as undone \gset
savepoint before;
select pgq_cancel(:undone) \g /dev/null
rollback to before;
select is(pg_temp.take(), '{undone}', 'a rollback undoes the cancellation');

-- Retrying.
select pgq_create_queue('r', max_attempts => 3, backoff_base => '0') \g /dev/null
select pgq_enqueue('{"r": 1}', 'r', 8, headers => '{"h": 1}') as dead \gset
create temp table seen (token bigint);
do $$ begin
    for v_try in 1..3 loop
        with d as (select d.* from pgq_dequeue(1, '1 s', 'r') d)
        insert into seen select d.token from d where pgq_fail(d.id, d.token, 'boom') is not null;
    end loop;
end $$;
select is(pgq_retry(pg_temp.id(label)), false, format('a %s job cannot be retried', label))
  from unnest('{active,completed,ready}'::text[]) label;
select is(pgq_retry(0), false, 'nor can an unknown one');
select is(pgq_retry(:dead), true, 'a dead job can be retried');
select is(pgq_retry(:dead), false, 'once');
select is_empty(
    format('select from pgq.archive a where a.id = %s', :dead), 'it is not in the archive then');
create temp table again as select d.* from pgq_dequeue(1, '1 s', 'r') d;
select results_eq(
    $$ select a.id, a.attempt, a.max_attempts, a.priority, a.payload, a.headers, a.last_error,
              a.token > (select max(s.token) from seen s), a.enqueued_at
         from again a $$,
    format($$ values (%s::bigint, 1, 3, 8, '{"r": 1}'::jsonb, '{"h": 1}'::jsonb, 'boom', true,
                      pgq._now()) $$, :dead),
    'but ready, with all its attempts, its payload, priority and error, and a higher token');
select is(
    array(select pgq_fail(a.id, a.token, retryable => false) from again a), '{dead}', 'dead again');
savepoint before;
select pgq_retry(:dead) \g /dev/null
rollback to before;
select is(pgq_retry(:dead), true, 'a rollback undoes the retry');
select throws_ok('select pgq_retry(null)', '22004', null, 'a null id is refused');
select is(
    (select pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue(1, '1 s', 'r') d), 'dead',
    'and once more');
select pg_temp.wait('30 days') \g /dev/null
select is(pgq_retry(:dead), false, 'a dead job that has expired is not retried');

select pgq_create_queue('many') \g /dev/null
select pg_temp.add(l, 'many') from unnest('{a,b,c,d}'::text[]) l \g /dev/null
select pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue(4, '1 s', 'many') d \g /dev/null
select is(
    array(select pgq_retry_dead('many', 2)),
    array[pg_temp.id('a', 'many'), pg_temp.id('b', 'many')],
    'retry_dead takes up to max, the oldest first');
select is(
    array(select pgq_retry_dead('many')),
    array[pg_temp.id('c', 'many'), pg_temp.id('d', 'many')], 'and returns their ids in order');
select is(array(select pgq_retry_dead('many')), '{}', 'until there is none left');
select is(pg_temp.take(9, 'many'), '{a,b,c,d}', 'all of them are ready');
select throws_ok('select pgq_retry_dead(' || arguments || ')', code, null,
    'retry_dead: ' || description)
  from (values
    ($$ 'nowhere' $$, '42704', 'an unknown queue is refused'),
    ($$ null $$, '22004', 'a null queue is refused'),
    ($$ 'many', 0 $$, '22023', 'a max below 1 is refused'),
    ($$ 'many', null $$, '22004', 'a null max is refused')
  ) c (arguments, code, description);

-- A dead job that blocks its group is as dead as any other.
select pgq_create_queue('block', group_on_dead => 'block') \g /dev/null
select pgq_enqueue('1', 'block', group_key => 'g', dedupe_key => 'k') as first \gset
select pg_temp.commit() \g /dev/null
select pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue(1, '1 s', 'block') d \g /dev/null
select is(pgq_cancel(:first), false, 'a dead job that blocks its group is not cancelled');
select isnt(
    pgq_enqueue('2', 'block', group_key => 'g', dedupe_key => 'k'), :first::bigint,
    'its dedupe key is free');
select is(pgq_cancel_key('block', 'k'), true, 'the live one with the key is cancelled');
select pg_temp.commit() \g /dev/null
select is(pgq_retry(:first), true, 'the dead one is retried');

-- Purging.
select pgq_create_queue(name), pg_temp.fill(name)
  from unnest('{p1,p2,p3,p4,p5}'::text[]) name \g /dev/null
select is(pgq_purge('p1'), 3::bigint, 'purge counts what it deletes');
select is(
    pg_temp.alive('p1'), '{active,expired}', 'by default all that waits; what is active stays');
select isnt(pg_temp.id('dead', 'p1'), null, 'and what is dead');
select is(pgq_purge('p2', '{ready}'), 2::bigint, 'only ready jobs');
select is(pg_temp.alive('p2'), '{active,expired,scheduled}', 'the others stay');
select is(pgq_purge('p3', '{scheduled}'), 1::bigint, 'only scheduled jobs');
select is(pg_temp.alive('p3'), '{active,expired,ready,released}', 'the others stay');
select is(pgq_purge('p4', '{dead}'), 1::bigint, 'only dead jobs');
select is(
    pg_temp.alive('p4'), '{active,expired,ready,released,scheduled}', 'the others stay');
select is(
    array(select a.payload #>> '{}' from pgq.archive a where a.queue = 'p4'), '{completed}',
    'also the completed ones');
select is(pgq_purge('p4', '{cancelled}'), 0::bigint, 'no job has been cancelled');
select is(pgq_purge('p4', '{completed}'), 1::bigint, 'only completed jobs');
select pgq_cancel(pg_temp.add('cancelled', 'p4')) \g /dev/null
select is(pgq_purge('p4', '{completed,cancelled}'), 1::bigint, 'only cancelled jobs');
select is(
    array(select a.queue || a.state from pgq.archive a where a.queue in ('p3', 'p4') order by 1),
    '{p3completed,p3dead}', 'those of other queues stay');
select is(pgq_purge('p4', '{waiting}'), 0::bigint, 'no job waits behind a group');
select is(pgq_purge('p4', '{}'), 0::bigint, 'no state, no job');
select pgq_create_queue('some') \g /dev/null
select pgq_enqueue_many('{1,2,3,4,5}', 'some') \g /dev/null
select pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue(2, queue => 'some') d \g /dev/null
select is(
    array(select pgq_purge('some', '{ready,dead}', 2) from generate_series(1, 4)), '{2,2,1,0}',
    'no more than max are deleted in a call, live and finished ones together');
select throws_ok($$ select pgq_purge('some', max => 0) $$, '22023', null, 'not even one is refused');
select is(
    pgq_purge('p4', '{ready,scheduled,waiting,dead,ready}'), 3::bigint, 'several states');
select throws_ok(
    format('select pgq_purge(%L, %L)', 'p5', states), code, null, 'purge: ' || description)
  from (values
    ('{active}', '22023', 'active is no state to purge'),
    ('{completed,expired}', '22023', 'nor is expired'),
    ('{Ready}', '22023', 'nor what is no state'),
    ('{ready,null}', '22004', 'a null among the states is refused'),
    (null, '22004', 'null for the states is refused')
  ) c (states, code, description);
select is(cardinality(pg_temp.alive('p5')), 5, 'an error purges nothing');

-- Many jobs are named by an array, which must not have their payloads.
select pgq_create_queue('large') \g /dev/null
select pgq_enqueue(to_jsonb(repeat('x', 9)), 'large', group_key => 'g')
  from generate_series(1, 3) \g /dev/null
create or replace function pgq._note_ended(p_jobs pgq.job[], p_state text)
returns void language plpgsql as $$
begin
    perform set_config('test.noted', cardinality(p_jobs)::text, true);
    if exists (select from unnest(p_jobs) j where j.payload is not null) then
        raise 'too long';
    end if;
end
$$;
select is(pgq_purge('large', '{waiting}'), 3::bigint, 'jobs of groups are purged');
select is(current_setting('test.noted', true), '3', 'which is noted');
select pgq_enqueue('1', 'large', after => array[pgq_enqueue('1', 'large')]) \g /dev/null
select lives_ok($$ select pgq_drop_queue('large', true) $$, 'and queues are dropped');
select is(current_setting('test.noted', true), '2', 'with jobs that wait and those before them');

select * from finish();
rollback;
