/*
 * Jobs that kill whoever handles them: what becomes of them, and of those claimed beside them.
 */
begin;
select plan(28);
\ir support/clock.psql

-- A consumer claims a batch, works it off in order, and dies at the poison. It is started again,
-- and claims as soon as there is a job.
create function pg_temp.die_until_done(p_batch integer, p_queue text, p_poison text)
returns integer language plpgsql as $$
declare
    v_job pgq_job;
    v_deaths integer := 0;
    v_loops integer := 0;
begin
    while exists (
        select from pgq.lane l join pgq.job j on j.lane = l.id where l.queue = p_queue
    ) and v_deaths < 30 and v_loops < 1000 loop
        for v_job in select d.* from pgq_dequeue(p_batch, '30 s', p_queue) d loop
            if v_job.payload #>> '{}' = p_poison then
                v_deaths := v_deaths + 1;
                exit;
            end if;
            perform pgq_complete(v_job.id, v_job.token);
        end loop;
        if exists (
            select from pgq.lane l join pgq.job j on j.lane = l.id
             where l.queue = p_queue and j.token is not null
        ) then
            perform pg_temp.wait('31 s');
        end if;
        perform pg_temp.tick();
        perform pg_temp.wait(greatest(min(j.run_at) - pgq._now(), '0') + '10 ms')
           from pgq.lane l join pgq.job j on j.lane = l.id where l.queue = p_queue;
        v_loops := v_loops + 1;
    end loop;
    return v_deaths;
