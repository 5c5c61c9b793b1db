/*
 * Spent slots: claims pass by what is leased as a whole, and nothing is hidden by it: a tick tells
 * them of what has become claimable there.
 */
begin;
select plan(34);
\ir support/clock.psql

create temp view ring as select r.* from pgq.ring r order by r.gen desc limit 1;
create function pg_temp.turn() returns void language plpgsql as $$
begin
    perform set_config('pgq.slot_size', '1', true), pg_temp.tick(),
            set_config('pgq.slot_size', '', true);
end
$$;
-- As if an enqueue had read the ring long ago.
create function pg_temp.add_late(p_label text, p_slot integer, p_queue text default 'default')
returns void language sql as $$
    insert into pgq.job (id, pos, enqueued_at, lane, slot, payload)
    select nextval('pgq.number'), currval('pgq.number'), pgq._now(), pgq._lane_of(q.id, 0), p_slot,
           to_jsonb(p_label)
      from pgq.queue q where q.name = p_queue
$$;

-- Which slots are spent.
select pg_temp.add(l) from unnest('{a,b,c}'::text[]) l \g /dev/null
select pg_temp.take(3, p_timeout => '1 hour') \g /dev/null
select pg_temp.tick(5) \g /dev/null
select is((select r.ready from ring r), '{0}', 'the slot that is written is never spent');
select pg_temp.turn() \g /dev/null
select is((select r.live from ring r), '{0,1}', 'it has been left');
select is((select r.ready from ring r), '{0,1}', 'and is not spent at once');
select pg_temp.tick() \g /dev/null
select is((select r.ready from ring r), '{0,1}',
    'nor a second later: who enqueued there may have to commit yet');
select pg_temp.tick() \g /dev/null
select is((select r.ready from ring r), '{1}', 'but two seconds later');
select is((select r.live from ring r), '{0,1}', 'and still is live');
select max(r.gen) as gen from pgq.ring r \gset
select pg_temp.tick(3) \g /dev/null
select is(
    (select array_agg(distinct r.ready) from pgq.ring r where r.gen >= :gen), '{{1}}',
    'and so it stays');

-- What claims do.
select pg_temp.add('d'), pg_temp.add('e'), pg_temp.turn() \g /dev/null
select pg_temp.add('f'), pg_temp.add('g'), pg_temp.tick(3) \g /dev/null
select is((select r.ready from ring r), '{1,2}', 'slots with ready jobs are not spent');
savepoint before;
select is(pg_temp.take(9), '{d,e,f,g}', 'a claim takes the others in order');
rollback to before;
select is(
    array(select (pg_temp.take())[1] from generate_series(1, 5)), '{d,e,f,g,NULL}',
    'one by one, too');
