/*
 * The views, in small databases, with what a plain count of the tables says.
 */
begin;
select plan(55);
\ir support/clock.psql
\ir support/commit.psql

-- What pgq_queues is to show of jobs. A head of a group counts where its copy is, or where it is due.
create function pg_temp.waits(p_job pgq.job) returns boolean language sql as $$
    select p_job.pos is null and p_job.due is null
$$;
create function pg_temp.counted() returns setof text language sql as $$
    select row(
               q.name,
               count(j.id) filter (where j.token is null and not pg_temp.waits(j)
                                     and coalesce(j.run_at <= pgq._now(), true)),
               count(*) filter (where j.token is null and not pg_temp.waits(j)
                                  and j.run_at > pgq._now()),
               count(j.id) filter (where pg_temp.waits(j)),
               count(*) filter (where j.token is not null),
               (select count(*) from pgq.archive a where a.queue = q.name and a.state = 'dead'),
               pgq._now() - min(coalesce(j.run_at, j.enqueued_at)) filter (
                   where not pg_temp.waits(j) and coalesce(j.run_at <= pgq._now(), true)
                     and (j.token is null or j.lease_expires_at <= pgq._now())),
               min(j.run_at) filter (
                   where j.token is null and not pg_temp.waits(j) and j.run_at > pgq._now()),
               false
           )::text
      from pgq.queue q
      left join (pgq.lane l join pgq.job j on j.lane = l.id and (j.is_head is null or j.due > 0))
        on l.queue_id = q.id
     group by q.id
$$;
create function pg_temp.shown() returns setof text language sql as $$
    select row(v.queue, v.ready, v.scheduled, v.waiting, v.active, v.dead, v.oldest_ready_age,
               v.next_due, v.estimated)::text
      from pgq_queues v
$$;
create function pg_temp.same(p_description text) returns text language sql as $$
    select bag_eq('select pg_temp.shown()', 'select pg_temp.counted()', p_description)
$$;
-- Completed and failed: of the last minute, of the last hour.
create function pg_temp.ends(p_queue text default 'default') returns text language sql as $$
    select concat_ws(' ', v.completed_last_minute, v.failed_last_minute, v.completed_last_hour,
                     v.failed_last_hour)
      from pgq_queues v where v.queue = p_queue
$$;
-- Enqueues, claims and completes so many jobs.
create function pg_temp.do(p_number integer, p_queue text default 'default') returns bigint
language sql as $$
    select pgq_enqueue_many(array_fill(jsonb '0', array[p_number]), p_queue);
    with d as materialized (select d.id, d.token from pgq_dequeue(p_number, queue => p_queue) d)
    select count(*) from d, lateral pgq_complete(d.id, d.token) c where c
$$;

-- Maintenance, once a minute.
create function pg_temp.minutes(p_number integer) returns void language plpgsql as $$
begin
    for v_minute in 1..p_number loop
        perform pg_temp.wait('1 minute'), pgq._tick();
    end loop;
end
$$;

-- Counts.
select pgq_create_queue('it''s "odd"'), pgq_create_queue('busy') \g /dev/null
select pg_temp.same('empty queues');
select pgq_enqueue_many('{1,2,3,4,5}', 'busy'), pgq_enqueue_many('{1,2}', 'busy', -3),
       pgq_enqueue('9', 'busy', run_at => pgq._now() + '1 hour'),
       pgq_enqueue('9', 'busy', run_at => pgq._now() + '2 hours'),
       pgq_enqueue('9', 'it''s "odd"', run_at => pgq._now() + '2 hours') \g /dev/null
select pg_temp.same('ready and scheduled jobs');
select pgq_enqueue('1', 'busy', group_key => 'g'), pgq_enqueue('2', 'busy', group_key => 'g'),
       pgq_enqueue('3', 'it''s "odd"', after => array(select j.id from pgq.job j)) \g /dev/null
select pg_temp.same('waiting ones, new ones of groups included');
select pg_temp.commit() \g /dev/null
select pg_temp.same('after the commit');
select pg_temp.wait('10 seconds'), pg_temp.take(3, 'busy'), pg_temp.wait('20 seconds'),
       pg_temp.take(1, 'busy') \g /dev/null
select pg_temp.same('active ones');
select pg_temp.now_is(pgq._now() + '15 seconds') \g /dev/null
select pg_temp.same('of which leases have expired');
select is(
    (select row(v.ready, v.active, v.waiting)::text from pgq_queues v where v.queue = 'busy'),
    '(4,4,1)', 'as it was made');
select pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue(2, queue => 'busy') d
    \g /dev/null
select pgq_fail(d.id, d.token, 'no', '5 minutes') from pgq_dequeue(1, queue => 'busy') d
    \g /dev/null
select pgq_release(d.id, d.token) from pgq_dequeue(1, queue => 'busy') d \g /dev/null
select pg_temp.same('dead, retried and released ones');
insert into pgq.ring (gen, live, ready, parked, filling, cleaned, switched_at)
select r.gen + 1, '{1,0}', '{1,0}', '{4,5}', 1, '{0}', r.switched_at
  from pgq.ring r order by r.gen desc limit 1;
select pgq._move(0::smallint, 1::smallint, 1000), pgq._move(4::smallint, 5::smallint, 1000)
    \g /dev/null
select pg_temp.same('moved ones');
select set_config('pgq.slot_size', '8192', true), pg_temp.tick(3), pgq_enqueue('1', 'busy')
    \g /dev/null
select pg_temp.same('in more than one slot');
select pg_temp.wait('1 day') \g /dev/null
select pg_temp.same('when all have fallen due');
select pgq_cancel_all(q.name, true), pgq_purge(q.name, '{dead}') from pgq.queue q \g /dev/null
select pg_temp.same('when all have gone');
select pgq_pause('busy'), pgq_configure_queue('busy', max_active => 7) \g /dev/null
select is(
    (select row(v.paused, v.max_active)::text from pgq_queues v where v.queue = 'busy'), '(t,7)',
    'settings are shown');
select pgq_configure_queue('busy', description => 'for "A" & B') \g /dev/null
select is(
    (select v.description from pgq_queues v where v.queue = 'busy'), 'for "A" & B',
    'so is what a queue is for');
select pgq_configure_queue('busy', max_attempts => 3) \g /dev/null
select is(
    (select v.description from pgq_queues v where v.queue = 'busy'), 'for "A" & B',
    'which stays when other settings change');
select pgq_configure_queue('busy', description => '') \g /dev/null
select is(
    (select v.description from pgq_queues v where v.queue = 'busy'), null,
    'and an empty one removes');
select pgq_create_queue('told', description => 'of it') \g /dev/null
select is(
    (select v.description from pgq_queues v where v.queue = 'told'), 'of it',
    'it may be told from the start');
select pgq_configure_queue('busy', max_active => 0), pgq_resume('busy') \g /dev/null

-- Settings.
select is(
    (select array_agg(a.attname::text order by a.attnum)
       from pg_attribute a where a.attrelid = 'pgq_queue_settings'::regclass and a.attnum > 0),
    (select p.proargnames || '{paused,created_at}'
       from pg_proc p where p.proname = 'pgq_configure_queue'),
    'pgq_queue_settings shows what pgq_configure_queue takes');
select pgq_create_queue('set', 3, '2 s', 3, '4 s', '5 s', '6 s', 7, '8 s', 9, 'block', 10, '11 s', 12,
                        '13 s', 14, 15, description => '16') \g /dev/null
select is(
    (select s::text from pgq_queue_settings s where s.name = 'set'),
    row('set', 3, interval '2 s', 3, interval '4 s', interval '5 s', interval '6 s', 7, interval '8 s',
        9, 'block', 10, interval '11 s', 12, interval '13 s', 14, 15, '16', false, pgq._now())::text,
    'as they were set');
select pgq_configure_queue('set', backoff_max => '1 day', max_ready => 0), pgq_pause('set') \g /dev/null
select is(
    (select row(s.backoff_max, s.max_ready, s.max_payload, s.paused)::text
       from pgq_queue_settings s where s.name = 'set'),
    '("1 day",0,15,t)', 'and as they are now');
select pgq_drop_queue('set') \g /dev/null

-- Throughput.
select pg_temp.now_is('2040-02-01 12:00:10+00'), pg_temp.wait('0') \g /dev/null
select is(pg_temp.ends(), '0 0 0 0', 'nothing has ended for long');
select pg_temp.do(1), pg_temp.do(3) \g /dev/null
select is(pg_temp.ends(), '4 0 4 0', 'completions are counted');
select pgq_enqueue_many('{1,2}'), pgq_fail(d.id, d.token, 'no', '0') from pgq_dequeue(2) d
    \g /dev/null
