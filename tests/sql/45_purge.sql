/*
 * pgq_purge and pgq_cancel_all: what is kept of the jobs, and what becomes of those that wait.
 */
begin;
select plan(15);
\ir support/clock.psql
\ir support/commit.psql

create function pg_temp.state(p_id bigint) returns text language plpgsql as $$
begin
    return (select g.state from pgq_get(p_id) g);
end
$$;
select pgq_create_queue('q'), pgq_create_queue('other') \g /dev/null

-- Which rows are locked.
create function pg_temp.unlocked(p_id bigint) returns text[] language sql as $$
    select array_agg(j.slot::text order by j.slot) from pgq.job j where j.id = p_id and j.xmax = 0
$$;
create function pg_temp.write_anew() returns void language sql as $$
    with gone as (delete from pgq.job j returning j.*) insert into pgq.job select g.* from gone g
$$;
savepoint s;
select pg_temp.add('active', 'q') as active, pgq_enqueue('1', 'q', group_key => 'g') as head,
       pg_temp.commit() \gset
select pgq_claim(:active, '1 hour'), pgq_claim(:head, '1 hour'), pg_temp.add('ready', 'q')
    \g /dev/null
select pg_temp.write_anew() \g /dev/null
select is(pgq_cancel_all('q', max => 1), 1::bigint, 'one job is cancelled');
select is(pg_temp.unlocked(:active), '{0}', 'active ones are not locked for that');
select pg_temp.add('ready', 'q'), pg_temp.write_anew() \g /dev/null
select is(pgq_cancel_all('q'), 1::bigint, 'when all are cancelled');
select is(pg_temp.unlocked(:head), '{0,4}', 'a head is marked, and its row in the line not locked');
rollback to s;

-- What is kept.
select pg_temp.add('ready', 'q') as ready, pg_temp.add('scheduled', 'q', p_delay => '1 day'),
       pgq_enqueue('1', 'q', group_key => 'g') as head, pgq_enqueue('2', 'q', group_key => 'g'),
       pg_temp.commit() \gset
select pgq_enqueue('1', 'other', after => array[:ready]) as waits,
       pgq_enqueue('2', 'other', after => array[:ready], after_on_dead => 'run') as runs
    \gset
select pgq_claim(:head, '1 hour') \g /dev/null
select is(pgq_purge('q'), 3::bigint, 'jobs that are not active are purged');
select pg_temp.commit() \g /dev/null
select is(pg_temp.state(:head), 'active', 'an active one stays');
select is_empty(
    $$ select from pgq.archive a where a.queue = 'q' $$, 'nothing is kept of the others');
select is(pg_temp.state(:waits), 'dead', 'a job that was to run after one of them is dead');
select is(pg_temp.state(:runs), 'ready', 'or runs, if it was to');
select pgq_enqueue('3', 'q', group_key => 'g') as next, pg_temp.commit() \gset
select is(pg_temp.state(:next), 'waiting', 'the group goes on with other jobs');
select is(pgq_cancel_all('q'), 1::bigint, 'the same jobs are cancelled');
select is(
    (select h.cancel_requested
       from pgq.job j, pgq_heartbeat(array[j.id], array[j.token]) h
      where j.id = :head and j.token > 0),
    true, 'of an active one the worker is told');
select is(
    array(select a.id from pgq.archive a where a.queue = 'q' and a.state = 'cancelled'),
    array[:next]::bigint[], 'what is cancelled is kept');
select is(pgq_cancel_all('q', true), 1::bigint, 'with force the active one is, too, once');
select is(pg_temp.state(:head), 'cancelled', 'and is kept');

select * from finish();
rollback;
