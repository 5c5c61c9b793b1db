/*
 * Limits: how many jobs of a queue are active, how many start in a time; and ageing.
 */
begin;
select plan(126);
\ir support/clock.psql

create function pg_temp.fill(p_number integer, p_queue text, p_priority integer default 0)
returns void language plpgsql as $$
begin
    for v_n in 1..p_number loop
        perform pg_temp.add(v_n::text, p_queue, p_priority);
    end loop;
end
$$;
create function pg_temp.taken(p_queue text, p_batch integer default 99) returns integer
language plpgsql as $$
begin
    return cardinality(pg_temp.take(p_batch, p_queue, '20 days'));
end
$$;
create function pg_temp.jobs(p_queue text) returns setof pgq.job language plpgsql as $$
begin
    return query
    select j.* from pgq.queue q join pgq.lane l on l.queue_id = q.id join pgq.job j on j.lane = l.id
     where q.name = p_queue order by j.id;
end
$$;
create function pg_temp.active(p_queue text) returns integer language plpgsql as $$
begin
    return (select count(*) from pg_temp.jobs(p_queue) j where j.token is not null);
end
$$;
create function pg_temp.job(p_queue text, p_label text) returns pgq.job language plpgsql as $$
begin
    return (select j from pg_temp.jobs(p_queue) j where j.payload #>> '{}' = p_label);
end
$$;
create function pg_temp.end_of(p_queue text, p_label text) returns boolean language plpgsql as $$
declare
    v_job constant pgq.job := pg_temp.job(p_queue, p_label);
begin
    return pgq_complete(v_job.id, v_job.token);
end
$$;

-- How many are active.
select pgq_create_queue('m', max_active => 3) \g /dev/null
select pg_temp.fill(50, 'm') \g /dev/null
select is(pg_temp.take(9, 'm'), '{1,2,3}', 'max_active jobs are claimed, in id order');
select is(pg_temp.take(9, 'm'), '{}', 'and no more while they are active');
select is(pg_temp.end_of('m', '2'), true, 'when one completes');
select is(pg_temp.take(9, 'm'), '{4}', 'another one starts');
select is(
    (select pgq_fail(j.id, j.token, 'no', '1 hour') from pg_temp.job('m', '1') j), 'scheduled',
    'when one fails');
select is(pg_temp.take(9, 'm'), '{5}', 'another one starts, too');
select is(
    (select pgq_fail(j.id, j.token, 'no', retryable => false) from pg_temp.job('m', '3') j),
    'dead', 'when one dies');
select is(pg_temp.take(9, 'm'), '{6}', 'as well');
select is(
    (select pgq_release(j.id, j.token, '1 hour') from pg_temp.job('m', '4') j), true,
    'when one is given back');
select is(pg_temp.take(9, 'm'), '{7}', 'as well');
select is(
    (select pgq_cancel(j.id) from pg_temp.job('m', '5') j), false,
    'an active one that is to be cancelled');
select is(pg_temp.take(9, 'm'), '{}', 'keeps its permit');
select is(
    (select pgq_cancel(j.id, true) from pg_temp.job('m', '5') j), true,
    'until it is cancelled by force');
select is(pg_temp.take(9, 'm'), '{8}', 'then another one starts');
select is(pgq_purge('m', '{scheduled}'), 2::bigint, 'purging what is not active');
select is(pg_temp.take(9, 'm'), '{}', 'gives nothing back');
select is(
    array(
        select d.payload #>> '{}'
          from pgq_complete_and_dequeue(
                   array(select j.id from pg_temp.jobs('m') j where j.payload in ('"6"', '"7"')),
                   array(select j.token from pg_temp.jobs('m') j where j.payload in ('"6"', '"7"')),
                   9, queue => 'm'
               ) d
    ), '{9,10}', 'what is completed with the next claim gives its permits to that claim');
select is(pg_temp.active('m'), 3, 'which are all that there are');

-- What is rolled back.
savepoint s;
select pg_temp.end_of('m', '8') \g /dev/null
select is(pg_temp.take(9, 'm'), '{11}', 'a permit is used again');
rollback to s;
select is(pg_temp.take(9, 'm'), '{}', 'a completion that is rolled back has not given it back');
select pg_temp.end_of('m', '8') \g /dev/null
savepoint s;
select is(pg_temp.take(9, 'm'), '{11}', 'a claim takes it');
rollback to s;
select is(pg_temp.take(9, 'm'), '{11}', 'a claim that is rolled back has not');

-- One given job.
select throws_ok(
    $$ select pgq_claim(j.id) from pg_temp.job('m', '20') j $$, '55000', null,
    'a given job of a queue at its limit cannot be claimed');
select throws_ok(
    $$ select pgq_claim(j.id) from pg_temp.job('m', '9') j $$, '55P03', null,
    'one that is active is told from that');
select pg_temp.end_of('m', '9') \g /dev/null
select is(
    (select (pgq_claim(j.id)).payload #>> '{}' from pg_temp.job('m', '20') j), '20',
    'below the limit it can');
select is(pg_temp.take(9, 'm'), '{}', 'and takes a permit');

-- Popped jobs.
select pg_temp.end_of('m', l) from unnest('{10,11,20}'::text[]) l \g /dev/null
select is((select count(*) from pgq_pop(99, 'm')), 3::bigint, 'at most max_active are popped');
savepoint s;
select pgq_pop(2, 'm') \g /dev/null
rollback to s;
select is(pg_temp.active('m'), 0, 'no popped job is active');

-- Expired leases.
select is(pg_temp.take(9, 'm'), '{15,16,17}', 'three run');
select pg_temp.now_is(pgq._now() + '31 seconds') \g /dev/null
select is(pg_temp.take(9, 'm'), '{}', 'an expired lease keeps its permit');
savepoint s;
select is(
    (select (pgq_claim(j.id)).attempt from pg_temp.job('m', '15') j), 2,
    'its job can be claimed again by its id');
select is(pg_temp.active('m'), 3, 'with that permit');
rollback to s;
select is(
    (select pgq_heartbeat(j.id, j.token) from pg_temp.job('m', '16') j),
    pgq._now() + '30 seconds', 'it can be renewed');
select id as old_id, token as old_token from pg_temp.job('m', '15') \gset
select pg_temp.tick() \g /dev/null
select is(pg_temp.take(9, 'm'), '{15,17}', 'a tick gives the permits of the others back');
select is(pgq_complete(:old_id, :old_token), false, 'whose receipts are stale');
select is(pg_temp.take(9, 'm'), '{}', 'and give nothing back');
select pg_temp.end_of('m', '16') \g /dev/null
select pg_temp.forgive(), pg_temp.wait('31 seconds') \g /dev/null
select is(pg_temp.take(1, 'm'), '{15}', 'below the limit an expired job is claimed again');
select is(pg_temp.take(1, 'm'), '{17}', 'so is the other, with the permit that the first one had');
select is(pg_temp.take(9, 'm'), '{18}', 'and there is one more');
select is(pg_temp.take(9, 'm'), '{}', 'but no fourth');
select pg_temp.now_is(pgq._now() + '31 seconds'), pg_temp.forgive() \g /dev/null
select is((select count(*) from pgq_reclaim('m')), 3::bigint, 'leases are taken back');
select is(pg_temp.take(9, 'm'), '{15,17,18}', 'and their permits');
select pgq_cancel(j.id) from pg_temp.jobs('m') j where j.token is not null \g /dev/null
select pg_temp.wait('31 seconds'), pg_temp.tick() \g /dev/null
select is(
    pg_temp.take(9, 'm'), '{19,21,22}', 'so are those of cancelled jobs whose worker is gone');

-- Moved jobs.
select pgq._move(0::smallint, 1::smallint, 1000) \g /dev/null
select is(
    (select array_agg(distinct j.slot) from pg_temp.jobs('m') j), '{1}', 'all jobs are moved');
select pg_temp.add('new', 'm') \g /dev/null
select is(pg_temp.take(9, 'm'), '{}', 'with their permits');
select pgq._move(1::smallint, 2::smallint, 1000) \g /dev/null
insert into pgq.ring (gen, live, ready, parked, switched_at)
select r.gen + 1, '{2,0}', '{2,0}', r.parked, r.switched_at
  from pgq.ring r order by r.gen desc limit 1;
select is(pg_temp.take(9, 'm'), '{}', 'more than once');
select is(pg_temp.end_of('m', '21'), true, 'a moved job completes with its old receipt');
select is(pg_temp.take(9, 'm'), '{23}', 'and gives its permit back');

-- Another max_active.
select pgq_configure_queue('m', max_active => 5) \g /dev/null
select is(pg_temp.take(9, 'm'), '{24,25}', 'when it is raised more jobs start');
select pgq_configure_queue('m', max_active => 3) \g /dev/null
select pg_temp.end_of('m', '19') \g /dev/null
select pg_temp.end_of('m', '22') \g /dev/null
select is(pg_temp.active('m'), 3, 'when it is lowered');
select is(pg_temp.take(9, 'm'), '{}', 'none starts while so many are active as may be');
select pg_temp.end_of('m', '23') \g /dev/null
select is(pg_temp.take(9, 'm'), '{26}', 'then one at a time');
select is(pg_temp.take(9, 'm'), '{}', 'and no more');
select pg_temp.end_of('m', '25') \g /dev/null
select is(pg_temp.take(9, 'm'), '{27}', 'whichever of them ends');
select pgq_configure_queue('m', max_active => 1) \g /dev/null
select pg_temp.end_of('m', '26') \g /dev/null
select pg_temp.end_of('m', '27') \g /dev/null
select is(pg_temp.take(9, 'm'), '{}', 'the last one that ran before counts, too');
select pg_temp.end_of('m', '24') \g /dev/null
select is(pg_temp.take(9, 'm'), '{28}', 'one runs');
select pgq_configure_queue('m', max_active => 0) \g /dev/null
select is(pg_temp.take(4, 'm'), '{29,30,31,32}', 'without a limit any number');
select pgq_configure_queue('m', max_active => 6) \g /dev/null
select is(pg_temp.take(9, 'm'), '{33}', 'what runs when a queue gets a limit counts');
select is(pg_temp.end_of('m', '30'), true, 'and gives its permit back');
select is(pg_temp.take(9, 'm'), '{34}', 'to another one');
select pgq_configure_queue('m', max_active => 0) \g /dev/null
select pgq_configure_queue('m', max_active => 2) \g /dev/null
select is(pg_temp.take(9, 'm'), '{}', 'also when more run than may');
select pgq_complete(j.id, j.token) from pg_temp.jobs('m') j
 where j.token is not null and j.payload <> '"34"' \g /dev/null
select is(pg_temp.take(9, 'm'), '{35}', 'until enough of them have ended');

select pgq_configure_queue('m', max_active => 8) \g /dev/null
select is(pg_temp.take(5, 'm'), '{36,37,38,39,40}', 'it is raised, too');
select pgq_configure_queue('m', max_active => 2) \g /dev/null
select pg_temp.end_of('m', l) from unnest('{34,35,36,37,38,40}'::text[]) l \g /dev/null
select pgq._drop_permits() \g /dev/null
select is(pg_temp.take(9, 'm'), '{41}', 'ticks drop the permits above it');
select is(
    (select array_agg(p.n order by p.n) from pgq.permit p join pgq.queue q on q.id = p.queue_id
      where q.name = 'm'),
    '{1,2,5}', 'but not those that are in use');
select pgq_configure_queue('m', max_active => 4) \g /dev/null
select is(pg_temp.take(9, 'm'), '{42,43}', 'and they are there again when it is raised');

-- The last two of these claims look at more permits than their first few.
select pgq_create_queue('fifty', max_active => 50), pg_temp.fill(60, 'fifty') \g /dev/null
select is(pg_temp.taken('fifty', 40), 40, 'forty of fifty');
select is(pg_temp.taken('fifty', 15), 10, 'the last ten are found');
select is(pg_temp.taken('fifty', 15), 0, 'and none twice');
select is(pg_temp.taken('fifty', 2147483647), 0, 'a batch may be as large as an integer');

-- Several priorities and queues; odd names.
select pgq_create_queue('q"u''o $1', max_active => 3), pgq_create_queue('free') \g /dev/null
select pg_temp.add(l, 'q"u''o $1', p)
  from unnest('{a,b,c,d}'::text[], '{0,5,0,9}'::integer[]) w (l, p) \g /dev/null
select pg_temp.fill(9, 'free') \g /dev/null
select is(pg_temp.take(1, 'q"u''o $1'), '{d}', 'the highest priority goes first');
select is(
    array(
        select format('%s %s', d.queue, d.payload #>> '{}')
          from pgq_dequeue(6, '30 s', '{"q\"u''o $1",m,free}'::text[]) d
    ),
    array['q"u''o $1 b', 'q"u''o $1 a', 'free 1', 'free 2', 'free 3', 'free 4'],
    'the limit counts for all priorities, and each queue has its own');
select is(pg_temp.taken('q"u''o $1'), 0, 'it is reached');
select pg_temp.end_of('q"u''o $1', 'd') \g /dev/null
select is(pg_temp.take(9, 'q"u''o $1'), '{c}', 'and a permit is for any priority');
select lives_ok($$ select pgq_drop_queue('q"u''o $1', true) $$, 'a queue with permits is dropped');
update pgq.dropped set xid = '3';  -- ticks are another transaction's
select pgq._forget_dropped() from generate_series(1, 3) \g /dev/null
select is(
    (select count(*) from pgq.permit p where not exists (
         select from pgq.queue q where q.id = p.queue_id
     )), 0::bigint, 'and ticks remove them');

-- How many start: four a minute, one each 15 seconds.
select pg_temp.now_is('2040-02-01 00:00:00+00'), pg_temp.wait('0') \g /dev/null
select pgq_create_queue('r', rate_limit => 4, rate_interval => '1 minute') \g /dev/null
select pg_temp.fill(99, 'r') \g /dev/null
select is(pg_temp.take(9, 'r', '20 days'), '{1,2,3,4}', 'rate_limit jobs start at once');
select is(pg_temp.taken('r'), 0, 'and no more');
select pg_temp.end_of('r', '1') \g /dev/null
select is(pg_temp.taken('r'), 0, 'a job that has ended gives its start not back');
select pg_temp.wait('14.999 seconds') \g /dev/null
select is(pg_temp.taken('r'), 0, 'until its time has come');
select pg_temp.wait('1 millisecond') \g /dev/null
select is(pg_temp.take(9, 'r', '20 days'), '{5}', 'the next one does not start');
select pg_temp.wait('30 seconds') \g /dev/null
select is(pg_temp.take(9, 'r', '20 days'), '{6,7}', 'starts that nobody used can be used later');
select pg_temp.wait('22 seconds') \g /dev/null
select is(pg_temp.take(9, 'r', '20 days'), '{8}', 'a late start');
select pg_temp.wait('8 seconds') \g /dev/null
select is(pg_temp.take(9, 'r', '20 days'), '{9}', 'does not delay the next one');
select pg_temp.wait('1 hour') \g /dev/null
select is(pg_temp.take(2, 'r', '20 days'), '{10,11}', 'after a pause');
select is(pg_temp.taken('r'), 2, 'there are so many as at first');
select is(pg_temp.taken('r'), 0, 'and no more');
select throws_ok(
    $$ select pgq_claim(j.id) from pg_temp.job('r', '50') j $$, '55000', null,
    'nor can a given job start');
select pg_temp.wait('15 seconds') \g /dev/null
select is(
    (select (pgq_claim(j.id)).payload #>> '{}' from pg_temp.job('r', '50') j), '50',
    'before the next start');
select is(pg_temp.taken('r'), 0, 'which it uses');
select pg_temp.wait('1 hour') \g /dev/null
savepoint s;
select is(pg_temp.taken('r', 3), 3, 'a claim uses three');
rollback to s;
select is(pg_temp.taken('r'), 4, 'when it is rolled back they come back');
select pg_temp.wait('15 seconds') \g /dev/null
select is(
    (select pgq_release(j.id, j.token) from pg_temp.jobs('r') j where j.token is not null limit 1),
    true, 'a job is given back');
select is(pg_temp.taken('r'), 1, 'one start is there');
select is(pg_temp.taken('r'), 0, 'and each try needs one');
select pg_temp.wait('1 hour') \g /dev/null
select is(
    (select count(*) from pgq_pop(1, 'r')), 1::bigint, 'a pop');
select is(
    (select count(*) from pgq_complete_and_dequeue('{}', '{}', 9, queue => 'r')), 3::bigint,
    'needs a start, too');

-- No more than are used.
select pgq_create_queue('few', max_active => 5, rate_limit => 4) \g /dev/null
select pg_temp.add('1', 'few') \g /dev/null
select is(pg_temp.take(9, 'few', '20 days'), '{1}', 'a claim of many finds one');
select pg_temp.fill(9, 'few') \g /dev/null
select is(pg_temp.taken('few'), 3, 'and has used one start');
select pg_temp.wait('1 minute') \g /dev/null
select is(pg_temp.taken('few'), 1, 'and one permit for each job');

-- Other rates.
select pg_temp.wait('1 hour'), pgq_configure_queue('r', rate_burst => 10) \g /dev/null
select is(pg_temp.taken('r'), 10, 'after a pause rate_burst jobs start at once');
select pg_temp.wait('30 seconds'), pgq_configure_queue('r', rate_burst => 2) \g /dev/null
select is(pg_temp.taken('r'), 2, 'with a lower burst');
select is(pg_temp.taken('r'), 0, 'so many less');
select pg_temp.now_is(pgq._now() + '30 seconds'), pgq_configure_queue('r', rate_burst => 3) \g /dev/null
select is(pg_temp.taken('r'), 2, 'what started before another burst is set counts');
select pg_temp.wait('1 hour'), pg_temp.taken('r') \g /dev/null
select pgq_configure_queue('r', rate_interval => '1 second') \g /dev/null
select is(pg_temp.taken('r'), 3, 'another rate begins with all starts');
select pg_temp.wait('250 milliseconds') \g /dev/null
select is(pg_temp.taken('r'), 1, 'and counts at once');
select pg_temp.tick(9) \g /dev/null
select is(
    (select count(*) from pgq.start s join pgq.queue q on q.id = s.queue_id where q.name = 'r'),
    0::bigint, 'ticks forget what is used up');
select pgq_configure_queue('r', rate_limit => 0) \g /dev/null
select is(pg_temp.taken('r', 20), 20, 'without a rate any number starts');

-- Ageing.
select pgq_create_queue('age', priority_ageing => '1 minute') \g /dev/null
select pg_temp.add('low', 'age'), pg_temp.add('late', 'age', 0, '10 minutes') \g /dev/null
select pg_temp.add('high 1', 'age', 2), pg_temp.add('high 2', 'age', 2) \g /dev/null
select is(pg_temp.take(1, 'age', '20 days'), '{"high 1"}', 'a higher priority goes first');
select pg_temp.wait('59 seconds') \g /dev/null
select is(
    pg_temp.take(1, 'age', '20 days'), '{"high 2"}', 'also if a lower one waits for a while');
select pg_temp.wait('1 minute 1 second') \g /dev/null
select pg_temp.add('high 3', 'age', 2) \g /dev/null
select is(pg_temp.take(1, 'age', '20 days'), '{"high 3"}', 'or for so long that it counts as much');
select pg_temp.wait('1 minute'), pg_temp.add('high 4', 'age', 2) \g /dev/null
select is(pg_temp.take(1, 'age', '20 days'), '{low}', 'but not for longer');
select pg_temp.wait('7 minutes 30 seconds') \g /dev/null
select pg_temp.add('high 5', 'age', 2), pg_temp.add('low 2', 'age') \g /dev/null
select is(
    pg_temp.take(9, 'age', '20 days'), '{"high 4","high 5",late,"low 2"}',
    'a scheduled job has been ready since it fell due');
select lives_ok(
    $$ select pgq_configure_queue('age', priority_ageing => '-1 year 365 days 6 hours'),
              pg_temp.add('odd', 'age'), pg_temp.take(1, 'age', '20 days') $$,
    'an interval without seconds never ages');

-- What is refused.
select throws_ok(
    format($$ select pgq_create_queue('bad', %s) $$, s), '22023', null, s || ' is refused')
  from unnest(array[
           'max_active => -1', 'max_active => 10001', 'rate_limit => -1', 'rate_limit => 1000001',
           'rate_burst => -1', 'rate_burst => 10001',
           'rate_interval => interval ''0''', 'rate_interval => interval ''1 microsecond''',
           'rate_interval => interval ''1001 years''', 'rate_limit => 10001',
           'priority_ageing => interval ''-1 s'''
       ]) s;
select lives_ok(
    $$ select pgq_create_queue('fast', rate_limit => 1000000, rate_burst => 10000,
                               rate_interval => '1 millisecond'),
              pg_temp.fill(1, 'fast'), pg_temp.take(1, 'fast', '20 days'), pgq._tick() $$,
    'the highest rate works');

select * from finish();
rollback;
