/*
 * Bounds of a queue, and times to start by.
 */
begin;
select plan(57);
\ir support/clock.psql
\ir support/commit.psql

create function pg_temp.put(
    p_label text, p_expires_in interval, p_delay interval default null, p_group text default null,
    p_queue text default 'default', p_priority integer default 0, p_after bigint[] default null
) returns bigint language plpgsql as $$
begin
    return pgq_enqueue(
        to_jsonb(p_label), p_queue, p_priority, pgq._now() + p_delay, group_key => p_group,
        expires_at => pgq._now() + p_expires_in, after => p_after
    );
end
$$;
-- The state of a job, and its error.
create function pg_temp.fate(p_id bigint) returns text language sql as $$
    select concat_ws(' ', j.state, j.last_error) from pgq_jobs j where j.id = p_id
$$;
create function pg_temp.hint_of(p_call text) returns text language plpgsql as $$
declare
    v_hint text;
begin
    execute p_call;
    return null;
exception
    when others then
        get stacked diagnostics v_hint = pg_exception_hint;
        return v_hint;
end
$$;

-- max_ready.
select pgq_create_queue('few', max_ready => 3) \g /dev/null
select lives_ok($$ select pgq_enqueue_many('{1,2}', 'few') $$, 'two jobs fit into three');
select throws_ok(
    $$ select pgq_enqueue_many('{3,4}', 'few') $$, '53400', 'queue "few" is full',
    'two more do not');
select throws_ok(
    $$ select pgq_enqueue_many('{3,4}', 'few', dedupe_keys => '{a,b}') $$, '53400', null,
    'nor with keys');
select throws_ok(
    $$ select pgq_enqueue_many('{3,4}', 'few', expires_at => pgq._now() + '1 hour') $$, '53400',
    null, 'nor with a time to start by');
select is((select count(*) from pgq.job), 2::bigint, 'and none of them is added');
select lives_ok($$ select pgq_enqueue('3', 'few') $$, 'the third does');
select throws_ok($$ select pgq_enqueue('4', 'few') $$, '53400', null, 'the fourth does not');
select matches(
    pg_temp.hint_of($$ select pgq_enqueue('4', 'few') $$), 'Try again when', 'a hint says what to do');
select lives_ok($$ select pgq_enqueue_many('{}', 'few') $$, 'none always fit');
select lives_ok(
    $$ select pgq_enqueue('5', 'few', run_at => pgq._now() + '1 hour') $$,
    'a scheduled job does not count');
select j.id as first from pgq.job j order by j.id limit 1 \gset
select lives_ok(
    format($$ select pgq_enqueue('6', 'few', after => '{%s}') $$, :first::bigint),
    'nor one that waits');
select throws_ok(
    $$ select pgq_enqueue('7', 'few', after => '{}') $$, '53400', null,
    'unless there is nothing to wait for');
select is(pg_temp.take(1, 'few', '2 hours'), '{1}', 'once one is claimed');
select lives_ok($$ select pgq_enqueue('8', 'few', dedupe_key => 'k') $$, 'there is room again');
select throws_ok(
    $$ select pgq_enqueue('9', 'few', dedupe_key => 'l') $$, '53400', null, 'for one');
select lives_ok(
    $$ select pgq_enqueue('8', 'few', dedupe_key => 'k') $$, 'a duplicate needs no room');
select lives_ok(
    $$ select pgq_enqueue('10', 'few', dedupe_key => 'k', on_duplicate => 'replace') $$,
    'nor does one that replaces another');
select is(
    (select j.payload from pgq.job j where j.dedupe_key = 'k'), '10', 'which it has');
select throws_ok(
    $$ select pgq_enqueue_many('{11,12}', 'few', dedupe_keys => '{k,l}',
                               on_duplicate => 'replace') $$,
    '53400', null, 'only new ones do');
select throws_ok(
    $$ select pgq_enqueue('13', 'few', priority => 9) $$, '53400', null,
    'the bound is for all priorities');
select lives_ok($$ select pgq_enqueue('13') $$, 'and for one queue');
select pg_temp.wait('1 hour') \g /dev/null
select is(
    pgq._count_ready(q.id, 100), 4, 'a job that falls due counts, over the bound, too')
  from pgq.queue q where q.name = 'few';
select pgq_configure_queue('few', max_ready => 0) \g /dev/null
select lives_ok($$ select pgq_enqueue('14', 'few') $$, 'without a bound there is room');
select throws_ok(
    $$ select pgq_configure_queue('few', max_ready => -1) $$, '22023', null,
    'a bound is not below zero');

-- A large bound is looked at for some of the calls.
select pgq_create_queue('many', max_ready => 10000) \g /dev/null
select setseed(0.5) \g /dev/null
create function pg_temp.fill() returns integer language plpgsql as $$
declare
    v_number integer := 0;
begin
    loop
        begin
            perform pgq_enqueue_many(array_fill(jsonb '1', array[10]), 'many');
            v_number := v_number + 10;
        exception
            when configuration_limit_exceeded then
                return v_number;
        end;
        exit when v_number > 20000;
    end loop;
    return v_number;
end
$$;
select pg_temp.fill() as filled \gset
select cmp_ok(:filled, '>=', 10000, 'a large bound is not less than it says');
select cmp_ok(:filled, '<=', 10100, 'nor much more');
select pgq_purge('many') \g /dev/null

-- max_payload, in bytes of text.
select pgq_create_queue('short', max_payload => 10) \g /dev/null
select lives_ok($$ select pgq_enqueue('"12345678"', 'short') $$, 'ten bytes are not too long');
select throws_ok(
    $$ select pgq_enqueue('"123456789"', 'short') $$, '54000',
    'a payload of 11 bytes is too long for queue "short"', 'eleven are');
