/*
 * pgq_complete and the archive.
 */
begin;
select plan(58);
\ir support/clock.psql

select pgq_enqueue('{"a": 1}', priority => 4, headers => '{"h": 1}', max_attempts => 3) as one \gset
select pg_temp.wait('1 s') \g /dev/null
select id, token from pgq_dequeue(1, '1 minute', worker => 'w') \gset one_
select pg_temp.wait('1 s') \g /dev/null
select is(pgq_complete(:one_id, :one_token, '{"ok": true}'), true,
    'a good receipt completes a job');
select results_eq(
    $$ select a.id, a.token, a.queue, a.priority::integer, a.state, a.attempt, a.payload, a.headers,
              a.worker, a.result, a.last_error, a.max_attempts
         from pgq.archive a $$,
    format($$ values (%s::bigint, %s::bigint, 'default', 4, 'completed', 1, '{"a": 1}'::jsonb,
                      '{"h": 1}'::jsonb, 'w', '{"ok": true}'::jsonb, null::text, 3) $$,
           :one_id, :one_token),
    'it is in the archive with its result, worker and attempts');
select results_eq(
    $$ select a.enqueued_at, a.claimed_at, a.finished_at, a.expires_at from pgq.archive a $$,
    $$ select t - interval '2 s', t - interval '1 s', t, t + interval '1 day' from pgq._now() t $$,
    'with its times, for as long as the queue keeps completed jobs');
select is((select count(*) from pgq.job), 0::bigint, 'and no longer among the live jobs');
select is(pgq_complete(:one_id, :one_token), false, 'the same receipt completes nothing again');
select is((select count(*) from pgq.archive), 1::bigint, 'and archives nothing again');

select pg_temp.add('no result') \g /dev/null
select is((select pgq_complete(d.id, d.token) from pgq_dequeue() d), true, 'a result is optional');
select is((select a.result from pgq.archive a where a.id > :one), null, 'without one none is kept');
select is(pgq_complete(0, 0), false, 'an unknown receipt is a lost lease');
select is(
    array(select pgq_complete(t, t) from unnest('{-1,-8,6,7,9223372036854775807}'::bigint[]) t),
    array_fill(false, array[5]), 'and so is one that never was a receipt');

-- Arrays.
select pg_temp.add(i::text) from generate_series(1, 5) i \g /dev/null
create temp table got as
select d.*, row_number() over () as n from pgq_dequeue(5) d;
select pgq_complete(g.id, g.token) from got g where g.n = 2 \g /dev/null
select bag_eq(
    $$ select pgq_complete(array_agg(g.id order by g.n), array_agg(g.token order by g.n))
         from (select g.* from got g where g.n <= 3 union all select g.*
           from got g where g.n = 1) g $$,
    $$ select g.id from got g where g.n in (1, 3) $$,
    'of many receipts the lost ones are left out, and duplicates come once');
select is_empty(
    $$ select pgq_complete(array_agg(g.id), array_agg(g.token + 1048576)) from got g $$,
    'nothing is completed with wrong tokens');
select is_empty(
    $$ select pgq_complete(array_agg(g.id order by g.n), array_agg(g.token order by g.n desc))
         from got g where g.n >= 4 $$,
    'nor with another job''s token');
select is_empty($$ select pgq_complete('{}'::bigint[], '{}') $$, 'no receipts, no jobs');
select set_eq(
    $$ select pgq_complete(array_agg(g.id), array_agg(g.token)) from got g $$,
    $$ select g.id from got g where g.n >= 4 $$,
    'the good ones work all the same');
select is(
    (select count(*) from pgq.archive a where a.state = 'completed' and a.id > :one), 6::bigint,
    'each job is archived once');

-- Keeping nothing, and changes of it.
select pgq_create_queue('none', keep_completed => '0') \g /dev/null
select pg_temp.add('n', 'none') \g /dev/null
select is((select pgq_complete(d.id, d.token, '1') from pgq_dequeue(1, '1 s', 'none') d), true,
    'a job of a queue that keeps nothing is completed');