rollback to before;
select is(
    array(select j.payload #>> '{}' from pgq_pop(9) j), '{d,e,f,g}', 'and so does pop');
rollback to before;
create temp table scans_before as
select t.relname, t.idx_scan from pg_stat_xact_user_tables t where t.relname ~ '^job_[0-3]$';
create function pg_temp.scans(p_slot integer) returns bigint language sql as $$
    select t.idx_scan - b.idx_scan
      from pg_stat_xact_user_tables t join scans_before b using (relname)
     where t.schemaname = 'pgq' and t.relname = format('job_%s', p_slot)
$$;
select pg_temp.take(9, p_timeout => '1 hour'), pg_temp.take(9) \g /dev/null
select is(pg_temp.scans(0), 0::bigint, 'a claim does not look into a spent slot');
select cmp_ok(pg_temp.scans(1), '>', 0::bigint, 'but into the others');

-- Receipts.
select id as a, token as a_token from pgq.job where payload = '"a"' \gset
select id as b, token as b_token from pgq.job where payload = '"b"' \gset
select id as c, token as c_token from pgq.job where payload = '"c"' \gset
savepoint leased;
select isnt(pgq_heartbeat(:a, :a_token, '1 hour'), null, 'a lease there is renewed');
select is(pgq_complete(:a, :a_token), true, 'a job there is completed');
select is(pgq_release(:b, :b_token), true, 'another given back');
select is(pgq_cancel(:c, true), true, 'another cancelled');
select pg_temp.tick() \g /dev/null
select is(pg_temp.take(), '{b}', 'what was given back is claimed after a tick');
select pgq_complete(j.id, j.token) from pgq.job j where j.id = :b \g /dev/null
select pg_temp.tick(3) \g /dev/null
select is((select 0 = any (r.live || r.ready) from ring r), false,
    'the slot is free when it has no job any more');
rollback to leased;

-- An expired lease.
select pgq_heartbeat(:b, :b_token, '1 second'), pg_temp.pass('1 second') \g /dev/null
select is(pg_temp.take(), '{}', 'a lease expires');
savepoint expired;
select is((select j.id from pgq_claim(:b) j), :b::bigint, 'a claim of that very job takes it');
rollback to expired;
select is(array(select pgq_reclaim()), array[:b::bigint], 'or pgq_reclaim');
rollback to expired;
select pg_temp.tick() \g /dev/null
select is((select 0 = any (r.ready) from ring r), true, 'a tick tells the others');
select is(pg_temp.take(p_timeout => '1 hour'), '{b}', 'and a claim takes it');
select pg_temp.tick() \g /dev/null
select is((select 0 = any (r.ready) from ring r), false, 'then the slot is spent once more');

-- Exhausted jobs.
savepoint exhausted;
select pgq_configure_queue('default', max_attempts => 1) \g /dev/null
update pgq.job set attempt = 2, lease_expires_at = pgq._now() where id = :b;
select pg_temp.forgive() \g /dev/null
select is(pg_temp.take(), '{}', 'a job has no attempt left');
select pgq_configure_queue('default', max_attempts => 9), pg_temp.tick() \g /dev/null
select is(pg_temp.take(), '{b}', 'max_attempts is raised before it is buried');
rollback to exhausted;

-- Late commits.
savepoint late;
select pg_temp.add_late('late', 0) \g /dev/null
select is(pg_temp.take(), '{}', 'a late job is not seen in a spent slot');
select pg_temp.tick() \g /dev/null
select is(pg_temp.take(), '{late}', 'but after a tick');
rollback to late;
select pg_temp.add_late('late', 0) \g /dev/null
insert into pgq.floor_0 (slot, n, lane, floor, base, mark)
select 0, nextval('pgq.floor_n'), j.lane, j.pos, 0, j.pos from pgq.job j where j.payload = '"late"';
select pg_temp.tick() \g /dev/null
select is(pg_temp.take(), '{late}', 'also below the floor');
rollback to late;

-- A queue that is paused.
select pgq_create_queue('other') \g /dev/null
select pg_temp.add('first', 'other'), pgq_pause('other'), pg_temp.add_late('late', 0, 'other')
    \g /dev/null
select pg_temp.tick() \g /dev/null
select is((select 0 = any (r.ready) from ring r), true,
    'a slot with ready jobs of a paused queue is not spent');
select pgq_resume('other') \g /dev/null
select is(pg_temp.take(9, 'other'), '{late,first}', 'so they are there when it is resumed');
rollback to late;

-- The ring goes on turning.
select is((select r.ready from ring r), '{2}', 'all slots hold leases and are spent, but the last one');
select pgq_heartbeat(j.id, j.token, '1 hour') from pgq.job j \g /dev/null
do $$ begin
    for v_turn in 1..30 loop
        perform pg_temp.add(v_turn::text), pg_temp.turn();
    end loop;
end $$;
select is(
    pg_temp.take(99), array(select i::text from generate_series(1, 30) i),
    'leases are moved out of spent slots, and jobs come in order');
select * from finish();
rollback;
