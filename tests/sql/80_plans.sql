/*
 * Plans, by what they do: no function that a worker calls may ever read a slot sequentially, or
 * walk through more index entries than its jobs are worth, whatever was in the slot when the plan
 * was made. The plans of this session are made on empty slots and kept from one stage to the next.
 */
begin;
select plan(25);
\ir support/clock.psql

-- Rows that sequential scans of slots and archive have read, and started.
create function pg_temp.seq_scans() returns bigint language sql as $$
    select sum(pg_stat_get_xact_numscans(c.oid))::bigint
      from pg_class c
     where c.relnamespace = 'pgq'::regnamespace and c.relkind = 'r'
       and c.relname ~ '^(job|archive|floor)_\d+$'
$$;
-- Entries that index scans of slots have read.
create function pg_temp.entries() returns bigint language sql as $$
    select sum(pg_stat_get_xact_tuples_returned(i.indexrelid))::bigint
      from pg_index i join pg_class c on c.oid = i.indrelid
     where c.relnamespace = 'pgq'::regnamespace and c.relname ~ '^job_\d$'
$$;

-- Pages that a statement reads.
create function pg_temp.pages(p_statement text) returns bigint language plpgsql as $$
declare
    v_plan json;
begin
    execute 'explain (analyze, buffers, format json) ' || p_statement into v_plan;
    return (v_plan #>> '{0,Plan,Shared Hit Blocks}')::bigint
           + (v_plan #>> '{0,Plan,Shared Read Blocks}')::bigint;
end
$$;

create temp table cost (call text, jobs bigint, seq_scans bigint, entries bigint);
-- Runs a statement that returns a number of jobs, and notes what it read.
create function pg_temp.run(p_call text, p_statement text) returns void language plpgsql as $$
declare
    v_scans constant bigint := pg_temp.seq_scans();
    v_entries constant bigint := pg_temp.entries();
    v_jobs bigint;
begin
    execute p_statement into v_jobs;
    insert into cost
    select p_call, v_jobs, pg_temp.seq_scans() - v_scans, pg_temp.entries() - v_entries;
end
$$;

-- Makes the next random() less than 0.001: what is done now and then is done.
create function pg_temp.make_likely() returns void language plpgsql as $$
begin
    for v_seed in 1..100000 loop
        perform setseed(v_seed / 100000.0);
        if random() < 0.001 then
            perform setseed(v_seed / 100000.0);
            return;
        end if;
    end loop;
end
$$;

create temp table lease (id bigint, token bigint);
select pgq_create_queue('none', keep_completed => '0') \g /dev/null
-- Everything that a worker does, some times, so that cached plans are used as well.
create function pg_temp.work(p_rounds integer) returns void language plpgsql as $$
declare
    v_jobs integer;
    v_id bigint;
begin
    truncate cost;
    for v_round in 1..p_rounds loop
        truncate lease;
        -- Stale receipts of lane 1 in every slot: their plans are the first ones to be made.
        perform pg_temp.run('fail stale',
            'select count(*) from generate_series(0, 5) slot where pgq_fail(1, 8 + slot) is null');
        perform pg_temp.run('get unknown',
            'select 1 where not exists (select from pgq_get(123456789))');
        perform pg_temp.run('cancel unknown', 'select 1 where not pgq_cancel(123456789)');
        perform pg_temp.run('release stale',
            'select count(*) from generate_series(0, 5) slot where not pgq_release(1, 8 + slot)');
        perform pg_temp.run('complete stale',
            'select count(pgq_complete(1, 8 + slot)) from generate_series(0, 5) slot');
        perform pg_temp.run('complete many stale',
            'select count(*) from generate_series(0, 5) slot, unnest(array[2, 150]) n
              where not exists (select from pgq_complete(array_fill(bigint ''1'', array[n]),
                                                         array_fill(8 + slot::bigint, array[n])))');
        perform pg_temp.run('heartbeat stale',
            'select count(*) from generate_series(0, 5) slot
              where pgq_heartbeat(1, 8 + slot) is null');
        v_id := pgq_enqueue('1');
        perform pg_temp.make_likely();  -- raises a floor
        perform pg_temp.run('claim', format('select count(c.id) from pgq_claim(%s) c', v_id));
        perform pg_temp.make_likely();
        perform pg_temp.run('dequeue',
            'with d as (insert into lease select d.id, d.token from pgq_dequeue(10) d returning 1)
             select count(*) from d');
        perform pg_temp.run('dequeue one',
            'with d as (insert into lease select d.id, d.token from pgq_dequeue() d returning 1)
             select count(*) from d');
        perform pg_temp.run('heartbeat',
            'select count(pgq_heartbeat(l.id, l.token)) from lease l');
        perform pg_temp.run('heartbeat many',
            'select count(*) from pgq_heartbeat(array(select l.id from lease l order by l.id),
                                                array(select l.token from lease l order by l.id))');
        perform pg_temp.run('fail',
            'select count(pgq_fail(l.id, l.token, retry_in => ''1 day''))
               from (select l.* from lease l order by l.id limit 1) l');
        perform pg_temp.run('release',
            'select count(pgq_release(l.id, l.token))
               from (select l.* from lease l order by l.id offset 1 limit 1) l');
        perform pg_temp.run('complete',
            'select count(pgq_complete(l.id, l.token))
               from (select l.* from lease l order by l.id offset 2 limit 3) l');
        perform pg_temp.run('complete many',
            'select count(*) from pgq_complete(array(select l.id from lease l order by l.id),
                                               array(select l.token from lease l order by l.id))');
        perform pg_temp.run('get',
            'select count(g.id) from (select * from lease limit 3) l, pgq_get(l.id) g');
        foreach v_jobs in array array[10, 150] loop
            truncate lease;
            perform pgq_enqueue_many(array_fill(jsonb '1', array[v_jobs]), 'none');
            insert into lease select d.id, d.token from pgq_dequeue(v_jobs, queue => 'none') d;
            perform pg_temp.run('complete ' || v_jobs || ', and keep none',
                'select count(*)
                   from pgq_complete(array(select l.id from lease l order by l.id),
                                     array(select l.token from lease l order by l.id))');
        end loop;
        perform pg_temp.run('pop', 'select count(*) from pgq_pop(10)');
        perform pg_temp.run('cancel', 'select count(*) where pgq_cancel(pgq_enqueue(''1''))');
        perform pg_temp.wait('1 s');
        -- As if the transactions of the claims had ended.
        update pgq.floor_0 set mark_xid = 3;
        update pgq.floor_4 set mark_xid = 3;
    end loop;
end
$$;

-- What of it was too expensive. A claim looks at a thousand parked jobs at most.
create function pg_temp.report(p_stage text) returns setof text language plpgsql as $$
begin
    return next is_empty(
        'select c.* from cost c where c.seq_scans > 0',
        p_stage || ': nothing is read sequentially');
    return next is_empty(
        'select c.* from cost c where c.entries > 5000',
        p_stage || ': no index is read to its end');
end
$$;

-- Plans that are made for a handful of jobs.
select pgq_enqueue_many(array_fill(jsonb '1', array[5])) \g /dev/null
analyze pgq.job;
select pg_temp.work(1) \g /dev/null
select pgq_enqueue_many(array_fill(jsonb '1', array[20000])),
       pgq_enqueue_many(array_fill(jsonb '1', array[20000]), run_at => pgq._now() + '10 days')
    \g /dev/null
select pg_temp.work(3) \g /dev/null
select pg_temp.report('a queue that grew');
select cmp_ok(
    pg_temp.pages('select pgq_cancel(123456789)'), '<=', 40::bigint,
    'a search by id reads some pages of each slot, no whole index');
truncate pgq.job;
discard plans;

select pg_temp.work(3) \g /dev/null
select pg_temp.report('an empty queue');

select pgq_enqueue_many(array_fill(jsonb '1', array[100])) \g /dev/null
select pg_temp.work(2) \g /dev/null
select pg_temp.report('a small queue');
select is(
    (select c.jobs from cost c where c.call = 'dequeue' limit 1), 10::bigint,
    'the calls are about jobs');

truncate pgq.job;
select pg_temp.work(2) \g /dev/null
select pg_temp.report('after TRUNCATE');

select pgq_enqueue_many(array_fill(jsonb '1', array[100000])) \g /dev/null
select pg_temp.work(3) \g /dev/null
select pg_temp.report('100,000 jobs that were never analysed');
select set_eq(
    'select c.call from cost c where c.jobs = 0', '{}'::text[], 'every call has found its jobs');

analyze pgq.job;
select pg_temp.work(3) \g /dev/null
select pg_temp.report('100,000 jobs that were analysed');

discard plans;
select pg_temp.work(3) \g /dev/null
select pg_temp.report('with plans made anew');

select pgq_create_queue('other') \g /dev/null
select pgq_enqueue_many(array_fill(jsonb '1', array[20000]), priority => p),
       pgq_enqueue_many(array_fill(jsonb '1', array[20000]), 'other', priority => -p)
  from generate_series(1, 2) p \g /dev/null
select pg_temp.work(3) \g /dev/null
select pg_temp.report('several queues and priorities');

select pgq_enqueue_many(array_fill(jsonb '1', array[50000]), run_at => pgq._now() + '10 days'),
       pgq_enqueue_many(array_fill(jsonb '1', array[10000]), run_at => pgq._now() + '1 hour',
                        priority => 5) \g /dev/null
select pg_temp.work(3) \g /dev/null
select pg_temp.report('many scheduled jobs');
select pg_temp.wait('1 hour') \g /dev/null
select pg_temp.work(3) \g /dev/null
select pg_temp.report('many jobs that fell due');
analyze pgq.job;
select pg_temp.work(3) \g /dev/null
select pg_temp.report('many jobs that fell due, analysed');

select * from finish();
rollback;
