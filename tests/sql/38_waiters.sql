/*
 * Jobs that wait for others: what is locked, noted and left to ticks for them, and what is not.
 */
begin;
select plan(22);
\ir support/clock.psql
\ir support/commit.psql

create function pg_temp.put(p_label text, p_after bigint[], p_on_dead text default 'die')
returns bigint language plpgsql as $$
begin
    return pgq_enqueue(to_jsonb(p_label), after => p_after, after_on_dead => p_on_dead);
end
$$;
create function pg_temp.kill(p_id bigint) returns text language sql as $$
    select pgq_fail(j.id, j.token, 'no', retryable => false)
      from pgq.job j where j.id = p_id and j.token is not null
$$;
create function pg_temp.state(p_id bigint) returns text language sql as $$
    select j.state from pgq_jobs j where j.id = p_id
$$;
-- What the commit is to decide, and what is left to the next tick.
create function pg_temp.noted() returns text[] language sql as $$
    select array(select format('%s %s', n.kind, k) from pgq.note n, unnest(n.keys) k
                  where n.kind <> 'd'
                  union all
                 select 'empty' from pgq.note n where n.kind <> 'd' and n.keys = '{}'
                  union all
                 select format('hint %s %s', h.kind, h.key) from pgq.hint h where h.kind <> 'l'
                  order by 1)
$$;

-- Jobs of queues that the caller may not enqueue into.
create role regress_ann;
select pgq_create_queue('mine'), pgq_create_queue('other'),
       pgq_grant('mine', 'regress_ann', '{enqueue}') \g /dev/null
select pg_temp.add('live', 'other') as live, pg_temp.add('dead', 'other') as dead,
       pg_temp.add('known', 'mine') as known \gset
select pgq_cancel(:dead) \g /dev/null
create function pg_temp.locked(p_id bigint) returns boolean language sql as $$
    select bool_or(l.xmax::text <> '0')
      from (select j.id, j.xmax from pgq.job j union all select a.id, a.xmax from pgq.archive a) l
     where l.id = p_id
$$;
set local role regress_ann;
select pgq_enqueue('1', 'mine', after => array[:live, :dead]::bigint[]) as free,
       pgq_enqueue('1', 'mine', after => array[:live, :known]::bigint[]) as waiter \gset
reset role;
select is(
    pg_temp.state(:free), 'ready',
    'a job of a queue that the caller may not use counts as completed');
select is(pg_temp.state(:waiter), 'waiting', 'one of a queue that it may use does not');
select is(pg_temp.locked(:known), true, 'the job that is waited for is locked');
select is(pg_temp.locked(:live), false, 'another tenant''s job is not');
select is(pg_temp.locked(:dead), false, 'nor is it when it is dead');
select pgq_cancel_all(q, true) from unnest('{mine,other}'::text[]) q \g /dev/null
select pg_temp.commit() \g /dev/null

-- What a new job that waits leaves to the commit.
select pg_temp.add('a') as a, pg_temp.add('b') as b \gset
select pg_temp.put('die', array[:a]::bigint[]) as die,
       pg_temp.put('wait', array[:a]::bigint[], 'wait') as wait \gset
select is(pg_temp.noted(), '{}', 'a job that waits leaves nothing to the commit');
select pgq_cancel(:b), pg_temp.commit() \g /dev/null
select pg_temp.put('wait', array[:b]::bigint[], 'wait') as late \gset
select is(pg_temp.noted(), '{}', 'nor does one that waits until a dead one is retried');
select count(*) from pgq_enqueue_many('{}', after => array[:b]::bigint[]) \g /dev/null
select is(pg_temp.noted(), '{}', 'nor do no jobs');
select pg_temp.put('die', array[:b]::bigint[]) as doomed \gset
select is(pg_temp.noted(), array[format('w -%s', :doomed)], 'one that dies with the dead one does');
select pg_temp.commit() \g /dev/null
select is(pg_temp.state(:doomed), 'dead', 'it dies then');
select is(pg_temp.state(:late), 'waiting', 'and the other one waits');

-- What an end leaves to it.
select pg_temp.take(1), pg_temp.kill(:a) \g /dev/null
select is(
    pg_temp.noted(), array[format('w -%s', :die)],
    'a death leaves to the commit who dies with it, and nobody who waits on');
select is((pgq_retry(:a)), true, 'the dead one is retried at once');
select pg_temp.commit() \g /dev/null
select is(pg_temp.state(:die), 'waiting', 'so nobody dies');
select id, token from pgq_claim(:a) \gset
select pgq_complete(:id, :token) \g /dev/null
select is(
    pg_temp.noted(), array[format('w %s', :die), format('w %s', :wait)],
    'a completion leaves all who wait to the commit, and nothing to the tick behind it');
select pg_temp.commit() \g /dev/null
select is(array[pg_temp.state(:die), pg_temp.state(:wait)], '{ready,ready}', 'they are ready then');

-- Whether a job dies with another one, when hints tell of that.
select pg_temp.add('a') as a, pg_temp.add('b') as b \gset
select pg_temp.put('die', array[:a, :b]::bigint[]) as die \gset
select id, token from pgq_claim(:a) \gset
select is(
    array(select h.kind::text from pgq.hint h where h.key = :a), '{l}',
    'a claim of one job leaves its lease to the ticks');
select pg_temp.kill(:a) \g /dev/null
select is(pgq._is_forsaken(:die), true, 'who waits for that job dies with it all the same');
insert into pgq.hint (kind, key) values ('e', :a);
select is(
    pgq._is_forsaken(:die), false, 'but not with one of which a hint says that it has completed');
delete from pgq.hint;
select pg_temp.commit() \g /dev/null
select is(pg_temp.state(:die), 'dead', 'which is how it dies');

-- A dead job that blocks its group stays in the line for longer than the archive keeps it.
select pgq_create_queue('block', keep_dead => '1 minute', group_on_dead => 'block') \g /dev/null
select pgq_enqueue('1', 'block', group_key => 'g') as head, pg_temp.commit() \gset
select id, token from pgq_claim(:head) \gset
select pg_temp.kill(:head), pg_temp.put('wait', array[:head]::bigint[], 'wait') as wait \gset
select is(pg_temp.state(:wait), 'waiting', 'a job waits for a dead one that blocks its group');
select pg_temp.pass('1 minute'),
       pg_temp.put('too late', array[:head]::bigint[], 'wait') as late \gset
select is(pg_temp.state(:late), 'ready', 'but not for one that is not kept any more');

select * from finish();
rollback;
