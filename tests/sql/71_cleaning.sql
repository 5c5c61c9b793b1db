/*
 * Cleaning: when no slot but one is free, the jobs of two neighbours are moved to that one. Receipts,
 * leases and the order survive the move.
 */
begin;
select plan(45);
\ir support/clock.psql
\ir support/commit.psql

create temp view ring as select r.* from pgq.ring r order by r.gen desc limit 1;
create function pg_temp.turn(p_ticks integer default 1, p_slot_size integer default 1)
returns void language plpgsql as $$
begin
    perform set_config('pgq.slot_size', p_slot_size::text, true), pg_temp.tick(p_ticks),
            set_config('pgq.slot_size', '', true);
end
$$;

-- Jobs that stay, of every kind, in the oldest slot, and some in each of the others.
select pg_temp.add(l)
  from unnest('{beat,complete,many,fail,release,back,expires,ready1,ready2}'::text[]) l
    \g /dev/null
select pg_temp.add('urgent', p_priority => 5) as urgent \gset
create temp table got as
select d.* from pgq_dequeue(7, '1 hour') d where d.payload <> '"urgent"';
insert into got select d.* from pgq_dequeue(1, '1 minute', worker => 'w') d;
select is(
    array(select g.payload #>> '{}' from got g order by g.id),
    '{beat,complete,many,fail,release,back,expires}', 'some jobs are leased');
select pgq_release(j.id, j.token) from pgq.job j where j.id = :urgent \g /dev/null
select pg_temp.turn(), pg_temp.add('low', p_priority => -1) from generate_series(1, 2)
    \g /dev/null
select is((select r.live from ring r), '{0,1,2}', 'one slot is free');
select pgq_enqueue(to_jsonb('new ' || i)) from generate_series(1, 200) i \g /dev/null
create temp table before as
select j.id, j.pos, j.attempt, j.token, j.lease_expires_at, j.lease_ms, j.worker, j.payload,
       j.claimed_at
  from pgq.job j where j.slot = 0;
select pg_temp.tick(5) \g /dev/null
select is((select r.live from ring r), '{0,1,2}', 'and nothing is moved as long as the head is not full');
select pg_temp.turn() \g /dev/null
select results_eq(
    'select r.live, r.filling, r.cleaned from ring r',
    $$ values ('{0,1,3,2}'::smallint[], 3::smallint, '{1,0}'::smallint[]) $$,
    'then it is to be filled from the two oldest, behind which it stands');
select is((select count(*) from pgq.job j where j.slot = 3), 0::bigint, 'from the next tick on');
select pg_temp.tick() \g /dev/null
select is(
    array(select distinct j.slot from pgq.job j where j.slot <> 2 order by 1), '{0,3}'::smallint[],
    'the later one of the two is emptied first');
select pg_temp.tick() \g /dev/null
select is((select count(*) from pgq.job j where j.slot in (0, 1)), 0::bigint, 'then the other one');
select set_eq(
    $$ select j.id, j.pos, j.attempt, j.token, j.lease_expires_at, j.lease_ms, j.worker, j.payload,
              j.claimed_at from pgq.job j join before b using (id) where j.slot = 3 $$,
    'select b.* from before b', 'with positions, leases, tokens and all');
savepoint meanwhile;
select is(
    pg_temp.take(204), array['urgent', 'ready1', 'ready2'] || array(
        select 'new ' || i from generate_series(1, 200) i
    ) || array['low'],
    'claims find all meanwhile, in the order of priority and of becoming ready');
rollback to meanwhile;
select is(
    (select count(*) from pgq.floor_3), 0::bigint,
    'and raise no position past what is still to come');
select pg_temp.tick(5) \g /dev/null
select results_eq(
    'select r.live, r.filling, r.cleaned from ring r',
    $$ values ('{3,2}'::smallint[], null::smallint, '{}'::smallint[]) $$, 'both are free then');
select is(
    pg_relation_size('pgq.job_0') + pg_relation_size('pgq.job_1'), 0::bigint, 'and truncated');
select pg_temp.turn() \g /dev/null
select is(
    (select r.live[cardinality(r.live)] from ring r), 0::smallint, 'to be written again');

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
select is(pgq_release(r.id, r.token, '1 hour'), true, 'a moved job can be given back for later')
  from pg_temp.receipt('release') r;
select is(pgq_release(r.id, r.token), true, 'or at once') from pg_temp.receipt('back') r;
select is(
    array(select pgq_complete(r.id, r.token)
            from unnest('{complete,many,fail,release,back}'::text[]) l, pg_temp.receipt(l) r),
    '{f,f,f,f,f}', 'these receipts are stale then');
select is(
    array(select h.id from pg_temp.receipt('beat') r, pg_temp.receipt('fail') f,
                 pgq_heartbeat(array[f.id, r.id], array[f.token, r.token]) h),
    array(select r.id from pg_temp.receipt('beat') r), 'a moved lease is told from a lost one');

-- Claims.
select is(
    pg_temp.take(5, p_timeout => '7 days'), '{urgent,back,ready1,ready2,"new 1"}',
    'moved jobs are claimed in their order, before later ones');
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
select is(
    (select c.payload #>> '{}' from pgq.job j, pgq_claim(j.id) c where j.payload = '"new 9"'),
    'new 9', 'one given job can be claimed');

-- A slot that is mostly garbage is cleaned alone, a thousand jobs at a tick.
select pgq_cancel_all('default', true), pg_temp.tick(6) \g /dev/null
select is((select cardinality(r.live) from ring r), 1, 'all is done, and one slot is enough');
select pgq_enqueue_many(array_fill(jsonb '"many"', array[2500])) \g /dev/null
select j.slot as home from pgq.job j limit 1 \gset
select pg_temp.turn(2, 20000) \g /dev/null
select is((select r.cleaned from ring r), '{}', 'a slot that was just left is not judged');
select pg_temp.turn(1, 20000) \g /dev/null
select is((select r.cleaned from ring r), array[:home]::smallint[], 'a slot that is mostly garbage is cleaned');
select pg_temp.tick() \g /dev/null
select is(
    (select count(*) from pgq.job j, ring r where j.slot = r.filling), 1000::bigint,
    'a tick moves a thousand jobs');
select is(
    (select min(j.pos) from pgq.job j, ring r where j.slot = r.filling),
    (select max(j.pos) + 1 from pgq.job j where j.slot = :home), 'the last ones');
select is(
    pg_sequence_last_value('pgq.next_tick'), pgq._ms(pgq._now()) + 100, 'and has the next one come soon');
select pg_temp.tick(6) \g /dev/null
select is((select :home = any (r.live) from ring r), false, 'until the slot is free');
create temp table many as select d.id, d.token, row_number() over () as n from pgq_dequeue(2500) d;
select is(
    array(select m.id from many m order by m.n), array(select m.id from many m order by m.id),
    'the order is as it was');
select pgq_complete(array_agg(m.id), array_agg(m.token)) from many m \g /dev/null

-- Parked jobs of every kind are moved from one parked slot to the other.
select pg_temp.add('far', p_delay => '1 day'), pg_temp.add('x'),
       pgq_enqueue('"g1"', group_key => 'g'), pgq_enqueue('"g2"', group_key => 'g') \g /dev/null
select pgq_enqueue('"follows"', after => array[j.id]) from pgq.job j where j.payload = '"x"' \g /dev/null
select pg_temp.commit() \g /dev/null
create temp table parked as select j.id, j.slot, j.due, j.place from pgq.job j where j.slot in (4, 5);
select is((select (count(*), count(distinct p.slot)) from parked p), row(4::bigint, 1::bigint), 'jobs are parked');
select pg_temp.turn() \g /dev/null
select pg_temp.add('p ' || i, p_delay => i * interval '1 minute' + '1 day')
  from generate_series(1, 200) i \g /dev/null
select pg_temp.turn() \g /dev/null
select set_eq(
    'select j.id, j.due, j.place from pgq.job j join parked p using (id) where j.slot in (4, 5) and j.slot <> p.slot',
    'select p.id, p.due, p.place from parked p', 'they are moved, with their times and places');
select pg_temp.tick() \g /dev/null
select is(
    (select pg_relation_size(format('pgq.job_%s', p.slot)::regclass) from parked p limit 1), 0::bigint,
    'and the slot is truncated');
select is(pg_temp.take(9), '{x,g1}', 'their heads are claimed');
select pgq_complete(j.id, j.token) from pgq.job j where j.token is not null \g /dev/null
select pg_temp.commit() \g /dev/null
select set_eq(
    $$ select unnest(pg_temp.take(9)) $$, '{g2,follows}'::text[], 'a line goes on, and what waits for a job comes');
select pgq_complete(j.id, j.token) from pgq.job j where j.token is not null \g /dev/null
select pg_temp.wait('23 hours 59 min') \g /dev/null
select is(pg_temp.take(9), '{}', 'a scheduled job that was moved does not come before its time');
select pg_temp.wait('1 min') \g /dev/null
select is(pg_temp.take(9), '{far}', 'but when it is due');
select is(
    (select count(*) - count(distinct j.id) from pgq.job j), 0::bigint, 'no job is there twice');
select pg_temp.wait('5 hours') \g /dev/null
select is(
    (select count(*) from unnest(pg_temp.take(1000)) t where t ~ '^p '), 200::bigint,
    'no job was lost');

-- Payloads of which none fits into a page.
select pgq_cancel_all('default', true), pg_temp.tick(6) \g /dev/null
select pg_temp.add(string_agg(md5(n::text), '')) from generate_series(1, 1000) n \g /dev/null
select lives_ok('select pg_temp.tick(5)', 'large payloads do not stop maintenance');

select * from finish();
rollback;
