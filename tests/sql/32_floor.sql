/*
 * Claim positions: they make claims cheap, and hide nothing.
 */
begin;
select plan(33);
\ir support/clock.psql

create function pg_temp.floor() returns bigint language sql as $$
    select coalesce((select f.floor from pgq.floor_0 f order by f.n desc limit 1), 0)
$$;
-- A mark counts once the transactions that were open at it have ended: as if they had.
create function pg_temp.settle() returns void language sql as $$
    update pgq.floor_0 set mark_xid = 3;
    update pgq.floor_4 set mark_xid = 3;
$$;
-- Index entries of the ring that this transaction has read.
create function pg_temp.entries() returns bigint language sql as $$
    select sum(pg_stat_get_xact_tuples_returned(i.indexrelid))::bigint
      from pg_index i where i.indrelid::regclass::text ~ '^pgq\.job_[0-3]$'
$$;
-- What claims do now and then, by chance.
create function pg_temp.raise_floors() returns void language sql as $$
    select pgq._raise_floor(s::smallint, l.id) from generate_series(0, 5) s, pgq.lane l
$$;
-- Claims and completes in batches of 50, a millisecond apart.
create function pg_temp.work(p_batches integer) returns bigint[] language plpgsql as $$
declare
    v_ids bigint[];
    v_seen bigint[] := '{}';
begin
    for v_batch in 1..p_batches loop
        select array_agg(d.id order by n) into v_ids
          from pgq_dequeue(50) with ordinality d (id, token, queue, priority, state, attempt,
                   max_attempts, payload, headers, group_key, dedupe_key, worker, enqueued_at,
                   run_at, claimed_at, lease_expires_at, last_error, cancel_requested, n)
         where pgq_complete(d.id, d.token);
        v_seen := v_seen || v_ids;
        perform pg_temp.wait('1 ms'), pg_temp.settle(), pg_temp.raise_floors();
    end loop;
    return v_seen;
end
$$;

-- 5,000 jobs, one batch after the other, all in one transaction: no dead version can be removed.
select min(m) as first, max(m) as last
  from pgq_enqueue_many(array_fill(jsonb '1', array[5000])) m \gset
select id, token from pgq_dequeue(1, '30 minutes') \gset held_
select pg_temp.entries() as entries \gset
select pg_temp.work(10) as seen \gset
select pg_temp.entries() - :entries as early, pg_temp.entries() as entries \gset
select cardinality(pg_temp.work(70)) as more \gset
select is(
    :'seen'::bigint[], array(select generate_series(:first::bigint + 1, :first + 500)),
    'jobs come in id order, none left out');
select is(:more, 3500, 'batch after batch');
select cmp_ok(pg_temp.floor(), '>', :first + 3900::bigint, 'claims raise the floor behind them');
select pg_temp.entries() as entries \gset
select cardinality(pg_temp.work(10)) as more \gset
select cmp_ok(
    pg_temp.entries() - :entries, '<', 2 * :early + 1000::bigint,
    'the last claims look at no more entries than the first ones');

-- Claims raise floors by themselves, now and then.
select pgq_create_queue('chance') \g /dev/null
select pgq_enqueue_many(array_fill(jsonb '1', array[2500]), 'chance') \g /dev/null
do $$ begin
    for v_batch in 1..250 loop
        perform pgq_complete(d.id, d.token) from pgq_dequeue(10, queue => 'chance') d;
        perform pg_temp.wait('1 ms'), pg_temp.settle();
    end loop;
end $$;
select cmp_ok(max(f.floor), '>', :last::bigint, 'floors rise by chance with each claim')
  from pgq.floor_0 f join pgq.lane l on l.id = f.lane join pgq.queue q on q.id = l.queue_id
 where q.name = 'chance';

-- Nothing is hidden: one lease was held all the time, far below the floor.
select is(pgq_heartbeat(:held_id, :held_token, '10 s'), pgq._now() + '10 s',
    'a lease below the floor');
select pg_temp.wait('10 s') \g /dev/null
select is(
    (select d.id from pgq_dequeue(1, '10 s') d), :held_id::bigint,
    'is claimed when it has expired, before all later jobs');
