/*
 * A clock that was wrong for a while: what was counted from its time goes on when it is right.
 */
begin;
select plan(38);
\ir support/clock.psql
\ir support/commit.psql

create function pg_temp.move_clock(p_time interval) returns void language plpgsql as $$
begin
    perform pg_temp.now_is(pgq._now() + p_time), pg_temp.tick(3);
end
$$;
-- Queues are named as the labels are: one job each.
create function pg_temp.claim(p_queue text) returns pgq_job language plpgsql as $$
begin
    return (select d from pgq_dequeue(1, '1 minute', p_queue) d);
end
$$;
create function pg_temp.comes(p_queue text) returns interval language plpgsql as $$
begin
    return (
        select greatest(j.lease_expires_at, j.run_at, timestamptz 'epoch' + j.due * interval '1 us')
               - pgq._now()
          from pgq.job j join pgq.lane l on l.id = j.lane where l.queue = p_queue order by j.id limit 1
    );
end
$$;
create function pg_temp.health(p_subject text) returns text language plpgsql as $$
begin
    return (select h.status from pgq_health h where h.subject = p_subject);
end
$$;
create function pg_temp.fired(p_name text) returns bigint language plpgsql as $$
begin
    return (select count(*) from pgq.job j where j.headers ->> 'pgq_schedule' = p_name);
end
$$;
select pgq_create_queue(q) from unnest(
    '{claimed,renewed,failed,released,retried,replaced,asked,moved,groups,timed,schedules}'::text[]
) q \g /dev/null
select pgq_create_queue('once', dedupe_for => '1 hour'),
       pgq_create_queue('limited', rate_limit => 2, rate_interval => '1 minute') \g /dev/null
select pgq_schedule(s, '* * * * *', queue => 'schedules', missed => m)
  from (values ('minute', 'once'), ('all', 'all'), ('skip', 'skip'), ('off', 'once')) v (s, m) \g /dev/null
select pgq_pause_schedule('off'), pg_temp.tick(3) \g /dev/null
select is(pg_temp.health('clock'), null, 'a clock that goes on is not told of');

-- A year ahead.
select pg_temp.move_clock('1 year') \g /dev/null
select is(
    array(select pg_temp.fired(s) from unnest('{minute,skip}'::text[]) s), '{1,1}',
    'schedules fire a year ahead');
select pgq_schedule('new', '* * * * *', queue => 'schedules') \g /dev/null
select pg_temp.add(q, q) from unnest(
    '{claimed,renewed,failed,released,retried,limited,limited}'::text[]
) q \g /dev/null
select pg_temp.add('timed', 'timed', p_delay => '1 day') \g /dev/null
select pgq_enqueue(to_jsonb(q), q, run_at => pgq._now() + '1 hour', dedupe_key => 'k')
  from unnest('{replaced,asked}'::text[]) q \g /dev/null
select pgq_enqueue('1', 'replaced', dedupe_key => 'k', on_duplicate => 'replace'),
       pgq_enqueue('1', 'asked', dedupe_key => 'k', on_duplicate => 'replace',
                   run_at => pgq._now() + '1 hour') \g /dev/null
-- One that was due before, and is moved from one parked slot to the other.
select pg_temp.add('moved', 'moved', p_delay => '1 second') as moved \gset
update pgq.job set run_at = run_at - interval '1 year' where id = :moved;
select pgq._move(4::smallint, 5::smallint, 1000) \g /dev/null
select pg_temp.claim('claimed'), pgq_heartbeat(c.id, c.token, '2 hours')
  from pg_temp.claim('renewed') c \g /dev/null
select pgq_fail(c.id, c.token, retry_in => '10 s') from pg_temp.claim('failed') c \g /dev/null
select pgq_release(c.id, c.token) from pg_temp.claim('released') c \g /dev/null
select pgq_fail(c.id, c.token, retryable => false), pgq_retry(c.id)
  from pg_temp.claim('retried') c \g /dev/null
select pg_temp.commit(), pgq_enqueue_many('{1,2}', 'groups', group_keys => '{g,g}') \g /dev/null
select pg_temp.commit(), pgq_complete(c.id, c.token) from pg_temp.claim('groups') c \g /dev/null
select pg_temp.commit(), pgq_enqueue('1', 'once', dedupe_key => 'k') \g /dev/null
select pgq_complete(c.id, c.token) from pg_temp.claim('once') c \g /dev/null
select pgq_dequeue(2, queue => 'limited') \g /dev/null
select is(
    array(select q from unnest('{claimed,renewed,failed,retried,replaced,moved}'::text[]) q
           where pg_temp.comes(q) is null), '{}', 'jobs are held and come back');

-- It is set back; before a tick and after.
select pg_temp.now_is(pgq._now() - interval '1 year') \g /dev/null
select is(pg_temp.health('maintenance'), 'warning', 'a last tick in the future is told of');
delete from pgq.chore;
select pgq._want_tick(30000) \g /dev/null
select is((select count(*) from pgq.chore), 1::bigint, 'and the next call has one come');
select pg_temp.tick(3) \g /dev/null
select is(pg_temp.health('clock'), 'warning', 'a tick finds the clock set back');
select is(pg_temp.health('maintenance'), 'ok', 'and goes on');
select ok(h.detail ~ '^set back from 2041-01-01 .* to 2040-01-01 ' and h.age < '1 minute', 'which is told with the times: ' || h.detail)
  from pgq_health h where h.subject = 'clock';
