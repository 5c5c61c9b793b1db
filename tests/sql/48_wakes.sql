/*
 * Who sleeps is woken for what can be claimed soon, and for nothing else.
 */
begin;
select plan(9);
\ir support/clock.psql

-- How often others have been told in this transaction.
set local track_functions = 'all';
create function pg_temp.calls() returns bigint language sql as $$
    select coalesce(pg_stat_get_xact_function_calls('pgq._wake(integer)'::regprocedure), 0)
$$;
create function pg_temp.wakes(p_call text) returns bigint language plpgsql as $$
declare
    v_before constant bigint := pg_temp.calls();
begin
    execute 'select ' || p_call;
    return pg_temp.calls() - v_before;
end
$$;
select pgq_create_queue('q') \g /dev/null
select pg_temp.add('one') as one, pg_temp.add('two', 'q', p_delay => '10 s') as two \gset
update pgq.lane set awaited_until = pgq._now() + interval '1 hour';

select is(pg_temp.wakes($$ pgq_enqueue('1') $$), 1::bigint, 'a ready job wakes who sleeps');
select is(
    pg_temp.wakes($$ pgq_enqueue('1', run_at => pgq._now() + '10 s') $$), 1::bigint,
    'so does one that falls due before sleepers look');
select is(
    pg_temp.wakes($$ pgq_enqueue('1', run_at => pgq._now() + '1 hour') $$), 0::bigint,
    'not a later one');
select is(
    pg_temp.wakes(format($$ pgq_enqueue('1', after => '{%s}') $$, :one)), 0::bigint,
    'nor one that waits for others');
select is(
    pg_temp.wakes(format($$ pgq_move(max(j.id), 'q') from pgq.job j where j.place is null
                             and j.due is null and j.pos is null $$)), 0::bigint,
    'nor when it is moved to another queue');
select is(
    pg_temp.wakes(format('pgq_move(%s, ''default'')', :two)), 1::bigint, 'as a scheduled one does');
select is(pg_temp.wakes('pgq_pause(''q'')'), 0::bigint, 'a pause wakes nobody');
select is(pg_temp.wakes('pgq_resume(''q'')'), 1::bigint, 'its end does');
update pgq.lane set awaited_until = null;
select is(
    pg_temp.wakes($$ pgq_enqueue('1') $$)
    + pg_temp.wakes($$ pgq_enqueue('1', run_at => pgq._now() + '10 s') $$), 0::bigint,
    'where nobody sleeps nobody is told');

select * from finish();
rollback;
