/*
 * pgq_obstacles: what is in the way of other jobs, and what is not; who sees it, and what it reads.
 */
begin;
select plan(21);
\ir support/clock.psql
\ir support/commit.psql

create function pg_temp.enqueue(p_queue text, p_group text, p_jobs integer default 1)
returns bigint language plpgsql as $$
declare
    v_ids bigint[];
begin
    v_ids := array(
        select e from pgq_enqueue_many(
            array_fill(jsonb '1', array[p_jobs]), p_queue,
            group_keys => array_fill(p_group, array[p_jobs])
        ) e
    );
    perform pg_temp.commit();
    return v_ids[1];
end
$$;
-- The transaction of the test has claimed and ended jobs, too.
create temp view obstacle as
select o.cause, o.jobs, o.group_key, o.job_id, o.state, o.worker, pgq._now() - o.since as age,
       o.until - pgq._now() as rest, o.queue
  from pgq_obstacles o where o.cause <> 'transaction';

-- In groups.
select pgq_create_queue('q'), pgq_create_queue('other') \g /dev/null
select pg_temp.enqueue('q', 'ready', 3) as ready, pg_temp.enqueue('q', 'alone') as alone \gset
select pgq_claim(:alone, '1 hour') \g /dev/null
select is_empty(
    'select * from obstacle',
    'neither a ready job, nor an active one for which none waits, is in the way');
select pg_temp.enqueue('q', 'busy', 3) as busy, pg_temp.enqueue('q', 'late', 2) as late,
       pg_temp.pass('10 s') \gset
select pgq_claim(:busy, '1 hour', 'ann'), pg_temp.pass('10 s') \g /dev/null
select is(
    (select o::text from obstacle o),
    row('group', 2, 'busy', :busy, 'active', 'ann', interval '10 s', interval '59 min 50 s',
        'q')::text,
    'an active one is for those that wait, since it was claimed, until its lease expires');
select pgq_fail(d.id, d.token, 'no', '1 hour') from pgq_claim(:late) d \g /dev/null
select pg_temp.pass('10 s') \g /dev/null
select is(
    (select o::text from obstacle o where o.group_key = 'late'),
    row('group', 1, 'late', :late, 'scheduled', null::text, interval '30 s', interval '59 min 50 s',
        'q')::text,
    'one that is tried again is, since it was enqueued, until it is due');
select pgq_cancel_all('q', true), pg_temp.commit() \g /dev/null

-- Jobs that come after others.
select pg_temp.add('one', 'other') as one \gset
select pgq_enqueue('2', 'q', after => array[:one], after_on_dead => 'wait') as two \gset
select is_empty('select * from obstacle', 'a ready job with others after it is not in the way');
select pgq_claim(:one, '1 hour', 'bob'), pg_temp.pass('10 s') \g /dev/null
select is(
    (select o::text from obstacle o),
    row('after', 1, null::text, :one, 'active', 'bob', interval '10 s',
        interval '59 min 50 s', 'q')::text,
    'an active one is');
select pgq_cancel(:one, true), pg_temp.commit() \g /dev/null
select is(
    (select o::text from obstacle o),
    row('after', 1, null::text, :one, 'cancelled', null::text, interval '0',
        null::interval, 'q')::text,
    'and so is a cancelled one');

-- Who sees it.
set local client_min_messages = warning;
create role regress_reader;
create function pg_temp.seen() returns text language plpgsql as $$
declare
    v_seen text;
begin
    set local role regress_reader;
    v_seen := (
        select string_agg(concat_ws(' ', o.queue, o.state, o.since), ', ' order by o.queue)
          from pgq_obstacles o where o.cause <> 'transaction'
    );
    reset role;
    return v_seen;
end
$$;
select pgq_grant('default', 'regress_reader', '{observe}') \g /dev/null
select is(pg_temp.seen(), null, 'who may observe other queues sees none');
select pgq_grant('q', 'regress_reader', '{observe}') \g /dev/null
select is(
    pg_temp.seen(), 'q cancelled',
    'who may observe the queue sees the state of a job of another queue, and no more');
select pgq_grant('other', 'regress_reader', '{observe}') \g /dev/null
select is(pg_temp.seen(), 'q cancelled ' || pgq._now(), 'who may observe both sees all');
savepoint s;
select pgq_drop_queue('other') \g /dev/null
select pgq_create_queue('other'), pgq_grant('other', 'regress_reader', '{observe}') \g /dev/null
select is(
    pg_temp.seen(), 'q cancelled', 'a new queue of that name does not have the job');
rollback to s;
select pgq_grant('*', 'regress_reader', '{observe}') \g /dev/null
select is(pg_temp.seen(), 'q cancelled ' || pgq._now(), 'all queues are both');
select pgq_cancel(:two), pg_temp.commit() \g /dev/null
select is_empty('select * from obstacle', 'when nobody waits any more none is in the way');

-- Starts that are used up.
select pgq_create_queue('fast', rate_limit => 2, rate_interval => '2 hours') \g /dev/null
select pg_temp.add('1', 'fast'), pg_temp.add('2', 'fast'), pg_temp.take(1, 'fast') \g /dev/null
select is_empty('select * from obstacle', 'a rate limit is not in the way while a start is left');
select pg_temp.take(1, 'fast') \g /dev/null
select is(
    (select row(o.cause, o.rest)::text from obstacle o),
    row('rate_limit', interval '59 min 20 s')::text,
    'but when all are used');
select pg_temp.pass('1 hour') \g /dev/null
select is_empty('select * from obstacle', 'until the next one');
select pg_temp.pass('-3 hours') \g /dev/null
select is_empty('select * from obstacle', 'starts of a clock that was ahead do not count');
select pg_temp.pass('3 hours'), pgq_configure_queue('fast', rate_limit => 0) \g /dev/null
select is_empty('select * from obstacle', 'nor does anything without a limit');

-- What it reads.
\ir support/read.psql
create function pg_temp.reads_in_groups() returns bigint language plpgsql
set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_before constant bigint := pg_temp.read();
begin
    perform pgq._waits_in_groups(pgq._now());
    return pg_temp.read() - v_before;
end
$$;
select pgq_cancel_all(q.name, true) from pgq.queue q \g /dev/null
select pg_temp.commit() \g /dev/null
select pgq_enqueue_many(array_fill(jsonb '1', array[1000])) \g /dev/null
select pgq_enqueue_many(array_fill(jsonb '1', array[1000]), run_at => pgq._now() + '1 day')
    \g /dev/null
select pg_temp.enqueue('q', 'long', 301) as long \gset
select pgq_claim(:long) \g /dev/null
select is((select o.jobs from obstacle o), 300::bigint, 'of 2,301 live jobs 300 wait');
select cmp_ok(pg_temp.reads_in_groups(), '>=', 300::bigint, 'the view reads these');
select cmp_ok(pg_temp.reads_in_groups(), '<', 500::bigint, 'and hardly any other');
select pgq_enqueue_many(array_fill(jsonb '1', array[10000]), run_at => pgq._now() + '1 day')
    \g /dev/null
select is(
    (select o.jobs from obstacle o), 300::bigint,
    'as many scheduled jobs as it looks at hide none');

select * from finish();
rollback;
