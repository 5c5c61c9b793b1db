/*
 * How long pgq_wait lets a session sleep, and what it refuses.
 */
begin;
select plan(59);
\ir support/clock.psql

-- A second call: others notice by then. As if it had never worked, so that it does not linger.
create function pg_temp.sleep(p_queues text[] default '{default}', p_max interval default '30 s')
returns interval language plpgsql as $$
begin
    perform pgq_wake(), set_config('pgq.round', '0', true), set_config('pgq.ready', '', true),
            set_config('pgq.idle', '', true);
    perform pgq_wait(p_queues, p_max);
    perform set_config('pgq.round', '0', true), set_config('pgq.ready', '', true);
    return pgq_wait(p_queues, p_max);
end
$$;
create function pg_temp.locks() returns bigint language sql as $$
    select count(*) from pg_locks l
     where l.locktype = 'advisory' and l.classid = 1885826917 and l.pid = pg_backend_pid()
       and l.mode = 'ShareLock'
$$;

-- Who waits is known.
select is(pg_temp.locks(), 0::bigint, 'nobody waits');
select cmp_ok(pgq_wait('{default}'), '<', interval '1 s', 'first it takes a moment until others notice');
select is(pgq_wait('{default}'), interval '30 s', 'then nothing is to be done for long');
select is(pg_temp.locks(), 1::bigint, 'others can see that it waits');
select pgq_wait('{default}'), pgq_wait('{default,default}') \g /dev/null
select is(pg_temp.locks(), 1::bigint, 'once, however often it asks');
select pgq_create_queue('it''s a "queue"') \g /dev/null
select pgq_wait('{default,"it''s a \"queue\""}'), pg_temp.wait('40 ms') \g /dev/null
select pgq_wait('{default,"it''s a \"queue\""}') \g /dev/null
select is(pg_temp.locks(), 2::bigint, 'for each of its queues');
select pgq_wait(array['it''s a "queue"']) \g /dev/null
select is(pg_temp.locks(), 1::bigint, 'and for no other');
select pgq_wake() \g /dev/null
select is(pg_temp.locks(), 0::bigint, 'pgq_wake ends it');
select lives_ok('select pgq_wake()', 'also when it had not begun');
select matches(pgq_channel('default'), '^pgq_[0-9]+$', 'each queue has a channel');
select isnt(pgq_channel('default'), pgq_channel('it''s a "queue"'), 'of its own');

-- When there is something to claim.
select pg_temp.add('one') \g /dev/null
select is(pg_temp.sleep(), interval '0', 'a ready job is to be claimed now');
select is(pg_temp.sleep(array['it''s a "queue"']), interval '30 s', 'not one of another queue');
select is(pg_temp.sleep('{default,"it''s a \"queue\""}'), interval '0', 'but one of any of several');
select pgq_pause('default') \g /dev/null
select is(pg_temp.sleep(), interval '30 s', 'nor one of a paused queue');
select pgq_resume('default') \g /dev/null
select is(pg_temp.sleep(), interval '0', 'until that is resumed');
select id, token from pgq_dequeue(1, '12 s') \gset
select is(pg_temp.sleep(), interval '12 s', 'a lease that will expire');
select pgq_heartbeat(:id, :token, '20 s') \g /dev/null
select is(pg_temp.sleep(), interval '20 s', 'that was renewed');
select pgq_heartbeat(:id, :token, '1 hour') \g /dev/null
select is(pg_temp.sleep(), interval '30 s', 'and one that is too long to wait for');
select pgq_heartbeat(:id, :token, '12 s'), pg_temp.wait('12 s') \g /dev/null
select is(pg_temp.sleep(), interval '0', 'one that has expired is to be claimed now');
select pg_temp.take() \g /dev/null
select pgq_purge('default'), pgq_complete(j.id, j.token) from pgq.job j \g /dev/null
select is(pg_temp.sleep(), interval '30 s', 'nothing is left');

