/*
 * Which slots the lines of groups are looked up in: the parked ones. A lock on another slot would
 * keep it from being truncated while the transaction is open. Only the head gets copies.
 */
begin;
select plan(11);

\ir support/decide.psql
create function pg_temp.put(p_label text) returns bigint language sql as $$
    select pgq_enqueue(
        to_jsonb(p_label), 'grouped', dedupe_key => lower(p_label), group_key => 'g',
        on_duplicate => 'replace'
    )
$$;
create function pg_temp.kill() returns bigint language sql as $$
    select d.id
      from pgq_dequeue(1, '1 hour', 'grouped') d, pgq_fail(d.id, d.token, retryable => false)
$$;
create function pg_temp.others() returns text[] language sql as $$
    select array(
        select distinct c.relname::text
          from pg_locks l join pg_class c on c.oid = l.relation
         where l.pid = pg_backend_pid() and c.relnamespace = 'pgq'::regnamespace
           and c.relname ~ '^job_[0-3]$' and c.relname <> 'job_' || pgq._head_slot()
    )
$$;

create function pg_temp.parked() returns text[] language sql as $$
    select array(
        select distinct c.relname::text
          from pg_locks l join pg_class c on c.oid = l.relation
         where l.pid = pg_backend_pid() and c.relnamespace = 'pgq'::regnamespace
           and c.relname ~ '^job_[45]$' and l.mode <> 'AccessShareLock'
    )
$$;
create function pg_temp.fail() returns text language sql as $$
    select pgq_fail(d.id, d.token, retry_in => '1 minute') from pgq_dequeue(1, '1 hour') d
$$;

select pgq_enqueue('1'), pg_temp.fail() \g /dev/null
select is(
    pg_temp.parked(), array['job_' || pgq._parked_slot()],
    'a job that is tried again locks one parked slot, if it has no group');
select pgq_create_queue('grouped', group_on_dead => 'block') \g /dev/null
select is(pg_temp.others(), '{}', 'at the beginning no other slot is locked');
select pg_temp.put(l) from unnest('{a,b,c}'::text[]) l \g /dev/null
select pg_temp.decide() \g /dev/null
select is(pg_temp.others(), '{}', 'nor when a group gets its head');
select pg_temp.put('C') \g /dev/null
select is(pg_temp.others(), '{}', 'nor when a job in the line is replaced');
select pg_temp.kill() as dead, pg_temp.decide() \gset
select is(pgq_unblock('grouped', 'g'), true, 'the head dies, and the group is unblocked');
select is(pg_temp.others(), '{}', 'by which no other slot is locked');
select pg_temp.decide(), pgq_retry(:dead), pg_temp.decide() \g /dev/null
select is(pg_temp.others(), '{}', 'nor when one that is late gets its place');
select is(
    (select pgq_fail(d.id, d.token, retry_in => '1 minute')
       from pgq_dequeue(1, '1 hour', 'grouped') d), 'scheduled', 'a head is tried again');
select is(pg_temp.others(), '{}', 'by which no other slot is locked');

select pgq_enqueue('1', 'grouped', run_at => now() + '1 hour', group_key => 'h'), pg_temp.decide()
    \g /dev/null
create function pg_temp.promote() returns bigint language plpgsql
set plan_cache_mode = force_generic_plan
as $$
declare
    v_head pgq.job;
begin
    select j.* into v_head from pgq.job j where j.slot in (4, 5) and j.due is not null;
    perform pgq._promote_head(v_head);
    return v_head.id;
end
$$;
select isnt(pg_temp.promote(), null, 'a head falls due');
select is(pg_temp.others(), '{}', 'by which no other slot is locked either');

select * from finish();
rollback;
