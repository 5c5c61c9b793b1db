/*
 * Jobs of queues that keep none when they complete: one DELETE, and what it must not pass by.
 */
begin;
select plan(20);
\ir support/clock.psql
\ir support/commit.psql
set local client_min_messages = warning;

create function pg_temp.state(p_id bigint) returns text language plpgsql as $$
begin
    return (select g.state from pgq_get(p_id) g);
end
$$;
\ir support/calls_of.psql

-- What waits for such jobs.
select pgq_create_queue('none', keep_completed => '0'),
       pgq_create_queue('other', keep_completed => '0') \g /dev/null
select pg_temp.add('one', 'none') as one, pg_temp.add('two', 'none') as two,
       pg_temp.add('three', 'none') as three, pg_temp.add('four', 'none') as four \gset
select pgq_enqueue('"after one"', 'other', after => array[:one]) as after_one,
       pgq_enqueue('"after two"', 'other', after => array[:two]) as after_two,
       pgq_enqueue('"after three"', 'other', after => array[:three]) as after_three,
       pg_temp.commit() \gset
create temp table receipt as select d.id, d.token from pgq_dequeue(9, '1 hour', 'none') d;
select is((select count(*) from receipt), 4::bigint, 'four jobs, of which three are waited for');
select is(pg_temp.state(:after_one), 'waiting', 'others wait for them');
select is((select pgq_complete(r.id, r.token) from receipt r where r.id = :one), true,
          'one completes');
select is(pg_temp.state(:one), null, 'nothing is kept of it');
select pg_temp.commit() \g /dev/null
select is(pg_temp.state(:after_one), 'ready', 'what waited for it is ready');
select is(
    array(
        select c
          from pgq_complete(
                   array(select r.id from receipt r where r.id > :one order by r.id),
                   array(select r.token from receipt r where r.id > :one order by r.id)
               ) c
         order by 1
    ),
    array[:two, :three, :four]::bigint[], 'several complete together');
select pg_temp.commit() \g /dev/null
select is(
    array[pg_temp.state(:after_two), pg_temp.state(:after_three)], '{ready,ready}',
    'so is what waited for each of these');
select pgq_purge('other') \g /dev/null

-- Together in one statement.
create function pg_temp.complete(p_number integer) returns bigint language plpgsql as $$
declare
    v_ids bigint[];
    v_tokens bigint[];
begin
    perform pgq_enqueue_many(array_fill(jsonb '1', array[p_number]), 'none');
    select array_agg(d.id), array_agg(d.token) into v_ids, v_tokens
      from pgq_dequeue(p_number, '1 hour', 'none') d;
    return (select count(*) from pgq_complete(v_ids, v_tokens));
end
$$;
select pg_temp.calls('_complete_rest') as before \gset
select is(pg_temp.complete(400), 400::bigint, 'four hundred for which none waits complete');
select is(pg_temp.calls('_complete_rest'), :before::bigint, 'in one statement');
select is(pg_temp.complete(401), 401::bigint, 'more do');
select is(pg_temp.calls('_complete_rest'), :before + 1::bigint, 'in another one');

-- Who may not consume from the queue.
create role regress_thief;
select pgq_grant('other', 'regress_thief', '{consume}'), pg_temp.add('mine', 'none') \g /dev/null
select id, token from pgq_dequeue(1, '1 hour', 'none') \gset
set local role regress_thief;
select is(pgq_complete(:id, :token), false,
          'a receipt is lost for who may not consume from its queue');
select is(
    array(select pgq_complete(array[:id]::bigint[], array[:token]::bigint[])), '{}',
    'also among several');
reset role;
select is(pg_temp.state(:id), 'active', 'and the job goes on');
select is(pgq_complete(:id, :token), true, 'until its holder completes it');

-- With a limit, and with keys that stay taken.
select pgq_create_queue('keys', keep_completed => '0', dedupe_for => '1 hour', max_active => 9)
    \g /dev/null
select pgq_enqueue('1', 'keys', dedupe_key => 'k') as first \gset
select pgq_complete(d.id, d.token) from pgq_dequeue(1, '1 minute', 'keys') d \g /dev/null
select is(pgq_enqueue('2', 'keys', dedupe_key => 'k'), :first::bigint,
          'a key stays taken after its job has completed, also in a queue with a limit');
select pgq_pop(1, 'keys'), pg_temp.pass('1 hour') \g /dev/null
select isnt(pgq_enqueue('3', 'keys', dedupe_key => 'k'), :first::bigint, 'for dedupe_for');

-- Receipts of a dropped queue.
select pgq_create_queue('named'), pg_temp.add('1', 'named') \g /dev/null
select id, token from pgq_dequeue(1, '1 hour', 'named') \gset
select pgq_complete(:id, :token) \g /dev/null
select is(pgq_outcome(:id, :token), 'completed', 'what became of a receipt is told');
select pg_temp.commit(), pgq_drop_queue('named') \g /dev/null
select is(pgq_outcome(:id, :token), null, 'until its queue is dropped');
select pgq_create_queue('named') \g /dev/null
select is(pgq_outcome(:id, :token), null, 'nor does a new queue of that name tell it');

select * from finish();
rollback;
