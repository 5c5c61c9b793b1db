/*
 * Cancelling jobs that run, by key and by queue; checkpoints.
 */
begin;
select plan(45);
\ir support/clock.psql

create function pg_temp.job(p_label text, out id bigint, out token bigint)
language plpgsql as $$
begin
    select j.id, j.token into id, token from pgq.job j where j.payload = to_jsonb(p_label);
end
$$;
create function pg_temp.state(p_label text) returns text language plpgsql as $$
begin
    return (select a.state from pgq.archive a where a.payload = to_jsonb(p_label));
end
$$;
create function pg_temp.asked(p_label text) returns boolean language plpgsql as $$
begin
    return (select h.cancel_requested
              from pg_temp.job(p_label) j, pgq_heartbeat(array[j.id], array[j.token]) h);
end
$$;

-- An active job: its worker is told.
select pg_temp.add(l) from unnest('{a,b,c,d,e,f}'::text[]) l \g /dev/null
select is(pg_temp.take(6), '{a,b,c,d,e,f}', 'jobs are claimed');
select is(pg_temp.asked('a'), false, 'nobody has asked to cancel');
select is(pgq_cancel((pg_temp.job('a')).id), false, 'an active job is not cancelled at once');
select is(pg_temp.asked('a'), true, 'its worker is told by heartbeat');
select is(pg_temp.asked('b'), false, 'another one is not');
select pgq_cancel((pg_temp.job(l)).id) from unnest('{b,c,d}'::text[]) l \g /dev/null
select is(
    (select pgq_complete(j.id, j.token) from pg_temp.job('a') j), true, 'it may complete');
select is(pg_temp.state('a'), 'completed', 'and is completed then');
select is(
    (select pgq_fail(j.id, j.token, 'stopped') from pg_temp.job('b') j), 'cancelled',
    'or give up');
select is(pg_temp.state('b'), 'cancelled', 'and is cancelled then');
select is(
    (select pgq_release(j.id, j.token) from pg_temp.job('c') j), true, 'or be given back');
select is(pg_temp.state('c'), 'cancelled', 'which is the same');
select pg_temp.now_is(pgq._now() + '1 minute') \g /dev/null
select throws_ok(
    $$ select pgq_claim((pg_temp.job('d')).id) $$, '55000', null,
    'when its lease has expired nobody can claim it');
select pg_temp.tick() \g /dev/null
select is(pg_temp.take(9), '{e,f}', 'and nobody is given it');
select is(pg_temp.state('d'), 'cancelled', 'the next tick cancels it');

-- By force.
select is(pgq_cancel((pg_temp.job('e')).id, true), true, 'an active job is cancelled by force');
select is(pg_temp.state('e'), 'cancelled', 'at once');
select is(
    (select pgq_complete(a.id, a.token) from pgq.archive a where a.payload = '"e"'), false,
    'its receipt is good for nothing');
select is(
    (select pgq_heartbeat(a.id, a.token) from pgq.archive a where a.payload = '"e"'), null,
    'not for a heartbeat either');
select is(pgq_cancel(1234567, true), false, 'nothing is forced on an unknown job');
select throws_ok('select pgq_cancel(1, null)', '22004', null, 'a null force is refused');

-- By dedupe key.
select pgq_enqueue('"k"', dedupe_key => 'k') as k \gset
select is(pgq_cancel_key('default', 'other'), false, 'there is no job with that key');
select is(pgq_cancel_key('default', 'k'), true, 'a job is cancelled by its key');
select is(pg_temp.state('k'), 'cancelled', 'that one');
select isnt(pgq_enqueue('"k"', dedupe_key => 'k'), :k::bigint, 'and the key is free');
select throws_ok($$ select pgq_cancel_key('nowhere', 'k') $$, '42704', null, 'an unknown queue');
select throws_ok($$ select pgq_cancel_key('default', null) $$, '22004', null, 'a null key');

-- A whole queue.
select pg_temp.add('later', p_delay => '1 hour') \g /dev/null
select is(pgq_cancel_all('default'), 2::bigint, 'all that do not run are cancelled');
select is(pg_temp.asked('f'), true, 'the workers of the others are told');
select is(pgq_cancel_all('default', true), 1::bigint, 'and those by force');
select is((select count(*) from pgq.job), 0::bigint, 'nothing is left');
select throws_ok($$ select pgq_cancel_all('nowhere') $$, '42704', null, 'an unknown queue');
select throws_ok(
    $$ select pgq_cancel_all('default', max => 0) $$, '22023', null, 'or not even one job');
