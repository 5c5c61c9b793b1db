/*
 * A clock that is set back: what was right before stays as it is.
 */
begin;
select plan(9);
\ir support/clock.psql

create function pg_temp.job(p_label text) returns pgq.job language sql as $$
    select j from pgq.job j where j.payload = to_jsonb(p_label)
$$;

-- Times that are right.
select pgq_create_queue('limited', rate_limit => 2, rate_interval => '1 hour'),
       pgq_create_queue('unlimited', rate_limit => 2, rate_interval => '1 hour') \g /dev/null
select pgq_enqueue_many('{1,2,3}', q) from unnest('{limited,unlimited}'::text[]) q \g /dev/null
select pgq_dequeue(2, '1 day', 'unlimited'), pgq_configure_queue('unlimited', rate_limit => 0)
    \g /dev/null
select pg_temp.add('leased'), pg_temp.add('renewed'), pg_temp.add('retried'), pg_temp.add('failed')
    \g /dev/null
select pg_temp.take(2, p_timeout => '1 hour') \g /dev/null
select pgq_fail(d.id, d.token, retry_in => '50 minutes') from pgq_dequeue() d \g /dev/null
select pg_temp.add('scheduled', p_delay => '2 days'), pg_temp.add('low', p_priority => -9) \g /dev/null
create temp table before as
select j.payload, j.ctid as place, j.claimed_at from pgq.job j;

-- A year ahead, and back.
select pg_temp.now_is(pgq._now() + '1 year') \g /dev/null
select pgq_heartbeat(j.id, j.token, '3 hours') from pg_temp.job('renewed') j \g /dev/null
select pgq_fail(d.id, d.token, retry_in => '10 s') from pgq_dequeue() d \g /dev/null
select setval('pgq.last_tick', pgq._ms(pgq._now())) \g /dev/null
select pg_temp.now_is(pgq._now() - interval '1 year'), pg_temp.tick(3) \g /dev/null
select is(h.status, 'warning', 'a tick finds the clock set back')
  from pgq_health h where h.subject = 'clock';
select is(
    (pg_temp.job(label)).claimed_at, (select b.claimed_at from before b where b.payload = to_jsonb(label)),
    'a claim that was in time stays: ' || label)
  from unnest('{leased,renewed}'::text[]) label;
select results_eq(
    $$ select j.payload, j.ctid from pgq.job j join before b using (payload)
        where j.payload in ('"leased"', '"retried"', '"scheduled"', '"low"') order by j.payload $$,
    $$ select b.payload, b.place from before b
        where b.payload in ('"leased"', '"retried"', '"scheduled"', '"low"') order by b.payload $$,
    'nothing is written of what has times that are right');
select is(pg_temp.take(9), '{low}', 'a retry does not come before its wait is over');
select pg_temp.tick(10) \g /dev/null
select is(pg_temp.take(9), '{failed}', 'but then');
select is(
    (select count(*) from pgq_dequeue(9, queue => 'limited')), 2::bigint,
    'a rate limit lets a burst through');
select pg_temp.tick(180) \g /dev/null
select is(
    (select count(*) from pgq_dequeue(9, queue => 'limited')), 0::bigint,
    'and counts those starts while the times of others are mended');
select pgq_configure_queue('unlimited', rate_limit => 2) \g /dev/null
select is(
    (select count(*) from pgq_dequeue(9, queue => 'unlimited')), 1::bigint,
    'a queue without a rate limit goes on');

select * from finish();
rollback;