select pgq_enqueue_many('{1,2}') \g /dev/null
select pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue(1) d \g /dev/null
select is(pg_temp.ends(), '4 1 4 1', 'so are failures');
select count(*) from pgq_pop(1) \g /dev/null
select is(pg_temp.ends(), '5 1 5 1', 'and what is popped');
select is(pg_temp.ends('busy'), '0 0 0 0', 'for each queue');
select pg_temp.wait('45 seconds'), pg_temp.tick(), pg_temp.do(2) \g /dev/null
select is(pg_temp.ends(), '7 1 7 1', 'in the next minute of the clock they are still there');
select pg_temp.wait('20 seconds'), pg_temp.tick() \g /dev/null
select is(pg_temp.ends(), '2 0 7 1', 'a minute later the hour has them');
select pg_temp.wait('1 minute'), pg_temp.tick(3) \g /dev/null
select is(pg_temp.ends(), '0 0 7 1', 'and two');
select pg_temp.minutes(10) \g /dev/null
select is(pg_temp.ends(), '0 0 7 1', 'when they have been summed up');
select cmp_ok((select count(*) from pgq.stat), '>=', 1::bigint, 'which they have');
select is(
    (select count(*) from (select from pgq.stat_0 union all select from pgq.stat_1
                           union all select from pgq.stat_2) s), 0::bigint, 'all of them');
select pg_temp.do(1), pg_temp.wait('10 minutes'), pg_temp.tick() \g /dev/null
select is(pg_temp.ends(), '0 0 8 1', 'nor does a clock that leaps lose any');
select pg_temp.minutes(45) \g /dev/null
select is(pg_temp.ends(), '0 0 1 0', 'an hour later they are gone');
select pg_temp.minutes(20) \g /dev/null
select is(pg_temp.ends(), '0 0 0 0', 'all of them');
select pgq_configure_queue('busy', keep_completed => '0'), pg_temp.do(3, 'busy') \g /dev/null
select is(pg_temp.ends('busy'), '0 0', 'of a queue that keeps none completions are not known');
select is(
    (select v.completed_last_hour from pgq_queues v where v.queue = 'busy'), null, 'which is shown');

-- Many calls that end jobs.
create function pg_temp.rush(p_seconds integer, p_calls integer) returns void language plpgsql as $$
begin
    for v_second in 1..p_seconds loop
        perform pgq._complete_rest(array[j.id], array[j.token], null, null, 0)
           from pgq.job j where j.token is not null order by j.id limit p_calls;
        perform pg_temp.tick();
    end loop;
end
$$;
select setseed(0.5), pgq_enqueue_many(array_fill(jsonb '0', array[4000])) \g /dev/null
select count(*) from pgq_dequeue(4000) \g /dev/null
select pg_temp.rush(20, 200) \g /dev/null
select is(pgq_purge('default'), 0::bigint, 'many have completed');
select cmp_ok(
    (select count(*) from (select from pgq.stat_0 union all select from pgq.stat_1
                           union all select from pgq.stat_2) s), '<', 2500::bigint,
    'of which some are written down');
select cmp_ok(
    abs((select v.completed_last_minute from pgq_queues v where v.queue = 'default') - 4000), '<',
    1000::bigint, 'and make good for the others');
select pg_temp.tick(20) \g /dev/null
select is((select q.sample from pgq.queue q where q.name = 'default'), 1,
          'when there are few again all are counted');

-- Workers.
select pgq_purge('busy') \g /dev/null
select pgq_enqueue_many('{1,2,3,4,5,6}', 'busy') \g /dev/null
select count(*) from pgq_dequeue(2, '10 seconds', 'busy', 'ann') \g /dev/null
select pg_temp.wait('5 seconds') \g /dev/null
select count(*) from pgq_dequeue(1, '1 minute', 'busy', 'ann') \g /dev/null
select count(*) from pgq_dequeue(1, '1 minute', 'busy') \g /dev/null
select pg_temp.now_is(pgq._now() + '6 seconds') \g /dev/null
select results_eq(
    $$ select w.queue, w.worker, w.jobs, w.expired, pgq._now() - w.oldest_claimed_at,
              pgq._now() - w.last_heartbeat_at, w.next_expiry_at - pgq._now(),
              w.pid = pg_backend_pid(), w.backend_gone
         from pgq_workers w order by w.worker $$,
    $$ values ('busy', 'ann', 3::bigint, 2::bigint, interval '11 s', interval '6 s',
               interval '-1 s', true, false),
              ('busy', null, 1, 0, '6 s', '6 s', '54 s', true, false) $$,
    'who holds what');