select pg_temp.wait('10 s') \g /dev/null
select pg_temp.forgive() \g /dev/null
select setval('pgq.next_tick', pgq._ms(pgq._now()) + 500) \g /dev/null
select isnt(
    (select d.id from pgq_dequeue(1, '10 s') d), :held_id::bigint, 'not at once between two ticks');
select pg_temp.wait('1 s') \g /dev/null
select is(
    (select d.id from pgq_dequeue(1, '1 hour') d), :held_id::bigint, 'but within a second');
select pg_temp.take(1, p_timeout => '1 hour') \g /dev/null

savepoint before;
select array_agg(d.id) as ids from pgq_dequeue(100) d \gset
select pg_temp.raise_floors(), pg_temp.work(5) \g /dev/null
rollback to before;
select is(
    array(select d.id from pgq_dequeue(100) d), :'ids'::bigint[],
    'claims that are rolled back leave their jobs above the floor');
select pg_temp.work(2) \g /dev/null

-- A commit below the floor: its transaction was open for long.
insert into pgq.job (id, enqueued_at, lane, slot, payload)
select :first + 1000, pgq._now(), j.lane, 0, '"late"' from pgq.job j where j.id = :held_id;
select cmp_ok(pg_temp.floor(), '>', :first + 1000::bigint, 'a job is committed below the floor');
select pg_temp.tick() \g /dev/null
select is(pg_temp.take(), '{late}', 'and is found after a tick');

-- Each priority has floors of its own.
select pgq_enqueue_many(array_fill(jsonb '2', array[200]), priority => 5) \g /dev/null
select pg_temp.work(3) \g /dev/null
select pg_temp.add('low', p_priority => -1), pg_temp.add('high', p_priority => 5) \g /dev/null
select is(
    (select pg_temp.take(1) from pgq_enqueue('"higher"', priority => 6)), '{higher}',
    'a new priority is seen at once');
select is(
    (pg_temp.take(60))[51], 'high', 'and so is a new job of one whose jobs were all claimed');

-- Jobs that come back lie above the floors, wherever they were.
select pgq_purge('default') \g /dev/null
select pg_temp.add('back') as back \gset
select pg_temp.work(0) \g /dev/null
select id, token from pgq_claim(:back) \gset
select pgq_enqueue_many(array_fill(jsonb '3', array[300])) \g /dev/null
select pg_temp.work(6) \g /dev/null
select pgq_release(:id, :token) \g /dev/null
select is(pg_temp.take(), '{back}', 'a job given back after the floor has passed it is claimed');
select id, token from pgq.job where id = :back \gset
select pg_temp.wait('1 ms'), pgq_fail(:id, :token, retry_in => '0') \g /dev/null
select is(pg_temp.take(), '{back}', 'and so is one that failed');
select id, token from pgq.job where id = :back \gset
select pgq_fail(:id, :token, retryable => false), pg_temp.wait('1 ms'), pgq_retry(:back)
    \g /dev/null
select is(pg_temp.take(), '{back}', 'and one that was dead');

-- The parked slots have floors, too.
select pgq_create_queue('p') \g /dev/null
select pgq_enqueue_many(array_fill(jsonb '4', array[500]), 'p', run_at => pgq._now() + '10 s'),
       pgq_enqueue_many(array_fill(jsonb '5', array[500]), 'p', run_at => pgq._now() + '30 s')
    \g /dev/null
select pg_temp.wait('11 s') \g /dev/null
create temp table got as select 0 as n, d.id, d.token from pgq_dequeue(1, '1 s', 'p') d where false;
do $$ begin
    for v_batch in 1..20 loop
        insert into got select v_batch, d.id, d.token from pgq_dequeue(50, '1 hour', 'p') d;
        perform pgq_complete(g.id, g.token) from got g where g.n = v_batch and g.n < 5;
        perform pg_temp.wait('2 ms'), pg_temp.settle(), pg_temp.raise_floors();
    end loop;
end $$;
select is((select count(distinct g.id) from got g), 500::bigint, 'all due jobs are claimed, once');
select is(
    array(select g.id from got g order by g.n, g.id), array(select g.id from got g order by g.id),
    'in id order');
