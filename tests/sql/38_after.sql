/*
 * Follow-up work. What happens at COMMIT is made to happen by SET CONSTRAINTS, once for each test.
 */
begin;
select plan(74);
\ir support/clock.psql

create function pg_temp.put(
    p_label text, p_after bigint[], p_on_dead text default 'die', p_delay interval default null,
    p_key text default null, p_on_duplicate text default 'keep', p_queue text default 'default',
    p_priority integer default 0
) returns bigint language plpgsql as $$
begin
    return pgq_enqueue(
        to_jsonb(p_label), p_queue, p_priority, pgq._now() + p_delay, p_key, after => p_after,
        after_on_dead => p_on_dead, on_duplicate => p_on_duplicate
    );
end
$$;
create function pg_temp.commit(p_rounds integer default 2) returns void language plpgsql as $$
begin
    -- Not being at a COMMIT, it leaves the jobs to the next ticks.
    for v_round in 1..p_rounds loop
        perform set_config('pgq.decided', '', true);
        set constraints all immediate;
        set constraints all deferred;
        perform pgq._take_hints();
    end loop;
end
$$;
create function pg_temp.state(p_label text) returns text language sql as $$
    select j.state from pgq_jobs j where j.payload #>> '{}' = p_label
$$;
create function pg_temp.end_of(p_label text) returns boolean language sql as $$
    select pgq_complete(j.id, j.token) from pgq.job j where j.payload #>> '{}' = p_label
$$;
create function pg_temp.kill(p_label text) returns text language sql as $$
    select pgq_fail(j.id, j.token, 'no', retryable => false)
      from pgq.job j where j.payload #>> '{}' = p_label
$$;
create function pg_temp.traces() returns bigint language sql as $$
    select (select count(*) from pgq.dependency) + (select count(*) from pgq.hint)
$$;
create function pg_temp.clear() returns void language plpgsql as $$
begin
    perform pgq_cancel_all(q.name, true) from pgq.queue q;
    perform pgq_purge(q.name, '{dead}') from pgq.queue q;
    perform pg_temp.commit();
    delete from pgq.archive;
end
$$;

-- The order.
select pg_temp.add('a') as a, pg_temp.add('b') as b \gset
select pg_temp.put('c', array[:a, :b]::bigint[]) as c \gset
select is(pg_temp.state('c'), 'waiting', 'a job waits');
select is(pg_temp.take(9), '{a,b}', 'and is not claimed');
select throws_ok(
    format('select pgq_claim(%s)', :c::bigint), '55000', null, 'nor is it by its id');
do $$
declare
    v_detail text;
begin
    perform pgq_claim((select j.id from pgq_jobs j where j.payload = '"c"'));
exception when object_not_in_prerequisite_state then
    get stacked diagnostics v_detail = pg_exception_detail;
    perform set_config('pgq_test.detail', v_detail, true);
end
$$;
select is(current_setting('pgq_test.detail'), 'Its "after" names them.', 'which says why');
select is(pg_temp.end_of('a'), true, 'one that it waits for completes');
select pg_temp.commit() \g /dev/null
select is(pg_temp.take(9), '{}', 'it waits for the other one');
select pg_temp.end_of('b'), pg_temp.commit() \g /dev/null
select is(pg_temp.state('c'), 'ready', 'that completes, too');
select is(pg_temp.take(9), '{c}', 'and then it is claimed');
select pg_temp.end_of('c') \g /dev/null
select is(pg_temp.traces(), 0::bigint, 'nothing is left of it');

-- What counts as completed.
select pg_temp.put('d', array[:a, :a, :c]::bigint[]) \g /dev/null
select is(pg_temp.take(9), '{d}', 'after completed jobs one is ready at once');
select pg_temp.end_of('d') \g /dev/null
select nextval('pgq.number') as gap \gset
select pg_temp.put('e', array[:gap]::bigint[]) \g /dev/null
select is(pg_temp.take(9), '{e}', 'a job that is not known counts as completed');
select pg_temp.end_of('e') \g /dev/null
select pg_temp.put('f', '{}') \g /dev/null
select is(pg_temp.take(9), '{f}', 'so do none');
select pgq_enqueue('"g"', after => null, after_on_dead => 'wait') \g /dev/null
select is(pg_temp.take(9), '{g}', 'and null');
select pg_temp.clear() \g /dev/null