-- When something falls due.
select pg_temp.add('later', p_delay => '25 s') \g /dev/null
select cmp_ok(pg_temp.sleep(), '>=', interval '25 s', 'not before a scheduled job falls due');
select cmp_ok(pg_temp.sleep(), '<', interval '25.01 s', 'and hardly after it');
select pg_temp.add('sooner', p_priority => 5, p_delay => '5 s') \g /dev/null
select cmp_ok(pg_temp.sleep(), '<', interval '5.01 s', 'the soonest counts, whatever its priority');
select pg_temp.wait('5.01 s') \g /dev/null
select is(pg_temp.sleep(), interval '0', 'then it is to be claimed');
select is(pg_temp.take(), '{sooner}', 'and can be');
select pgq_complete(j.id, j.token), pgq_purge('default') from pgq.job j where j.token is not null \g /dev/null
select pgq_enqueue('1', group_key => 'g'), pgq_enqueue('2', group_key => 'g') \g /dev/null
select set_config('pgq.decided', '', true) \g /dev/null
set constraints all immediate;
set constraints all deferred;
select pgq._take_hints() \g /dev/null
select is(pg_temp.sleep(), interval '0', 'the head of a group is to be claimed');
select pgq_dequeue(1, '1 hour') \g /dev/null
select is(pg_temp.sleep(), interval '30 s', 'its followers are not');
delete from pgq.job;
select pgq_schedule('s', '1 * * * *') \g /dev/null
select pg_temp.now_is('2040-01-01 01:00:50+00') \g /dev/null
update pgq.schedule set next_at = '2040-01-01 01:01';
select is(pg_temp.sleep(), interval '10 s', 'a schedule wakes the session that fires it');
select is(pg_temp.sleep(array['it''s a "queue"']), interval '30 s', 'not those of other queues');
select pgq_pause_schedule('s') \g /dev/null
select is(pg_temp.sleep(), interval '30 s', 'nor does it while it is paused');
select pgq_unschedule('s') \g /dev/null

-- How long at most.
select is(pg_temp.sleep(p_max => '100 ms'), interval '100 ms', 'max_wait is kept');
select is(pg_temp.sleep(p_max => '0'), interval '0', 'also if it is nothing');
select is(pg_temp.sleep(p_max => '1 day'), interval '1 minute', 'a minute is the longest: till then no job is announced that falls due later');
update pgq.lane set awaited_until = pgq._now() + interval '2 minutes 5 s' where queue = 'default';
select pg_temp.wait('30 s') \g /dev/null
select cmp_ok(
    (select pgq_wait('{default}') from (select pgq_wait('{default}')) w), '<=', interval '1 minute',
    'others go on to notice');
select cmp_ok((select max(l.awaited_until) from pgq.lane l where l.queue = 'default'), '>', pgq._now() + interval '2 minutes', 'for longer than it sleeps');

-- Who has just worked lingers: it naps, and is not known.
select pgq_purge('default'), pg_temp.sleep(), pgq_wake() \g /dev/null
select is(pgq_wait('{default}'), interval '10 ms', 'after work it naps');
select is(pg_temp.locks(), 0::bigint, 'while nobody has to notify it');
select is(pgq_wait('{default}', '3 ms'), interval '3 ms', 'never longer than max_wait');
select pg_temp.wait('10 ms') \g /dev/null
select is(pgq_wait('{default}'), interval '10 ms', 'then it naps again');
select pg_temp.add('next') \g /dev/null
select is(pgq_wait('{default}'), interval '0', 'or is told of a job that has come');
select pgq_wake(), pg_temp.take() \g /dev/null
select pgq_complete(j.id, j.token) from pgq.job j where j.token is not null \g /dev/null
select is(pgq_wait('{default}'), interval '10 ms', 'and lingers anew when that is done');
select pg_temp.wait('39 ms') \g /dev/null
select is(pgq_wait('{default}'), interval '10 ms', 'for 40 ms');
select is(pg_temp.locks(), 0::bigint, 'nobody knows it till then');
select pg_temp.wait('1 ms') \g /dev/null
select is(pgq_wait('{default}'), interval '30 s', 'and then it sleeps');
select is(pg_temp.locks(), 1::bigint, 'and is known');
select is(pgq_wait('{default,"it''s a \"queue\""}'), interval '10 ms', 'it lingers for a queue in which it has just worked');
select is(pg_temp.locks(), 1::bigint, 'and stays known for the other one');
select pgq_wake(), pgq_wait('{default}'), pg_temp.wait('-1 s') \g /dev/null
select is(pgq_wait('{default}'), interval '30 s', 'when the clock is set back it does not linger for that time');

