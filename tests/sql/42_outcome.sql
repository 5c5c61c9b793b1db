/*
 * pgq_outcome: what became of a receipt.
 */
begin;
select plan(12);
\ir support/clock.psql

create temp table receipt (how text, id bigint, token bigint);
create function pg_temp.outcome(p_how text) returns text language sql as $$
    select pgq_outcome(r.id, r.token) from receipt r where r.how = p_how
$$;
select pgq_create_queue('q', max_attempts => 1), pgq_create_queue('none', keep_completed => '0')
    \g /dev/null
select pg_temp.add(h, 'q')
  from unnest('{completed,failed,released,cancelled,expired,held}'::text[]) h \g /dev/null
select pg_temp.add('deleted', 'none') \g /dev/null
insert into receipt select d.payload #>> '{}', d.id, d.token
  from pgq_dequeue(9, '1 minute', '{q,none}'::text[]) d;
select is(pg_temp.outcome(r.how), 'active', 'good: ' || r.how) from receipt r where r.how = 'held';
select pgq_complete(r.id, r.token), pgq_complete(r.id, r.token) from receipt r
 where r.how in ('completed', 'deleted') \g /dev/null
select pgq_fail(r.id, r.token) from receipt r where r.how = 'failed' \g /dev/null
select pgq_release(r.id, r.token) from receipt r where r.how = 'released' \g /dev/null
select pgq_cancel(r.id, true) from receipt r where r.how = 'cancelled' \g /dev/null
select is(pg_temp.outcome('completed'), 'completed', 'a job that was completed with it');
select is(pg_temp.outcome('deleted'), null, 'one of which nothing is kept');
select is(pg_temp.outcome('failed'), 'dead', 'one that has failed with it for good');
select is(pg_temp.outcome('cancelled'), 'cancelled', 'one that was cancelled');
select is(pg_temp.outcome('released'), 'lost', 'one that goes on without it');
select pgq_complete(d.id, d.token) from pgq_dequeue(1, '1 minute', 'q') d \g /dev/null
select is(pg_temp.outcome('released'), 'lost', 'or has ended without it');
select pg_temp.pass('1 minute') \g /dev/null
select is(pg_temp.outcome('expired'), 'active', 'one that nobody has taken back');
select pgq_reclaim('q') \g /dev/null
select is(pg_temp.outcome('expired'), 'dead', 'one whose last lease was lost');
select is(pgq_outcome(0, 0), null, 'an unknown one');
select throws_ok('select pgq_outcome(null, 1)', '22004', null, 'a null id is refused');
select throws_ok('select pgq_outcome(1, null)', '22004', null, 'a null token is refused');

select * from finish();
rollback;