-- What is refused.
select pg_temp.add('a') as a \gset
select throws_ok(
    format('select pgq_enqueue(%L, %s)', '1', arguments), code, null,
    format('%s is refused', arguments))
  from (values ('after => ''{null}''', '22004'), ('after => ''{1}'', after_on_dead => null', '22004'),
               ('after => ''{1}'', after_on_dead => ''stop''', '22023'),
               ('after => ''{{1},{2}}''', '22023'), ('after => ''{0}''', 'P0002'),
               ('after => ''{-1}''', 'P0002'), ('after => ''{9223372036854775807}''', 'P0002'),
               ('after => ''{1}'', group_key => ''g''', '0A000')) v (arguments, code);
select is(pg_temp.traces(), 0::bigint, 'and leaves nothing');

-- Deaths.
select pg_temp.put('die', array[:a]::bigint[]) as die,
       pg_temp.put('wait', array[:a]::bigint[], 'wait') as wait \gset
select pg_temp.put('die after it', array[:die, :wait]::bigint[]) \g /dev/null
select pg_temp.take() \g /dev/null
select is(pg_temp.kill('a'), 'dead', 'a job dies');
select pg_temp.commit(4) \g /dev/null
select is(pg_temp.state('die'), 'dead', 'one that waits for it dies with it');
select is(pg_temp.state('die after it'), 'dead', 'and who waits for that one');
select is(pg_temp.state('wait'), 'waiting', 'another waits on');
select is(
    (select a.last_error from pgq.archive a where a.id = :die::bigint),
    'a job that it was to run after is dead', 'its error says why');
select pg_temp.put('late', array[:a]::bigint[]), pg_temp.put('late wait', array[:a]::bigint[], 'wait'),
       pg_temp.commit() \g /dev/null
select is(pg_temp.state('late'), 'dead', 'one that comes after the death dies, too');
select is(pg_temp.state('late wait'), 'waiting', 'or waits');
savepoint kept;
update pgq.archive a set expires_at = pgq._now() where a.id = :a::bigint;
select pg_temp.put('too late', array[:a]::bigint[]), pg_temp.commit() \g /dev/null
select is(pg_temp.state('too late'), 'ready', 'but not when that is not kept any more');
select pg_temp.put('too late wait', array[:a]::bigint[], 'wait') \g /dev/null
select is(pg_temp.state('too late wait'), 'ready', 'nor does it wait');
select is(pgq_retry(:a::bigint), false, 'for what nobody can retry');
rollback to kept;
select is(pgq_retry(:a::bigint), true, 'the first one is retried');
select pg_temp.commit() \g /dev/null
select is(pg_temp.take(9), '{a}', 'and runs again');
select pg_temp.end_of('a'), pg_temp.commit() \g /dev/null
select is(pg_temp.take(9), '{wait,"late wait"}', 'then those run that have waited for it');
select is(pgq_retry(:die::bigint), true, 'a job that has died so can be retried');
select is(pg_temp.take(9), '{die}', 'and does not wait any more');
select pg_temp.clear() \g /dev/null
select is(pg_temp.traces(), 0::bigint, 'nothing is left of them');

-- All that matters is the end.
select pg_temp.add('a') as a, pg_temp.add('b') as b, pg_temp.add('c') as c \gset
select pg_temp.put('run', array[:a, :b, :c]::bigint[], 'run') \g /dev/null
select pg_temp.take(9), pg_temp.kill('a'), pgq_cancel(:b::bigint, true), pg_temp.commit() \g /dev/null
select is(pg_temp.state('run'), 'waiting', 'with run it waits until all have ended');
select is(pgq_retry(:a::bigint), true, 'one that has died is retried meanwhile');
select pg_temp.commit() \g /dev/null
select is(pg_temp.state('run'), 'waiting', 'which changes nothing');
select pg_temp.end_of('c'), pg_temp.commit() \g /dev/null
select is(pg_temp.take(9), '{a,run}', 'it runs after one has died, one been cancelled and one completed');
select pg_temp.kill('a'), pg_temp.put('late', array[:a, :b, :c]::bigint[], 'run'), pg_temp.commit()
    \g /dev/null
