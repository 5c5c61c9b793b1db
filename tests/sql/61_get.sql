/*
 * pgq_get.
 */
begin;
select plan(26);
\ir support/clock.psql
\ir support/commit.psql

create function pg_temp.state(p_id bigint) returns text language sql as $$
    select g.state from pgq_get(p_id) g
$$;
-- Each job is as pgq_jobs shows it.
create function pg_temp.same(p_description text) returns text language sql as $$
    select bag_eq('select g.* from pgq_jobs j, pgq_get(j.id) g', 'select * from pgq_jobs',
                  p_description)
$$;

select pgq_create_queue('other', max_attempts => 3) \g /dev/null
select pgq_enqueue('{"a": 1}', 'other', 4, headers => '{"h": 1}', dedupe_key => 'd', max_attempts => 2,
                   expires_at => pgq._now() + '1 hour') as one \gset
select pgq_enqueue('2', 'other', 4, pgq._now() + '1 hour') as two,
       pgq_enqueue('3', group_key => 'g') as three, pgq_enqueue('4', group_key => 'g') as four,
       pgq_enqueue('5', 'other', after => array[:one]) as five, pgq_enqueue('6') as six,
       pgq_enqueue('7', 'other') as seven \gset
select pg_temp.commit() \g /dev/null
select pg_temp.same('ready, scheduled and waiting jobs');
select is(
    array(select pg_temp.state(i)
            from unnest(array[:one, :two, :three, :four, :five, :six, :seven]::bigint[]) i),
    '{ready,scheduled,ready,waiting,waiting,ready,ready}', 'in these states');
select is((select g.after from pgq_get(:five) g), array[:one]::bigint[],
          'a job names those for which it waits');
select is((select g.before from pgq_get(:one) g), array[:five]::bigint[],
          'and each of those names the jobs that wait for it');
select is_empty(
    'select j from pgq_jobs j where coalesce(j.after, j.before) is not null'
    || format(' and j.id not in (%s, %s)', :one, :five), 'other jobs name none');
select d.token from pgq_dequeue(1, '1 minute', 'other', 'ann') d \gset
select pgq_heartbeat(:one, :token, checkpoint => '{"page": 7}') \g /dev/null
select is(pg_temp.state(:one), 'active', 'one is active');
select pg_temp.same('with its lease and checkpoint');
select pgq_fail(:one, :token, 'no', '1 day') \g /dev/null
select pg_temp.same('one is tried again');
select pgq_release(d.id, d.token) from pgq_claim(:seven) d \g /dev/null
select pgq._move(0::smallint, 1::smallint, 1000), pgq._move(4::smallint, 5::smallint, 1000)
    \g /dev/null
select pg_temp.same('jobs that maintenance has moved');
select pg_temp.wait('2 days') \g /dev/null
select pgq_complete(d.id, d.token, '"done"') from pgq_claim(:one) d \g /dev/null
select pgq_fail(d.id, d.token, retryable => false) from pgq_claim(:six) d \g /dev/null
select pgq_cancel(:seven) \g /dev/null
select is(
    array(select pg_temp.state(i) from unnest(array[:one, :six, :seven]::bigint[]) i),
    '{completed,dead,cancelled}', 'finished ones, too');
select pg_temp.same('as they are shown');
select is((select g.result from pgq_get(:one) g), '"done"', 'with the result');
select pgq_retry(:six) \g /dev/null
select is((select g.finished_at from pgq_get(:six) g), null, 'a revived job is live');
select is_empty('select pgq_get(123456789)', 'there is no unknown job');
update pgq.archive a set expires_at = clock_timestamp() where a.id = :one;
select is_empty(format('select pgq_get(%s)', :one), 'nor one that is no longer kept');
select throws_ok('select pgq_get(null)', '22004', null, 'a null id is refused');

-- Of a dead job, and of more than are told.
select pgq_enqueue('8', 'other', after => array[:three], after_on_dead => 'wait') as eight \gset
select pgq_fail(d.id, d.token, retryable => false) from pgq_claim(:three) d \g /dev/null
select is((select g.before from pgq_get(:three) g), array[:eight]::bigint[],
          'a job may wait for one that is dead');
select pg_temp.same('which is shown as well');
select count(pgq_enqueue('9', 'other', after => array[:two], priority => 1))
  from generate_series(1, 101) \g /dev/null
select is((select cardinality(g.before) from pgq_get(:two) g), 100, 'the first 100 are told');

-- Who may see it.
create role regress_watcher;
create role regress_worker;
select pgq_grant('other', 'regress_watcher', '{observe}'),
       pgq_grant('other', 'regress_worker', '{enqueue,consume,manage}') \g /dev/null
set local role regress_watcher;
select is(pg_temp.state(:two), 'ready', 'who may observe its queue sees a job');
select is(pg_temp.state(:seven), 'cancelled', 'also a finished one');
select is((select g.after from pgq_get(:eight) g), array[:three]::bigint[],
          'whom it waits for is seen by id, also in a queue that the caller may not observe');
select is_empty(format('select pgq_get(%s)', :three), 'but none of another queue');
reset role;
set local role regress_worker;
select throws_ok('select pgq_get(1)', '42501', null, 'whoever may not observe is refused');
reset role;
select pgq_grant('default', 'regress_watcher', '{observe}'), pgq_drop_queue('other', true) \g /dev/null
insert into pgq.archive
select a.* from jsonb_populate_record(null::pgq.archive, jsonb_build_object(
    'id', :two, 'enqueued_at', now(), 'finished_at', now(), 'expires_at', now() + '1 day', 'bucket', 8,
    'priority', 0, 'attempt', 1, 'state', 'completed', 'queue', 'other', 'payload', 1
)) a;
select is(pg_temp.state(:two), 'completed', 'a job of a queue that was dropped is seen');
set local role regress_watcher;
select is(pg_temp.state(:two), null, 'but only by who may observe all queues');
reset role;

select * from finish();
rollback;
