/*
 * A null where none may be is refused, by the name of the argument: 22004.
 *
 * Arguments may be null if their default is. All others of all public functions are tried, but
 * those of pgq_unwatch: a table that is not there is not watched.
 */
begin;
select plan(3);
\ir support/clock.psql
\ir support/member.psql
\ir support/calls.psql
set local client_min_messages = warning;

create table pg_temp.attempt as
select p.function, a.name, pg_temp.call(p, a.n::integer) as call
  from public_function p, unnest(p.proargnames) with ordinality a (name, n)
 where a.n <= p.pronargs
   and coalesce(pg_get_function_arg_default(p.oid, a.n::integer), 'none') !~ '^NULL';

create function pg_temp.answer(p_call text) returns text language plpgsql as $$
begin
    execute p_call;
    return 'no error';
exception when others then
    return sqlstate || ' ' || sqlerrm;
end
$$;
select cmp_ok((select count(*) from pg_temp.attempt), '>=', 80::bigint, 'these are all of them');
select is_empty($$ select function from pg_temp.attempt where call is null $$, 'each can be called');
select is_empty(
    $$ select t.call, a.answer
         from pg_temp.attempt t, lateral pg_temp.answer(t.call) as a (answer)
        where a.answer <> case when t.function ~ 'pgq_create_queue' and t.name <> 'name'
                               then '22004 settings must not be null'
                               else format('22004 "%s" must not be null', t.name) end
          and t.function !~ 'pgq_unwatch' $$,
    'none takes a null');

select * from finish();
rollback;
