/*
 * The ring of slots: what is written where, when a slot is left, passed by and truncated.
 */
begin;
select plan(51);
\ir support/clock.psql

create temp view ring as select r.* from pgq.ring r order by r.gen desc limit 1;

-- Ticks at which the slots that are written count as full.
create function pg_temp.turn(p_ticks integer default 1) returns void language plpgsql as $$
begin
    perform set_config('pgq.slot_size', '1', true), pg_temp.tick(p_ticks),
            set_config('pgq.slot_size', '', true);
end
$$;
create function pg_temp.slot_of(p_label text) returns integer language sql as $$
    select j.slot::integer from pgq.job j where j.payload = to_jsonb(p_label)
$$;
create function pg_temp.finish(p_label text) returns boolean language sql as $$
    select pgq_complete(j.id, j.token) from pgq.job j where j.payload = to_jsonb(p_label)
$$;
create function pg_temp.is_live(p_slot integer) returns boolean language sql as $$
    select p_slot = any (r.live) from ring r
$$;
create function pg_temp.is_ready(p_slot integer) returns boolean language sql as $$
    select p_slot = any (r.ready) from ring r
$$;

-- Placement.
select results_eq(
    'select r.live, r.ready, r.parked, r.filling, r.cleaned from ring r',
    $$ values ('{0}'::smallint[], '{0}'::smallint[], '{4}'::smallint[], null::smallint,
               '{}'::smallint[]) $$,
    'the ring starts with one slot, beside one for parked jobs');
select pg_temp.add('a'), pg_temp.add('s', p_delay => '10 minutes'), pg_temp.add('r',
    p_priority => 1)
    \g /dev/null
select is(pg_temp.slot_of('a'), 0, 'a ready job goes to the slot of the ring that is written');
select is(pg_temp.slot_of('s'), 4, 'a scheduled one is parked');
select pgq_release(d.id, d.token) from pgq_dequeue() d \g /dev/null
select is(pg_temp.slot_of('r'), 0, 'one that was given back is where it was');
select pgq_fail(d.id, d.token, retry_in => '1 s') from pgq_dequeue() d \g /dev/null
select is(pg_temp.slot_of('r'), 4, 'one that has failed is parked');
select pg_temp.tick(5) \g /dev/null
select is(pg_temp.slot_of('r'), 0, 'until it is due');
select is((select r.live from ring r), '{0}', 'a slot that is not full is not left');
select is((select count(*) from pgq.ring), 1::bigint, 'and the ring is not written');

-- Turning.
select pg_temp.turn() \g /dev/null
select is((select r.live from ring r), '{0,1}', 'a full slot is left for the next one');
select pg_temp.add('b', p_priority => -1), pg_temp.add('c') \g /dev/null
select is(pg_temp.slot_of('b'), 1, 'which is written from then on');
select pg_temp.turn() \g /dev/null
select pg_temp.add('d'), pg_temp.add('e', p_priority => 1), pg_temp.add('t', p_delay => '1 minute')
    \g /dev/null
select is(
    array[pg_temp.slot_of('a'), pg_temp.slot_of('c'), pg_temp.slot_of('d')], '{0,1,2}',
    'jobs stay where they were written');
savepoint before;
select is(
    pg_temp.take(9), '{r,e,a,c,d,b}',
    'one batch is in order of priority, then of becoming ready, across slots');
rollback to before;
select is(
    array(select (pg_temp.take())[1] from generate_series(1, 7)), '{r,e,a,c,d,b,NULL}',
    'and so are single claims');
select pg_temp.finish(l) from unnest('{r,e,c,d,b}'::text[]) l \g /dev/null

-- A slot with a lease, or with a ready job, stays.
select pg_temp.tick(4) \g /dev/null
select is((select r.live from ring r), '{0,2}', 'a slot without jobs gets free, not one with a lease');
select is(pg_relation_size('pgq.job_1'), 0::bigint, 'truncated, which removes what was dead in it');
select is((select count(*) from pgq.floor_1), 0::bigint, 'and so are its claim positions');
select id, token from pgq.job where payload = '"a"' \gset
select isnt(pgq_heartbeat(:id, :token), null, 'the lease is good after turns of the ring');
select is(pgq_release(:id, :token), true, 'it is given back');
select is(pg_temp.slot_of('a'), 0, 'where it was');
select is(pg_temp.take(), '{}', 'where claims do not look just now');
select pg_temp.tick() \g /dev/null
select is(pg_temp.take(), '{a}', 'but after the next tick');
select pg_temp.finish('a'), pg_temp.tick() \g /dev/null
select is(pg_temp.is_ready(0), false, 'claims stop looking into a slot without a job');
select isnt(pg_relation_size('pgq.job_0'), 0::bigint, 'which is not truncated at the same tick');
select pg_temp.tick() \g /dev/null
select is(pg_temp.is_live(0), false, 'but free at the next');
select is(pg_relation_size('pgq.job_0'), 0::bigint, 'and truncated');

-- A late commit in a slot that is out of use or free: as if an enqueue had read the ring long ago.
create function pg_temp.add_late(p_label text, p_slot integer) returns void language sql as $$
    insert into pgq.job (id, pos, enqueued_at, lane, slot, payload)
    select nextval('pgq.number'), currval('pgq.number'), pgq._now(), l.id, p_slot, to_jsonb(p_label)
      from pgq.lane l join pgq.queue q on q.id = l.queue_id
     where q.name = 'default' and l.priority = 0
