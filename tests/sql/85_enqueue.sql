/*
 * Enqueue under REPEATABLE READ, whose snapshot may show a queue that has been dropped since: each
 * call locks the row of its queue, which tells.
 */
begin isolation level repeatable read;
select plan(5);
\ir support/clock.psql

set local track_functions = 'all';
create function pg_temp.locks(p_call text) returns bigint language plpgsql as $$
declare
    v_hold constant oid := 'pgq._hold_queue(text, integer, text)'::regprocedure;
    v_before constant bigint := coalesce(pg_stat_get_xact_function_calls(v_hold), 0);
begin
    execute 'select ' || p_call;
    return coalesce(pg_stat_get_xact_function_calls(v_hold), 0) - v_before;
end
$$;
select pg_temp.add('a first job adds a lane, for which the queue is locked anyway') \g /dev/null
select is(pg_temp.locks($$ pgq_enqueue('1') $$), 1::bigint, 'one job locks its queue');
select is(pg_temp.locks($$ pgq_enqueue_many('{1,2}') $$), 1::bigint, 'so do several');
select is(
    pg_temp.locks($$ pgq_enqueue('1', run_at => pgq._now() + '1 hour') $$), 1::bigint,
    'and one that is scheduled');
select is(
    (select q.xmax <> 0 from pgq.queue q where q.name = 'default'), true,
    'which keeps the queue from being dropped');
select is(cardinality(pg_temp.take(9)), 4, 'the jobs are claimed');

select * from finish();
rollback;
