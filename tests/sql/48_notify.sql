/*
 * Who is notified, and of what: nobody who does not sleep, nor of what comes late.
 */
begin;
select plan(9);
\ir support/clock.psql

\ir support/woken.psql
create function pg_temp.woken() returns bigint language plpgsql as $$
declare
    v_count bigint;
begin
    delete from pg_temp.woken;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
create function pg_temp.give_back(p_delay interval default '0') returns boolean language sql as $$
    select pgq_release(d.id, d.token, p_delay) from pgq_dequeue() d
$$;
create function pg_temp.sleep() returns void language sql as $$
    update pgq.lane set awaited_until = pgq._now() + '3 minutes'
$$;

select pg_temp.add('1') \g /dev/null
select is(pg_temp.woken(), 0::bigint, 'where nobody sleeps nobody is notified of a new job');
select is(pg_temp.give_back(), true, 'a job is given back');
select is(pg_temp.woken(), 0::bigint, 'nor of one that comes back');
select pg_temp.sleep(), pg_temp.give_back() \g /dev/null
select is(pg_temp.woken(), 1::bigint, 'where somebody sleeps it is');
select pg_temp.pass('3 minutes'), pg_temp.give_back() \g /dev/null
select is(pg_temp.woken(), 0::bigint, 'until it is awake, as far as is known');
select pg_temp.sleep(), pg_temp.give_back('59 s') \g /dev/null
select is(pg_temp.woken(), 1::bigint, 'it is notified of what falls due before it looks by itself');
select pg_temp.sleep(), pg_temp.add('2') \g /dev/null
select is(pg_temp.woken(), 1::bigint, 'and of what is ready');
select pg_temp.give_back('60 s') \g /dev/null
select is(pg_temp.woken(), 0::bigint, 'but not of what falls due later');
select pg_temp.add('3', p_delay => '2 minutes') \g /dev/null
select is(pg_temp.woken(), 0::bigint, 'nor of such a new job');

select * from finish();
rollback;
