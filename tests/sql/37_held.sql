/*
 * Which jobs hold a dedupe key, and what a duplicate leaves alone.
 */
begin;
select plan(13);
\ir support/clock.psql

create function pg_temp.put(
    p_key text, p_queue text default 'held', p_on_duplicate text default 'keep'
) returns bigint language sql as $$
    select pgq_enqueue('1', p_queue, dedupe_key => p_key, on_duplicate => p_on_duplicate)
$$;
create function pg_temp.complete(p_queue text default 'held') returns bigint language sql as $$
    select d.id from pgq_dequeue(1, '1 hour', p_queue) d, pgq_complete(d.id, d.token)
$$;

-- Those that have completed within dedupe_for.
select pgq_create_queue('held', dedupe_for => '1 hour') \g /dev/null
select pg_temp.put('k') as first, pg_temp.complete() \gset
select is(pg_temp.put('k'), :first::bigint, 'a job that has completed holds its key');
select pg_temp.put('dead') as dead \gset
select pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue(queue => 'held') d \g /dev/null
select isnt(pg_temp.put('dead'), :dead::bigint, 'one that is dead does not');
select is(pg_temp.complete() is not null, true, 'so another one runs');
select pg_temp.pass('-59 s') \g /dev/null
select is(
    pg_temp.put('k'), :first::bigint, 'it holds the key also when the clock is set back a little');
select pg_temp.pass('-1 s') \g /dev/null
select isnt(pg_temp.put('k'), :first::bigint, 'but not when that is a minute: it may be for long');
select pg_temp.pass('1 minute'), pg_temp.complete() \g /dev/null
select pg_temp.put('n') as gone, pg_temp.complete() \gset
select pgq_drop_queue('held', true), pgq_create_queue('held', dedupe_for => '1 hour') \g /dev/null
select isnt(pg_temp.put('n'), :gone::bigint, 'a new queue of the same name has keys of its own');

-- A duplicate.
select pgq_create_queue('live', dedupe_for => '1 hour') \g /dev/null
select pg_temp.put('k', 'live') as live \gset
create function pg_temp.lock_of(p_id bigint) returns text language sql as $$
    select j.xmax::text from pgq.job j where j.id = p_id
$$;
create function pg_temp.looks() returns bigint language sql as $$
    select sum(pg_stat_get_xact_numscans(c.oid))::bigint
      from pg_class c
     where c.relnamespace = 'pgq'::regnamespace and c.relname ~ '^archive_\d+_queue_dedupe_key_idx$'
$$;
select pg_temp.looks() as looks \gset
select is(pg_temp.put('k', 'live'), :live::bigint, 'a duplicate adds nothing');
select is(pg_temp.lock_of(:live::bigint), '0', 'and does not lock the job that has the key');
select is(
    pg_temp.looks(), :looks::bigint, 'nor look whether a job that has completed holds it');
select cmp_ok(
    (select pg_temp.looks() from pg_temp.put('other', 'live')), '>', :looks::bigint,
    'which it does for a key that is free');
\ir support/calls_of.psql
select is(
    array(select e = :live::bigint from pgq_enqueue_many(
        '{1,2}', 'live', dedupe_keys => '{k,new}', on_duplicate => 'replace') e), '{t,f}',
    'of two jobs the one with a live key replaces');
select is(pg_temp.calls('_replace'), 1::bigint, 'that one job');
select pg_temp.calls('_find') as finds \gset
select pgq_enqueue_many('{1,2}', 'live', dedupe_keys => '{k,free}') \g /dev/null
select is(
    pg_temp.calls('_find'), :finds + 1::bigint,
    'only of the job that has a live key it is asked whether it is late');

select * from finish();
rollback;