select ok(pg_temp.comes(q) between '50 s' and '60 s', format('the lease of the job that is %s is as long as its claim asked for', q))
  from unnest('{claimed,renewed}'::text[]) q;
select ok(pg_temp.comes('failed') between '5 s' and '10 s', 'a retry waits as long as it had to');
select ok((pg_temp.claim(q)).id is not null, format('a job that was %s is claimed at once', q))
  from unnest('{released,retried,replaced,moved}'::text[]) q;
select is((pg_temp.claim('groups')).payload, '2', 'so is the next one of a group');
select ok(pg_temp.comes(q) > '1 year', format('a time that was %s for stays', q))
  from unnest('{timed,asked}'::text[]) q;
select is(
    (select count(distinct e) from (select pgq_enqueue('2', 'once', dedupe_key => 'k') e union all select a.id from pgq.archive a where a.queue = 'once') e),
    2::bigint, 'a dedupe key that was held until then is free');
select pg_temp.move_clock('50 s') \g /dev/null
select ok((pg_temp.claim('failed')).attempt = 2, 'the retry comes');
select is(array(select s.name from pgq_schedules s where not s.paused and s.next_at > pgq._now() + '1 minute'), '{}', 'no schedule waits longer than it should');
create temp table fired as select s.name, pg_temp.fired(s.name) from pgq_schedules s;
select pg_temp.move_clock('1 minute') \g /dev/null
select ok(pg_temp.fired(f.name) = f.fired + (f.name <> 'off')::integer, format('the schedule "%s" has fired once more', f.name))
  from fired f where f.name <> 'off' order by f.name;
select is(pg_temp.fired('off'), 0::bigint, 'not one that is paused');
select is((pg_temp.claim(q)).attempt, 2, format('a lease that is not renewed ends: %s', q))
  from unnest('{claimed,renewed}'::text[]) q;

-- One that a call had parked which began before, and whose time is over when that is mended.
select pgq_create_queue('late'), pg_temp.add('late', 'late', p_delay => '1 s') as late \gset
update pgq.job set due = due + 31536000000000 where id = :late;
select pg_temp.tick(20), pg_temp.move_clock('1 minute') \g /dev/null
select isnt((pg_temp.claim('late')).id, null, 'a job that was parked late comes');

-- Minutes ahead: those starts of a rate limit lie in the window soon.
select pg_temp.move_clock('10 minutes'), pgq_cancel_all('limited', true) \g /dev/null
select pgq_enqueue_many('{1,2,3}', 'limited') \g /dev/null
select is(
    (select count(*) from pgq_dequeue(9, queue => 'limited')), 2::bigint,
    'a rate limit lets a burst through');
select pg_temp.move_clock('-10 minutes'), pg_temp.move_clock('10 minutes') \g /dev/null
select pgq_cancel_all('limited', true) \g /dev/null
select pgq_enqueue_many('{1,2,3}', 'limited') \g /dev/null
select is(
    (select count(*) from pgq_dequeue(9, queue => 'limited')), 2::bigint,
    'starts that were used before the clock was set back take none from its time');

-- A minute: nothing waits for long.
select pgq_dequeue(1, '1 hour', 'timed'), pg_temp.add('timed', 'timed') \g /dev/null
select pg_temp.claim('timed') \g /dev/null
create temp table before as select g.set_back_at, max(j.lease_expires_at) from pgq.gate g, pgq.job j group by 1;
select pg_temp.move_clock('-50 s') \g /dev/null
select results_eq(
    $$ select g.set_back_at, max(j.lease_expires_at) from pgq.gate g, pgq.job j group by 1 $$,
    'select * from before', 'less than a minute changes nothing');

-- It was right before: fifty years back, and right again.
truncate fired;
insert into fired select s.name, pg_temp.fired(s.name) from pgq_schedules s where s.name in ('minute', 'all');
select pg_temp.move_clock('-50 years') \g /dev/null
select pg_temp.move_clock('2 minutes') \g /dev/null
select ok(
    (select every(pg_temp.fired(f.name) > f.fired) from fired f),
    'nobody can tell that the clock is wrong now: schedules fire');
update fired f set fired = pg_temp.fired(f.name);
select pg_temp.move_clock('50 years'), pg_temp.tick(10) \g /dev/null
select ok(
    (select every(pg_temp.fired(f.name) - f.fired between 1 and 8) from fired f),
    'when it is right again, no times are caught up with that it had passed before');
select pg_temp.move_clock('1 minute') \g /dev/null
select is(
    array(select s.name from pgq_schedules s
           where not s.paused and s.next_at not between pgq._now() and pgq._now() + '1 minute'),
    '{}', 'and schedules go on');
select ok(h.detail ~ ', and right again$' and h.status = 'warning', 'which is told')
  from pgq_health h where h.subject = 'clock';
select pg_temp.move_clock('1 day') \g /dev/null
select is(pg_temp.health('clock'), 'ok', 'a day later health warns no more');
select is(
    (select count(*) from pgq_health h where h.subject = 'clock'), 1::bigint, 'and still tells it');

select * from finish();
rollback;
