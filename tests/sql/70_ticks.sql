/*
 * When the next tick comes, and what ticks with nothing to do leave alone.
 */
begin;
select plan(35);
\ir support/clock.psql

-- Who claims when a tick is due queues it, and nobody else does meanwhile.
select pg_temp.wait('0') \g /dev/null
select is(pg_temp.next_tick(), interval '500 ms', 'the next tick is due in half a second');
select is((select count(*) from pgq.chore), 0::bigint, 'a tick leaves no chore');
select pg_temp.pass('501 ms'), pgq_dequeue(1, '1 hour') \g /dev/null
select is((select count(*) from pgq.chore), 1::bigint, 'the first claim then queues one');
select is(pg_temp.next_tick(), interval '500 ms', 'which is to come within half a second');
select pgq_dequeue(1, '1 hour'), pgq_dequeue(1, '501 ms') \g /dev/null
select is((select count(*) from pgq.chore), 1::bigint, 'so others queue none');
select pgq_dequeue(1, '100 ms') \g /dev/null
select is(pg_temp.next_tick(), interval '101 ms', 'it comes when the shortest lease expires');
select pg_temp.pass('501 ms'), pgq_dequeue(1, '100 ms') \g /dev/null
select is(pg_temp.next_tick(), interval '101 ms', 'also if the tick before is due then');
select pgq_dequeue(1, '400 ms') \g /dev/null
select is(pg_temp.next_tick(), interval '101 ms', 'a longer one changes nothing');
select pg_temp.wait('0') \g /dev/null
select is((select count(*) from pgq.chore), 0::bigint, 'the tick does the chores');
select pg_temp.pass('2600 ms'), pgq_dequeue(1, '1 hour'), pgq_dequeue(1, '1 hour') \g /dev/null
select is((select count(*) from pgq.chore), 2::bigint, 'if none comes for long everybody queues one');

-- When a job falls due.
select pg_temp.wait('0') \g /dev/null
select pgq_enqueue('1', run_at => pgq._now() + '300 ms') \g /dev/null
select pgq_enqueue('2', run_at => pgq._now() + '400 ms') \g /dev/null
select is(pg_temp.next_tick(), interval '300 ms', 'a scheduled job has it come');
select pg_temp.wait('0') \g /dev/null
select is(pg_temp.next_tick(), interval '300 ms', 'and the tick before');
select pg_temp.wait('290 ms') \g /dev/null
select is(pg_temp.next_tick(), interval '20 ms', 'but no sooner than 20 ms after it');
select pg_temp.wait('20 ms') \g /dev/null
select is(pg_temp.take(), '{1}', 'then the job is claimed');
select pgq_purge('default') \g /dev/null
select pgq_complete(j.id, j.token) from pgq.job j \g /dev/null

-- The chores of earlier ones, which a held horizon keeps, are passed by: not those of the last.
insert into pgq.chore select from generate_series(1, 9999);
select pg_relation_size('pgq.chore') > 20 * 8192 as has_pages \gset
select is(:'has_pages', true, 'many chores');
select setseed(0.5), pg_temp.wait('0') \g /dev/null
select cmp_ok((select count(*) from pgq.chore), '<', 9999::bigint, 'those of the last pages go');
select cmp_ok((select count(*) from pgq.chore), '>', 0::bigint, 'the others are not looked at');
delete from pgq.chore;

-- With nothing to do.
select pg_temp.tick(200) \g /dev/null
create temp table empty as
select c.oid::regclass as name, pg_relation_filenode(c.oid) as file
  from pg_class c
 where c.relnamespace = 'pgq'::regnamespace and c.relkind = 'r' and pg_relation_size(c.oid) = 0;
select pg_temp.tick(400) \g /dev/null
select cmp_ok((select count(*) from empty), '>', 30::bigint, 'many tables are empty');
select is_empty('select * from empty where pg_relation_filenode(name) <> file',
    'ticks truncate none of them');

-- How many calls are counted, whatever the minute.
create function pg_temp.sample(p_completed integer, p_failed integer) returns integer
language plpgsql as $$
begin
    perform pgq._count_ends(l.id, c, 1 - c)
       from pgq.lane l, (
                select 1 as c from generate_series(1, p_completed)
                 union all select 0 from generate_series(1, p_failed)
            ) c
      where l.queue = 'default';
    perform pgq._fit_samples();
    return (select q.sample from pgq.queue q where q.name = 'default');
end
$$;
create function pg_temp.samples(p_minute integer, p_completed integer[]) returns integer[]
language plpgsql as $$
begin
    perform pg_temp.now_is('2040-01-01 01:00'::timestamptz + p_minute * interval '1 minute');
    update pgq.queue set sample = 1;
    return array(select pg_temp.sample(c, 0) from unnest(p_completed) c);
end
$$;
select is(
    pg_temp.samples(minute, '{60,61,100,61,60,8}'), '{1,2,6,12,12,12}',
    'where more than 60 calls in a second are counted, so many stand for others that 30 are left')
  from generate_series(0, 2) minute;
create function pg_temp.halved(p_minute integer) returns integer language plpgsql as $$
begin
    perform pg_temp.samples(p_minute, '{100}');
    return pg_temp.sample(7, 99);
end
$$;
select is(pg_temp.halved(minute), 1, 'half of that where few come, failures aside')
  from generate_series(0, 2) minute;
update pgq.queue set sample = 6 where name = 'default';
select ctid as before from pgq.queue where name = 'default' \gset
select is(pg_temp.sample(30, 0), 6, 'as many where that is right');
select is((select q.ctid from pgq.queue q where q.name = 'default'), :'before',
          'which writes nothing');
select pg_temp.sample(0, 0), pg_temp.sample(0, 0) \g /dev/null
select is(pg_temp.sample(0, 99), 1, 'in the end all are counted');
update pgq.queue set sample = 900000 where name = 'default';
select is(pg_temp.sample(100, 0), 1000000, 'and never fewer than one of a million');

-- What is counted shows for an hour.
update pgq.queue set sample = 1;
create temp view counted as
select q.completed_last_minute, q.completed_last_hour from pgq_queues q where q.queue = 'default';
select pg_temp.now_is('2040-01-01 09:00'), pgq_enqueue('1') \g /dev/null
select pgq_complete(d.id, d.token) from pgq_dequeue() d \g /dev/null
select results_eq('select * from counted', 'values (1::bigint, 1::bigint)', 'at once');
select pg_temp.pass('-1 second') \g /dev/null
select results_eq(
    'select * from counted', 'values (0::bigint, 0::bigint)',
    'not when the clock was set back behind it');
select pg_temp.pass('1 second') \g /dev/null
select pg_temp.wait('1 minute') from generate_series(1, 5) \g /dev/null
select results_eq('select * from counted', 'values (0::bigint, 1::bigint)', 'for an hour');
select pg_temp.wait('1 minute') from generate_series(1, 56) \g /dev/null
select results_eq('select * from counted', 'values (0::bigint, 0::bigint)', 'and no longer');
select is((select count(*) from pgq.stat), 1::bigint, 'for a minute more it is kept');
select pgq_enqueue('1') \g /dev/null
select pgq_complete(d.id, d.token) from pgq_dequeue() d \g /dev/null
select pg_temp.wait('1 minute') from generate_series(1, 4) \g /dev/null
select is((select count(*) from pgq.stat), 1::bigint, 'until others come');

select * from finish();
rollback;
