/*
 * pgq_drop_queue, where transactions that were open meanwhile have added jobs to the queue.
 */
begin;
select plan(21);
\ir support/clock.psql
\ir support/commit.psql

-- Jobs of the queue "late" as transactions leave them that commit after the drop of another one.
create function pg_temp.arrive(p_queue text) returns void language plpgsql as $$
begin
    perform pg_temp.commit();
    update pgq.job j set lane = l.id
      from pgq.lane l, pgq.dropped d, pgq.lane late
     where d.name = p_queue and l.queue_id = d.queue_id and late.queue = 'late'
       and j.lane = late.id;
end
$$;
-- A tick of a later transaction.
create function pg_temp.later() returns void language plpgsql as $$
begin
    update pgq.dropped set xid = '3';
    perform pg_temp.wait('1 s'), pg_temp.wait('1 s');
end
$$;
create function pg_temp.kept(p_queue text) returns text[] language plpgsql as $$
begin
    return array(select concat_ws(' ', a.payload #>> '{}', a.state) from pgq.archive a
                  where a.queue = p_queue order by a.id, a.state);
end
$$;
create function pg_temp.die(p_queue text) returns text language plpgsql as $$
begin
    return (select pgq_fail(d.id, d.token, retryable => false)
              from pgq_dequeue(1, queue => p_queue) d);
end
$$;
create function pg_temp.lanes(p_queue text) returns bigint language plpgsql as $$
begin
    return (select count(*) from pgq.lane l where l.queue = p_queue);
end
$$;
select pgq_create_queue(q) from unnest('{late,plain,forced,others}'::text[]) q \g /dev/null
select pgq_create_queue('none', keep_dead => '0') \g /dev/null
select pg_temp.add('stays', 'others') as stays,
       pg_temp.add('stays, too', 'others', p_delay => '1 day') \gset

-- What arrives before the commit.
select pg_temp.commit(), pg_temp.add('1', 'plain') \g /dev/null
select pgq_complete(d.id, d.token) from pgq_dequeue(1, queue => 'plain') d \g /dev/null
savepoint s;
create function pg_temp.drop_and_add(p_queue text, p_force boolean) returns void
language plpgsql as $$
begin
    perform pg_temp.add('1', 'late'), pgq_drop_queue(p_queue, p_force);
    update pgq.job j set lane = l.id
      from pgq.lane l, pgq.lane late
     where l.queue = p_queue and late.queue = 'late' and j.lane = late.id;
    set constraints all immediate;
end
$$;
select pg_temp.add('1', 'forced') \g /dev/null
select throws_ok(
    $$ select pg_temp.drop_and_add('plain', false) $$, '55006', 'queue "plain" holds jobs',
    'a job that arrives before the commit of the drop has it fail');
select lives_ok(
    $$ select pg_temp.drop_and_add('forced', true) $$, 'but not that of a drop with force');
rollback to s;

-- Without force.
select pgq_drop_queue('plain') \g /dev/null
select pg_temp.commit() \g /dev/null
select pg_temp.wait('1 s') \g /dev/null
select is(pg_temp.lanes('plain'), 1::bigint, 'the transaction itself does not forget a queue');
select pg_temp.add('ready', 'late'), pg_temp.add('scheduled', 'late', p_delay => '1 day'),
       pgq_enqueue('"head"', 'late', group_key => 'g'),
       pgq_enqueue('"behind"', 'late', group_key => 'g') \g /dev/null
select pgq_enqueue('"after"', 'others', after => array[max(j.id)]) as after
  from pgq.job j join pgq.lane l on l.id = j.lane where l.queue = 'late' \gset
select pg_temp.arrive('plain') \g /dev/null
select pg_temp.later() \g /dev/null
select is(
    pg_temp.kept('plain'),
    '{"1 completed","ready cancelled","scheduled cancelled","head cancelled","behind cancelled"}',
    'jobs that arrive after it are cancelled, each once');
select is((select g.state from pgq_get(:after) g), 'dead', 'what was to run after them is dead');
select is(pg_temp.lanes('plain'), 0::bigint, 'nothing is left of the queue');
select is((select g.state from pgq_get(:stays) g), 'ready', 'other queues keep their jobs');
select pgq_drop_queue('none') \g /dev/null
select is(pg_temp.lanes('none'), 1::bigint, 'one that keeps no dead jobs');
select pg_temp.add('1', 'late') \g /dev/null
select pg_temp.arrive('none') \g /dev/null
select pg_temp.later() \g /dev/null
select is(pg_temp.kept('none'), '{}', 'keeps none of these either');
select is(pg_temp.lanes('none'), 0::bigint, 'which are gone');

-- With force.
select pg_temp.add('completed', 'forced') \g /dev/null
select pgq_complete(d.id, d.token) from pgq_dequeue(1, queue => 'forced') d \g /dev/null
select pg_temp.add('dead', 'forced') \g /dev/null
select pg_temp.die('forced') \g /dev/null
select is(pg_temp.kept('forced'), '{"completed completed","dead dead"}',
          'before a drop with force');
select pgq_drop_queue('forced', true) \g /dev/null
select is(pg_temp.kept('forced'), '{"completed completed"}', 'what has completed stays');
select pg_temp.add('1', 'late') \g /dev/null
select pg_temp.arrive('forced') \g /dev/null
-- A job that dies in a transaction that was open, and one of a new queue of that name.
select pg_temp.add('died late', 'late'), pgq_create_queue('forced') \g /dev/null
select pg_temp.die('late') \g /dev/null
update pgq.archive set queue = 'forced' where payload = '"died late"';
select pg_temp.add('new', 'forced') \g /dev/null
select pg_temp.die('forced') \g /dev/null
select is(
    pg_temp.kept('forced'), '{"completed completed","died late dead","new dead"}',
    'until the next tick');
select pg_temp.later() \g /dev/null
select is(
    pg_temp.kept('forced'), '{"completed completed","new dead"}',
    'jobs that arrive later are gone, and those that die later: not those of a new queue');
select is((select v.dead from pgq_queues v where v.queue = 'forced'), 1::bigint,
          'which shows its own');

-- Without force dead jobs that come later stay.
select pgq_create_queue('plain') \g /dev/null
select pg_temp.add('x', 'plain') \g /dev/null
select pgq_complete(d.id, d.token) from pgq_dequeue(1, queue => 'plain') d \g /dev/null
select pg_temp.commit(), pgq_drop_queue('plain') \g /dev/null
select pg_temp.add('died late', 'late') \g /dev/null
select pg_temp.die('late') \g /dev/null
update pgq.archive set queue = 'plain' where payload = '"died late"';
select pg_temp.later() \g /dev/null
select is(
    (select count(*) from pgq.archive a where a.queue = 'plain' and a.state = 'dead'), 1::bigint,
    'a job that dies after a drop without force is kept');

-- By name.
select throws_ok('select pgq_drop_queue(''others'')', '55006', null, 'live jobs keep a queue');
select pgq_cancel_all('others') \g /dev/null
select is(
    (select count(*) from pgq.archive a where a.queue = 'others' and a.state = 'cancelled'),
    2::bigint, 'cancelled ones');
delete from pgq.archive where queue = 'others' and state = 'dead';
select lives_ok('select pgq_drop_queue(''others'')', 'do not');
select is(cardinality(pg_temp.kept('others')), 2, 'and stay');
select is_empty('select from pgq_queues v where v.queue = ''others''', 'when it is gone');

select * from finish();
rollback;
