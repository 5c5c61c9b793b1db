/*
 * pgq_retry, pgq_retry_dead and pgq_unblock: what they pass by, and how little they read.
 */
begin;
select plan(18);
\ir support/clock.psql
\ir support/commit.psql

create function pg_temp.die(p_queue text, p_key text default null) returns bigint
language plpgsql as $$
declare
    v_id constant bigint := pgq_enqueue('1', p_queue, dedupe_key => p_key);
begin
    perform pgq_fail(d.id, d.token, retryable => false) from pgq_claim(v_id) d;
    return v_id;
end
$$;
create function pg_temp.end_well(p_queue text) returns bigint language plpgsql as $$
declare
    v_id constant bigint := pgq_enqueue('1', p_queue);
begin
    perform pgq_complete(d.id, d.token) from pgq_claim(v_id) d;
    return v_id;
end
$$;

-- Dead jobs that have expired, and jobs that are not dead.
select pgq_create_queue('q', keep_dead => '1 hour') \g /dev/null
select pg_temp.die('q', 'k') as expired, pg_temp.pass('30 minutes') \gset
select pg_temp.end_well('q') as completed, pg_temp.end_well('q') \gset
select pg_temp.die('q') as dead, pg_temp.die('q') as dead_too, pg_temp.die('q', 'k') as same \gset
select pgq_enqueue('1', 'q', dedupe_key => 'k') as live \gset
select throws_ok(
    format('select pgq_retry(%s)', :same), '23505',
    format('a live job has the dedupe key of job %s', :same),
    'a dead job whose key a live one has is not retried');
select throws_ok(
    format('select pgq_retry(%s)', :expired), '23505', null, 'nor an older one');
select pg_temp.pass('30 minutes') \g /dev/null
select is(pgq_retry(:expired), false, 'one that has expired is unknown');
select is(pgq_retry(:completed), false, 'and so is one that has completed');
select is(array(select pgq_retry_dead('q', 1)), array[:dead]::bigint[],
          'the first dead job is retried');
select is(array(select pgq_retry_dead('q', 1)), array[:dead_too]::bigint[],
          'then the next one');
select is(array(select pgq_retry_dead('q', 1)), '{}', 'not the one whose key is taken');
select pgq_cancel(:live) \g /dev/null
select is(array(select pgq_retry_dead('q', 9)), array[:same]::bigint[],
          'until that job has ended');
select is(pgq_purge('q'), 3::bigint, 'all of them are ready');

-- Blocked groups.
\ir support/read.psql
create table pg_temp.cost (entries bigint);
create function pg_temp.unblock(p_group text) returns boolean language plpgsql as $$
declare
    v_before constant bigint := pg_temp.read();
    v_answer boolean;
begin
    v_answer := pgq_unblock('groups', p_group);
    insert into pg_temp.cost values (pg_temp.read() - v_before);
    return v_answer;
end
$$;
select pgq_create_queue('groups', group_on_dead => 'block') \g /dev/null
select pgq_enqueue_many(array_fill(jsonb '1', array[300]), 'groups',
                        group_keys => array_fill(text 'g', array[300])) \g /dev/null
select pg_temp.commit() \g /dev/null
select pgq_enqueue_many(array_fill(jsonb '1', array[1000])) \g /dev/null
select pgq_enqueue_many(array_fill(jsonb '1', array[1000]), run_at => pgq._now() + '1 day')
    \g /dev/null
select is(pg_temp.unblock('g'), false, 'a group that goes on is not blocked');
select is(pg_temp.unblock('none'), false, 'nor is one without jobs');
select id as first, pgq_fail(d.id, d.token, retryable => false)
  from pgq_dequeue(1, queue => 'groups') d \gset
select pg_temp.commit() \g /dev/null
select is(pg_temp.take(1, 'groups'), '{}', 'a dead job blocks its group');
select is(pg_temp.unblock('g'), true, 'until it is unblocked');
select pg_temp.commit() \g /dev/null
select is(pg_temp.unblock('g'), false, 'which is done once');
select is(pg_temp.take(1, 'groups'), '{1}', 'then the next job runs');
select cmp_ok((select max(c.entries) from cost c), '>=', 300::bigint,
              'to unblock reads the line of the group');
select cmp_ok((select max(c.entries) from cost c), '<', 700::bigint, 'and hardly any other job');
select is((select count(*) from pgq_get(:first) g where g.state = 'dead'), 1::bigint,
          'the dead job stays dead');

select * from finish();
rollback;
