/*
 * The history of a job: the attempts that have failed.
 */
begin;
select plan(20);
\ir support/clock.psql
select pgq_create_queue('q', max_attempts => 40, backoff_base => '0', backoff_max => '0') \g /dev/null

create function pg_temp.fail(p_error text, p_worker text default 'w') returns text
language sql as $$
    select pgq_fail(d.id, d.token, p_error) from pgq_dequeue(1, '1 minute', 'q', p_worker) d
$$;
create function pg_temp.history(p_id bigint) returns jsonb language sql as $$
    select j.history from pgq_get(p_id) j
$$;
create function pg_temp.errors(p_id bigint) returns text[] language sql as $$
    select array(select h ->> 'error' from jsonb_array_elements(pg_temp.history(p_id)) h)
$$;

select pg_temp.add('a', 'q') as a \gset
select pgq_complete(d.id, d.token) from pgq_dequeue(1, queue => 'q') d \g /dev/null
select is(pg_temp.history(:a::bigint), null, 'a job that completes at once has none');

select pg_temp.add('b', 'q') as b \gset
select pgq_release(d.id, d.token) from pgq_dequeue(1, queue => 'q') d \g /dev/null
select is(pg_temp.history(:b::bigint), null, 'nor has one that was given back');
select d.token from pgq_dequeue(1, '1 minute', 'q', 'ann') d \gset
select is(pg_temp.history(:b::bigint), null, 'nor one at work');
select pg_temp.pass('5 seconds'), pgq_fail(:b, :token, 'no') \g /dev/null
select is(
    pg_temp.history(:b::bigint),
    '[{"attempt": 1, "worker": "ann", "claimed_at": "2040-01-01T00:00:00+00:00",
       "ended_at": "2040-01-01T00:00:05+00:00", "error": "no"}]',
    'a failed attempt is kept, with its worker, start, end and error');
select pg_temp.take(1, 'q'), pg_temp.wait('1 minute'), pg_temp.wait('1 second') \g /dev/null
select is(
    pg_temp.history(:b::bigint) -> 1,
    '{"attempt": 2, "worker": null, "claimed_at": "2040-01-01T00:00:05+00:00",
      "ended_at": "2040-01-01T00:00:35+00:00",
      "error": "lease expired at 2040-01-01 00:00:35+00 (attempt 2, worker unnamed)"}',
    'so is one whose lease was lost, with the end of its lease');
select pg_temp.take(1, 'q'), pg_temp.wait('1 minute') \g /dev/null
select is(pg_temp.history(:b::bigint) -> 2 ->> 'attempt', '3', 'and a second one in a row');
savepoint claimed;
select pg_temp.wait('10 minutes'), pg_temp.tick(), pg_temp.take(1, 'q', '1 second') \g /dev/null
select pg_temp.pass('2 seconds'), pgq_claim(:b::bigint) \g /dev/null
select is(
    pg_temp.history(:b::bigint) -> -1 ->> 'attempt', '4', 'and one that pgq_claim has taken back');
rollback to claimed;
select pg_temp.fail(null) \g /dev/null
select is(pg_temp.history(:b::bigint) -> 3 -> 'error', 'null', 'an attempt may fail without an error');
select pg_temp.fail(n::text) from generate_series(1, 9) n \g /dev/null
select is(pg_temp.errors(:b::bigint), '{NULL,1,2,3,4,5,6,7,8,9}', 'the last ten are kept');
select pg_temp.fail(repeat('x', 1500) || 'y') \g /dev/null
select is(pg_temp.errors(:b::bigint),
          '{1,2,3,4,5,6,7,8,9}'::text[]
              || (repeat('x', 500) || ' [501 characters] ' || repeat('x', 499) || 'y'),
          'of a long error the beginning and the end');
select is(length((select j.last_error from pgq_get(:b) j)), 1501, 'the last error is whole');

-- Where jobs go.
insert into pgq.ring (gen, live, ready, parked, switched_at)
select r.gen + 1, '{1,0}', '{1,0}', '{4}', r.switched_at from pgq.ring r order by r.gen desc limit 1;
select pgq._move(0::smallint, 1::smallint, 1000) \g /dev/null
select is(jsonb_array_length(pg_temp.history(:b::bigint)), 10, 'maintenance moves it along');
select pgq_fail(d.id, d.token, 'dead', retryable => false) from pgq_dequeue(1, queue => 'q') d
    \g /dev/null
select is((pg_temp.errors(:b::bigint))[10], 'dead', 'the last attempt of a dead job is in it');
select pgq_retry(:b) \g /dev/null
select is((pg_temp.errors(:b::bigint))[10], 'dead', 'a retry keeps it');
select pg_temp.fail('again') \g /dev/null
select is(pg_temp.history(:b::bigint) -> 9 ->> 'attempt', '1', 'and goes on');
select pgq_complete(d.id, d.token) from pgq_dequeue(1, queue => 'q') d \g /dev/null
select is((pg_temp.errors(:b::bigint))[10], 'again', 'a completed job keeps it');
select pg_temp.add('c', 'q') as c \gset
select pg_temp.fail('once') \g /dev/null
select pgq_complete(array_agg(d.id), array_agg(d.token)) from pgq_dequeue(1, queue => 'q') d
    \g /dev/null
select is(pg_temp.errors(:c::bigint), '{once}', 'one that completes with others, too');

-- Groups, and ends without an attempt.
select pgq_enqueue('1', 'q', group_key => 'g') as g \gset
set constraints all immediate;
set constraints all deferred;
select pgq._take_hints(), pg_temp.fail('of a group') \g /dev/null
select is(pg_temp.errors(:g::bigint), '{"of a group"}', 'the head of a group has one');
select pg_temp.wait('1 second'), pg_temp.fail('twice') \g /dev/null
select is(pg_temp.errors(:g::bigint), '{"of a group",twice}', 'and keeps it');
select pgq_cancel_all('q', true) \g /dev/null
select pgq_enqueue('1', 'q', expires_at => pgq._now() + '1 second') as late \gset
select pg_temp.wait('2 seconds') \g /dev/null
select is((select array[j.state, j.history::text] from pgq_get(:late) j), '{dead,NULL}',
          'a job that has never started has none');

select * from finish();
rollback;