select is(pg_temp.take(9), '{late}', 'at once, when they had ended before');
select pg_temp.end_of('run'), pg_temp.end_of('late') \g /dev/null
select pgq_retry(:a::bigint),
       pg_temp.put('run', array[:a]::bigint[], 'run'), pg_temp.put('die', array[:a]::bigint[]),
       pg_temp.put('wait', array[:a]::bigint[], 'wait'), pg_temp.commit() \g /dev/null
select is(pg_temp.state('run'), 'waiting', 'or when the dead one, retried, has ended again');
select pg_temp.take(9), pg_temp.kill('a'), pg_temp.commit() \g /dev/null
select is(array[pg_temp.state('run'), pg_temp.state('die'), pg_temp.state('wait')],
          '{ready,dead,waiting}', 'each of those who wait for one has its own way');
select pg_temp.clear(), pg_temp.add('a') as a \gset
select pg_temp.put('run', array[:a]::bigint[], 'run') as run \gset
select pg_temp.put('after it', array[:run]::bigint[]), pgq_purge('default', '{ready}'), pg_temp.commit()
    \g /dev/null
select is(pg_temp.take(9), '{run}', 'a job that is purged has ended, too');
select pg_temp.clear() \g /dev/null
select is(pg_temp.traces(), 0::bigint, 'nothing is left of them');

-- Failures that are retried.
select pg_temp.add('a') as a \gset
select pg_temp.put('b', array[:a]::bigint[]), pg_temp.take() \g /dev/null
select pgq_fail(j.id, j.token, 'no', '1 minute') from pgq.job j where j.id = :a::bigint \g /dev/null
select pg_temp.commit() \g /dev/null
select is(pg_temp.state('b'), 'waiting', 'a failure that is tried again changes nothing');
select pg_temp.wait('1 minute'), pg_temp.take(), pg_temp.wait('1 minute') \g /dev/null
select is(pg_temp.take(), '{a}', 'nor does a lease that expires');
select pgq_release(j.id, j.token) from pgq.job j where j.id = :a::bigint \g /dev/null
select is((pgq_pop()).id, :a::bigint, 'it is popped');
select pg_temp.commit() \g /dev/null
select is(pg_temp.take(9), '{b}', 'which completes it');
select pg_temp.clear() \g /dev/null

-- Ends by cancel, purge, dropped queues, of either side.
select pg_temp.add('a') as a \gset
select pg_temp.put('b', array[:a]::bigint[]) as b, pg_temp.put('c', array[:a]::bigint[], 'wait') as c
    \gset
select is(pgq_cancel(:b::bigint), true, 'one that waits is cancelled');
select is(pgq_purge('default', '{waiting}'), 1::bigint, 'or purged');
select is(pg_temp.traces(), 0::bigint, 'and nothing is left of it');
select pg_temp.put('b', array[:a]::bigint[]), pgq_cancel(:a::bigint), pg_temp.commit() \g /dev/null
select is(array(select j.state from pgq_jobs j where j.payload = '"b"' order by 1), '{cancelled,dead}',
          'with one that is cancelled dies who waits for it');
select pg_temp.clear(), pg_temp.add('a') as a \gset
select pg_temp.put('b', array[:a]::bigint[]), pgq_purge('default', '{ready}'), pg_temp.commit()
    \g /dev/null
select is(pg_temp.state('b'), 'dead', 'with one that is purged, too');
select pgq_create_queue('it''s "odd"') \g /dev/null
select pg_temp.clear(), pg_temp.add('a', 'it''s "odd"') as a \gset
select pg_temp.put('b', array[:a]::bigint[]) as b \gset
select pg_temp.put('c', array[:b]::bigint[], p_queue => 'it''s "odd"') \g /dev/null
select pgq_drop_queue('it''s "odd"', true), pg_temp.commit() \g /dev/null
select is(pg_temp.state('b'), 'dead', 'and with one whose queue is dropped');
select is((select count(*) from pgq.job), 0::bigint, 'that had a waiting job, too');
select is(pg_temp.traces(), 0::bigint, 'nothing is left of them all');
select pg_temp.clear() \g /dev/null

