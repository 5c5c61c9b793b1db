/*
 * Groups. What happens at COMMIT is made to happen by SET CONSTRAINTS, once for each test.
 */
begin;
select plan(43);
\ir support/clock.psql
\ir support/commit.psql

create function pg_temp.put(
    p_label text, p_group text default 'g', p_queue text default 'default',
    p_priority integer default 0, p_delay interval default null, p_key text default null,
    p_on_duplicate text default 'keep'
) returns bigint language plpgsql as $$
begin
    return pgq_enqueue(
        to_jsonb(p_label), p_queue, p_priority, pgq._now() + p_delay, p_key, p_group,
        on_duplicate => p_on_duplicate
    );
end
$$;
-- The states of all live jobs.
create function pg_temp.states() returns text[] language plpgsql as $$
begin
    return array(
        select format('%s %s', j.payload #>> '{}', j.state)
          from pgq_jobs j where j.finished_at is null order by j.id
    );
end
$$;
create function pg_temp.end_of(p_label text) returns boolean language plpgsql as $$
begin
    return (select pgq_complete(j.id, j.token) from pgq.job j
             where j.payload #>> '{}' = p_label and j.place is null);
end
$$;
create function pg_temp.fail(
    p_label text, p_retryable boolean default true, p_retry_in interval default '1 minute'
) returns text language plpgsql as $$
begin
    return (select pgq_fail(j.id, j.token, 'no', p_retry_in, p_retryable)
              from pgq.job j where j.payload #>> '{}' = p_label and j.place is null);
end
$$;

select throws_ok(
    $$ select pgq_enqueue('1', group_key => 'g', on_duplicate => 'skip') $$, '22023',
    '"on_duplicate" must be keep, replace or error, not "skip"', 'also without a dedupe key');

-- One after the other.
select pg_temp.put('1'), pg_temp.put('2'), pg_temp.put('x', 'h'), pg_temp.put('3') \g /dev/null
select is(pg_temp.take(9), '{}', 'a job of a group is not there before the commit');
select pg_temp.commit() \g /dev/null
select is(
    pg_temp.states(), '{1 ready,2 waiting,x ready,3 waiting}', 'the first of each group is ready');
select is(pg_temp.take(9), '{1,x}', 'and claimed');
select is(
    (select d.group_key from pgq_dequeue() d), null, 'the others are not');
select is(
    (select array_agg(distinct j.group_key order by j.group_key) from pgq.job j), '{g,h}',
    'the key is kept');
select throws_ok(
    $$ select pgq_claim(j.id) from pgq.job j where j.payload = '"2"' $$, '55000', null,
    'one that waits cannot be claimed by its id');
select pg_temp.end_of('x') \g /dev/null
select is(pg_temp.end_of('1'), true, 'the first is completed');
select pg_temp.commit() \g /dev/null
select is(pg_temp.take(9), '{2}', 'and the second follows');

-- What keeps the others waiting, and what does not.
select is(pg_temp.fail('2'), 'scheduled', 'the head fails');
select pg_temp.commit() \g /dev/null
select is(pg_temp.take(9), '{}', 'its group waits for its next try');
select pg_temp.wait('1 minute') \g /dev/null
select is(pg_temp.take(9), '{2}', 'which comes');
select pg_temp.wait('31 seconds') \g /dev/null
select is(pg_temp.take(9), '{2}', 'as it does when a lease has expired');
select is(pg_temp.fail('2', false), 'dead', 'when the head dies');
select pg_temp.commit() \g /dev/null
select is(pg_temp.take(9), '{3}', 'the group goes on');
select pg_temp.put('4') \g /dev/null
select pg_temp.commit() \g /dev/null
select is(
    (select pgq_retry(a.id) from pgq.archive a where a.payload = '"2"'), true, 'one is revived');
select pg_temp.commit(), pg_temp.end_of('3'), pg_temp.commit() \g /dev/null
select is(pg_temp.take(9), '{2}', 'and goes first, as it is older');
select pgq_cancel(j.id) from pgq.job j where j.payload = '"4"' \g /dev/null
select pg_temp.end_of('2'), pg_temp.commit() \g /dev/null
select is(pg_temp.states(), '{}', 'one that waits can be cancelled');

-- Purge.
select pg_temp.put(l, 'p') from unnest('{a,b,c}'::text[]) l \g /dev/null
select pg_temp.commit() \g /dev/null
select is(pgq_purge('default', '{ready}'), 1::bigint, 'purging ready jobs leaves those that wait');
select pg_temp.commit() \g /dev/null
select is(pg_temp.states(), '{b ready,c waiting}', 'the next one is ready then');
select is(pgq_purge('default', '{waiting}'), 1::bigint, 'waiting is a state');
select is(pgq_purge('default'), 1::bigint, 'purged by default, too');

-- Other settings.
select pgq_create_queue('two', group_concurrency => 2, group_on_dead => 'block') \g /dev/null
select pg_temp.put(l, 'g', 'two') from unnest('{a,b,c,d}'::text[]) l \g /dev/null
select pg_temp.commit() \g /dev/null
select is(pg_temp.take(9, 'two'), '{a,b}', 'group_concurrency jobs run');
select pg_temp.end_of('b'), pg_temp.commit() \g /dev/null
select is(pg_temp.take(9, 'two'), '{c}', 'and for each that ends the next one');
select pg_temp.fail('a', false), pg_temp.end_of('c'), pg_temp.commit() \g /dev/null
select is(pg_temp.take(9, 'two'), '{}', 'a dead job blocks its group');
select pg_temp.put('e', 'g', 'two'), pg_temp.commit() \g /dev/null
select is(pg_temp.take(9, 'two'), '{}', 'also for what comes after');
select is(pgq_unblock('two', 'g'), true, 'until it is unblocked');
select pg_temp.commit() \g /dev/null
select is(pg_temp.take(9, 'two'), '{d,e}', 'and goes on');
select is(pgq_unblock('two', 'g'), false, 'there is nothing more to unblock');
select throws_ok(
    format('select pgq_create_queue(%L, %s)', 'bad', setting), '22023', null,
    format('%s is refused', setting))
  from unnest(array['group_concurrency => 0', 'group_on_dead => ''stop''']) setting;

-- Priorities, times, keys.
select pg_temp.put('low', 'm', p_priority => -1), pg_temp.put('high', 'm', p_priority => 1),
       pg_temp.commit() \g /dev/null
select is(pg_temp.take(9), '{low}', 'within a group ids count, not priorities');
select pg_temp.put('later', 'n', p_delay => '1 hour'), pg_temp.put('soon', 'n'),
       pg_temp.commit() \g /dev/null
select is(pg_temp.take(9), '{}', 'a group waits for its head''s time');
select pg_temp.put('key', 'k', p_key => 'k'), pg_temp.put('tail', 'k', p_key => 'l'),
       pg_temp.commit() \g /dev/null
select pg_temp.put('TAIL', 'k', p_key => 'l', p_on_duplicate => 'replace'),
       pg_temp.commit() \g /dev/null
select is(pg_temp.take(9), '{key}', 'one that waits is replaced');
select pg_temp.end_of('key'), pg_temp.commit() \g /dev/null
select is(pg_temp.take(9), '{TAIL}', 'where it is');
select pgq_release(j.id, j.token) from pgq.job j
 where j.payload = '"TAIL"' and j.place is null \g /dev/null
select pg_temp.put('next', 'k'), pg_temp.commit() \g /dev/null
select is(pg_temp.take(9), '{TAIL}', 'a job that was given back is still the head');
select is(
    (select count(*) from pgq_pop(5, 'two')), 0::bigint, 'nothing is left to pop');
select pgq_configure_queue('two', group_concurrency => 1), pg_temp.put('f', 'g', 'two'),
       pg_temp.commit(), pg_temp.end_of('e'), pg_temp.commit() \g /dev/null
select is(pg_temp.take(9, 'two'), '{}', 'with a lower group_concurrency, while another one runs');
select pg_temp.put('blocker', 'k', 'two', p_key => 'k') as blocker, pg_temp.commit(), pg_temp.take(1, 'two'),
       pg_temp.fail('blocker', false) \gset
select isnt(
    pg_temp.put('blocker', null, 'two', p_key => 'k'), :blocker::bigint,
    'a dead job that blocks its group does not hold its dedupe key');
select is(pgq_cancel(:blocker::bigint), false, 'nor is it live');
select is(
    (select count(*) from pgq.hint), 0::bigint, 'no group is left to the next tick');
select is_empty(
    $$ select j.group_id from pgq.job j where j.is_head
        group by j.group_id having count(*) > 2 $$,
    'no group has more heads than it may');

-- What ticks skip is looked up once for all hints.
insert into pgq.hint (kind, key) select k, n from unnest('{g,w}'::"char"[]) k, generate_series(1, 50) n;
select pg_stat_get_xact_numscans('pgq.skipped'::regclass) as before \gset
select pgq._take_hints() \g /dev/null
select is(
    pg_stat_get_xact_numscans('pgq.skipped'::regclass) - :before, 2::bigint,
    'a tick looks once for each kind of hint which ones to skip');

select * from finish();
rollback;
