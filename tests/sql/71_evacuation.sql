/*
 * Evacuation: when no slot of the ring is free, the oldest is emptied into a parked slot. Receipts
 * and order survive the move.
 */
begin;
select plan(24);
\ir support/clock.psql

create temp view ring as select r.* from pgq.ring r order by r.gen desc limit 1;
create function pg_temp.turn(p_ticks integer default 1) returns void language plpgsql as $$
begin
    perform set_config('pgq.slot_size', '1', true), pg_temp.tick(p_ticks),
            set_config('pgq.slot_size', '', true);
end
$$;

-- Jobs that stay, of every kind, in the oldest slot, and some in each of the others.
select pg_temp.add(l)
  from unnest('{beat,complete,many,fail,release,expires,ready1,ready2}'::text[]) l
    \g /dev/null
select pg_temp.add('urgent', p_priority => 5) as urgent \gset
create temp table got as
select d.* from pgq_dequeue(6, '1 hour') d where d.payload <> '"urgent"';
insert into got select d.* from pgq_dequeue(1, '1 minute', worker => 'w') d;
select is(
    array(select g.payload #>> '{}' from got g order by g.id),
    '{beat,complete,many,fail,release,expires}', 'some jobs are leased');
select pgq_release(j.id, j.token) from pgq.job j where j.id = :urgent \g /dev/null
select pg_temp.turn(), pg_temp.add('low', p_priority => -1) from generate_series(1, 3)
    \g /dev/null
select is((select r.live from ring r), '{0,1,2,3}', 'all slots are in use');
insert into pgq.job (id, enqueued_at, lane, slot, payload)
select nextval('pgq.job_id'), pgq._now(), l.id, r.live[4], to_jsonb('new ' || i)
  from pgq.lane l, ring r, generate_series(1, 200) i
 where l.priority = 0;
create temp table before as
select j.id, j.attempt, j.token, j.lease_expires_at, j.lease_ms, j.worker, j.payload, j.claimed_at
  from pgq.job j where j.slot = 0;
select pg_temp.turn() \g /dev/null
select is((select count(*) from pgq.job j where j.slot = 0), 0::bigint,
    'the oldest one is emptied then');
select is(
    (select count(*) from pgq.job j join before b using (id) where j.slot in (4, 5)), 8::bigint,
    'into a parked slot');
select set_eq(
    $$ select j.id, j.attempt, j.token, j.lease_expires_at, j.lease_ms, j.worker, j.payload,
              j.claimed_at from pgq.job j join before b using (id) $$,
    'select b.* from before b', 'with leases, tokens and all');
select pg_temp.turn(2) \g /dev/null
select is((select r.live[cardinality(r.live)] from ring r), 0::smallint,
    'the slot has been truncated and is written again');

create function pg_temp.receipt(p_label text, out id bigint, out token bigint) language sql as $$
    select g.id, g.token from got g where g.payload = to_jsonb(p_label)
$$;
select is(pgq_heartbeat(r.id, r.token), pgq._now() + '1 hour', 'a moved lease can be renewed')
  from pg_temp.receipt('beat') r;
select is(pgq_complete(r.id, r.token), true, 'a moved job can be completed')
  from pg_temp.receipt('complete') r;
select is(
    array(select pgq_complete(array[r.id], array[r.token]) = r.id from pg_temp.receipt('many') r),
    '{t}', 'also by arrays');
select is(pgq_fail(r.id, r.token, 'e', '1 hour'), 'scheduled', 'a moved job can be failed')
  from pg_temp.receipt('fail') r;
select is(pgq_release(r.id, r.token, '1 hour'), true, 'a moved job can be given back')
  from pg_temp.receipt('release') r;
select is(
    array(select pgq_complete(r.id, r.token) from unnest('{complete,many,fail,release}'::text[]) l,
                 pg_temp.receipt(l) r), '{f,f,f,f}', 'these receipts are stale then');
select is(
    array(select h.id from pg_temp.receipt('beat') r, pg_temp.receipt('fail') f,
                 pgq_heartbeat(array[f.id, r.id], array[f.token, r.token]) h),
    array(select r.id from pg_temp.receipt('beat') r), 'a moved lease is told from a lost one');

-- Claims.
select is(
    pg_temp.take(4, p_timeout => '7 days'), '{urgent,ready1,ready2,"new 1"}',
    'moved jobs are claimed in the order of priority and id, before later ones in the ring');
select pg_temp.wait('1 minute') \g /dev/null
select results_eq(
    $$ select d.payload #>> '{}', d.attempt
      from pgq_dequeue(1, '7 days') d $$, $$ values ('expires', 2) $$,
    'a moved lease that has expired is claimed again');
select is(pgq_complete(r.id, r.token), false, 'and its receipt is stale')
  from pg_temp.receipt('expires') r;
select throws_ok(
    format('select pgq_claim(%s)', r.id), '55P03', null, 'a moved lease still keeps others out')
  from pg_temp.receipt('beat') r;
select is(pgq_complete(r.id, r.token), true, 'until it ends') from pg_temp.receipt('beat') r;

-- Moved between the parked slots, too.
select pgq_purge('default', '{ready}') \g /dev/null
select pg_temp.add('far', p_delay => '1 day') \g /dev/null
select pg_temp.add('near', p_delay => '1 minute') as near \gset
select pg_temp.wait('1 minute') \g /dev/null
select id, token from pgq_claim(:near, '7 days') \gset
select j.slot as slot from pgq.job j where j.payload = '"near"' \gset
select pg_temp.turn() \g /dev/null
insert into pgq.job (id, enqueued_at, lane, slot, run_at, due, payload)
select nextval('pgq.job_id'), pgq._now(), l.id, r.parked[2], v.at, pgq._us(v.at),
    to_jsonb('p ' || i)
  from pgq.lane l, ring r, generate_series(1, 200) i,
       lateral (select pgq._now() + i * interval '1 minute' + interval '1 day') v (at)
 where l.priority = 0;
select pg_temp.turn() \g /dev/null
select isnt(
    (select j.slot from pgq.job j where j.payload = '"near"'), :slot::smallint,
    'parked slots are emptied likewise');
select is(pgq_complete(:id, :token), true, 'and receipts survive that, too');
select pg_temp.wait('1 hour') \g /dev/null
select results_eq(
    $$ select d.payload #>> '{}', d.attempt from pgq_dequeue(9, '1 s') d
        where d.payload in ('"fail"', '"release"') $$,
    $$ values ('fail', 2), ('release', 1) $$, 'scheduled jobs come when they are due');
select pg_temp.wait('23 hours') \g /dev/null
select is(
    (select 'far' = any (pg_temp.take(20, p_timeout => '1 hour'))), true,
    'a scheduled job that was moved comes when it is due');
select is(
    (select count(*) - count(distinct j.id) from pgq.job j), 0::bigint, 'no job is there twice');
select pg_temp.wait('5 hours') \g /dev/null
select is(
    (select count(*) from unnest(pg_temp.take(1000)) t where t ~ '^p '), 200::bigint,
    'no job was lost');

select * from finish();
rollback;
