/*
 * What a session that sleeps looks at, what it holds, and who is told of it.
 */
listen regress_other;
begin;
select plan(25);
\ir support/clock.psql

create function pg_temp.wait_for(p_queues text[]) returns interval language plpgsql as $$
begin
    perform pgq_wake(), set_config('pgq.round', '0', true), set_config('pgq.ready', '', true),
            set_config('pgq.idle', '', true);
    perform pgq_wait(p_queues);
    perform set_config('pgq.round', '0', true), set_config('pgq.ready', '', true);
    return pgq_wait(p_queues);
end
$$;
create function pg_temp.next_tick_is(p_at interval) returns void language plpgsql as $$
begin
    perform setval('pgq.next_tick', pgq._ms(pgq._now() + p_at));
end
$$;

-- The locks by which others know of a sleeper are one kind, whatever else the session has locked.
create function pg_temp.locks() returns bigint language sql as $$
    select count(*) from pg_locks l
     where l.locktype = 'advisory' and l.classid = 1885826917 and l.objsubid = 2
       and l.pid = pg_backend_pid() and l.mode = 'ShareLock'
$$;
select q.id as id from pgq.queue q where q.name = 'default' \gset
select pg_advisory_lock_shared(1, :id), pg_advisory_lock(1885826917, :id),
       pg_advisory_lock_shared((bigint '1885826917' << 32) | :id) \g /dev/null
select pgq_wait('{default}') \g /dev/null
select is(
    pg_temp.locks(), 1::bigint, 'a sleeper is known, whatever advisory locks it has of its own');
select pgq_wake() \g /dev/null
select is(pg_temp.locks(), 0::bigint, 'until it wakes');
select pg_advisory_unlock_shared(1, :id) as a, pg_advisory_unlock(1885826917, :id) as b,
       pg_advisory_unlock_shared((bigint '1885826917' << 32) | :id) as c \gset
select is(array[:'a', :'b', :'c']::boolean[], '{t,t,t}', 'it has its own locks still');

-- What it notes.
select pgq_create_queue('late') \g /dev/null
select pg_temp.wait_for('{default}') \g /dev/null
select l.ctid as before from pgq.lane l where l.queue = 'default' \gset
select pg_temp.wait_for('{default,late}') \g /dev/null
select is(
    (select l.ctid from pgq.lane l where l.queue = 'default'), :'before'::tid,
    'what is noted of one queue is not written again with another');
savepoint s;
set local transaction_read_only = on;
select is(
    pg_temp.wait_for('{default,late}'), interval '30 s',
    'where both are noted, a transaction that is read-only can sleep');
rollback to s;
select pg_temp.next_tick_is('-1 s') \g /dev/null
delete from pgq.chore;
select is(pg_temp.wait_for('{default}'), interval '30 s', 'with nothing to do it sleeps');
select is((select count(*) from pgq.chore), 0::bigint, 'and queues no tick');
select pg_temp.add('1'), pg_temp.next_tick_is('-1 s') \g /dev/null
select is(pg_temp.wait_for('{default}'), interval '0', 'when there is a job it does not');
select cmp_ok((select count(*) from pgq.chore), '>', 0::bigint, 'and queues the tick that is due');
select pgq_purge('default') \g /dev/null

-- What is left to the next tick.
insert into pgq.hint (kind, key) values ('l', 1);
select pg_temp.next_tick_is('100 ms') \g /dev/null
select is(
    pg_temp.wait_for('{default}'), interval '30 s',
    'a lease that pgq_claim has given wakes nobody');
insert into pgq.hint (kind, key) values ('w', 1);
select is(
    pg_temp.wait_for('{default}'), interval '100 ms',
    'what a tick is to decide wakes it for the tick');
select pg_temp.next_tick_is('5 s') \g /dev/null
select is(pg_temp.wait_for('{default}'), interval '500 ms', 'in half a second at the latest');
delete from pgq.hint;