$$;
select pg_temp.add_late('free', 0), pg_temp.tick() \g /dev/null
select is(pg_temp.is_live(0), true, 'a job committed into a free slot makes it live');
select is(pg_temp.take(), '{free}', 'and is found');
select pg_temp.finish('free'), pg_temp.tick() \g /dev/null
select is(pg_temp.is_ready(0), false, 'the slot is passed by when that job is done');
select pg_temp.add_late('passed by', 0), pg_temp.tick() \g /dev/null
select is(pg_temp.is_live(0), true, 'a job committed into a slot that is passed by keeps it');
select is(pg_temp.take(), '{"passed by"}', 'and is found');
select pg_temp.finish('passed by'), pg_temp.tick(2) \g /dev/null
select is(pg_temp.is_live(0), false, 'the slot is free in the end');

-- The same where no claim would look any more: only the slot itself tells that it is not empty.
select pg_temp.add_late('hidden', 0), pg_temp.tick() \g /dev/null
select is(pg_temp.is_live(0), true, 'the slot is live once more');
insert into pgq.floor_0 (slot, n, lane, floor, base, mark)
select 0, nextval('pgq.floor_n'), j.lane, j.pos, j.pos, j.pos from pgq.job j where j.slot = 0;
select is(pg_temp.take(), '{}', 'its job lies below the claim positions');
select pg_temp.tick(3) \g /dev/null
select is(pg_temp.take(), '{hidden}', 'it is found before the slot is truncated');
select pg_temp.finish('hidden'), pg_temp.tick(2) \g /dev/null

-- A cursor that is open on a slot: the truncation fails, and is tried again.
select pg_temp.tick(4), pg_temp.add('x') \g /dev/null
select pg_temp.slot_of('x') as slot \gset
select pg_temp.turn(), pg_temp.take(1), pg_temp.finish('x') \g /dev/null
declare open_cursor cursor for select from pgq.job;
fetch open_cursor \g /dev/null
select pg_temp.tick(5) \g /dev/null
select is(pg_temp.is_live(:slot), true, 'a slot that is being read stays');
close open_cursor;
select pg_temp.tick() \g /dev/null
select is(pg_temp.is_live(:slot), false, 'until it is not read any more');

-- Parked slots turn likewise.
select pgq_purge('default') \g /dev/null
select pg_temp.tick(4) \g /dev/null
select is((select cardinality(r.parked) from ring r), 1,
    'one parked slot is enough when all is done');
select pg_temp.add('p1', p_delay => '10 s') \g /dev/null
select pg_temp.slot_of('p1') as slot \gset
select pg_temp.turn() \g /dev/null
select pg_temp.add('p2', p_delay => '1 minute'), pg_temp.add('p0', p_delay => '11 s') \g /dev/null
select is(pg_temp.slot_of('p1') <> pg_temp.slot_of('p2'), true, 'a full parked slot is left');
select pg_temp.tick(3) \g /dev/null
select is(pg_temp.slot_of('p1'), :slot, 'a scheduled job keeps its slot live');
select pg_temp.wait('7 s'), pg_temp.wait('1 s') \g /dev/null
select is(pg_temp.take(9), '{p1,p0}', 'due jobs are claimed from both parked slots');
select pg_temp.finish('p1'), pg_temp.finish('p0'), pg_temp.tick(2) \g /dev/null
select is((select :slot = any (r.parked) from ring r), false,
    'a parked slot without jobs gets free');
select is(
    pg_relation_size(format('pgq.job_%s', :slot)::regclass), 0::bigint,
    'truncated like the others');
select pg_temp.wait('1 minute') \g /dev/null
select is(pg_temp.take(9), '{p2}', 'and nothing is lost by it');
select pg_temp.finish('p2') \g /dev/null

-- Many turns.
do $$ begin
    for v_turn in 1..150 loop
        perform pg_temp.add(v_turn::text), pg_temp.turn();
        perform pgq_complete(d.id, d.token) from pgq_dequeue(1) d;
    end loop;
    perform pg_temp.tick();
end $$;
select is(
    (select count(*) from pgq.archive a where a.payload #>> '{}' ~ '^\d+$'), 150::bigint,
    'every job of 150 turns was delivered');
select cmp_ok((select count(*) from pgq.ring), '<=', 102::bigint,
    'the ring keeps a bounded history');
select cmp_ok(
    (select sum(pg_relation_size(i.inhrelid)) from pg_inherits i
      where i.inhparent = 'pgq.job'::regclass), '<=', 6 * 8192.0,
    'and the slots are as small as the few jobs that are live');
select is((select count(*) from pgq.chore), 0::bigint,
    'maintenance clears the queue of its own work');

-- An update of the extension leaves work to its commit, which leaves the chores of others alone.
set local session_replication_role = replica;
insert into pgq.chore default values;
reset session_replication_role;
insert into pgq.chore (round) values (-1);
set constraints pgq.chore_at_commit immediate;
select is(
    array(select c.round from pgq.chore c where c.round is null or c.round < 0),
    array[null::smallint], 'its own one goes');
set constraints pgq.chore_at_commit deferred;
delete from pgq.chore;

-- On demand.
create temp table ring_before as select r.* from ring r;
select set_config('pgq.slot_size', '1', true) \g /dev/null
select lives_ok('select pgq_maintain()', 'maintenance can be asked for');
select is((select count(*) from pgq.chore), 1::bigint, 'and waits for the commit');
select results_eq('select r.* from ring r', 'select b.* from ring_before b',
    'until which nothing is done');

select * from finish();
rollback;