select pgq_create_queue('some', keep_dead => '2 days'), pgq_create_queue('none', keep_dead => '0')
    \g /dev/null
select pgq_enqueue('"active"', q, 9), pgq_enqueue('"ready"', q, headers => '{"a": 1}'),
       pgq_enqueue('"keyed"', q, dedupe_key => 'k', group_key => 'g', max_attempts => 3),
       pgq_enqueue('"behind"', q, group_key => 'g'), pg_temp.add('later', q, 3, '1 hour'),
       pgq_enqueue('"after"', q, after => array[pg_temp.add('before', q)])
  from unnest('{some,none}'::text[]) q \g /dev/null
select pgq_dequeue(1, queue => q) from unnest('{some,none}'::text[]) q \g /dev/null
create temp table live as select j.* from pgq_jobs j where j.queue = 'some' and j.state <> 'active';
select is(
    array[pgq_cancel_all('some', max => 2), pgq_cancel_all('some', max => 2),
          pgq_cancel_all('some', max => 3), pgq_cancel_all('some', max => 3)],
    '{2,2,2,0}', 'no more than max are cancelled in a call');
select results_eq(
    $$ select j.id, j.payload, j.headers, j.priority, j.dedupe_key, j.group_key, j.max_attempts,
              j.run_at, j.attempt, j.state, j.token, j.claimed_at, j.finished_at
         from pgq_jobs j where j.queue = 'some' and j.state <> 'active' order by j.id $$,
    $$ select l.id, l.payload, l.headers, l.priority, l.dedupe_key, l.group_key, l.max_attempts,
              l.run_at, l.attempt, 'cancelled', null::bigint, null::timestamptz, pgq._now()
         from live l order by l.id $$,
    'they are in the archive as they were');
select is(
    (select count(*) from pgq.archive a
      where a.queue = 'some' and a.expires_at = pgq._now() + '2 days'
        and a.bucket = pgq._archive_bucket(a.expires_at, '2 days')), 6::bigint,
    'for as long as the queue keeps dead ones');
select is(
    array(select j.cancel_requested from pgq_jobs j where j.queue = 'some' and j.state = 'active'),
    '{t}', 'when none is left but active ones, their workers are told');
select is(pgq_cancel_all('none'), 6::bigint, 'if it keeps none');
select is((select count(*) from pgq_jobs j where j.queue = 'none'), 1::bigint, 'they are gone');
select is(pgq_cancel_all(q, true), 1::bigint, 'the last one by force')
  from unnest('{some,none}'::text[]) q;

-- Checkpoints.
select pg_temp.add('long'), pg_temp.add('other') \g /dev/null
select pg_temp.take(2) \g /dev/null
select pgq_heartbeat(j.id, j.token, checkpoint => '{"page": 7}')
  from pg_temp.job('long') j \g /dev/null
select pgq_heartbeat(j.id, j.token) from pg_temp.job('long') j \g /dev/null
select pgq_heartbeat(
    array[o.id, j.id], array[o.token, j.token], checkpoints => array['{"page": 1}', null]::jsonb[]
) from pg_temp.job('long') j, pg_temp.job('other') o \g /dev/null
select pgq_fail(j.id, j.token, retry_in => '0')
  from unnest('{long,other}'::text[]) l, pg_temp.job(l) j \g /dev/null
select results_eq(
    $$ select d.payload #>> '{}', d.checkpoint from pgq_dequeue(2) d $$,
    $$ values ('long', '{"page": 7}'::jsonb), ('other', '{"page": 1}') $$,
    'the next attempt gets the last checkpoint');
select pgq_fail(j.id, j.token, retryable => false) from pg_temp.job('long') j \g /dev/null
select is(
    (select a.checkpoint from pgq.archive a where a.payload = '"long"'), '{"page": 7}',
    'the archive keeps it');
select pgq_retry(a.id) from pgq.archive a where a.payload = '"long"' \g /dev/null
select is(
    (select d.checkpoint from pgq_dequeue() d), '{"page": 7}', 'a revived job has it, too');
select throws_ok(
    $$ select pgq_heartbeat('{1,2}', '{1,2}', checkpoints => '{null}') $$, '22023', null,
    'as many checkpoints as receipts');
select is(
    (select count(*) from pgq_heartbeat('{}'::bigint[], '{}', checkpoints => '{}')), 0::bigint,
    'none is fine');

select * from finish();
rollback;
