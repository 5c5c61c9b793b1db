/*
 * pgq_set_shard, and ids that know their shard.
 */
begin;
select plan(39);
\ir support/clock.psql
\ir support/commit.psql

-- As after the installation. In a transaction: setval alone would not be rolled back.
create function pg_temp.install() returns void language sql as $$
    alter sequence pgq.number restart
$$;
create function pg_temp.hint(p_query text) returns text language plpgsql as $$
declare
    v_hint text;
begin
    execute p_query;
    return null;
exception
    when sqlstate 'PQ002' then
        get stacked diagnostics v_hint = pg_exception_hint;
        return v_hint;
end
$$;

-- The number is set once.
select pg_temp.install() \g /dev/null
select throws_ok('select pgq_set_shard(null)', '22004', null, 'a shard has a number');
select throws_ok('select pgq_set_shard(-1)', '22023', null, 'of 0 or more');
select throws_ok('select pgq_set_shard(16384)', '22023', null, 'and of 16383 at most');
select lives_ok('select pgq_set_shard(0)', 'the number 0 changes nothing');
select is(pg_sequence_last_value('pgq.number'), null, 'and leaves the choice');
select lives_ok('select pgq_set_shard(2)', 'a new database can become a shard');
select lives_ok('select pgq_set_shard(2)', 'which may be said twice');
select throws_ok('select pgq_set_shard(3)', '55000', 'this database is shard 2 already',
                 'it does not become another one');
select pgq_create_queue('late') \g /dev/null
select is(pgq_enqueue('1', 'late'), (2::bigint << 48) + 1, 'its first id has its number');
select throws_ok('select pgq_set_shard(0)', '55000', null, 'nor is it without a number again');
select lives_ok('select pgq_set_shard(2)', 'the same number may be said at any time');
select pg_temp.install(), pgq_enqueue('1') \g /dev/null
select throws_ok('select pgq_set_shard(2)', '55000', 'this database is shard 0 already',
                 'a database that had jobs does not become a shard');
create role regress_manager;
select pgq_grant('default', 'regress_manager', '{manage}') \g /dev/null
set local role regress_manager;
select throws_ok('select pgq_set_shard(0)', '42501', null,
                 'who sets it has the privilege on all queues');
reset role;

-- The whole life of a job, with the largest ids that there are.
delete from pgq.job;
select pg_temp.install(), pgq_set_shard(16383) \g /dev/null
select pgq_create_queue('q', max_attempts => 1) \g /dev/null
select setval('pgq.number', 9223372036854775807 >> 1 & ~1023) \g /dev/null
create temp table job as
select n, i
  from pgq_enqueue_many('{1,2,3}', 'q', group_keys => '{a,a,null}') with ordinality e (i, n);
select pgq_enqueue('4', 'q', after => array[j.i]) as after from job j where n = 3 \gset
select pgq_enqueue('5', 'q', run_at => pgq._now() + '1 minute') as later \gset
select pg_temp.commit() \g /dev/null
select results_eq($$ select d.payload::int, d.id from pgq_dequeue(9, '1 hour', 'q') d order by 1 $$,
                  $$ select j.n::int, j.i from job j where j.n in (1, 3) order by 1 $$,
                  'the head of a group and a plain job are claimed');
select ok(pgq_heartbeat(g.id, g.token) is not null, 'their receipts are good: ' || n)
  from job j, pgq_get(j.i) g where j.n in (1, 3) order by j.n;
select is(pgq_fail(g.id, g.token), 'dead', 'the head dies') from job j, pgq_get(j.i) g where n = 1;
select is(pgq_complete(g.id, g.token), true, 'the other one completes')
  from job j, pgq_get(j.i) g where n = 3;
select pg_temp.commit(), pg_temp.wait('2 minutes') \g /dev/null
select is(pgq_retry(j.i), true, 'a dead job is retried') from job j where n = 1;
select pg_temp.commit() \g /dev/null
select bag_eq($$ select d.payload::int from pgq_dequeue(9, '1 hour', 'q') d $$,
              $$ select unnest('{2,4,5}'::int[]) $$,
              'the next of the group, what waited and what was scheduled are claimed');
select is(pgq_complete(g.id, g.token), true, 'the next of the group completes')
  from job j, pgq_get(j.i) g where n = 2;
select pg_temp.commit() \g /dev/null
select results_eq($$ select d.payload::int from pgq_dequeue(9, '1 hour', 'q') d $$, array[1],
                  'then the one that was retried has its turn');

-- An id of another shard.
delete from pgq.job;
select pg_temp.install(), pgq_set_shard(1) \g /dev/null
select (2::bigint << 48) + 7 as other, 4611686018427387904 as none \gset
create temp table wrong as select format(c.call, :other) as call, c.call as shown
  from (values ('pgq_heartbeat(%s, 8)'), ('pgq_heartbeat(array[%s], array[8])'),
               ('pgq_complete(%s, 8)'), ('pgq_complete(array[%s], array[8])'),
               ('pgq_complete_and_dequeue(array[%s], array[8])'), ('pgq_fail(%s, 8)'),
               ('pgq_release(%s, 8)'), ('pgq_outcome(%s, 8)'), ('pgq_claim(%s)'),
               ('pgq_cancel(%s)'), ('pgq_move(%s, priority => 1)'), ('pgq_retry(%s)'),
               ('pgq_get(%s)'),
               ('pgq_enqueue(''1'', after => array[%s])')) c (call);
select is(pg_temp.hint('select ' || w.call), 'Ask shard 2.',
          format('%s of another shard is an error of its own', w.shown))
  from wrong w;
select is(pg_temp.hint('select pgq_cancel(7)'), 'Ask shard 0.', 'also where that has no number');
select is(pgq_cancel(:none), false, 'an id that no shard can have is not known');
select is(pgq_cancel(pgq_enqueue('1')), true, 'an id of this one is asked for here');

select * from finish();
rollback;
