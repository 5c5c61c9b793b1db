/*
 * Spent slots: ordinary claims pass by what is leased as a whole, and nothing is hidden by it. The
 * two sorts of claims are called plain and tick here; only the latter look into spent slots.
 */
begin;
select plan(40);
\ir support/clock.psql

create temp view ring as select r.* from pgq.ring r order by r.gen desc limit 1;
create function pg_temp.turn() returns void language plpgsql as $$
begin
    perform set_config('pgq.slot_size', '1', true), pg_temp.tick(),
            set_config('pgq.slot_size', '', true);
end
$$;
create function pg_temp.plain(p_batch integer default 1) returns text[] language plpgsql as $$
begin
    perform setval('pgq.next_tick', pgq._ms(pgq._now()) + 400);
    return pg_temp.take(p_batch);
end
$$;
create function pg_temp.by_tick(p_batch integer default 1) returns text[] language plpgsql as $$
begin
    perform setval('pgq.next_tick', 1);
    return pg_temp.take(p_batch);
end
$$;
-- As if an enqueue had read the ring long ago.
create function pg_temp.add_late(p_label text, p_slot integer) returns void language sql as $$
    insert into pgq.job (id, enqueued_at, lane, slot, payload)
    select nextval('pgq.job_id'), pgq._now(), min(l.id), p_slot, to_jsonb(p_label)
      from pgq.lane l join pgq.queue q on q.id = l.queue_id
     where q.name = 'default' and l.priority = 0
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
select pg_temp.add('f'), pg_temp.turn(), pg_temp.add('g'), pg_temp.tick(3) \g /dev/null
select is((select r.ready from ring r), '{1,2,3}', 'slots with ready jobs are not spent');
savepoint before;
select is(pg_temp.plain(9), '{d,e,f,g}', 'a plain claim takes the others in order');
rollback to before;
select is(
    array(select (pg_temp.plain())[1] from generate_series(1, 5)), '{d,e,f,g,NULL}',
    'one by one, too');
rollback to before;
select is(
    array(select (pg_temp.by_tick())[1] from generate_series(1, 5)), '{d,e,f,g,NULL}',
    'and so does one with a tick');