select pg_temp.add('new', 'p', p_delay => '1 ms'), pg_temp.wait('1 s') \g /dev/null
select is(pg_temp.take(9, 'p'), '{new}', 'a job that falls due later is found');
select g.id, g.token from got g where g.n = 6 limit 1 \gset
select pgq_release(:id, :token) \g /dev/null
select is(
    (select d.id from pgq_dequeue(1, '1 s', 'p') d), :id::bigint,
    'one that was given back as well');
select pg_temp.wait('30 s') \g /dev/null
select is(
    (select count(*) from pgq_dequeue(1000, '1 hour', 'p') d where d.payload = '5'), 500::bigint,
    'and so are all that are due later');

-- More due jobs than a claim looks at, due in the reverse of their order.
select pgq_create_queue('r') \g /dev/null
select pg_temp.add(i::text, 'r', p_delay => make_interval(secs => 2000 - i))
  from generate_series(1, 1500) i \g /dev/null
select pg_temp.wait('2000 s') \g /dev/null
select is(
    pg_temp.take(3, 'r'), '{501,502,503}',
    'the thousand that fell due first go first, among them the lowest ids');

-- A clock that is set back.
select pgq_create_queue('c') \g /dev/null
select pgq_enqueue_many(array_fill(jsonb '6', array[200]), 'c', run_at => pgq._now() + '10 s')
    \g /dev/null
select pg_temp.add('ring', 'c') as ring, pg_temp.wait('11 s') \gset
do $$ begin
    for v_batch in 1..6 loop
        perform pgq_complete(d.id, d.token) from pgq_dequeue(40, '1 s', 'c') d;
        perform pg_temp.wait('10 ms'), pg_temp.settle(), pg_temp.raise_floors();
    end loop;
end $$;
select pg_temp.wait('-10 minutes') \g /dev/null
select pg_temp.add('scheduled', 'c', p_delay => '1 minute'), pg_temp.add('again', 'c') \g /dev/null
select pgq_release(d.id, d.token) from pgq_dequeue(1, '1 s', 'c') d \g /dev/null
select is(pg_temp.take(9, 'c', '1 s'), '{again}', 'after the clock was set back jobs come back');
select pg_temp.wait('1 s') \g /dev/null
select is(pg_temp.take(9, 'c', '1 hour'), '{again}', 'leases expire');
select pg_temp.wait('1 minute') \g /dev/null
select is(pg_temp.take(9, 'c', '1 hour'), '{scheduled}', 'and scheduled jobs fall due');
select pg_temp.wait('-1 day') \g /dev/null
select setval('pgq.next_tick', pgq._ms(pgq._now() + '1 day')) \g /dev/null
select pgq_dequeue() \g /dev/null
select cmp_ok(
    (select r.last_value from pgq.next_tick r), '<=', pgq._ms(pgq._now() + '1 s'),
    'maintenance does not wait for the clock to catch up');

-- A short lease, and a call that comes a moment before it expires.
select pgq_create_queue('short') \g /dev/null
select pg_temp.now_is('2040-02-01 00:00:00.0003+00') \g /dev/null
select pg_temp.wait('0'), setval('pgq.next_tick', 1), pg_temp.add('short', 'short') \g /dev/null
select is(pg_temp.take(1, 'short', '50 ms'), '{short}', 'a lease of 50 ms');
do $$ begin
    for v_time in 1..3 loop
        perform pg_temp.settle(), pg_temp.raise_floors();
    end loop;
end $$;
select pg_temp.wait('49.3 ms') \g /dev/null
select is(pg_temp.take(1, 'short', '50 ms'), '{}', 'has not expired');
select pg_temp.wait('6 ms') \g /dev/null
select is(pg_temp.take(1, 'short', '50 ms'), '{short}', 'is found when it has');

-- Floors go with their slot.
select pgq_drop_queue(q.name, true) from pgq.queue q \g /dev/null
select pgq_create_queue('default') \g /dev/null
select set_config('pgq.slot_size', '1', true), pg_temp.tick(4) \g /dev/null
select is((select count(*) from pgq.floor_0), 0::bigint,
    'an empty slot has no floors after its turn');
select pg_temp.add('fresh') \g /dev/null
select is(pg_temp.take(9), '{fresh}', 'and the next job is found');
select isnt_empty(
    $$ select from pg_class c where c.oid = 'pgq.floor_0'::regclass and c.relkind = 'r' $$,
    'floors are tables of their own');

select * from finish();
rollback;