select is_empty(
    $$ select from pgq.archive a where a.queue = 'none' $$, 'and is not archived');
select pg_temp.add('n', 'none') \g /dev/null
select pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue(1, '1 s', 'none') d \g /dev/null
select is(
    (select a.state from pgq.archive a where a.queue = 'none'), 'dead',
    'its dead jobs are kept nevertheless');
select pg_temp.add('o', 'none'), pgq_create_queue('some') \g /dev/null
select pg_temp.add('o', 'some') \g /dev/null
create temp table mixed as
select d.* from pgq_dequeue(9, '1 minute', '{none,some}'::text[]) d;
select is(
    (select count(*) from pgq_complete((select array_agg(m.id) from mixed m),
                                       (select array_agg(m.token) from mixed m))),
    2::bigint, 'jobs of both kinds of queue are completed in one call');
select results_eq(
    $$ select a.queue, count(*) from pgq.archive a where a.state = 'completed'
          and a.queue in ('none', 'some') group by 1 $$,
    $$ values ('some', 1::bigint) $$, 'and each kept as its own queue says');
select pg_temp.add('p', 'none'), pg_temp.add('p', 'some') \g /dev/null
create temp table before as
select d.* from pgq_dequeue(9, '1 minute', '{none,some}'::text[]) d;
select pgq_configure_queue('none', keep_completed => '1 hour'),
       pgq_configure_queue('some', keep_completed => '0') \g /dev/null
select pgq_complete(b.id, b.token) from before b \g /dev/null
select is_empty(
    $$ select from pgq.archive a join before b using (id) where a.queue = 'some' $$,
    'a queue configured to keep nothing keeps no job that finishes from then on');
select is_empty(
    $$ select from pgq.archive a join before b using (id) where a.queue = 'none' $$,
    'a queue that kept none does not keep what was claimed before it was configured to keep jobs');
select pg_temp.add('q', 'none') \g /dev/null
select pgq_complete(d.id, d.token) from pgq_dequeue(queue => 'none') d \g /dev/null
select results_eq(
    $$ select a.expires_at from pgq.archive a where a.queue = 'none' and a.payload = '"q"' $$,
    $$ select pgq._now() + interval '1 hour' $$,
    'it keeps what is claimed from then on');
select pgq_create_queue('later', keep_completed => '0') \g /dev/null
select pg_temp.add(i::text, 'later') from generate_series(1, 5) i \g /dev/null
create temp table later as select d.* from pgq_dequeue(5, '1 minute', 'later') d;
select pgq_enqueue('8', 'later', after => array_agg(l.id) filter (where l.payload <> '"3"'))
  from later l \g /dev/null
select pgq_configure_queue('later', keep_completed => '1 day') \g /dev/null
select pgq_complete(l.id, l.token) from later l where l.payload = '"1"' \g /dev/null
select is(
    (select count(*) from pgq_complete(array(select l.id from later l where l.payload > '"1"'),
                                       array(select l.token from later l where l.payload > '"1"'))),
    4::bigint, 'jobs are completed of which some are waited for');
select is_empty(
    $$ select from pgq.archive a where a.queue = 'later' $$,
    'nor is one kept that others waited for, or that was completed with it');

-- Some of the receipts are good: only the others are looked for elsewhere.
select pgq_create_queue('z', keep_completed => '0') \g /dev/null
select pg_temp.add(i::text, 'z', p_priority => i % 2) from generate_series(1, 8) i \g /dev/null
create temp table z as select d.* from pgq_dequeue(8, '1 minute', 'z') d;
select is(
    array(select pgq_complete(array[z.id, z.id], array[z.token, z.token]) from z
           where z.payload = '"1"'),
    array(select z.id from z where z.payload = '"1"'), 'a receipt given twice is completed once');
