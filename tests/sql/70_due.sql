/*
 * What falls due, and positions.
 */
begin;
select plan(18);
\ir support/clock.psql

create function pg_temp.ready() returns bigint language sql as $$
    select count(*) from pgq.job j where j.pos is not null
$$;

-- Many at the same time, and one before others.
select pgq_enqueue_many(array_fill(jsonb '1', array[2500]), run_at => pgq._now() + '1 second')
    \g /dev/null
select pg_temp.wait('1 second') \g /dev/null
select is(pg_temp.ready(), 1000::bigint, 'a tick brings a thousand');
select is(pg_temp.next_tick(), interval '20 ms', 'and the next tick comes soon');
select pg_temp.wait('20 ms') \g /dev/null
select is(pg_temp.ready(), 2000::bigint, 'which brings more of the same moment');
select pg_temp.wait('20 ms') \g /dev/null
select is(pg_temp.ready(), 2500::bigint, 'none is passed by');
select is(pg_temp.next_tick(), interval '500 ms', 'then there is no hurry');
select pgq_purge('default') \g /dev/null
select pg_temp.add('late', p_delay => '1 day'), pg_temp.tick(3) \g /dev/null
select pg_temp.add('soon', p_delay => '1 hour'), pg_temp.wait('1 hour') \g /dev/null
select is(pg_temp.take(9, p_timeout => '1 day'), '{soon}',
          'a job that is due before others comes before them');
select is((select count(*) from pgq.floor f where f.slot in (4, 5)), 1::bigint,
          'one position is kept');
select cmp_ok((select max(f.base) from pgq.floor f where f.slot in (4, 5)), '>',
    pgq._us(pgq._now()) - 2 * 3600000000, 'it follows the clock');

-- Its time is before that position: the clock was set back a little, or maintenance comes late.
select pg_temp.tick(3), pg_temp.pass('-30 seconds'), pg_temp.add('again', p_delay => '10 seconds')
    \g /dev/null
select pg_temp.wait('40 seconds') \g /dev/null
select is(pg_temp.take(9), '{again}', 'a job is found when its time has come twice');
select pg_temp.tick(3), pg_temp.pass('-30 seconds') \g /dev/null
savepoint before;
select pgq._tick() \g /dev/null
rollback to before;
select pg_temp.add('once more', p_delay => '10 seconds'), pg_temp.pass('31 seconds'),
       pg_temp.tick(3) \g /dev/null
select is(
    pg_temp.take(9), '{"once more"}', 'also if the tick that saw the first time was rolled back');
select pg_temp.add('far', p_delay => '1 day'), pgq._move(4::smallint, 5::smallint, 1000),
       pg_temp.add('overdue', p_delay => '1 second') as overdue \gset
insert into pgq.skipped (kind, key, at, error)
values ('job', :overdue, pgq._now() + '9 seconds', 'it fails');
select pg_temp.wait('9 seconds'), pg_temp.tick(9) \g /dev/null
delete from pgq.skipped;
select pgq._move(4::smallint, 5::smallint, 1000), pg_temp.tick() \g /dev/null
select is(pg_temp.take(9), '{overdue}', 'one that is moved after its time is found where it is then');

-- What a position waits for.
select is(
    pgq._is_decided(xid, snapshot::pg_snapshot, old), decided,
    format('below %s with %s, %s and older ones apart', xid, snapshot, old))
  from (values (100, '90:110:95,105', 0, false), (100, '90:110:95,105', 96, true),
               (100, '90:110:105', 0, true), (100, '90:100:', 0, true), (100, '90:99:', 0, false),
               (105, '90:110:105', 0, true), (106, '90:110:105', 105, false))
       v (xid, snapshot, old, decided);

select * from finish();
rollback;
