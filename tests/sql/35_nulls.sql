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
set local client_min_messages = warning;

create table orders (id bigint primary key);
create role regress_somebody;

-- Good values, by the names of arguments. Those that are not here keep their defaults.
create table pg_temp.good (name text primary key, value text not null);
insert into pg_temp.good
values ('base', $$'1 s'$$), ('cron', $$'@daily'$$), ('group_key', $$'g'$$), ('id', '1'),
       ('dedupe_key', $$'k'$$), ('ids', $$'{}'$$), ('name', $$'default'$$), ('payload', $$'1'$$),
       ('payloads', $$array[jsonb '1']$$), ('privileges', $$'{enqueue}'$$),
       ('queue', $$'default'$$), ('queues', $$'{default}'::text[]$$),
       ('relation', $$'orders'$$), ('role', $$'regress_somebody'$$), ('shard', '1'),
       ('timeout', $$'1 s'$$), ('batch', '1'), ('token', '1'), ('tokens', $$'{}'$$),
       ('worker', $$'w'$$), ('retry_in', $$'1 s'$$), ('error', $$'e'$$), ('states', $$'{dead}'$$);

create table pg_temp.call as
select p.oid::regprocedure::text as function, a.name,
       format('select %s(%s)', p.oid::regproc, (
           select string_agg(
                      format('%I => %s', o.name,
                             case when o.n = a.n
                                  then format('null::%s', format_type(o.type, null))
                                  else g.value end),
                      ', ' order by o.n)
             from unnest(p.proargnames, p.proargtypes::oid[]) with ordinality o (name, type, n)
             left join pg_temp.good g on g.name = o.name
            where o.n <= p.pronargs and (o.n = a.n or o.n <= p.pronargs - p.pronargdefaults)
       )) as text
  from pg_proc p join member m on m.objid = p.oid and m.classid = 'pg_proc'::regclass,
       unnest(p.proargnames) with ordinality a (name, n)
 where p.pronamespace <> 'pgq'::regnamespace and a.n <= p.pronargs
   and coalesce(pg_get_function_arg_default(p.oid, a.n::integer), 'none') !~ '^NULL';

create function pg_temp.answer(p_call text) returns text language plpgsql as $$
begin
    execute p_call;
    return 'no error';
exception when others then
    return sqlstate || ' ' || sqlerrm;
end
$$;
select cmp_ok((select count(*) from pg_temp.call), '>=', 80::bigint, 'these are all of them');
select is_empty($$ select function from pg_temp.call where text is null $$, 'each can be called');
select is_empty(
    $$ select c.text, a.answer
         from pg_temp.call c, lateral pg_temp.answer(c.text) as a (answer)
        where a.answer <> case when c.function ~ 'pgq_create_queue' and c.name <> 'name'
                               then '22004 settings must not be null'
                               else format('22004 "%s" must not be null', c.name) end
          and c.function !~ 'pgq_unwatch' $$,
    'none takes a null');

select * from finish();
rollback;
