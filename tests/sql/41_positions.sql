/*
 * Claims in queues with limits or ageing, and where claims begin: what they take, leave and read.
 */
begin;
select plan(33);
\ir support/clock.psql
\ir support/read.psql

create function pg_temp.lane(p_queue text) returns bigint language sql as $$
    select l.id from pgq.lane l where l.queue = p_queue
$$;
create function pg_temp.positions(p_queue text) returns bigint language sql as $$
    select count(*) from pgq.floor_0 f where f.lane = pg_temp.lane(p_queue)
$$;
-- A position above all jobs that there are, as claims leave it behind.
create function pg_temp.pass_by(p_queue text) returns void language plpgsql as $$
begin
    insert into pgq.floor_0 (slot, n, lane, floor, base, mark)
    select 0, nextval('pgq.floor_n'), pg_temp.lane(p_queue), m.last, 0, m.last
      from (select pg_sequence_last_value('pgq.number') as last) m;
end
$$;

-- Jobs that had to start by now.
select pgq_create_queue('limited', max_active => 9) \g /dev/null
select pgq_enqueue('"expired"', 'limited', expires_at => pgq._now() + '1 minute') as expired,
       pgq_enqueue('"begun"', 'limited', expires_at => pgq._now() + '1 hour'),
       pgq_enqueue('"open"', 'limited', expires_at => pgq._now() + '1 day'),
       pg_temp.add('plain', 'limited') \gset
select pg_temp.pass('1 minute') \g /dev/null
select is(pg_temp.take(1, 'limited', '2 hours'), '{begun}',
          'in a queue with a limit no expired job starts');
select pg_temp.pass('3 hours') \g /dev/null
select pgq_reclaim('limited') \g /dev/null
select is(
    pg_temp.take(9, 'limited', '1 hour'), '{begun,open,plain}',
    'one that had started is tried again, others start');
select throws_ok(
    format('select pgq_claim(%s)', :expired), '55000', format('job %s has expired', :expired),
    'nor is an expired one claimed by its id');

-- Below the position, as the jobs of transactions that were open for long.
select pg_temp.add('late', 'limited') as late \gset
select pg_temp.pass_by('limited') \g /dev/null
select is(pg_temp.take(1, 'limited', '1 hour'), '{}',
          'what is below the position is not looked at');
select is((pgq_claim(:late, '1 hour')).payload, '"late"', 'but can be claimed by its id');
select pgq_create_queue('unlimited') \g /dev/null
select pg_temp.add('late', 'unlimited') as late \gset
select pg_temp.pass_by('unlimited') \g /dev/null
select is(pg_temp.take(1, 'unlimited', '1 hour'), '{}', 'the same holds for a queue');
select is((pgq_claim(:late, '1 hour')).payload, '"late"', 'without a limit');

-- What a claim reads, where many jobs are leased.
select pgq_create_queue('busy', max_active => 1000), pgq_create_queue('free') \g /dev/null
select pgq_enqueue_many(array_fill(jsonb '1', array[600]), 'busy') \g /dev/null
select pgq_enqueue_many(array_fill(jsonb '1', array[600]), 'free') \g /dev/null
select cardinality(pg_temp.take(600, 'busy', '1 hour')) as busy,
       cardinality(pg_temp.take(600, 'free', '1 hour')) as free \gset
select is(array[:busy, :free], '{600,600}', 'many jobs are leased');
select pg_temp.pass_by('busy'), pg_temp.pass_by('free') \g /dev/null
select cmp_ok(
    pg_temp.reads($$ select pg_temp.take(1, 'free') $$), '<', 100::bigint,
    'a claim does not read them again');
select pg_temp.add('1', 'free'), pg_temp.add('1', 'busy') \g /dev/null
select cmp_ok(
    pg_temp.reads(format(
        'select * from pgq._lease_0(%s, 0, 9223372036854775807, 1, now(), 9, null, 0)',
        pg_temp.lane('busy')
    )), '<', 100::bigint,
    'nor does one in a queue with limits');
select cmp_ok(
    pg_temp.reads(format('select pgq._oldest(0::smallint, %s)', pg_temp.lane('free'))), '<',
    100::bigint, 'nor who asks for the oldest ready job');

-- Positions that no open transaction keeps from being raised (or, of "done", one that writes no
-- job), and what is read for that.
create function pg_temp.know(p_queue text, p_floor bigint default 0, p_xid bigint default 3)
returns void language plpgsql as $$
begin
    insert into pgq.floor_0 (slot, n, lane, floor, base, mark, mark_xid)
    select 0, nextval('pgq.floor_n'), pg_temp.lane(p_queue), p_floor, 0, m.last, p_xid
      from (select pg_sequence_last_value('pgq.number') as last) m;
end
$$;
create function pg_temp.sweep() returns void language plpgsql as $$
begin
    perform pgq._sweep(0::smallint, pgq._now(), null);
end
$$;
select pgq_create_queue('claims'), pgq_create_queue('swept'), pgq_create_queue('done'),
       pgq_create_queue('parked') \g /dev/null
select pgq_enqueue_many(array_fill(jsonb '1', array[600]), q), pg_temp.take(600, q, '1 hour')
  from unnest('{claims,swept,done}'::text[]) q \g /dev/null
select pgq_complete(array_agg(j.id), array_agg(j.token))
  from pgq.job j where j.lane = pg_temp.lane('done') \g /dev/null
select pg_temp.know('claims'), pg_temp.know('swept'), pg_temp.know('done', 0, 1000000000000),
       pg_temp.add('far', 'parked', p_delay => '1 day') \g /dev/null