select throws_ok(
    format($$ select pgq_enqueue('"äöüäö"', 'short', %s) $$, setting), '54000', null,
    format('also as text in UTF-8, with %s', setting))
  from unnest(array['dedupe_key => ''k''', 'group_key => ''g''', 'priority => 3',
                    'run_at => pgq._now() + ''1 hour''']) setting;
select throws_ok(
    $$ select pgq_enqueue_many('{1,"\"1234567890\"",2}', 'short') $$, '54000', null,
    'one of many is enough');
select matches(
    pg_temp.hint_of($$ select pgq_enqueue('"123456789"', 'short') $$), 'elsewhere',
    'a hint says what to do with it');
select is(
    (select count(*) from pgq.job j join pgq.lane l on l.id = j.lane
       join pgq.queue q on q.id = l.queue_id where q.name = 'short'), 1::bigint,
    'nothing of that is added');

-- expires_at.
select pgq_purge('default') \g /dev/null
select throws_ok(
    $$ select pgq_enqueue('1', expires_at => 'infinity') $$, '22023', null,
    'a time to start by is finite');
select pg_temp.put('in time', '1 minute') \g /dev/null
select is(pg_temp.take(9), '{in time}', 'a job starts in time');
select pg_temp.wait('2 minutes') \g /dev/null
select is(pg_temp.take(9), '{in time}', 'it may be tried again later, when its lease has expired');
select pg_temp.now_is(pgq._now() + '2 minutes'), pgq_claim(j.id) from pgq.job j
 where j.payload = '"in time"' \g /dev/null
select is((select j.attempt::integer from pgq.job j where j.payload = '"in time"'), 3,
          'also by its id');
select is(
    (select pgq_fail(j.id, j.token, 'no', '0') from pgq.job j where j.payload = '"in time"'),
    'scheduled', 'or when it has failed');
select is(pg_temp.take(9), '{in time}', 'and is claimed');
select pgq_complete(j.id, j.token) from pgq.job j where j.payload = '"in time"' \g /dev/null
select pg_temp.put('late', '1 minute') as late, pg_temp.put('soon', '3 minutes') as soon,
       pg_temp.put('later', '4 minutes', '2 minutes') as later \gset
select pg_temp.now_is(pgq._now() + '1 minute') \g /dev/null
select throws_ok(
    format('select pgq_claim(%s)', :late::bigint), '55000', null,
    'one that has not started by then is not claimed by its id');
select is(pg_temp.take(9), '{soon}', 'nor by a batch');
select pg_temp.wait('0') \g /dev/null
select is(pg_temp.fate(:late::bigint), 'dead expired', 'but is dead');
select is(
    (select row(a.attempt, a.worker, a.claimed_at)::text from pgq.archive a
      where a.id = :late::bigint), '(0,,)', 'and was never tried');
select pg_temp.wait('3 minutes') \g /dev/null
select pg_temp.tick() \g /dev/null
select is(pg_temp.fate(:later::bigint), 'dead expired', 'maintenance sees to it, too');
select is(pgq_retry(:later::bigint), true, 'it can be retried');
select is(pg_temp.take(1), '{soon}', 'one whose lease has expired is still there');
select is(pg_temp.take(9), '{later}', 'then it has no such time any more');
select pgq_complete(j.id, j.token) from pgq.job j where j.payload in ('"soon"', '"later"')
    \g /dev/null
select pg_temp.put('p' || n, '1 minute', p_priority => n % 3) from generate_series(1, 9) n
    \g /dev/null
select pg_temp.now_is(pgq._now() + '1 minute') \g /dev/null
select is((select count(*) from pgq_pop(20)), 0::bigint, 'nor is one popped');
select pg_temp.wait('0') \g /dev/null
select is(
    (select count(*) from pgq.archive a where a.last_error = 'expired'), 11::bigint, 'all are dead');
select pgq_purge('default', '{dead}') \g /dev/null

-- With a lease given back, groups, and jobs to wait for.
select pg_temp.put('back', '1 minute') as back \gset
select pgq_release(d.id, d.token) from pgq_dequeue(1) d \g /dev/null
select pg_temp.wait('1 minute'), pg_temp.tick() \g /dev/null
select is(pg_temp.fate(:back::bigint), 'dead expired', 'a job that was given back has not started');
select pg_temp.put('g1', '1 minute', p_group => 'g') as g1,
       pgq_enqueue('"g2"', group_key => 'g') as g2 \gset
select pg_temp.commit(), pg_temp.wait('1 minute'), pg_temp.tick(), pg_temp.commit(),
       pgq._take_hints() \g /dev/null
select is(
    array[pg_temp.fate(:g1::bigint), pg_temp.fate(:g2::bigint)], '{dead expired,ready}',
    'the next of its group goes on');
select throws_ok(
    $$ select pgq_enqueue('1', expires_at => '10000-01-01') $$, '22023', null,
    'a time that clients cannot read is refused');
select pg_temp.put('w', '1 minute', p_after => array[:g2::bigint]) as w \gset
select pg_temp.wait('1 minute'), pg_temp.tick() \g /dev/null
select is(pg_temp.fate(:w::bigint), 'waiting', 'one that waits for others goes on waiting');
select is(pg_temp.take(9), '{g2}', 'until they have completed');
select pgq_complete(j.id, j.token) from pgq.job j where j.payload = '"g2"' and j.place is null
    \g /dev/null
select pg_temp.commit() \g /dev/null
select is(pg_temp.take(9), '{}', 'and is not run then');

select * from finish();
rollback;
