/*
 * pgq_complete with arrays of results.
 */
begin;
select plan(33);
\ir support/clock.psql

create temp table got (n bigint, id bigint, token bigint);
-- Claims jobs and gives them numbers, in the order of their ids.
create function pg_temp.claim(p_number integer, p_queue text default 'default') returns void
language sql as $$
    truncate got;
    select pgq_enqueue_many(array_fill(jsonb '0', array[p_number]), p_queue);
    insert into got
    select row_number() over (order by d.id), d.id, d.token
      from pgq_dequeue(p_number, '1 minute', p_queue) d
$$;
-- Completes the jobs of these numbers and returns the number of those that were.
create function pg_temp.complete(p_ns integer[], p_results jsonb[]) returns bigint
language sql as $$
    select count(*)
      from pgq_complete(
               array(select g.id from unnest(p_ns) with ordinality u (n, o)
                       join got g using (n) order by u.o),
               array(select g.token from unnest(p_ns) with ordinality u (n, o)
                       join got g using (n) order by u.o),
               p_results
           )
$$;
-- The results that were kept, in the order of the numbers.
create function pg_temp.kept() returns jsonb[] language sql as $$
    select array(select a.result from got g join pgq.archive a using (id) order by g.n)
$$;

-- Each job has its own.
select pg_temp.claim(4) \g /dev/null
select is(pg_temp.complete('{3,1,4,2}', '{3,1,null,"null"}'), 4::bigint,
    'jobs are completed with results');
select is(pg_temp.kept(), '{1,"null",3,null}',
    'each job keeps its own, in whichever order they come; null is none, and not the JSON null');
select is(
    (select row(g.state, g.result, g.finished_at)::text from pgq_get((select min(id) from got)) g),
    row('completed', 1, pgq._now())::text, 'and it is shown');
select pg_temp.claim(2) \g /dev/null
select is(pg_temp.complete('{1,2}', null), 2::bigint, 'a null array');
select is(pg_temp.kept(), '{null,null}', 'means no results');
select is(
    (select count(*) from pgq_complete('{}'::bigint[], '{}', '{}')), 0::bigint, 'nor are none wrong');
select pg_temp.claim(2) \g /dev/null
select is(
    array(select pgq_complete(format('[3:4]={%s}', string_agg(g.id::text, ',' order by g.n))::bigint[],
                              array_agg(g.token order by g.n), '[7:8]={1,2}') from got g),
    array(select g.id from got g order by g.n), 'arrays may begin anywhere');
select is(pg_temp.kept(), '{1,2}', 'in whichever place');
select pg_temp.claim(1) \g /dev/null
select pg_temp.complete('{1}', '[0:0]={1}') \g /dev/null
select is(pg_temp.kept(), '{1}', 'also with one element');

-- Receipts that are lost, or there twice.
select pg_temp.claim(4) \g /dev/null
select pgq_complete(g.id, g.token) from got g where g.n = 2 \g /dev/null
select is(pg_temp.complete('{1,2,3}', '{1,2,3}'), 2::bigint, 'beside a receipt that is lost');
select is(pg_temp.kept(), '{1,null,3}', 'the others keep their own');
select is(
    array(select pgq_complete(array[g.id - 1, g.id], array[g.token, g.token], '{8,9}')
            from got g where g.n = 4),
    array(select g.id from got g where g.n = 4), 'with its token but the id of another job');
select is((pg_temp.kept())[4], '9', 'a result goes to no job');
select pg_temp.claim(1) \g /dev/null
select pgq_complete(array[g.id, g.id], array[g.token - 1048576, g.token], '{8,9}') from got g
    \g /dev/null
select is(pg_temp.kept(), '{9}', 'nor does that of a stale receipt, beside the good one of the same job');
select pg_temp.claim(3) \g /dev/null
select is(pg_temp.complete('{1,2,1,2,1,3,3}', '{null,2,1,4,0,null,null}'), 3::bigint,
    'of a receipt that is given twice');
select is(pg_temp.kept(), '{1,2,null}', 'the first result that is not null is kept');

