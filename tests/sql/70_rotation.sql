/*
 * The ring of slots: what is written where, when a slot is left, closed and truncated.
 */
begin;
select plan(46);
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

-- Placement.
select results_eq(
    'select r.live, r.closing, r.parked, r.parked_closing from ring r',
    $$ values ('{0}'::smallint[], '{}'::smallint[], '{4}'::smallint[], '{}'::smallint[]) $$,
    'the ring starts with one slot, beside one for parked jobs');
select pg_temp.add('a'), pg_temp.add('s', p_delay => '10 minutes'), pg_temp.add('r',
    p_priority => 1)
    \g /dev/null
select is(pg_temp.slot_of('a'), 0, 'a ready job goes to the slot of the ring that is written');
select is(pg_temp.slot_of('s'), 4, 'a scheduled one is parked');
select pgq_release(d.id, d.token) from pgq_dequeue() d \g /dev/null
select is(pg_temp.slot_of('r'), 4, 'and so is one that was given back');
select pgq_fail(d.id, d.token, retry_in => '1 s') from pgq_dequeue() d \g /dev/null
select is(pg_temp.slot_of('r'), 4, 'or has failed');
select pg_temp.tick(5) \g /dev/null
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
    'one batch is in order of priority, then id, across slots and parked jobs');
rollback to before;
select is(
    array(select (pg_temp.take())[1] from generate_series(1, 7)), '{r,e,a,c,d,b,NULL}',
    'and so are single claims');
select pg_temp.finish(l) from unnest('{r,e,c,d,b}'::text[]) l \g /dev/null

-- A slot with a lease, or with a ready job, stays.
select pg_temp.turn(2) \g /dev/null
select is((select 0 = any (r.live) from ring r), true, 'a slot that holds a leased job stays live');
select id, token from pgq.job where payload = '"a"' \gset
select isnt(pgq_heartbeat(:id, :token), null, 'the lease is good after turns of the ring');
select is(pgq_release(:id, :token), true, 'it is given back');
select is(
    pg_temp.slot_of('a'), (select r.parked[cardinality(r.parked)]::integer from ring r),
    'to the parked slot that is written now');
select pg_temp.tick() \g /dev/null
select is((select 0 = any (r.closing) from ring r), true,
    'a slot without a job is closed at a tick');
select isnt(pg_relation_size('pgq.job_0'), 0::bigint, 'and not truncated at the same one');
select pg_temp.tick() \g /dev/null
select is((select 0 = any (r.live || r.closing) from ring r), false, 'but free at the next');
select is(pg_relation_size('pgq.job_0'), 0::bigint, 'truncated, which removes what was dead in it');
select is((select count(*) from pgq.floor_0), 0::bigint, 'and so are its claim positions');

-- A late commit in a slot that is closing or free: as if an enqueue had read the ring long ago.
create function pg_temp.add_late(p_label text, p_slot integer) returns void language sql as $$
    insert into pgq.job (id, enqueued_at, lane, slot, payload)
    select nextval('pgq.job_id'), pgq._now(), l.id, p_slot, to_jsonb(p_label)
      from pgq.lane l join pgq.queue q on q.id = l.queue_id
     where q.name = 'default' and l.priority = 0
$$;
select pg_temp.take(9) \g /dev/null
select pg_temp.finish('a') \g /dev/null
select pg_temp.add_late('free', 0) \g /dev/null
select pg_temp.tick() \g /dev/null
select is((select 0 = any (r.live) from ring r), true,
    'a job committed into a free slot makes it live');
select is(pg_temp.take(), '{free}', 'and is found');
select pg_temp.finish('free'), pg_temp.tick() \g /dev/null
select is((select 0 = any (r.closing) from ring r), true,
    'the slot is closed when that job is done');
select pg_temp.add_late('closing', 0), pg_temp.tick() \g /dev/null
select is((select 0 = any (r.live) from ring r), true,
    'a job committed into a closing slot keeps it');
select is(pg_temp.take(), '{closing}', 'and is found');
select pg_temp.finish('closing'), pg_temp.tick(2) \g /dev/null
select is((select 0 = any (r.live || r.closing) from ring r), false, 'the slot is free in the end');

-- The same where no claim would look any more: only the slot itself tells that it is not empty.
select pg_temp.add_late('hidden', 0), pg_temp.tick() \g /dev/null
select is((select 0 = any (r.live) from ring r), true, 'the slot is live once more');
insert into pgq.floor_0 (n, lane, floor, base, mark)
select nextval('pgq.floor_n'), j.lane, j.id, j.id, j.id from pgq.job j where j.slot = 0;
select is(pg_temp.take(), '{}', 'its job lies below the claim positions');
select pg_temp.tick(3) \g /dev/null
select is(pg_temp.take(), '{hidden}', 'it is found before the slot is truncated');
select pg_temp.finish('hidden'), pg_temp.tick(2) \g /dev/null

-- A cursor that is open on a slot: the truncation fails, and is tried again.
select pg_temp.tick(4), pg_temp.turn(), pg_temp.add('x') \g /dev/null
select pg_temp.slot_of('x') as slot \gset
select pg_temp.take(1), pg_temp.finish('x'), pg_temp.turn() \g /dev/null
declare open_cursor cursor for select from pgq.job;
fetch open_cursor \g /dev/null
select pg_temp.tick(3) \g /dev/null
select is(
    (select :slot = any (r.closing) from ring r), true, 'a slot that is being read stays closing');
close open_cursor;
select pg_temp.tick() \g /dev/null
select is((select :slot = any (r.live || r.closing) from ring r), false,
    'until it is not read any more');

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
select pg_temp.wait('10 s') \g /dev/null
select is(pg_temp.take(9), '{p1,p0}', 'due jobs are claimed from both parked slots');
select pg_temp.finish('p1'), pg_temp.finish('p0'), pg_temp.tick(2) \g /dev/null
select is((select :slot = any (r.parked || r.parked_closing) from ring r), false,
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

-- On demand.
create temp table ring_before as select r.* from ring r;
select set_config('pgq.slot_size', '1', true) \g /dev/null
select lives_ok('select pgq_maintain()', 'maintenance can be asked for');
select is((select count(*) from pgq.chore), 1::bigint, 'and waits for the commit');
select results_eq('select r.* from ring r', 'select b.* from ring_before b',
    'until which nothing is done');

select * from finish();
rollback;
