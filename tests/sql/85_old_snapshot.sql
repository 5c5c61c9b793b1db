/*
 * What transactions that keep their first snapshot refuse, as it may not show what has ended, and
 * what they leave to ticks or tell in any case.
 */
begin isolation level repeatable read;
select plan(8);
\ir support/clock.psql

select pg_temp.add('a') as a, pgq_create_queue('held', dedupe_for => '1 hour') \gset
select throws_ok(
    format($$ select pgq_enqueue('1', after => '{%s}') $$, :a), '25001',
    '"after" needs the isolation level READ COMMITTED', 'no job waits for others');
select throws_ok(
    $$ select pgq_enqueue('1', 'held', dedupe_key => 'k') $$, '25001',
    'a dedupe key in queue "held" needs the isolation level READ COMMITTED',
    'a key is not looked for among completed jobs');
select lives_ok($$ select pgq_enqueue('1', 'held') $$, 'without a key a job is added');
select lives_ok(
    $$ select pgq_enqueue('1', after => null) $$, 'and so it is with nothing to wait for');

-- Others may wait for a job, whom the snapshot does not show.
update pgq.job j set is_awaited = true where j.id = :a;
insert into pgq.dependency (on_id, job_id, lane, on_dead)
select j.id, nextval('pgq.number'), j.lane, 'die' from pgq.job j where j.id = :a;
select id, token from pgq_claim(:a) \gset
select pgq_complete(:id, :token) \g /dev/null
select results_eq(
    $$ select h.kind::text, h.key from pgq.hint h where h.kind = 'e' $$,
    format($$ values ('e', %s::bigint) $$, :a),
    'a tick looks who waited for one that has completed');
select is((select count(*) from pgq.dependency), 1::bigint, 'till then they wait');

-- Nor does it show who sleeps.
\ir support/woken.psql
select pg_temp.add('b') \g /dev/null
select is((select count(*) from woken), 1::bigint, 'sleepers are notified of a job');
delete from woken;
select pgq_release(d.id, d.token) from pgq_dequeue() d \g /dev/null
select is((select count(*) from woken), 1::bigint, 'also of one that comes back');

select * from finish();
rollback;