-- At a limit, where what is ready cannot be claimed.
select pgq_create_queue('tight', max_active => 1) \g /dev/null
select pgq_enqueue('1', 'tight'), pg_temp.wait('1 s') from generate_series(1, 3) \g /dev/null
select pgq_dequeue(1, '1 hour', 'tight') \g /dev/null
select pgq_wake(), pg_temp.sleep('{tight}') \g /dev/null
create temp table pause as
select n, pgq_wait('{tight}') as t from generate_series(1, 2100) n;
select is((select count(*) from pause p where p.t = '0'), 1050::bigint, 'every other call says to try it');
select is((select max(p.t) from pause p), interval '1 s', 'in between it sleeps for a second at most');
select is((select count(*) from pause p where p.n > 30 and p.t not in ('0', '1 s')), 0::bigint, 'for ever, not only a thousand times');
select pgq_complete(j.id, j.token) from pgq.job j where j.token is not null \g /dev/null
select pgq_dequeue(1, '1 hour', 'tight') \g /dev/null
select cmp_ok(
    greatest(pgq_wait('{tight}'), pgq_wait('{tight}')), '<=', interval '10 ms',
    'when another job is the next it looks soon');

create function pg_temp.try_in_vain(p_times integer) returns setof interval language plpgsql as $$
declare
    v_pause interval;
begin
    for v_try in 1..p_times loop
        v_pause := pgq_wait('{tight}');
        perform pg_temp.wait(v_pause);
        perform pgq_wake(), pg_temp.take(1, 'tight') where v_pause = '0';
        return next v_pause;
    end loop;
end
$$;
select pgq_wake(), set_config('pgq.round', '0', true), set_config('pgq.ready', '', true) \g /dev/null
create temp table trial as select t, row_number() over () as n from pg_temp.try_in_vain(120) t;
select cmp_ok((select max(t) from trial where n <= 15), '<=', interval '10 ms', 'who was given jobs lingers also at a limit');
select is(
    (select array_agg(distinct t) from trial where n > 60), '{0,1 s}',
    'but not if it tries in vain again and again');

-- Bad input.
select is(
    array(select pg_temp.code(c) from unnest(array[
        'pgq_wait(null)', 'pgq_wait($${null}$$)', 'pgq_wait($${default}$$, null)', 'pgq_channel(null)'
    ]) c), '{22004,22004,22004,22004}', 'what must not be null');
select is(
    array(select pg_temp.code(c) from unnest(array[
        'pgq_wait($${none}$$)', 'pgq_wait($${default,none}$$)', 'pgq_channel($$none$$)'
    ]) c), '{42704,42704,42704}', 'unknown queues');
select is(
    array(select pg_temp.code(c) from unnest(array[
        'pgq_wait($${{default}}$$)', 'pgq_wait($${default}$$, $$-1 s$$)', 'pgq_wait($${default}$$, $$2000 years$$)'
    ]) c), '{22023,22023,22023}', 'other bad values');
select is(pgq_wait('{}', '5 s') <= '5 s', true, 'no queue at all');

select * from finish();
rollback;