end
$$;
create function pg_temp.fates(p_queue text) returns text language sql as $$
    select string_agg(format('%s %s', a.payload #>> '{}', a.state), ', ' order by a.id)
      from pgq.archive a where a.queue = p_queue
$$;

-- Batches.
select pgq_create_queue('q', max_attempts => 3, backoff_base => '1 hour', backoff_max => '1 day') \g /dev/null
select pg_temp.add(i::text, 'q') from generate_series(1, 10) i \g /dev/null
select is(
    pg_temp.die_until_done(10, 'q', '3'), 3, 'a poison job kills as often as it has attempts');
select is(
    pg_temp.fates('q'),
    '1 completed, 2 completed, 3 dead, 4 completed, 5 completed, 6 completed, 7 completed, '
    '8 completed, 9 completed, 10 completed',
    'then it is dead, and all that were claimed with it have completed');

-- Also where claims go through limits, priorities and several slots, and with groups.
select pgq_create_queue('limited', max_attempts => 3, backoff_base => '1 hour', backoff_max => '1 day', max_active => 10),
       pgq_create_queue('grouped', max_attempts => 3, backoff_base => '1 hour', backoff_max => '1 day'),
       pgq_create_queue('parked', max_attempts => 3, backoff_base => '1 hour', backoff_max => '1 day') \g /dev/null
select pg_temp.add(i::text, 'limited', i % 2) from generate_series(1, 6) i \g /dev/null
select is(pg_temp.die_until_done(10, 'limited', '3'), 3, 'a poison job of a limited queue');
select is(
    pg_temp.fates('limited'),
    '1 completed, 2 completed, 3 dead, 4 completed, 5 completed, 6 completed', 'takes no others');
select pgq_enqueue(to_jsonb(i::text), 'grouped', group_key => (i % 3)::text)
  from generate_series(1, 9) i \g /dev/null
select is(pg_temp.die_until_done(10, 'grouped', '2'), 3, 'nor one at the head of a group');
select is(
    pg_temp.fates('grouped'),
    '1 completed, 2 dead, 3 completed, 4 completed, 5 completed, 6 completed, 7 completed, '
    '8 completed, 9 completed', 'whose group goes on');
select pg_temp.add(i::text, 'parked', p_delay => '1 s') from generate_series(1, 6) i \g /dev/null
select pg_temp.wait('2 s') \g /dev/null
select is(pg_temp.die_until_done(10, 'parked', '1'), 3, 'nor one that was delayed');
select is(
    pg_temp.fates('parked'),
    '1 dead, 2 completed, 3 completed, 4 completed, 5 completed, 6 completed', 'with others');

-- The rules.
select pgq_create_queue('r', backoff_base => '10 s') \g /dev/null
select pg_temp.add(l, 'r') from unnest('{a,b,c}'::text[]) l \g /dev/null
select is(pg_temp.take(9, 'r'), '{a,b,c}', 'jobs are claimed');
select pg_temp.wait('30 s') \g /dev/null
select is(pg_temp.take(9, 'r'), '{a,b,c}', 'the first lease that is lost comes back at once');
select pg_temp.pass('30 s') \g /dev/null
select is(pg_temp.take(9, 'r'), '{}', 'the second one in a row does not');
savepoint lost;
select is(
    (select (c.attempt, c.queue) from pgq.job j, pgq_claim(j.id) c where j.payload = '"b"'),
    row(3, text 'r'), 'but for whoever claims that very job');
rollback to lost;
select is(
    (select pgq_complete(j.id, j.token) from pgq.job j where j.payload = '"b"'), true,
    'and until it is taken back its receipt is good');
rollback to lost;
select pg_temp.tick() \g /dev/null
select is(
    (select (count(*), count(distinct j.run_at),
             bool_and(j.run_at - pgq._now() between '10 s' and '20 s'), min(j.attempt))
       from pgq.lane l join pgq.job j on j.lane = l.id where l.queue = 'r'),
    row(3::bigint, 3::bigint, true, 2::smallint),
    'a tick takes it back: it comes after the backoff of its attempt, and each job at another time');
select is(pg_temp.take(9, 'r'), '{}', 'not before');
select pg_temp.add('d', 'r'), pg_temp.wait('20 s') \g /dev/null
select set_eq($$ select unnest(pg_temp.take(9, 'r')) $$, '{d,a,b,c}'::text[], 'then they come');
select pgq_fail(j.id, j.token, 'no', '0') from pgq.job j where j.payload <> '"d"' \g /dev/null
select set_eq(
    $$ select unnest(pg_temp.take(9, 'r', '1 s')) $$, '{a,b,c}'::text[],
    'an attempt that ends otherwise ends the row');
select pg_temp.wait('1 s') \g /dev/null
select set_eq(
    $$ select unnest(pg_temp.take(9, 'r', '1 s')) $$, '{a,b,c}'::text[],
    'then the next lost lease is a first one again');
select is((select count(*) from pgq_reclaim('r')), 0::bigint, 'all are leased');
select pg_temp.pass('31 s') \g /dev/null
select pgq_reclaim('r') \g /dev/null
select is(
    (select count(*) from pgq.job j where j.token is null and j.run_at > pgq._now() + '10 s'),
    3::bigint, 'a second one has its backoff also when it is reclaimed by hand');

-- So does a release, at once or for later.
select pgq_create_queue('given', backoff_base => '1 hour') \g /dev/null
select pg_temp.add('a', 'given'), pg_temp.take(1, 'given', '1 s'), pg_temp.wait('1 s'), pg_temp.tick()
\g /dev/null
select pgq_release(d.id, d.token) from pgq_dequeue(1, '1 s', 'given') d \g /dev/null
select pg_temp.take(1, 'given', '1 s'), pg_temp.wait('1 s'), pg_temp.tick() \g /dev/null
select is(pg_temp.take(1, 'given', '1 s'), '{a}', 'a lost lease after a release is a first one');
select pg_temp.wait('1 s'), pg_temp.tick() \g /dev/null
select is(pg_temp.take(1, 'given', '1 s'), '{}', 'the one after that is not');
select pg_temp.wait('2 h'), pg_temp.tick() \g /dev/null
select pgq_release(d.id, d.token, '1 s') from pgq_dequeue(1, '1 s', 'given') d \g /dev/null
select pg_temp.wait('2 s'), pg_temp.tick(), pg_temp.take(1, 'given', '1 s'), pg_temp.wait('1 s'),
       pg_temp.tick() \g /dev/null
select is(pg_temp.take(1, 'given', '1 s'), '{a}', 'one after a release with a delay is a first one, too');

-- The second lost lease of many jobs.
select pgq_create_queue('s', backoff_base => '1 hour') \g /dev/null
select pg_temp.add(i::text, 's') from generate_series(1, 40) i \g /dev/null
select cardinality(pg_temp.take(40, 's')) \g /dev/null
select pg_temp.wait('30 s'), cardinality(pg_temp.take(40, 's')), pg_temp.wait('30 s') \g /dev/null
select pg_temp.wait('29 min') \g /dev/null
select is(pg_temp.take(40, 's'), '{}', 'no claim takes a second lost lease before its backoff');
select pg_temp.wait('16 min'), cardinality(pg_temp.take(40, 's')) as taken \gset
select ok(:taken between 1 and 39, 'after it claims do, of each job at another time');
select pg_temp.wait('16 min') \g /dev/null
select is(
    :taken + cardinality(pg_temp.take(40, 's')), 40, 'after the longest one all have come back');

-- Where one tick does not look that far.
select pgq_create_queue('long', backoff_base => '1 min') \g /dev/null
select pgq_enqueue_many(array_fill(jsonb '0', array[10000]), 'long') \g /dev/null
select cardinality(pg_temp.take(10000, 'long', '1 day')), pg_temp.add('last', 'long') \g /dev/null
select is(pg_temp.take(9, 'long'), '{last}', 'a job is claimed behind 10,000 leases');
select pg_temp.wait('30 s'), pg_temp.tick(), pg_temp.take(9, 'long'), pg_temp.wait('30 s'),
       pg_temp.tick(2), pg_temp.wait('2 min') \g /dev/null
select results_eq(
    $$ select d.payload #>> '{}', d.attempt from pgq_dequeue(9, '30 s', 'long') d $$,
    $$ values ('last', 3) $$, 'its second lost lease comes back, too');

select * from finish();
rollback;
