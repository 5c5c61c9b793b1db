/*
 * What ticks read to move jobs: not what is left of those that have gone.
 */
begin;
select plan(8);
\ir support/clock.psql
\ir support/read.psql
set local plan_cache_mode = force_generic_plan;
set local enable_seqscan = off;
set local enable_bitmapscan = off;

select pgq_enqueue_many(array_fill(jsonb '1', array[500])) \g /dev/null
create temp table numbered as select j.*, row_number() over (order by j.pos) as n from pgq.job j;
select pgq_complete(array_agg(d.id), array_agg(d.token)) from pgq_dequeue(250) d \g /dev/null
insert into pgq.floor (slot, n, lane, floor, base, mark)
select 0, nextval('pgq.floor_n'), j.lane, j.pos, j.pos, j.pos from numbered j where j.n = 250;
select is(
    pgq._lock_first(0::smallint, 1), array[j.id], 'the first job is behind those that have ended')
  from numbered j where j.n = 251;
select cmp_ok(
    pg_temp.reads('select pgq._lock_first(0::smallint, 1)'), '<=', 9::bigint,
    'and is found without a look at those');
select cmp_ok(
    pg_temp.reads('select pgq._lock_last(0::smallint, 3::smallint, 1000)'), '<=', 259::bigint,
    'nor are those looked at to find the last ones');
select pgq._move_jobs(0::smallint, 3::smallint, array_agg(j.id)) from numbered j where j.n > 300
    \g /dev/null
select is(
    pgq._lock_last(0::smallint, 3::smallint, 1), array[j.id],
    'the last job is before those that have moved')
  from numbered j where j.n = 300;
select cmp_ok(
    pg_temp.reads('select pgq._lock_last(0::smallint, 3::smallint, 1)'), '<=', 9::bigint,
    'and is found without a look at what is left of them');

select pgq_enqueue_many(array_fill(jsonb '1', array[300]), run_at => pgq._now() + '1 minute'),
       pg_temp.pass('1 minute'),
       pgq._promote(4::smallint, pgq._now(), 0::smallint),
       pgq_enqueue_many(array_fill(jsonb '1', array[300]), run_at => pgq._now() + '1 day')
    \g /dev/null
select pgq_enqueue('1', run_at => pgq._now() + '1 minute') as later,
       pg_temp.pass('1 minute') \gset
insert into pgq.floor (slot, n, lane, floor, base, mark)
select 4, nextval('pgq.floor_n'), 0, 0, j.due - 1, j.due - 1 from pgq.job j where j.id = :later;
select cmp_ok(
    pg_temp.reads(
        'select pgq._set_parked_base(4::smallint, pgq._now(), null)', 'pgq.job_4'
    ), '<=', 9::bigint, 'a position rises to a job that is due without a look at all others');
-- So many that no plan is as good as another.
select pgq_enqueue_many(array_fill(jsonb '1', array[3000]), run_at => pgq._now() + '1 day') \g /dev/null
select cmp_ok(
    pg_temp.reads(
        'select pgq._promote(4::smallint, pgq._now(), 0::smallint)', 'pgq.job_4'
    ), '<=', 9::bigint, 'and that job is found without one');
select is((select j.slot from pgq.job j where j.id = :later), 0::smallint, 'it goes to the ring');

select * from finish();
rollback;
