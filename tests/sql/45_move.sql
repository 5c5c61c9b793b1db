/*
 * Another queue, priority or time for a job that is not active.
 */
begin;
select plan(55);
\ir support/clock.psql
\ir support/commit.psql
select pgq_create_queue('other', max_attempts => 3, max_ready => 3, max_payload => 100) \g /dev/null

create function pg_temp.job(p_label text) returns pgq_jobs language sql as $$
    select j from pgq_jobs j where j.payload #>> '{}' = p_label order by j.id desc limit 1
$$;

-- Ready jobs.
select pg_temp.add('a') as a, pg_temp.add('b') as b, pg_temp.add('c') as c,
       pg_temp.add('high', p_priority => 5) as high \gset
create temp table before as select j.* from pgq_jobs j;
select pg_temp.wait('10 seconds') \g /dev/null
select is(pgq_move(:a::bigint, priority => 5), true, 'a ready job gets another priority');
select is(
    array(select j::text from pgq_jobs j where j.id <> :a::bigint order by j.id),
    array(select b::text from before b where b.id <> :a::bigint order by b.id),
    'others stay as they are');
select results_eq(
    format('select j.priority, j.state, j.run_at, j.enqueued_at, j.attempt from pgq_jobs j where j.id = %s', :a),
    format('select 5, state, run_at, enqueued_at, attempt from before where id = %s', :a),
    'it keeps what it had');
select is(pgq_move(:b::bigint, priority => 0), true, 'to the priority that it has');
select is(pg_temp.take(9), '{high,a,b,c}',
          'it is the last of its new priority, and one that has stayed keeps its place');
select is(pgq_move(:a::bigint, priority => 7), false, 'an active job is not moved');
select pgq_complete(d.id, d.token) from pgq.job d where d.id = :a::bigint \g /dev/null
select is(pgq_move(:a::bigint, priority => 7), false, 'nor is one that has completed');
select is(pgq_move(nextval('pgq.number'), priority => 7), false, 'nor one that is not known');
select pgq_fail(d.id, d.token, 'no', '1 minute') from pgq.job d where d.id = :b::bigint \g /dev/null
select pgq_fail(d.id, d.token, 'no', retryable => false) from pgq.job d where d.id = :c::bigint
    \g /dev/null
select is(pgq_move(:c::bigint, priority => 7), false, 'nor a dead one');
select pgq_cancel_all('default', true) \g /dev/null

-- Another queue.
select pg_temp.add('a') as a, pg_temp.add('o', 'other') as o \gset
select is(pgq_move(:a::bigint, 'other'), true, 'a ready job gets another queue');
select is((pg_temp.job('a')).queue, 'other', 'where it is shown');
select is((pg_temp.job('a')).max_attempts, 3, 'it has the settings of that queue');
select is(pg_temp.take(9), '{}', 'it is not in its old queue');
select is(pg_temp.take(9, 'other'), '{o,a}', 'but the last one of the new one');
select is(
    (select pgq_complete(j.id, j.token) from pgq.job j where j.id = :a::bigint), true,
    'its receipt is good');
select is((pg_temp.job('a')).state, 'completed', 'and it is kept');
select pgq_cancel_all('other', true) \g /dev/null

