/*
 * Where the views count, estimate or leave out jobs, and how little they read for that.
 */
begin;
select plan(20);
\ir support/clock.psql
\ir support/read.psql
\ir support/commit.psql

create function pg_temp.counts(p_queue text) returns text language plpgsql as $$
begin
    return (
        select concat_ws(' ', v.ready, 'ready', v.scheduled, 'scheduled', v.waiting, 'waiting',
                         case when v.estimated then '(estimated)' end)
          from pgq_queues v where v.queue = p_queue
    );
end
$$;
create function pg_temp.looks(p_table regclass) returns bigint language sql as $$
    select sum(pg_stat_get_xact_numscans(i.indexrelid))::bigint
      from pg_index i where i.indrelid = p_table
$$;

-- Jobs that wait for others are not due.
select pgq_create_queue('q'), pgq_create_queue('few'), pgq_create_queue('groups'),
       pgq_create_queue('last') \g /dev/null
select pg_temp.add('one') as one \gset
select pgq_enqueue('2', 'q', run_at => pgq._now() + '1 hour', after => array[:one]) as two \gset
create temp view due as
select v.oldest_ready_age as age, v.next_due from pgq_queues v where v.queue = 'q';
select pg_temp.pass('10 s') \g /dev/null
select results_eq(
    'select * from due', 'values (null::interval, null::timestamptz)',
    'a job that waits for others is not the next that falls due');
select pg_temp.pass('2 hours') \g /dev/null
select results_eq(
    'select * from due', 'values (null::interval, null::timestamptz)',
    'nor is it ready when its time has come');
select pgq_enqueue('3', 'q', group_key => 'g') as three,
       pgq_enqueue('4', 'q', group_key => 'g') as four, pg_temp.commit() \gset
select pgq_fail(d.id, d.token, 'no', '1 minute') from pgq_claim(:three) d \g /dev/null
select results_eq(
    'select * from due', $$ values (null::interval, pgq._now() + '1 minute') $$,
    'the head of a group that is tried again is the next');
select pg_temp.wait('1 minute'), pg_temp.pass('1 minute') \g /dev/null
select results_eq(
    'select * from due', $$ values (interval '1 minute', null::timestamptz) $$,
    'then it has been ready since');
select pgq_claim(:three, '1 hour') \g /dev/null
select results_eq(
    'select * from due', 'values (null::interval, null::timestamptz)',
    'until it is claimed, though its row in the line stays');
select pgq_complete(j.id, j.token) from pgq.job j where j.id = :three and j.token is not null
    \g /dev/null
select pgq_cancel_all(q.name, true), pg_temp.commit() from pgq.queue q \g /dev/null
delete from pgq.archive;

-- What has expired.
select pg_temp.now_is('2020-01-01 00:00:00+00') \g /dev/null
select pgq_fail(d.id, d.token, retryable => false) from pgq_claim(pg_temp.add('x', 'q')) d
    \g /dev/null
select pgq_complete(d.id, d.token) from pgq_claim(pg_temp.add('y', 'q')) d \g /dev/null
select is((select v.dead from pgq_queues v where v.queue = 'q'), 1::bigint,
          'a dead job is counted');
select is_empty(
    $$ select from pgq_jobs j where j.queue = 'q' and j.state = 'dead' $$,
    'by the clock of the server it has expired, and is not shown');
select pg_temp.pass('30 days') \g /dev/null
select is(
    (select v.dead from pgq_queues v where v.queue = 'q'), 0::bigint,
    'it is counted as long as it is kept');
delete from pgq.archive;
select pg_temp.now_is('2040-01-02 00:00:00+00'), pg_temp.wait('0') \g /dev/null

-- Empty and small slots.
select pgq_enqueue_many(array_fill(jsonb '1', array[500])) \g /dev/null
select pgq_enqueue_many(array_fill(jsonb '1', array[500]), run_at => pgq._now() + '1 day')
    \g /dev/null
select pgq_enqueue_many(array_fill(jsonb '1', array[500]), 'last') \g /dev/null
select pgq_enqueue('1', 'q'), pgq_enqueue('1', 'q', run_at => pgq._now() + '1 day'),
       pgq_enqueue('1', 'groups'), pgq_enqueue('1', 'few') \g /dev/null
select pg_temp.looks('pgq.job_3') as before \gset
select is(pg_temp.counts('default'), '500 ready 500 scheduled 0 waiting', 'few jobs are counted');
select is(pg_temp.looks('pgq.job_3') - :before, 0::bigint, 'an empty slot is searched for no lane');
select is(
    pg_temp.reads('select from pgq_workers', 'pgq.job_4'), 0::bigint,
    'for leases no parked slot is read');
set local enable_seqscan = off;
set local enable_bitmapscan = off;
set local enable_hashjoin = off;
set local enable_mergejoin = off;
select pg_temp.reads($$ select from pgq_jobs j where j.queue = 'default' $$, 'pgq.job_0')
    as all_jobs \gset
select cmp_ok(:all_jobs, '>=', 500, 'of a queue with many jobs its jobs are read');
select cmp_ok(
    pg_temp.reads($$ select from pgq_jobs j where j.queue = 'q' $$, 'pgq.job_0')
    + pg_temp.reads($$ select from pgq_jobs j where j.queue = 'q' $$, 'pgq.job_4'), '<', 50::bigint,
    'of a queue with few hardly any other');
select cmp_ok(
    pg_temp.reads($$ select from pgq_jobs j where j.queue = 'few' $$, 'pgq.job_0')
    + pg_temp.reads($$ select from pgq_jobs j where j.queue = 'few' $$, 'pgq.job_4'), '<',
    50::bigint, 'whichever was created first');
reset enable_seqscan;
reset enable_bitmapscan;
reset enable_hashjoin;
reset enable_mergejoin;

-- Slots of more than 512 pages: lanes with less than a thousand jobs are counted.
select pgq_enqueue(to_jsonb(n), 'few', n), pgq_enqueue(to_jsonb(n), 'few', n, pgq._now() + '1 day'),
       array(select pgq_enqueue_many(array_fill(to_jsonb(repeat('x', 700)), array[100]),
                                     run_at => r))
  from generate_series(1, 30) n, unnest(array[null, pgq._now() + '1 day']) r \g /dev/null
select cmp_ok(
    least(pg_relation_size('pgq.job_0'), pg_relation_size('pgq.job_4')), '>', 512 * 8192::bigint,
    'large slots');
select is(
    pg_temp.counts('few'), '61 ready 60 scheduled 0 waiting', 'a queue with few jobs is counted');
select cmp_ok(
    abs((select v.ready from pgq_queues v where v.queue = 'default') - 3500), '<', 700::bigint,
    'one with many is estimated');
select cmp_ok(
    abs((select v.scheduled from pgq_queues v where v.queue = 'default') - 3500), '<', 700::bigint,
    'its scheduled jobs, too');
select is((select v.estimated from pgq_queues v where v.queue = 'default'), true, 'as it says');
select pgq_purge('default', '{ready}') \g /dev/null
truncate pgq.job_0;
select pgq_enqueue_many(array_fill(jsonb '1', array[1100]), 'groups',
                        group_keys => array(select n::text from generate_series(1, 1100) n))
    \g /dev/null
select pg_temp.commit(), pg_temp.commit() \g /dev/null
select is(
    pg_temp.counts('groups'), '1100 ready 0 scheduled 0 waiting',
    'heads of groups are counted where their copies are, however many stand in lines');

select * from finish();
rollback;
