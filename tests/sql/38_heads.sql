/*
 * Heads of groups that are retried, and what maintenance does to a job that has moved on.
 */
begin;
select plan(9);
\ir support/clock.psql
\ir support/commit.psql

create function pg_temp.put(p_label text) returns bigint language plpgsql as $$
declare
    v_id constant bigint := pgq_enqueue(to_jsonb(p_label), group_key => 'g');
begin
    perform pg_temp.commit();
    return v_id;
end
$$;

-- A head that was retried keeps its place, also for those who come when nobody waits behind it.
select pg_temp.put('first') \g /dev/null
select pgq_fail(d.id, d.token, retry_in => '1 s') from pgq_dequeue() d \g /dev/null
select pg_temp.commit(), pg_temp.put('second') \g /dev/null
select is(pg_temp.take(9), '{}', 'while the head waits for its retry nobody passes it');
select pgq_cancel(j.id) from pgq_jobs j where j.payload = '"second"' \g /dev/null
select pg_temp.commit(), pg_temp.wait('1 s') \g /dev/null
select is(pg_temp.take(9), '{first}', 'then it is tried again');
select pg_temp.put('third') \g /dev/null
select is(pg_temp.take(9), '{}', 'nobody starts beside it');
select pgq_complete(j.id, j.token) from pgq.job j where j.token is not null \g /dev/null
select pg_temp.commit() \g /dev/null
select is(pg_temp.take(9), '{third}', 'but behind it');
select pgq_complete(j.id, j.token) from pgq.job j where j.token is not null \g /dev/null
select pg_temp.commit() \g /dev/null

-- A tick has seen that a job must end, and somebody was quicker.
create function pg_temp.state(p_id bigint) returns text language sql as $$
    select j.state from pgq_jobs j where j.id = p_id
$$;
select pgq_enqueue('1', expires_at => pgq._now() + '1 minute') as soon,
       pgq_enqueue('1', expires_at => pgq._now() + '1 minute', priority => 9) as tried \gset
select pgq_fail(d.id, d.token, retry_in => '0') from pgq_dequeue() d \g /dev/null
select pgq._bury(j.slot, array[j.id], pgq._now()) from pgq.job j where j.id = :soon \g /dev/null
select is(pg_temp.state(:soon), 'ready', 'a job that may still start does not die');
update pgq.job set start_by = pgq._now() where id = :tried;
select pgq._bury(j.slot, array[j.id], pgq._now()) from pgq.job j where j.id = :tried \g /dev/null
select is(pg_temp.state(:tried), 'ready', 'nor does one that was started in time');
update pgq.job set start_by = pgq._now() where id = :soon;
select pgq._bury(j.slot, array[j.id], pgq._now()) from pgq.job j where j.id = :soon \g /dev/null
select is(pg_temp.state(:soon), 'dead', 'one that must have started dies');
select id as leased, token from pgq_dequeue(1, '1 hour') \gset
select pgq._reclaim(j.slot, array[j.id], pgq._now()) from pgq.job j where j.id = :leased \g /dev/null
select is(pg_temp.state(:leased), 'active', 'a lease that was renewed meanwhile is not taken back');
select is(pgq_complete(:leased, :token), true, 'and is good');

select * from finish();
rollback;