select is(
    array(select c from pgq_complete(
              array(select z.id from z where z.payload in ('"1"', '"3"') order by 1),
              array(select z.token from z where z.payload in ('"1"', '"3"') order by z.id)) c),
    array(select z.id from z where z.payload = '"3"'), 'a stale one beside a good one is left out');
select is_empty(
    $$ select pgq_complete(array_agg(z.id order by z.id), array_agg(z.token order by z.id desc))
         from z where z.payload in ('"5"', '"7"') $$, 'an id with the token of another job is stale');
select is(
    (select count(*) from pgq_complete(
         array(select z.id from z where z.payload in ('"5"', '"6"') order by z.id desc),
         array(select z.token from z where z.payload in ('"5"', '"6"') order by z.id desc))),
    2::bigint, 'two priorities in one call');
select is(
    (select count(*) from pgq_complete(
         format('[7:8]={%s}', string_agg(z.id::text, ',' order by z.id))::bigint[],
         format('[0:1]={%s}', string_agg(z.token::text, ',' order by z.id))::bigint[]) c),
    2::bigint, 'arrays may begin anywhere')
  from z where z.payload in ('"7"', '"8"');
select is(
    (select pgq_complete(format('[0:0]={%s}', z.id)::bigint[], array[z.token])), z.id,
    'with one receipt, too')
  from z where z.payload = '"2"';

