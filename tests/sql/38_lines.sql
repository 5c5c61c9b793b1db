/*
 * The lines of groups, as each commit leaves them: places, heads, and what is read to find those.
 */
begin;
select plan(24);
\ir support/clock.psql

\ir support/decide.psql
create function pg_temp.put(p_label text) returns bigint language sql as $$
    select pgq_enqueue(to_jsonb(p_label), group_key => 'g')
$$;
-- The line: who stands in it, by how much each place differs from twice the id, and the heads.
create function pg_temp.line() returns text[] language sql as $$
    select array(
        select concat_ws(
                   ' ', j.payload #>> '{}', nullif(j.place - 2 * j.id, 0)::text,
                   case when j.is_head then 'head' end
               )
          from pgq.job j where j.place is not null order by j.place, j.id
    )
$$;
create function pg_temp.end_of(p_label text) returns boolean language sql as $$
    select pgq_complete(j.id, j.token) from pgq.job j
     where j.payload #>> '{}' = p_label and j.token is not null
$$;
create function pg_temp.hints() returns bigint language sql as $$
    select count(*) from pgq.hint
$$;

-- Places.
select pg_temp.put(l) from unnest('{a,b,c}'::text[]) l \g /dev/null
select pg_temp.decide() \g /dev/null
select is(
    pg_temp.line(), '{"a head",b,c}',
    'the first job is the head, and all have the places of their ids');
select is(pg_temp.hints(), 0::bigint, 'nothing of them is left to a tick');
select pg_temp.put('d'), pg_temp.decide() \g /dev/null
select is(pg_temp.line(), '{"a head",b,c,d}', 'who comes stands behind them');
select is(pg_temp.take(9), '{a}', 'the head is claimed');
select j.id, j.token from pgq.job j where j.token is not null \gset
select pgq_fail(:id, :token, 'no', retryable => false), pg_temp.decide() \g /dev/null
select is(pg_temp.line(), '{"b head",c,d}', 'the next one follows a dead one');
select is(pgq_retry(:id), true, 'which is retried');
select pg_temp.decide() \g /dev/null
select is(
    pg_temp.line(), array['b head', format('a %s', 2 * (b.id - :id) + 1), 'c', 'd'],
    'one that is late stands right behind the head, and all others stay where they are')
  from pgq.job b where b.payload = '"b"' and b.is_head;
select is(pg_temp.hints(), 0::bigint, 'nothing of that is left to a tick');

-- A head that ends in a transaction that also adds a job.
select pg_temp.take(9), pg_temp.end_of('b'), pg_temp.put('e'), pg_temp.decide() \g /dev/null
select is(pg_temp.take(9), '{a}', 'the next job runs, also if another one is added meanwhile');
select is(pg_temp.take(9), '{}', 'that one waits');
select is(
    array(select left(l, 1) from unnest(pg_temp.line()) l), '{a,c,d,e}', 'behind those before it');

-- What a death and a completion in other places do.
select pg_temp.add('plain') \g /dev/null
\ir support/calls_of.psql
select pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue(1) d \g /dev/null
select is(
    pg_temp.calls('_leave_lines') + pg_temp.calls('_tell_waiters'), 0::bigint,
    'the death of a job of no group, for which nobody waits, looks for no line and no waiters');
select is(pg_temp.calls('_note_ended'), 1::bigint, 'though it is noted');
select pg_temp.end_of('a'), pg_temp.decide() \g /dev/null
select is(pg_temp.calls('_turn_groups'), 1::bigint, 'the end of a head has its group go on');
select is(pg_temp.calls('_let_late_in'), 0::bigint, 'with no look for late ones, as none has come');
select is(pg_temp.take(9), '{c}', 'the next one runs');

-- Who comes behind those that wait has nothing decided.
create function pg_temp.turns_of(p_queue text) returns bigint language plpgsql as $$
declare
    v_before constant bigint := pg_temp.calls('_turn_groups');
begin
    perform pgq_enqueue('1', p_queue, group_key => 'g'), pg_temp.decide();
    return pg_temp.calls('_turn_groups') - v_before;
end
$$;
select is(pg_temp.turns_of('default'), 0::bigint, 'behind one that waits nobody becomes a head');
select pgq_create_queue('one'), pgq_create_queue('two', group_concurrency => 2) \g /dev/null
select is(
    array[pg_temp.turns_of('one'), pg_temp.turns_of('one')], '{1,0}',
    'nor does anybody behind the only head that there may be');
select is(
    array[pg_temp.turns_of('two'), pg_temp.turns_of('two'), pg_temp.turns_of('two'),
          pg_temp.turns_of('two')],
    '{1,1,1,0}', 'of two heads the second is looked for, and the look finds that they are two');
select is(pg_temp.calls('_turn_waiters'), 0::bigint, 'no commit of those looks for waiting jobs');
select pg_temp.calls('_turn_groups') as before,
       pgq_enqueue('1', 'one', after => array[pgq_enqueue('1', 'two', 9)]) as waiter \gset
select pgq_complete(j.id, j.token), pg_temp.decide() from pgq_dequeue(1, queue => 'two') j
    \g /dev/null
select is(
    pg_temp.calls('_turn_groups'), :before::bigint,
    'one that only lets a waiting job go looks for no groups');
select is((pgq_get(:waiter)).state, 'ready', 'and that job is ready');
select pgq_drop_queue(q, true) from unnest('{one,two}'::text[]) q \g /dev/null

-- What is read of a long line.
select pgq_purge('default'), pg_temp.end_of('c'), pg_temp.decide() \g /dev/null
select is(pg_temp.line(), '{}', 'the line is empty');
select pg_temp.put(n::text) from generate_series(1, 300) n \g /dev/null
select pg_temp.decide() \g /dev/null
create function pg_temp.entries() returns bigint language sql as $$
    select sum(pg_stat_get_xact_tuples_returned(c.oid))::bigint
      from pg_class c
     where c.relnamespace = 'pgq'::regnamespace and c.relname ~ '^job_[45](_.*idx)?$'
$$;
create function pg_temp.turn(p_label text) returns bigint language plpgsql as $$
declare
    v_before bigint;
begin
    perform pg_temp.take(), pg_temp.end_of(p_label);
    v_before := pg_temp.entries();
    perform pg_temp.decide();
    return pg_temp.entries() - v_before;
end
$$;
create temp table turn as select n, pg_temp.turn(n::text) as entries from generate_series(1, 299) n;
select is(
    (select array_agg(distinct t.entries) from turn t where t.n > 1),
    (select array[t.entries] from turn t where t.n = 1),
    'each turn reads as little of the line as the first, however many have ended before');

select * from finish();
rollback;