-- Lanes, slots, many at once.
select pgq_create_queue('lanes') \g /dev/null
truncate got;
select pgq_enqueue(to_jsonb(i), 'lanes', i % 3) from generate_series(1, 9) i \g /dev/null
insert into got
select (d.payload #>> '{}')::bigint, d.id, d.token from pgq_dequeue(9, '1 hour', 'lanes') d;
select pg_temp.complete('{1,2,3,4,5,6,7,8,9}', '{1,2,3,4,5,6,7,8,9}') \g /dev/null
select is(pg_temp.kept(), '{1,2,3,4,5,6,7,8,9}', 'several priorities');
select pg_temp.claim(4) \g /dev/null
select pgq._move(0::smallint, 1::smallint, 1000) \g /dev/null
select pg_temp.complete('{1,2,3,4}', '{1,2,3,4}') \g /dev/null
select is(pg_temp.kept(), '{1,2,3,4}', 'jobs that maintenance has moved');
select pg_temp.claim(3001) \g /dev/null
select pg_temp.complete(array_agg(n), array_agg(to_jsonb(n)))
  from generate_series(3001, 1, -1) n \g /dev/null
select is(pg_temp.kept(), array_agg(to_jsonb(n) order by n), 'thousands at once')
  from generate_series(1, 3001) n;

-- What the queue keeps.
select pgq_create_queue('none', keep_completed => '0') \g /dev/null
select pg_temp.claim(2, 'none') \g /dev/null
select is(pg_temp.complete('{1,2}', '{1,2}'), 2::bigint, 'jobs of a queue that keeps nothing');
select is(pg_temp.kept(), '{}', 'are completed all the same');
select pg_temp.add('n', 'none'), pg_temp.add('k', 'lanes') \g /dev/null
truncate got;
insert into got
select row_number() over (), d.id, d.token from pgq_dequeue(2, '1 hour', '{none,lanes}'::text[]) d;
select is(pg_temp.complete('{1,2}', '{1,2}'), 2::bigint, 'beside them in one call');
select is(pg_temp.kept(), '{2}', 'those of another queue are kept');

-- Whose receipts they are.
create role regress_consumer;
select pgq_grant('lanes', 'regress_consumer', '{consume}') \g /dev/null
truncate got;
select pg_temp.add('no', 'default'), pg_temp.add('yes', 'lanes') \g /dev/null
insert into got
select row_number() over (), d.id, d.token
  from pgq_dequeue(2, '1 hour', '{default,lanes}'::text[]) d;
select array_agg(g.id order by g.n) as ids, array_agg(g.token order by g.n) as tokens from got g \gset
set local role regress_consumer;
select pgq_complete(:'ids'::bigint[], :'tokens'::bigint[], '{1,2}') \g /dev/null
reset role;
select is(pg_temp.kept(), '{2}', 'a role completes those of its queue, with their results');

-- Nobody's function of two arguments comes before it.
create function pgq_complete(bigint[], bigint[]) returns setof bigint language sql as 'select 1 / 0';
select pg_temp.claim(2) \g /dev/null
select is_empty(
    $$ select pgq_complete_and_dequeue(array_agg(g.id), array_agg(g.token)) from got g $$,
    'pgq_complete_and_dequeue calls none but this one');
drop function pgq_complete(bigint[], bigint[]);

-- Which form is meant.
select is(pg_typeof(pgq_complete(1, 2, '{}')), 'boolean', 'numbers mean one receipt');
select is_empty($$ select pgq_complete('{1}'::bigint[], '{2}', '{null}') $$,
    'one array is enough for the form with arrays');
select is_empty($$ select pgq_complete(ids => '{1}', tokens => '{2}', results => '{3}') $$,
    'and so is a name');
select is(pg_temp.code($$ pgq_complete('1', '2', '{}') $$), '42725',
    'three arguments without a type are ambiguous');

-- Errors.
select throws_ok('select pgq_complete(' || arguments || ')', code, null, description)
  from (values
    ($$ '{1,2}', '{1,2}'::bigint[], '{1}' $$, '22023', 'fewer results than receipts are refused'),
    ($$ '{}', '{}'::bigint[], '{1}' $$, '22023', 'so are more'),
    ($$ '{1}', '{1}'::bigint[], '{{1}}' $$, '22023', 'and results in two dimensions'),
    ($$ '{null}', '{1}'::bigint[], '{1}' $$, '22004', 'and a null among the ids')
  ) c (arguments, code, description);

select * from finish();
rollback;