-- More than a hundred.
select pgq_create_queue('many', keep_completed => '0') \g /dev/null
select pg_temp.add(i::text, 'many') from generate_series(1, 250) i \g /dev/null
create temp table many as
select d.id, d.token, (d.payload #>> '{}')::integer as n from pgq_dequeue(250, queue => 'many') d;
select pgq_enqueue('"after"', 'many', after => array[m.id]) as follower from many m where m.n = 5 \gset
select pgq_release(m.id, m.token) from many m where m.n = 4 \g /dev/null
select token as again from pgq_dequeue(250, queue => 'many') \gset
create temp table receipt as
select m.id, case m.n when 1 then lead(m.token) over w when 2 then lag(m.token) over w
                      else m.token end as token
  from many m window w as (order by m.n);
select set_eq(
    $$ select pgq_complete(array_agg(r.id order by r.id desc), array_agg(r.token order by r.id desc))
         from (select * from receipt union all select * from receipt r limit 253) r $$,
    $$ select m.id from many m where m.n not in (1, 2, 4) $$,
    'of very many receipts the stale ones are left out, and duplicates come once');
select is(
    (select count(*) from pgq.job j join many m using (id) where m.n in (1, 2, 4)), 3::bigint,
    'whose jobs stay');
set constraints all immediate;
set constraints all deferred;
select pgq._take_hints() \g /dev/null
select is(
    (select state from pgq_jobs j where j.id = :follower), 'ready',
    'what waits for one of the others is ready');
select is(
    (select count(*) from many m, pgq_complete(m.id, case m.n when 4 then :again else m.token end) c
      where m.n in (1, 2, 4) and c), 3::bigint, 'they are completed with their own tokens');

-- Claimed before and after a queue is configured to keep jobs, and completed together.
create function pg_temp.kept(p_queue text, p_jobs integer) returns bigint language plpgsql as $$
declare
    v_old bigint[]; v_new bigint[]; v_old_tokens bigint[]; v_new_tokens bigint[];
begin
    perform pgq_create_queue(p_queue, keep_completed => '0');
    perform pgq_enqueue_many(array_fill(jsonb '1', array[2 * p_jobs]), p_queue);
    select array_agg(d.id), array_agg(d.token) into v_old, v_old_tokens
      from pgq_dequeue(p_jobs, queue => p_queue) d;
    perform pgq_configure_queue(p_queue, keep_completed => '1 hour');
    select array_agg(d.id), array_agg(d.token) into v_new, v_new_tokens
      from pgq_dequeue(p_jobs, queue => p_queue) d;
    perform pgq_complete(v_old || v_new, v_old_tokens || v_new_tokens);
    return (select count(*) from pgq.archive a where a.id = any (v_new));
end
$$;
select is(pg_temp.kept('few', 3), 3::bigint, 'of few jobs those are kept that are to be');
select is(pg_temp.kept('lots', 60), 60::bigint, 'of many, too');

-- The last batch and the next one in one call.
select pgq_create_queue('x', keep_completed => '0'), pgq_create_queue('y') \g /dev/null
select pg_temp.add(i::text, q) from generate_series(1, 5) i, unnest('{x,y}'::text[]) q \g /dev/null
create temp table x as
select d.* from pgq_complete_and_dequeue('{}', '{}', 2, '1 minute', 'x', 'w') d;
select is(
    array(select x.payload #>> '{}' from x order by x.id), '{1,2}', 'an empty batch is completed');
select is(
    array(select (x.worker, x.lease_expires_at, x.queue)::text from x),
    array(select (text 'w', pgq._now() + interval '1 minute', text 'x')::text
            from generate_series(1, 2)), 'jobs are claimed as pgq_dequeue does');
create temp table y as
select d.* from pgq_complete_and_dequeue(
    array(select x.id from x), array(select x.token from x), 1, '1 minute', 'y'
) d;
select is((select y.payload #>> '{}' from y), '1', 'the next batch may come from another queue');
select is_empty(
    'select from pgq.job j join x using (id)', 'the last one is completed in the same call');
select is(
    array(select d.payload #>> '{}' from pgq_complete_and_dequeue(
              array(select y.id from y, generate_series(1, 2)),
              array(select y.token from y, generate_series(1, 2)), 9, queue => 'y') d),
    '{2,3,4,5}', 'a receipt that is given twice is not taken for a lost one');
insert into x select d.* from pgq_dequeue(1, '1 minute', 'x') d;
select throws_ok(
    $$ select pgq_complete_and_dequeue(
           array(select x.id from x), array(select x.token from x), 1, '1 minute', 'x') $$,
    'PQ001', 'the leases of 2 of 3 jobs are lost', 'lost leases are an error');
select is(
    array(select d.payload #>> '{}' from pgq_complete_and_dequeue(
              array(select max(x.id) from x), array(select max(x.token) from x), 9, '1 minute', 'x'
          ) d), '{4,5}', 'which leaves all as it was: nothing completed, nothing claimed');

-- The caller's transaction.
select pg_temp.add('undone') \g /dev/null
select id, token from pgq_dequeue() \gset
savepoint before;
select is(pgq_complete(:id, :token), true, 'completed');
rollback to before;
select is(pgq_complete(:id, :token), true, 'a rollback undoes the completion');

-- Errors.
select throws_ok('select pgq_complete(' || arguments || ')', code, null,
    'complete: ' || description)
  from (values
    ($$ null, 1 $$, '22004', 'a null id is refused'),
    ($$ 1, null $$, '22004', 'a null token is refused'),
    ($$ null, '{1}'::bigint[] $$, '22004', 'a null array of ids is refused'),
    ($$ '{1}'::bigint[], null $$, '22004', 'a null array of tokens is refused'),
    ($$ '{null}', '{1}'::bigint[] $$, '22004', 'a null among the ids is refused'),
    ($$ '{1}', '{null}'::bigint[] $$, '22004', 'a null among the tokens is refused'),
    ($$ '{1,2}', '{1}'::bigint[] $$, '22023', 'arrays of different length are refused')
  ) c (arguments, code, description);
select throws_ok('select pgq_complete_and_dequeue(' || arguments || ')', code, null,
    'complete_and_dequeue: ' || description)
  from (values
    ($$ null, '{}' $$, '22004', 'null receipts are refused'),
    ($$ '{1}', '{}' $$, '22023', 'arrays of different length are refused'),
    ($$ '{}', '{}', 0 $$, '22023', 'an empty batch is refused'),
    ($$ '{}', '{}', queue => 'none such' $$, '42704', 'an unknown queue is refused')
  ) c (arguments, code, description);

select * from finish();
rollback;
