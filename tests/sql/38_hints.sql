/*
 * What is left to ticks: changes of group_concurrency, and leases of jobs that were claimed by id.
 */
begin;
select plan(19);
\ir support/clock.psql
\ir support/commit.psql

create function pg_temp.hints(p_kind "char") returns bigint language sql as $$
    select count(*) from pgq.hint h where h.kind = p_kind
$$;

-- group_concurrency.
select pgq_create_queue('q'), pgq_create_queue('other') \g /dev/null
select pgq_enqueue_many(array[jsonb '"g1"', '"g2"', '"g3"'], q, group_keys => '{g,g,g}')
  from unnest('{q,other}'::text[]) q \g /dev/null
select pgq_enqueue('"single"', q), pgq_enqueue('"scheduled"', q, run_at => pgq._now() + '1 hour')
  from unnest('{q,other}'::text[]) q \g /dev/null
select pg_temp.defer(), pg_temp.wait('0') \g /dev/null
select is(pg_temp.take(9, 'q', '1 hour'), '{single,g1}', 'one of a group runs');
select pgq_configure_queue('q', group_concurrency => 2) \g /dev/null
select pg_temp.defer(), pg_temp.wait('0') \g /dev/null
select is(pg_temp.take(9, 'q', '1 hour'), '{g2}', 'or two, by the first tick after the change');
select is(pg_temp.hints('q'), 1::bigint, 'a second one looks again for those who knew of it too late');
select pg_temp.wait('0') \g /dev/null
select is(pg_temp.hints('q'), 0::bigint, 'and that is all');
select is(pg_temp.take(9, 'q', '1 hour'), '{}', 'no third one runs');
select is(pg_temp.take(9, 'other', '1 hour'), '{single,g1}', 'other queues go on as before');

-- Leases far behind the jobs that ticks look at.
select pgq_enqueue_many(array_fill(jsonb '1', array[3000])) \g /dev/null
select j.id as far from pgq.job j order by j.id desc limit 1 offset 500 \gset
select j.id as ended from pgq.job j order by j.id desc limit 1 offset 400 \gset
select (pgq_claim(:far, '10 s')).token as token, (pgq_claim(:ended, '10 s')).token as other \gset
select pgq_complete(:ended, :other) \g /dev/null
create function pg_temp.state(p_id bigint) returns text language sql as $$
    select j.state from pgq_jobs j where j.id = p_id
$$;
select pg_temp.wait('9 s') \g /dev/null
select is(pg_temp.state(:far), 'active', 'a job is claimed by its id');
select is(pg_temp.hints('l'), 1::bigint, 'the tick knows of its lease');
select pg_temp.wait('1 s') \g /dev/null
select is(pg_temp.state(:far), 'ready', 'and takes it back when it has expired');
select is(pg_temp.hints('l'), 0::bigint, 'then nothing is left to do');
select is(pgq_complete(:far, :token), false, 'its receipt is stale');
select is((pgq_claim(:far)).attempt, 2, 'and it can be claimed again');

-- An end that could not be looked up at its commit: who wants to wait goes on waiting.
select pgq_enqueue('"fails"', 'q', 9) as fails \gset
select pgq_enqueue('"dies"', 'q', after => array[:fails]) as dies,
       pgq_enqueue('"waits"', 'q', after => array[:fails], after_on_dead => 'wait') as waits \gset
select pg_temp.defer(), pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue(1, queue => 'q') d
    \g /dev/null
delete from pgq.hint;
delete from pgq.note;
insert into pgq.hint (kind, key) values ('e', -:fails::bigint);
select pg_temp.wait('0'), pg_temp.wait('0') \g /dev/null
select is(pg_temp.state(:dies), 'dead', 'a job dies after the one that it was to follow');
select is(pg_temp.state(:waits), 'waiting', 'one that was told to wait for its retry does not');

-- What is looked at, and who is woken.
create temp table hinted (key bigint);
create function pg_temp.log_hint() returns trigger language plpgsql as $$
begin
    insert into pg_temp.hinted values (new.key);
    return null;
end
$$;
create trigger log after insert on pgq.hint
    for each row when (new.kind = 'g') execute function pg_temp.log_hint();
select pgq_configure_queue('q', group_concurrency => 3), pg_temp.wait('0') \g /dev/null
select is(
    (select count(*) from hinted), 1::bigint,
    'a change of group_concurrency has the groups of that queue looked at, and no others');
\ir support/woken.psql
update pgq.lane l set awaited_until = pgq._now() + '1 hour';
select pgq_enqueue('1', q, group_key => 'g') from unnest('{q,other}'::text[]) q \g /dev/null
truncate woken;
select pg_temp.defer() \g /dev/null
select is(
    (select count(*) from woken), 0::bigint,
    'who has added jobs to groups has told, and what is left to the tick tells nobody again');

-- The table shrinks when few are left, and not before. Those of jobs that are gone do nothing.
insert into pgq.hint (kind, key, place) select 'w', 1000000 + i, 0 from generate_series(1, 30000) i;
select pg_temp.wait('0') \g /dev/null
select cmp_ok(pg_temp.hints('w'), '>=', 29000::bigint, 'of many hints a tick takes a thousand');
select cmp_ok(pg_relation_size('pgq.hint'), '>', 1048576::bigint, 'and all others stay');
delete from pgq.hint h where h.key > 1000900;
select pg_temp.wait('0') \g /dev/null
select cmp_ok(pg_relation_size('pgq.hint'), '<=', 8192::bigint, 'with the last of them their dead rows go');

select * from finish();
rollback;