-- With other arguments.
select pg_temp.add('a') as a \gset
select pg_temp.put('key', array[:a]::bigint[], p_key => 'k') as key \gset
select is(pg_temp.put('other', array[:a]::bigint[], p_key => 'k'), :key::bigint,
          'a job that waits holds its dedupe key');
select is(
    pg_temp.put('KEY', '{}', p_key => 'k', p_on_duplicate => 'replace'), :key::bigint,
    'it is replaced');
select is(pg_temp.state('KEY'), 'waiting', 'and still waits');
select is((select count(*) from pgq.dependency), 1::bigint, 'for what it waited for');
select pg_temp.put('later', array[:a]::bigint[], p_delay => '1 hour'),
       pg_temp.put('high', array[:a]::bigint[], p_priority => 7) \g /dev/null
insert into pgq.ring (gen, live, ready, parked, switched_at)
select r.gen + 1, '{1,0}', '{1,0}', '{4,5}', r.switched_at
  from pgq.ring r order by r.gen desc limit 1;
select pgq._move(0::smallint, 1::smallint, 1000),
       pgq._move(4::smallint, 5::smallint, 1000) \g /dev/null
select is(array(select distinct j.slot::integer from pgq.job j order by 1), '{1,5}', 'all are moved');
select pg_temp.take(9), pg_temp.end_of('a'), pg_temp.commit() \g /dev/null
select is(pg_temp.state('later'), 'scheduled', 'who waits until a time is scheduled then');
select is(pg_temp.take(9), '{high,KEY}', 'of the others the priority counts');
select pg_temp.end_of('high'), pg_temp.end_of('KEY'), pg_temp.wait('1 hour') \g /dev/null
select is(pg_temp.take(9), '{later}', 'its time comes');
select pg_temp.clear() \g /dev/null
select is(
    array(select e is not null from pgq_enqueue_many(
        '{1,2,1}', dedupe_keys => '{x,y,x}', after => array[e.id]) e), '{t,t,t}',
    'many wait at once')
  from (select pg_temp.add('a') as id) e;
select is((select count(*) from pgq.job j where pgq._waits_for_jobs(j)), 2::bigint, 'each once');
select is(
    (select count(*) from pgq_enqueue_many('{}', after => array[:a]::bigint[])), 0::bigint,
    'none is fine');
select pg_temp.clear() \g /dev/null

-- With expired leases, all in one transaction, and a long line.
select pgq_create_queue('once', max_attempts => 1) \g /dev/null
select pg_temp.add('a', 'once') as a \gset
select pg_temp.put('b', array[:a]::bigint[]), pg_temp.take(1, 'once'), pg_temp.wait('1 minute'),
       pg_temp.tick(), pg_temp.commit() \g /dev/null
select is(pg_temp.state('b'), 'dead', 'with one whose last lease expires dies who waits for it');
select pg_temp.clear(), pg_temp.add('0') as first \gset
select pg_temp.put(n::text, array[:first::bigint + n - 1]) from generate_series(1, 5) n \g /dev/null
create function pg_temp.line() returns text[] language plpgsql as $$
declare
    v_taken text[] := '{}';
begin
    for v_n in 1..6 loop
        v_taken := v_taken || pg_temp.take(9);
        perform pg_temp.end_of(v_taken[v_n]), pg_temp.commit();
    end loop;
    return v_taken;
end
$$;
select is(pg_temp.line(), '{0,1,2,3,4,5}', 'a line of jobs runs one after the other');
select is(pg_temp.traces(), 0::bigint, 'and leaves nothing');

-- Settings of the queue in which jobs wait.
select pgq_enqueue('0', after => array[pgq_enqueue('0')]) \g /dev/null
select lives_ok(
    $$ select pgq_configure_queue('default', group_concurrency => 2) $$,
    'jobs that wait for others are of no group');

select * from finish();
rollback;
