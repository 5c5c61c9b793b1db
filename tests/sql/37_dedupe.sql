/*
 * Dedupe keys.
 */
begin;
select plan(52);
\ir support/clock.psql

create function pg_temp.put(
    p_label text, p_key text, p_on_duplicate text default 'keep', p_queue text default 'default',
    p_priority integer default 0, p_delay interval default null
) returns bigint language plpgsql as $$
begin
    return pgq_enqueue(
        to_jsonb(p_label), p_queue, p_priority, pgq._now() + p_delay, p_key,
        on_duplicate => p_on_duplicate
    );
end
$$;
create function pg_temp.live() returns text[] language plpgsql as $$
begin
    return array(select j.payload #>> '{}' from pgq.job j order by j.id);
end
$$;

-- One live job per key and queue.
select pg_temp.put('one', 'k') as one \gset
select is(pg_temp.put('two', 'k'), :one::bigint, 'the second enqueue returns the first one''s id');
select is(pg_temp.live(), '{one}', 'and adds nothing');
select is(pg_temp.put('two', 'k', p_priority => 9), :one::bigint, 'whatever its priority');
select pgq_create_queue('other') \g /dev/null
select isnt(pg_temp.put('other', 'k', p_queue => 'other'), :one::bigint, 'another queue has its own keys');
select isnt(pg_temp.put('K', 'K'), :one::bigint, 'case counts');
select is(
    (select row(d.id, d.dedupe_key)::text from pgq_dequeue(1) d), format('(%s,k)', :one::bigint),
    'the consumer sees the key');
select is(pg_temp.put('two', 'k'), :one::bigint, 'an active job holds its key');
select pgq_purge('default'), pgq_purge('other') \g /dev/null
select is(pg_temp.live(), '{one}', 'purging leaves the active one');

-- What ends a job frees its key, what does not end it does not.
create function pg_temp.token(p_id bigint) returns bigint language sql as $$
    select j.token from pgq.job j where j.id = p_id
$$;
select pgq_release(:one::bigint, pg_temp.token(:one::bigint)) \g /dev/null
select is(pg_temp.put('two', 'k'), :one::bigint, 'a job that was given back holds its key');
select pg_temp.take() \g /dev/null
select pgq_fail(:one::bigint, pg_temp.token(:one::bigint), 'no', '1 hour') \g /dev/null
select is(pg_temp.put('two', 'k'), :one::bigint, 'one that waits for its next try, too');
select pgq._move(4::smallint, 5::smallint, 1000) \g /dev/null
select is(pg_temp.put('two', 'k'), :one::bigint, 'also after it was moved');
select pgq_cancel(:one::bigint) \g /dev/null
select pg_temp.put('two', 'k') as two \gset
select cmp_ok(:two::bigint, '>', :one::bigint, 'a cancelled job does not');
select pg_temp.take() \g /dev/null
select pgq_complete(:two::bigint, pg_temp.token(:two::bigint)) \g /dev/null
select pg_temp.put('three', 'k') as three \gset
select cmp_ok(:three::bigint, '>', :two::bigint, 'nor does a completed one');
select pgq_pop() \g /dev/null
select pg_temp.put('four', 'k') as four \gset
select cmp_ok(:four::bigint, '>', :three::bigint, 'nor one that was popped');

-- A dead one does not either, and comes back only while nobody else has the key.
select pg_temp.take() \g /dev/null
select pgq_fail(:four::bigint, pg_temp.token(:four::bigint), retryable => false) \g /dev/null
select pg_temp.put('five', 'k') as five \gset
select cmp_ok(:five::bigint, '>', :four::bigint, 'nor one that is dead');
select throws_ok(
    format('select pgq_retry(%s)', :four::bigint), '23505', null,
    'a dead job is not retried while a live one has its key');
select is_empty($$ select pgq_retry_dead('default') $$, 'and left out when all are retried');
select is((select a.state from pgq.archive a where a.id = :four::bigint), 'dead', 'it stays dead');
select pgq_cancel(:five::bigint) \g /dev/null
select is(pgq_retry(:four::bigint), true, 'then it is retried');
select is(pg_temp.put('six', 'k'), :four::bigint, 'and holds its key again');
select pgq_purge('default') \g /dev/null
select pg_temp.put('d1', 'd') \g /dev/null
select pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue() d \g /dev/null
select pg_temp.put('d2', 'd') \g /dev/null
select pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue() d \g /dev/null
select is(
    (select count(*) from pgq.archive a where a.state = 'dead' and a.dedupe_key = 'd'), 2::bigint,
    'of two dead jobs with one key');
select is((select count(*) from pgq_retry_dead('default')), 1::bigint, 'one is retried');
select is(pg_temp.live(), '{d1}', 'the older one');
select pgq_purge('default') \g /dev/null

-- Many at once.
select pg_temp.put('a', 'a') as a \gset
select array_agg(m) as ids from pgq_enqueue_many('{1,2,3,4}', dedupe_keys => '{b,a,b,c}') m \gset
select is((:'ids'::bigint[])[2], :a::bigint, 'in bulk, too, a live job''s id is returned');
select is((:'ids'::bigint[])[1], (:'ids'::bigint[])[3], 'and the first one''s of two in one call');
select cmp_ok((:'ids'::bigint[])[4], '>', (:'ids'::bigint[])[1], 'ids are in input order');
select is(pg_temp.live(), '{a,1,4}', 'only new keys are added');
select is_empty($$ select pgq_enqueue_many('{}', dedupe_keys => '{}') $$, 'none is fine');
select throws_ok(
    $$ select pgq_enqueue_many('{8,9}', dedupe_keys => '{new,c}', on_duplicate => 'error') $$,
    '23505', null, 'a live key is an error if asked for');
select is(pg_temp.live(), '{a,1,4}', 'and then nothing is added');

-- Null: no key.
select pgq_create_queue('mixed') \g /dev/null
create temp table mixed as
select m.* from pgq_enqueue_many(
    '{1,2,3,4,5}', 'mixed', dedupe_keys => '{null,k,null,k,l}', group_keys => '{g,null,null,g,h}'
) with ordinality m (id, n);
select is(
    array(select rank() over (order by m.id)::integer from mixed m order by m.n), '{1,2,4,2,5}',
    'without a key each payload is a job, with one the first');
select results_eq(
    $$ select j.payload::text, j.dedupe_key collate "default", j.group_key collate "default"
         from pgq.job j join mixed m on m.id = j.id where m.n <> 4 order by m.n $$,
    $$ values ('1', null, 'g'), ('2', 'k', null), ('3', null, null), ('5', 'l', 'h') $$,
    'and has the keys that are at its place');
select is(
    array(select e.id = o.id
            from pgq_enqueue_many('{6,7}', 'mixed', dedupe_keys => '{l,null}')
                 with ordinality e (id, n)
            left join mixed o on o.n = 5),
    '{t,f}', 'a live key is found beside a job without one');
select is(
    (select count(distinct e) from pgq_enqueue_many(
        '{6,7}', 'mixed', dedupe_keys => '{null,null}', on_duplicate => 'error') e),
    2::bigint, 'two without a key are no duplicates');
select is(
    (select count(distinct e) from pgq_enqueue_many(
        '{6,7}', 'mixed', dedupe_keys => '{null,null}', on_duplicate => 'replace') e),
    2::bigint, 'and replace nothing');
select is(
    (select count(distinct e) from pgq_enqueue_many(
        '{6,7}', 'mixed', group_keys => '{null,null}', after => array(select m.id from mixed m)) e),
    2::bigint, 'groups that are all null are none');
select set_config('pgq.decided', '', true) \g /dev/null
set constraints all immediate;
set constraints all deferred;
select pgq._take_hints() \g /dev/null
select is(
    array(select d.payload::text from pgq_dequeue(20, queue => 'mixed') d), '{2,3,7,6,7,6,7,1,5}',
    'all of them are claimed');
select pgq_drop_queue('mixed', force => true) \g /dev/null

-- Replace.
select is(pg_temp.put('A', 'a', 'replace'), :a::bigint, 'the job that is replaced keeps its id');
select is(pg_temp.live(), '{A,1,4}', 'and gets the payload');
select is(
    array(select pgq_enqueue_many(
        '{5,6,7}', dedupe_keys => '{b,b,e}', on_duplicate => 'replace'))::text,
    array[(:'ids'::bigint[])[1], (:'ids'::bigint[])[1], currval('pgq.number')]::text,
    'in bulk, too');
select is(pg_temp.live(), '{A,6,4,7}', 'the last one counts');
select pg_temp.put('later', 'a', 'replace', p_delay => '1 hour') \g /dev/null
select is(pg_temp.take(10), '{6,4,7}', 'a job can be put off');
select pg_temp.put('now', 'a', 'replace') \g /dev/null
select is(pg_temp.take(10), '{now}', 'and brought forward');
select is(pg_temp.put('late', 'a', 'replace'), :a::bigint, 'an active job');
select is(
    (select j.payload #>> '{}' from pgq.job j where j.id = :a::bigint), 'now', 'is left as it is');

-- dedupe_for.
select pgq_create_queue('held', keep_completed => '0', dedupe_for => '1 hour') \g /dev/null
select pg_temp.put('h', 'h', p_queue => 'held') as h \gset
select pg_temp.add('plain', 'held') \g /dev/null
select pgq_complete(d.id, d.token) from pgq_dequeue(2, queue => 'held') d \g /dev/null
select results_eq(
    $$ select a.payload #>> '{}' from pgq.archive a where a.queue = 'held' $$, $$ values ('h') $$,
    'the archive keeps a job whose key is held');
select pgq_create_queue('both', keep_completed => '1 minute', dedupe_for => '1 hour') \g /dev/null
select pg_temp.put(k, k, p_queue => 'both') from unnest('{x,y,z}'::text[]) k \g /dev/null
select pg_temp.add('plain', 'both') \g /dev/null
select pgq_complete(d.id, d.token) from pgq_dequeue(1, queue => 'both') d \g /dev/null
select count(*) from (select array_agg(d.id) as ids, array_agg(d.token) as tokens
                        from pgq_dequeue(3, queue => 'both') d) d, pgq_complete(d.ids, d.tokens) \g /dev/null
select results_eq(
    $$ select a.dedupe_key collate "default", a.expires_at - a.finished_at,
              a.bucket = pgq._archive_bucket(a.expires_at, a.expires_at - a.finished_at)
         from pgq.archive a where a.queue = 'both' order by a.id $$,
    $$ values ('x', interval '1 hour', true), ('y', '1 hour', true), ('z', '1 hour', true),
              (null, '1 minute', true) $$,
    'or, where completed jobs are kept, keeps it for longer than the others');
select pg_temp.wait('59 minutes') \g /dev/null
select is(pg_temp.put('again', 'h', 'replace', 'held'), :h::bigint, 'a key is held after completion');
select is(pg_temp.take(1, 'held'), '{}', 'and nothing runs again');
select pgq_configure_queue('held', dedupe_for => '30 minutes') \g /dev/null
select isnt(pg_temp.put('again', 'h', p_queue => 'held'), :h::bigint, 'for as long as the queue says now');
select is(pg_temp.take(1, 'held'), '{again}', 'then it runs');
select throws_ok(
    $$ select pgq_create_queue('bad', dedupe_for => '-1 second') $$, '22023', null,
    'dedupe_for is not negative');

select * from finish();
rollback;