rollback to before;
select is(
    array(select j.payload #>> '{}' from pgq_pop(9) j), '{d,e,f,g}', 'and pop');
rollback to before;
create temp table scans_before as
select t.relname, t.idx_scan from pg_stat_xact_user_tables t where t.relname ~ '^job_[0-3]$';
create function pg_temp.scans(p_slot integer) returns bigint language sql as $$
    select t.idx_scan - b.idx_scan
      from pg_stat_xact_user_tables t join scans_before b using (relname)
     where t.schemaname = 'pgq' and t.relname = format('job_%s', p_slot)
$$;
select pg_temp.plain(9), pg_temp.plain(9) \g /dev/null
select is(pg_temp.scans(0), 0::bigint, 'a plain claim does not look into a spent slot');
select cmp_ok(pg_temp.scans(1), '>', 0::bigint, 'but into the others');
select pg_temp.by_tick() \g /dev/null
select cmp_ok(pg_temp.scans(0), '>', 0::bigint, 'a claim with a tick does');

-- Receipts.
select id as a, token as a_token from pgq.job where payload = '"a"' \gset
select id as b, token as b_token from pgq.job where payload = '"b"' \gset
select id as c, token as c_token from pgq.job where payload = '"c"' \gset
savepoint leased;
select isnt(pgq_heartbeat(:a, :a_token, '1 hour'), null, 'a lease there is renewed');
select is(pgq_complete(:a, :a_token), true, 'a job there is completed');
select is(pgq_release(:b, :b_token), true, 'another given back');
select is(pgq_cancel(:c, true), true, 'another cancelled');
select pg_temp.tick(3) \g /dev/null
select is((select 0 = any (r.live || r.closing || r.ready) from ring r), false,
    'the slot is free when it has no job any more');
select is(pg_temp.plain(), '{b}', 'what was given back is claimed');
rollback to leased;

-- An expired lease.
select pgq_heartbeat(:b, :b_token, '1 second'), pg_temp.wait('1 second') \g /dev/null
select is(pg_temp.plain(), '{}', 'a lease expires');
savepoint expired;
select is(pg_temp.by_tick(), '{b}', 'a claim with a tick takes it');
rollback to expired;
select is((select j.id from pgq_claim(:b) j), :b::bigint, 'or one of that very job');
rollback to expired;
select is(array(select pgq_reclaim()), array[:b::bigint], 'or pgq_reclaim');
rollback to expired;
select pg_temp.tick() \g /dev/null
select is((select 0 = any (r.ready) from ring r), true, 'a tick tells the others');
select is(pg_temp.plain(), '{b}', 'and a plain claim takes it');
select pg_temp.tick() \g /dev/null
select is((select 0 = any (r.ready) from ring r), false, 'then the slot is spent once more');

-- Exhausted jobs.
select pgq_configure_queue('default', max_attempts => 1) \g /dev/null
update pgq.job set attempt = 2, lease_expires_at = pgq._now() where id = :b;
select pg_temp.forgive() \g /dev/null
select is(pg_temp.by_tick(), '{}', 'a job has no attempt left');
select pgq_configure_queue('default', max_attempts => 9) \g /dev/null
savepoint raised;
select is(pg_temp.by_tick(), '{b}', 'max_attempts is raised before it is buried');
rollback to raised;
select pg_temp.tick() \g /dev/null
select is(pg_temp.plain(), '{b}', 'a tick suffices');
select pg_temp.tick() \g /dev/null

-- Late commits.
savepoint late;
select pg_temp.add_late('late', 0) \g /dev/null
select is(pg_temp.by_tick(), '{late}', 'a late job is found by a claim with a tick');
rollback to late;
select pg_temp.add_late('late', 0), pg_temp.tick() \g /dev/null
select is(pg_temp.plain(), '{late}', 'and by plain ones after a tick');
rollback to late;
select pg_temp.add_late('late', 0) \g /dev/null
insert into pgq.floor_0 (n, lane, floor, base, mark)
select nextval('pgq.floor_n'), j.lane, j.id, 0, j.id from pgq.job j where j.payload = '"late"';
select pg_temp.tick() \g /dev/null
select is(pg_temp.plain(), '{late}', 'also below the floor');
rollback to late;

-- A queue that is paused.
select pgq_create_queue('other'), pgq_pause('other') \g /dev/null
insert into pgq.job (id, enqueued_at, lane, slot, payload)
select nextval('pgq.job_id'), pgq._now(), pgq._add_lane(q.id, 0::smallint, false), 0, '"other"'
  from pgq.queue q where q.name = 'other';
select pg_temp.tick() \g /dev/null
select is((select 0 = any (r.ready) from ring r), true,
    'a slot with ready jobs of a paused queue is not spent');
select pgq_resume('other'), setval('pgq.next_tick', pgq._ms(pgq._now()) + 400) \g /dev/null
select is(pg_temp.take(1, 'other'), '{other}', 'so they are there when it is resumed');
rollback to late;

-- The ring goes on turning.
select is(pg_temp.by_tick(9), '{}', 'nothing is ready');
select is((select r.live from ring r), '{0,1,2,3}', 'all slots hold leases');
select is((select r.ready from ring r), '{3}', 'and are spent, apart from the one that is written');
select pgq_heartbeat(j.id, j.token, '1 hour') from pgq.job j \g /dev/null
do $$ begin
    for v_turn in 1..30 loop
        perform pg_temp.add(v_turn::text), pg_temp.turn();
    end loop;
end $$;
select is(
    pg_temp.plain(99), array(select i::text from generate_series(1, 30) i),
    'leases are moved out of spent slots, and jobs come in order');
select * from finish();
rollback;