-- Leases and jobs in any of the lanes of a queue.
select pg_temp.add(p::text, p_priority => p) from unnest('{-5,0,5}'::integer[]) p \g /dev/null
select id as high, token as high_token from pgq_dequeue(1, '12 s') \gset
select id as mid, token as mid_token from pgq_dequeue(1, '13 s') \gset
select id as low, token as low_token from pgq_dequeue(1, '14 s') \gset
select is(pg_temp.wait_for('{default}'), interval '12 s', 'the first lease that ends counts');
select pgq_complete(:high, :high_token) \g /dev/null
select is(pg_temp.wait_for('{default}'), interval '13 s', 'then the next one');
select pgq_complete(:mid, :mid_token) \g /dev/null
select is(
    pg_temp.wait_for('{default}'), interval '14 s', 'and the last, whatever their priorities');
insert into pgq.floor (slot, n, lane, floor, base, mark)
select s, nextval('pgq.floor_n'), l.id, 0, currval('pgq.number'), currval('pgq.number')
  from generate_series(0, 3) s, pgq.lane l where l.queue = 'default';
select is(
    pg_temp.wait_for('{default}'), interval '30 s',
    'where all jobs have ended, as positions say, nothing is read');
delete from pgq.floor f where f.slot < 4;
select pgq_complete(:low, :low_token) \g /dev/null
select pg_temp.add('later', p_delay => '20 s') \g /dev/null
select cmp_ok(pg_temp.wait_for('{default}'), '<', interval '21 s', 'a job that falls due counts');
create function pg_temp.entries(p_index text) returns bigint language sql as $$
    select pg_stat_get_xact_tuples_returned(format('pgq.%I', p_index)::regclass)
           + pg_stat_get_xact_tuples_returned('pgq.floor_4'::regclass)
$$;
insert into pgq.floor (slot, n, lane, floor, base, mark)
select 4, nextval('pgq.floor_n'), 0, 0, 0, 0 from generate_series(1, 100);
select pg_temp.entries('floor_4_lane_n_idx') as before \gset
select pg_temp.wait_for('{default}') \g /dev/null
select cmp_ok(
    pg_temp.entries('floor_4_lane_n_idx') - :before, '<=', 4::bigint,
    'of the positions of that slot the last one is read');
insert into pgq.floor (slot, n, lane, floor, base, mark)
select 4, nextval('pgq.floor_n'), 0, 0, max(j.due), max(j.due) from pgq.job j;
select is(
    pg_temp.wait_for('{default}'), interval '30 s',
    'where all have gone, nothing is read there either');
delete from pgq.floor f where f.slot = 4;
select pgq_purge('default') \g /dev/null

-- One queue of which it has just had a job, beside one in which it sleeps.
select pg_temp.wait_for('{default}') \g /dev/null
select pg_temp.add('1', 'late') \g /dev/null
select is(
    pgq_wait('{default,late}'), interval '10 ms',
    'it naps before it looks, so that what comes meanwhile is one batch');
select pg_temp.pass('10 ms') \g /dev/null
select is(pgq_wait('{default,late}'), interval '0', 'and looks then');
select pgq_purge('late') \g /dev/null

-- At a limit.
select pgq_create_queue('tight', max_active => 1) \g /dev/null
select pg_temp.add(n::text, 'tight', 0, null), pg_temp.pass('1 s') from generate_series(1, 3) n
    \g /dev/null
select pg_temp.take(1, 'tight', '1 hour'), pg_temp.wait_for('{tight}') \g /dev/null
select is(pgq_wait('{tight}'), interval '1 ms', 'who tries in vain waits for a millisecond first');
select pgq_complete(j.id, j.token) from pgq.job j where j.token is not null \g /dev/null
select pg_temp.take(1, 'tight', '1 hour') \g /dev/null
select is(pgq_wait('{tight}'), interval '0', 'another job is first, so it tries again');
select is(pgq_wait('{tight}'), interval '2 ms', 'and waits as if it were the second time');

-- Other channels.
select is(
    pg_temp.wait_for('{default}'), interval '30 s',
    'who listens on channels of others only is not thought to have missed a new one');

select * from finish();
rollback;