select pgq._raise_floor(0::smallint, pg_temp.lane('claims')) \g /dev/null
select cmp_ok(
    pg_temp.reads($$ select pg_temp.take(1, 'claims') $$), '<', 100::bigint,
    'a claim raises a position past leases');
select pg_temp.add('last', 'claims'), pg_temp.know('claims'),
       pgq._raise_floor(0::smallint, pg_temp.lane('claims')) \g /dev/null
select is(pg_temp.take(1, 'claims', '1 hour'), '{last}', 'but not past a job that is ready');
select pg_temp.sweep() \g /dev/null
select cmp_ok(
    pg_temp.reads(format('select pg_temp.take(1, %L)', q)), '<', 100::bigint,
    format('so does maintenance, or it leaves it where it is: %s', q))
  from unnest('{swept,done,free}'::text[]) q;
select pg_temp.know('claims', pg_sequence_last_value('pgq.number')) \g /dev/null
select cmp_ok(
    pg_temp.reads(format('select pgq._raise_floor(0::smallint, %s)', pg_temp.lane('claims'))), '<',
    100::bigint, 'it does not read again what is below the last one');
create temp table span as select s from pgq._spans(0::smallint, pgq._now()) s;
select cmp_ok(
    pg_temp.reads($$ select pgq._set_positions(0::smallint, array(select s from span), null) $$),
    '<', 100::bigint, 'nor does maintenance');
select pg_temp.sweep(), pg_temp.sweep() \g /dev/null
select count(*) as positions from pgq.floor_0 \gset
select pg_temp.sweep(), pg_temp.sweep() \g /dev/null
select is((select count(*) from pgq.floor_0), :positions::bigint,
          'where nothing changes it writes nothing');
select is(pg_temp.positions('parked'), 0::bigint, 'nor where there is no job');
insert into pgq.floor_1 (slot, n, lane, floor, base, mark)
values (1, nextval('pgq.floor_n'), pg_temp.lane('parked'), 0, 0, 0);
select is(pgq._truncate(0::smallint), false, 'where a slot turns out to hold jobs');
select is(pg_temp.positions('parked'), 0::bigint, 'only the lanes that it knows begin anew');

-- A position costs as much as some claims of one job, so few of these write one.
create function pg_temp.make_unlikely() returns void language plpgsql as $$
begin
    for v_seed in 1..1000 loop
        perform setseed(v_seed / 1000.0);
        if random() > 0.5 then
            perform setseed(v_seed / 1000.0);
            return;
        end if;
    end loop;
end
$$;
select pgq_create_queue('rare', max_active => 9) \g /dev/null
select pg_temp.add('1', 'rare'), pg_temp.add('2', 'rare') as two, pg_temp.make_unlikely() \gset
select pg_temp.take(1, 'rare') \g /dev/null
select pg_temp.make_unlikely() \g /dev/null
select pgq_claim(:two) \g /dev/null
select is(pg_temp.positions('rare'), 0::bigint, 'most claims of one job write no position');

-- Ageing by a clock that is set back, and by far.
select pgq_create_queue('old', priority_ageing => '1 second') \g /dev/null
select pg_temp.add('two days', 'old'), pg_temp.pass('1 day') \g /dev/null
select pg_temp.add('one day', 'old', 1), pg_temp.pass('1 day') \g /dev/null
select is(pg_temp.take(1, 'old'), '{"two days"}', 'a job ages without end');
select pgq_create_queue('age', priority_ageing => '1 minute') \g /dev/null
select pg_temp.add('high', 'age', 1), pg_temp.pass('-10 minutes') \g /dev/null
select pg_temp.add('low', 'age') \g /dev/null
select is(
    pg_temp.take(1, 'age', '1 hour'), '{high}',
    'when the clock is set back a priority does not sink');
select is(pg_temp.take(1, 'age', '1 hour'), '{low}', 'below one that came later');

-- Settings that no lane needs to know leave it alone.
create function pg_temp.place(p_queue text) returns text language sql as $$
    select concat_ws(' ', l.ctid, l.is_bounded) from pgq.lane l where l.queue = p_queue
$$;
select pg_temp.place('free') as place \gset
select pgq_configure_queue('free', max_attempts => 3) \g /dev/null
select is(pg_temp.place('free'), :'place', 'other settings do not write to the lanes of a queue');
select pgq_configure_queue('free', max_ready => 9) \g /dev/null
select isnt(pg_temp.place('free'), :'place', 'a first bound does');
select pg_temp.place('free') as place \gset
select pgq_configure_queue('free', max_ready => 99, max_payload => 999) \g /dev/null
select is(pg_temp.place('free'), :'place', 'another one does not');
select pg_temp.tick() \g /dev/null
select is(pg_temp.place('free'), :'place', 'nor does maintenance');

-- When the next tick comes.
select pg_temp.pass('10 minutes'), pgq_cancel_all(q.name, true) from pgq.queue q \g /dev/null
select pg_temp.add('one') as one, pg_temp.wait('0') \gset
select pgq_enqueue('2', run_at => pgq._now() + '300 ms', after => array[:one]) as two \gset
select is(pg_temp.next_tick(), interval '500 ms', 'a job that waits for others has no tick come');
select pgq_enqueue('3', run_at => pgq._now() + '400 ms') \g /dev/null
select is(pg_temp.next_tick(), interval '400 ms', 'a scheduled one does');
select is(pgq_move(:two, run_at => pgq._now() + '200 ms'), true,
          'one that waits gets another time');

select * from finish();
rollback;
