/*
 * Claims that return all jobs that there are leave maintenance to the next ones, for a while.
 */
begin;
select plan(26);
\ir support/clock.psql

-- A job is added, and claimed by a call that asks for two.
create function pg_temp.one() returns text[] language plpgsql as $$
begin
    perform pg_temp.add('x');
    return pg_temp.take(2, 'default', '1 day');
end
$$;

create function pg_temp.chores() returns bigint language sql as $$
    select count(*) from pgq.chore
$$;

-- The time goes on without maintenance.
create function pg_temp.later(p_time interval) returns void language plpgsql as $$
begin
    perform pg_temp.now_is(pgq._now() + p_time);
end
$$;

-- Maintenance has run, and is due again.
create function pg_temp.due(p_since interval default '10 ms') returns void language plpgsql as $$
begin
    delete from pgq.chore;
    perform pg_temp.later('10 seconds'),
            setval('pgq.next_tick', pgq._ms(pgq._now() - p_since)),
            setval('pgq.last_tick', pgq._ms(pgq._now() - interval '500 ms'));
end
$$;

create function pg_temp.wait_read_only() returns interval language plpgsql as $$
begin
    perform set_config('transaction_read_only', 'on', true);
    raise exception using errcode = 'P0099', message = pgq_wait('{default}')::text;
exception
    when sqlstate 'P0099' then
        return sqlerrm::interval;
end
$$;

select pgq_create_queue('empty'), pgq_create_queue('two') \g /dev/null
select pg_temp.add(i::text, 'two', i) from generate_series(1, 2) i \g /dev/null
select pg_temp.take(1, 'empty'), setval('pgq.put_off', 1) \g /dev/null

select pg_temp.due() \g /dev/null
select is(pg_temp.one(), '{x}', 'a claim that returns the only job');
select is(pg_temp.chores(), 0::bigint, 'leaves maintenance');
select is(pg_temp.take(1, 'empty'), '{}', 'to one that returns none');
select is(pg_temp.chores(), 1::bigint, 'which does it, due or not');

select pg_temp.due() \g /dev/null
select is(pg_temp.take(1, 'empty'), '{}', 'a claim that returns none');
select is(pg_temp.chores(), 1::bigint, 'does maintenance that is due');

select pg_temp.due(), pg_temp.add('x'), pg_temp.take(1, 'default', '1 day') \g /dev/null
select is(pg_temp.chores(), 1::bigint, 'and so does one that returns as many as it asks for');
select cmp_ok((select r.last_value from pgq.next_tick r), '=', pgq._ms(pgq._now()) + 500,
              'for half a second');

select pg_temp.due(), pg_temp.one(), pg_temp.later('99 ms'), pg_temp.one() \g /dev/null
select is(pg_temp.chores(), 0::bigint, 'those that return jobs leave it for a tenth of a second');
select pg_temp.later('1 ms'), pg_temp.one() \g /dev/null
select is(pg_temp.chores(), 1::bigint, 'then they do it');

-- The clock was set back.
select pg_temp.due(), setval('pgq.put_off', pgq._ms(pgq._now()) + 1000), pg_temp.one() \g /dev/null
select is(pg_temp.chores(), 1::bigint, 'nor is it left from some time to come');
select pg_temp.take(1, 'empty'), pg_temp.one(), pg_temp.take(1, 'empty') \g /dev/null
select is(pg_temp.chores(), 1::bigint, 'and not done more than once');
select pg_temp.due('-1 ms'), pg_temp.take(1, 'empty'), pg_temp.one() \g /dev/null
select is(pg_temp.chores(), 0::bigint, 'nor when it is not due');

select pg_temp.due(), pg_temp.one(), pgq_wake(), pgq_wait('{default}') \g /dev/null
select is(pg_temp.chores(), 0::bigint, 'who takes a nap may have jobs in a moment, and leaves it');
select pg_temp.later('10 ms') \g /dev/null
select is(pg_temp.wait_read_only(), interval '10 ms', 'who may not write can wait');
select is(pg_temp.chores(), 0::bigint, 'and leaves it');
select pgq_wait('{default}') \g /dev/null
select is(pg_temp.chores(), 1::bigint, 'who naps on does it');
select pg_temp.due(), pg_temp.one(), pg_temp.later('40 ms'), pgq_wait('{default}') \g /dev/null
select is(pg_temp.chores(), 0::bigint, 'who sleeps has a lock to give back should it fail, and leaves it');
select pgq_wake(), pg_temp.take(1, 'empty') \g /dev/null

select pg_temp.due('1 minute'), pg_temp.one() \g /dev/null
select is(pg_temp.chores(), 0::bigint, 'it may have been due for a minute');
select pg_temp.due('60001 ms'), pg_temp.one() \g /dev/null
select is(pg_temp.chores(), 1::bigint, 'but not for longer');

select pg_temp.due(), pg_temp.one(), pg_temp.later('60 seconds'), pg_temp.one() \g /dev/null
select is(pg_temp.chores(), 1::bigint, 'the next call does it, however much later');
select pg_temp.due(), pg_temp.one() from generate_series(1, 2) \g /dev/null
select is(pg_temp.chores(), 1::bigint, 'or one that is due again');
select pg_temp.due(), pg_temp.one() \g /dev/null
select is(pg_temp.chores(), 0::bigint, 'and then it may be left again');

select pg_temp.take(1, 'empty'), pg_temp.due() \g /dev/null
select is(pg_temp.take(3, 'two', '1 day'), '{2,1}', 'the same where there are several priorities');
select is(pg_temp.chores(), 0::bigint, 'which take the long way');
select pg_temp.take(1, 'two') \g /dev/null
select is(pg_temp.chores(), 1::bigint, 'and done with none');

select * from finish();
rollback;