select pgq_heartbeat(j.id, j.token) from pgq.job j where j.worker = 'ann' \g /dev/null
select is(
    (select row(w.expired, w.last_heartbeat_at = pgq._now())::text
       from pgq_workers w where w.worker = 'ann'), '(0,t)', 'heartbeats count');
select pgq_heartbeat(j.id, j.token, '1 hour') from pgq.job j where j.worker = 'ann' \g /dev/null
select is((select w.last_heartbeat_at from pgq_workers w where w.worker = 'ann'), pgq._now(),
          'also with a timeout of their own');
select pgq_complete(j.id, j.token) from pgq.job j where j.worker = 'ann' \g /dev/null
select is((select count(*) from pgq_workers), 1::bigint, 'who has completed all is not shown');

-- Jobs.
select pgq_cancel_all(q.name, true) from pgq.queue q \g /dev/null
delete from pgq.archive;
select pgq_enqueue('{"a": 1}', 'it''s "odd"', 3, group_key => 'g', dedupe_key => 'd',
                   headers => '{"h": 1}', expires_at => pgq._now() + '1 hour', max_attempts => 4) as id
    \gset
select is(
    (select row(j.id, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.payload, j.headers,
                j.group_key, j.dedupe_key, j.expires_at - pgq._now())::text from pgq_jobs j),
    row(:id::bigint, 'it''s "odd"', 3, 'waiting', 0, 4, '{"a": 1}'::jsonb, '{"h": 1}'::jsonb, 'g', 'd',
        interval '1 hour')::text,
    'a live job is shown');
select pg_temp.commit() \g /dev/null
select pgq_complete(d.id, d.token, '"done"') from pgq_dequeue(1, '1 minute', 'it''s "odd"', 'ann') d
    \g /dev/null
select is(
    (select row(j.id, j.queue, j.priority, j.state, j.attempt, j.worker, j.result,
                j.finished_at = pgq._now())::text from pgq_jobs j),
    row(:id::bigint, 'it''s "odd"', 3, 'completed', 1, 'ann', '"done"'::jsonb, true)::text,
    'and when it has completed');

-- Health.
select isnt_empty('select from pgq_health', 'the state of health is shown');
select is(
    (select h.status from pgq_health h where h.subject = 'maintenance'), 'ok', 'with maintenance');
select is(
    (select h.status from pgq_health h where h.subject = 'sessions'), 'ok',
    'with what the owner may see of others');
select is(
    (select array_agg(h.subject order by h.subject) from pgq_health h where h.subject = 'slot'),
    array_fill('slot'::text, array[6]), 'and all slots');
select is_empty('select from pgq_locks', 'nobody waits');

-- Obstacles. What this transaction has claimed and ended is one of its own.
select pgq_create_queue('slow', rate_limit => 2, rate_interval => '1 hour', group_on_dead => 'block') \g /dev/null
select pgq_enqueue(to_jsonb(n), 'slow', group_key => 'g') from generate_series(1, 2) n \g /dev/null
select pg_temp.commit() \g /dev/null
select pgq_fail(d.id, d.token, 'x', retryable => false) from pgq_dequeue(1, '1 minute', 'slow') d \g /dev/null
select pg_temp.commit() \g /dev/null
select results_eq(
    $$ select cause, jobs, group_key, state, since = pgq._now() from pgq_obstacles where queue = 'slow' $$,
    $$ values ('group', 1::bigint, 'g', 'dead', true) $$, 'a dead job that blocks its group is an obstacle');
select pgq_enqueue('3', 'slow') \g /dev/null
select pgq_complete(d.id, d.token) from pgq_dequeue(1, '1 minute', 'slow') d \g /dev/null
select is(
    (select o.until > pgq._now() and o.until <= pgq._now() + interval '30 minutes'
       from pgq_obstacles o where o.cause = 'rate_limit'), true,
    'a rate limit that is used up is one, until the next start');
select pg_temp.wait('1 hour') \g /dev/null
select is_empty($$ select from pgq_obstacles where cause = 'rate_limit' $$, 'no longer than that');
select pgq_unblock('slow', 'g') \g /dev/null
select pg_temp.commit() \g /dev/null
select is_empty($$ select from pgq_obstacles where cause = 'group' $$, 'and the group goes on');

select * from finish();
rollback;
