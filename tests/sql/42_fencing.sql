/*
 * Fencing: a receipt that has become stale changes nothing, and its holder is told.
 */
begin;
select plan(71);
\ir support/clock.psql

create temp table receipt (how text, id bigint, token bigint);

-- All that a consumer, an operator or a query could see of a job.
create function pg_temp.state_of(p_id bigint) returns text language sql as $$
    select concat_ws(' ', (select j::text from pgq.job j where j.id = p_id),
                          (select string_agg(a::text, ' ') from pgq.archive a where a.id = p_id))
$$;

create function pg_temp.stale(p_how text) returns setof text language plpgsql as $$
declare
    r receipt;
    v_before text;
    v_cell record;
begin
    select * into strict r from receipt where how = p_how;
    v_before := pg_temp.state_of(r.id);
    return next is(pgq_complete(r.id, r.token), false, p_how || ': complete says false');
    return next is(
        array(select pgq_complete(array[r.id], array[r.token])), '{}', p_how || ': so do many');
    return next is(
        pgq_heartbeat(r.id, r.token, '1 day'), null, p_how || ': heartbeat says null');
    return next is(
        array(select h.id from pgq_heartbeat(array[r.id], array[r.token], '1 day') h), '{}',
        p_how || ': so do many');
    return next is(pgq_fail(r.id, r.token, 'late'), null, p_how || ': fail says null');
    return next is(
        pgq_fail(r.id, r.token, 'late', retryable => false), null, p_how || ': in any form');
    return next is(pgq_release(r.id, r.token), false, p_how || ': release says false');
    return next is(pg_temp.state_of(r.id), v_before, p_how || ': and nothing has changed');
end
$$;

create function pg_temp.receipt(p_how text) returns void language sql as $$
    insert into receipt select p_how, d.id, d.token from pgq_dequeue(1, '10 s') d
$$;

select pg_temp.add('x'), pg_temp.receipt('expired and claimed again'), pg_temp.wait('10 s')
    \g /dev/null
select is(pg_temp.take(1, p_timeout => '1 s'), '{x}', 'somebody else claims the expired job');
select pg_temp.stale('expired and claimed again');
select pg_temp.forgive(), pg_temp.wait('1 s') \g /dev/null
select pg_temp.forgive(), pg_temp.receipt('expired and reclaimed'), pg_temp.pass('10 s')
    \g /dev/null
select is((select count(*) from pgq_reclaim()), 1::bigint, 'the expired lease is reclaimed');
select pg_temp.stale('expired and reclaimed');
select pg_temp.receipt('released') \g /dev/null
select pgq_release(r.id, r.token) from receipt r where r.how = 'released' \g /dev/null
select pg_temp.stale('released');
select pg_temp.receipt('failed') \g /dev/null
select pgq_fail(r.id, r.token, 'e', '0') from receipt r where r.how = 'failed' \g /dev/null
select pg_temp.stale('failed');
select pg_temp.receipt('dead') \g /dev/null
select pgq_fail(r.id, r.token, 'e', retryable => false) from receipt r where r.how = 'dead'
    \g /dev/null
select pg_temp.stale('dead');
insert into receipt select 'retried', r.id, r.token from receipt r where r.how = 'dead';
select is(pgq_retry(r.id), true, 'the dead job is retried')
  from receipt r where r.how = 'dead';
select pg_temp.stale('retried');
select pg_temp.receipt('completed') \g /dev/null
select pgq_complete(r.id, r.token, '1') from receipt r where r.how = 'completed' \g /dev/null
select pg_temp.stale('completed');
select is(
    (select count(distinct r.token) from receipt r where r.how <> 'retried'), 6::bigint,
    'a job never gets the same token again, however its attempts are counted');
select is(
    array(select r.how from receipt r where r.how <> 'retried' order by r.token),
    array['expired and claimed again', 'expired and reclaimed', 'released', 'failed', 'dead',
          'completed'],
    'and always a higher one');
select pg_temp.add('y'), pg_temp.receipt('dropped') \g /dev/null
select pgq_drop_queue('default', true), pgq_create_queue('default') \g /dev/null
select pg_temp.stale('dropped');

select is(pgq_complete(1, 6), false, 'a token that names no slot is no receipt');
select is(
    array(select pgq_complete('{1,2}'::bigint[], '{6,7}'::bigint[])), '{}', 'nor are many such');

select * from finish();
rollback;