-- Scheduled ones, and those that have failed.
select pg_temp.add('s', p_delay => '1 hour') as s, pg_temp.add('f') as f \gset
select pg_temp.take() \g /dev/null
select pgq_fail(d.id, d.token, 'no', '2 hours') from pgq.job d where d.id = :f::bigint \g /dev/null
select is(pgq_move(:s::bigint, 'other', 3), true, 'a scheduled job is moved');
select is(pgq_move(:f::bigint, 'other'), true, 'and one that is tried again');
select is((select (j).history #>> '{0,error}' from pg_temp.job('f') j), 'no', 'which keeps its history');
select is((select array[(j).state, (j).queue, (j).priority::text, (j).run_at::text] from pg_temp.job('s') j),
          array['scheduled', 'other', '3', '2040-01-01 01:00:10+00'], 'it keeps its time');
select pg_temp.wait('1 hour') \g /dev/null
select is(pg_temp.take(9, 'other', '5 hours'), '{s}', 'which comes');
select pg_temp.wait('1 hour') \g /dev/null
select is(pg_temp.take(9, 'other'), '{f}', 'so does that of the other one');
select is((select array[(j).attempt::text, (j).last_error] from pg_temp.job('f') j), '{2,no}',
          'with its attempts');
select pgq_cancel_all('other', true) \g /dev/null

-- Jobs that wait for others, and are waited for.
select pg_temp.add('first') as first \gset
select pgq_enqueue('"second"', after => array[:first::bigint]) as second \gset
select is(pgq_move(:first::bigint, 'other'), true, 'a job that is waited for is moved');
select is(pgq_move(:second::bigint, 'other', -1), true, 'and one that waits');
select is((select d.lane from pgq.dependency d),
          (select j.lane from pgq.job j where j.id = :second::bigint), 'it waits in its new queue');
select pg_temp.take(1, 'other') \g /dev/null
select pgq_complete(j.id, j.token) from pgq.job j where j.id = :first::bigint \g /dev/null
set constraints all immediate;
set constraints all deferred;
select pgq._take_hints() \g /dev/null
select is(pg_temp.take(9, 'other'), '{second}', 'where it runs then');
select pgq_cancel_all('other', true) \g /dev/null

-- Another time.
select pgq_cancel_all('default', true) \g /dev/null
select pg_temp.add('n', p_delay => '1 hour') as n, pg_temp.add('e') as e \gset
select is(pgq_move(:n::bigint, run_at => '2001-01-01Z'), true, 'a scheduled job is due at once');
select is((pg_temp.job('n')).run_at, pgq._now(), 'from now on, not from a time that has passed');
select is(pgq_move(:e::bigint, run_at => pgq._now() + '1 hour'), true, 'a ready one is put off');
select is(pg_temp.take(9), '{n}', 'the one runs');
select pgq_complete(j.id, j.token) from pgq.job j where j.id = :n::bigint \g /dev/null
select pg_temp.wait('1 hour') \g /dev/null
select is(pg_temp.take(9), '{e}', 'and the other in its time');
select pg_temp.add('w') as w \gset
select pgq_enqueue('"x"', after => array[:w::bigint]) as x \gset
select is(pgq_move(:x::bigint, run_at => pgq._now() + '1 hour'), true, 'one that waits for others');
select pg_temp.take(1) \g /dev/null
select pgq_complete(j.id, j.token) from pgq.job j where j.id = :w::bigint \g /dev/null
set constraints all immediate;
set constraints all deferred;
select pgq._take_hints() \g /dev/null
select is((pg_temp.job('x')).state, 'scheduled', 'starts after them and in its time');
select pgq_cancel_all('default', true) \g /dev/null

-- Dedupe keys.
select pgq_enqueue('"k"', dedupe_key => 'k') as k, pgq_enqueue('"l"', dedupe_key => 'l') as l,
       pgq_enqueue('"l"', 'other', dedupe_key => 'l') as taken,
       pgq_enqueue('"m"', run_at => pgq._now() + '1 hour', dedupe_key => 'm') as m \gset
select is(pgq_move(:k::bigint, 'other'), true, 'a job with a dedupe key is moved');
select is(pgq_enqueue('2', 'other', dedupe_key => 'k'), :k::bigint, 'with its key');
select isnt(pgq_enqueue('"k"', dedupe_key => 'k'), :k::bigint, 'which is free in its old queue');
select throws_ok(
    format('select pgq_move(%s, ''other'')', :l), '23505',
    'queue "other" has a job with the dedupe key "l"', 'unless a live job there has the key');
select is(pgq_move(:l::bigint, priority => 9), true, 'its own key is in nobody''s way');
select is(pgq_move(:m::bigint, 'other'), true, 'a scheduled one takes its key along');
select is(pgq_enqueue('2', 'other', dedupe_key => 'm'), :m::bigint, 'too');

-- What is refused.
select pgq_enqueue('"g"', group_key => 'g') as g, pgq_enqueue('"h"', group_key => 'g') as h,
       pgq_enqueue(to_jsonb(repeat('x', 200))) as long \gset
savepoint claimed;
select pg_temp.commit(), pg_temp.tick() \g /dev/null
select pgq_claim(:g) \g /dev/null
select is(pgq_move(:g, priority => 1), false, 'an active job of a group is an active job');
rollback to claimed;
select throws_ok(format('select pgq_move(%s, priority => 1)', j), '0A000', null, 'a job of a group')
  from unnest(array[:g, :h]) j;
select throws_ok(format('select pgq_move(%s, ''other'')', :long), '54000', null, 'a long payload');
select pgq_create_queue('young') \g /dev/null
select throws_ok(format('select pgq_move(%s, ''young'')', :long), '55000', null, 'a queue that is younger');
select pg_temp.add('third', 'other') \g /dev/null
select throws_ok(format('select pgq_move(%s, ''other'')', pg_temp.add('z')), '53400', null,
                 'one more than may be ready there');
select is(pg_temp.code(call), code, call)
  from (values ('pgq_move(null, ''other'')', '22004'), ('pgq_move(1)', '22004'),
               ('pgq_move(' || :m || ', priority => 40000)', '22003'),
               ('pgq_move(' || :m || ', run_at => ''infinity'')', '22023'),
               ('pgq_move(1, ''nowhere'')', '42704')) v (call, code);

-- By what they are like.
select pgq_create_queue('bulk') \g /dev/null
select array_agg(pgq_enqueue(to_jsonb(n), headers => '{"task": "news"}',
                             run_at => pgq._now() + n * '1 hour'::interval)) as news,
       pgq_enqueue('"l"', headers => '{"task": "news"}', group_key => 'l') as line,
       pgq_enqueue('"o"', headers => '{"task": "other"}') as other
  from generate_series(0, 2) n \gset
prepare move_news as
select count(*)
  from pgq_jobs j
 cross join lateral pgq_move(j.id, 'bulk', priority => -5) as moved
 where j.queue = 'default' and j.headers ->> 'task' = 'news'
   and j.state in ('ready', 'scheduled') and j.group_key is null and moved;
select results_eq('move_news', array[3::bigint], 'jobs are moved by what they are like');
select is(
    array(select j.id from pgq_jobs j where j.queue = 'bulk' and j.priority = -5 order by j.id),
    :'news'::bigint[], 'all of them, the scheduled ones too');
select is(
    array(select j.queue from pgq_jobs j where j.id in (:line, :other)), '{default,default}',
    'and no others');

select * from finish();
rollback;
