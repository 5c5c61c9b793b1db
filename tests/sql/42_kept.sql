/*
 * Completed jobs are kept and counted as their queue says when they end; tokens of no claim.
 */
begin;
select plan(22);
\ir support/clock.psql

create function pg_temp.count() returns text language sql as $$
    -- Where none are kept the view does not tell.
    select pgq_configure_queue('q', keep_completed => '1 hour');
    select format('%s kept, %s counted',
                  (select count(*) from pgq_jobs j
                    where j.queue = 'q' and j.state = 'completed'),
                  q.completed_last_hour)
      from pgq_queues q where q.queue = 'q'
$$;
-- Of two jobs with a key and two without, two are completed by themselves and two together.
create function pg_temp.complete(
    p_then interval default null, p_dedupe_then interval default null
) returns text language plpgsql as $$
declare
    v_ids bigint[];
    v_tokens bigint[];
begin
    perform pgq_enqueue_many('{1,2,3,4}', 'q', dedupe_keys => '{a,NULL,b,NULL}');
    select array_agg(d.id), array_agg(d.token) into v_ids, v_tokens
      from pgq_dequeue(4, queue => 'q') d;
    perform pgq_configure_queue('q', keep_completed => p_then, dedupe_for => p_dedupe_then);
    perform pgq_complete(v_ids[1], v_tokens[1]), pgq_complete(v_ids[2], v_tokens[2]),
            pgq_complete(v_ids[3:], v_tokens[3:]);
    return pg_temp.count();
end
$$;

savepoint before;
select pgq_create_queue('q', keep_completed => '1 hour') \g /dev/null
select is(pg_temp.complete(), '4 kept, 4 counted', 'jobs are kept, and those are counted');
rollback to before;
select pgq_create_queue('q', keep_completed => '0') \g /dev/null
select is(pg_temp.complete(), '0 kept, 0 counted', 'or they are not');
rollback to before;
select pgq_create_queue('q', keep_completed => '0', dedupe_for => '1 hour') \g /dev/null
select is(pg_temp.complete(), '2 kept, 0 counted', 'a key is kept with its job');
rollback to before;
select pgq_create_queue('q', keep_completed => '1 hour') \g /dev/null
select is(pg_temp.complete('0'), '0 kept, 0 counted', 'what holds is what the queue says in the end');
rollback to before;
select pgq_create_queue('q', keep_completed => '1 hour', dedupe_for => '1 hour') \g /dev/null
select is(pg_temp.complete('0'), '2 kept, 0 counted', 'of keys, too');
rollback to before;
select pgq_create_queue('q', keep_completed => '1 hour', dedupe_for => '2 hours') \g /dev/null
select is(pg_temp.complete('0', '0'), '0 kept, 0 counted', 'and of both');
rollback to before;
select pgq_create_queue('q', keep_completed => '0') \g /dev/null
select is(pg_temp.complete('1 hour'), '0 kept, 0 counted',
          'a claim made while nothing was kept leaves nothing behind');
select pgq_enqueue_many(array_fill(jsonb '1', array[101]), 'q'),
       pgq_configure_queue('q', keep_completed => '0') \g /dev/null
create temp table claimed as select d.id, d.token from pgq_dequeue(101, queue => 'q') d;
select is(pg_temp.count(), '0 kept, 0 counted', 'then it is set to keep them');
select is((select count(*) from (select array_agg(c.id) as ids, array_agg(c.token) as tokens
                                   from claimed c) c, pgq_complete(c.ids, c.tokens)),
          101::bigint, 'before many of them complete at once');
select is(pg_temp.count(), '0 kept, 0 counted', 'which leaves nothing behind either');
rollback to before;

-- Where many complete, calls are counted by a sample.
select pgq_create_queue('q') \g /dev/null
update pgq.queue set sample = 1000000 where name = 'q';
select setseed(0.5) \g /dev/null
select is(pg_temp.complete(), '4 kept, 0 counted', 'of a million calls hardly one is counted');
rollback to before;

-- Tokens that no claim has given.
select pgq_create_queue('q') \g /dev/null
select pgq_enqueue('1', 'q') as id \gset
create temp table bad as
select unnest(array[-9, -1, 0, 1, 2, 3, 4, 5, 6, 7, 524292, 524295]) as token;
select is_empty(format($$ select * from bad b where pgq_complete(%s, b.token) $$, :id),
    'no job is completed by such a token');
select is_empty(format($$ select pgq_complete(array[%s], array[b.token]) from bad b $$, :id),
    'nor with others');
select is_empty(format($$ select * from bad b where pgq_fail(%s, b.token) is not null $$, :id),
    'none fails');
select is_empty(format($$ select * from bad b where pgq_release(%s, b.token) $$, :id),
    'none is given back');
select is_empty(format($$ select * from bad b where pgq_heartbeat(%s, b.token) is not null $$, :id),
    'none is renewed');
select throws_ok(
    format($$ select pgq_complete_and_dequeue(array[%s], array[%s]) $$, :id, token), 'PQ001', null,
    'nor completed before the next is claimed')
  from bad where token >= 4;

select * from finish();
rollback;
