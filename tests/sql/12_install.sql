/*
 * Installing and dropping: what is refused, what is left behind, which schemas and roles will do.
 */
begin;
select plan(26);
set local client_min_messages = warning;

create temp view leftover as
select 'function ' || p.oid::regprocedure::text as name
  from pg_proc p where p.proname ~ '^pgq' or p.pronamespace = to_regnamespace('pgq')
union all
select 'relation ' || c.oid::regclass::text
  from pg_class c
 where c.relname ~ '^pgq' or c.relnamespace = to_regnamespace('pgq')
union all
select 'type ' || t.oid::regtype::text
  from pg_type t where t.typname ~ '^_?pgq' or t.typnamespace = to_regnamespace('pgq')
union all
select 'schema ' || n.nspname from pg_namespace n where n.nspname ~ '^pgq'
union all
select 'trigger ' || t.tgname from pg_trigger t where t.tgname ~ 'chore';

select isnt_empty('select name from leftover', 'what to look for is there while it is installed');
select pgq_enqueue('1'), pgq_enqueue('2', run_at => 'tomorrow') \g /dev/null
-- What these calls have left for the commit would keep tables from being dropped.
set constraints all immediate;
select lives_ok('drop extension pgq', 'the extension can be dropped while it holds jobs');
select is_empty('select name from leftover', 'DROP EXTENSION leaves nothing behind');

create schema pgq;
create table pgq.tick ();
select throws_like(
    'create extension pgq',
    '%Skytools%',
    'a database with the PgQ of Skytools is refused in so many words');
select throws_ok('create extension pgq', '42P06', null, 'as duplicate_schema');
drop table pgq.tick;
create table pgq.subscription ();
select throws_ok('create extension pgq', '42P06', null, 'also if only its subscriptions are there');
drop table pgq.subscription;
select throws_ok(
    'create extension pgq', '42P06', 'schema "pgq" exists already',
    'a foreign schema pgq is refused');
select is_empty(
    $$ select name from leftover where name <> 'schema pgq' $$,
    'a refused installation leaves nothing behind');
drop schema pgq;

create schema "Own Schäma";
-- Quotes in the name of the schema are refused by PostgreSQL itself.
select lives_ok(
    'create extension pgq schema "Own Schäma"',
    'another schema will do, also one whose name must be quoted');
select is_empty(
    $$ select p.oid::regprocedure from pg_proc p
        where p.proname ~ '^pgq_' and p.pronamespace <> '"Own Schäma"'::regnamespace $$,
    'then all functions are there');
select is(
    array(select d.payload from "Own Schäma".pgq_dequeue() d), '{}',
    'and are called there');
select "Own Schäma".pgq_enqueue('"x"') \g /dev/null
select is(
    (select "Own Schäma".pgq_complete(d.id, d.token) from "Own Schäma".pgq_dequeue() d), true,
    'a job goes its way there');
select throws_ok(
    'alter extension pgq set schema public', '0A000', null,
    'the extension cannot be moved');
set constraints all immediate;
select lives_ok('drop extension pgq', 'it can be dropped there');
select is_empty('select name from leftover', 'and leaves nothing behind there either');

-- An owner of the database that is no superuser.
create role pgq_test_owner;
create role pgq_test_nobody;
do $$ begin
    execute format('grant create on database %I to pgq_test_owner', current_database());
end $$;
grant create, usage on schema public to pgq_test_owner;
grant usage on schema public to pgq_test_nobody;
set local role pgq_test_owner;
select lives_ok('create extension pgq schema public',
    'an ordinary owner of a database can install');
select is_empty(
    $$ select c.oid::regclass from pg_class c
        where c.relnamespace = 'pgq'::regnamespace and c.relowner <> 'pgq_test_owner'::regrole $$,
    'and owns what is installed');
select public.pgq_enqueue('"x"') \g /dev/null
select public.pgq_enqueue('"y"', run_at => 'tomorrow') \g /dev/null
select is(
    (select public.pgq_fail(d.id, d.token) from public.pgq_dequeue() d), 'scheduled',
    'jobs work for such an owner');
select lives_ok('select pgq._tick() from generate_series(1, 3)', 'and so does maintenance');
set constraints all immediate;

set local role pgq_test_nobody;
select throws_ok(
    $$ select public.pgq_enqueue('1') $$, '42501', null, 'a role without a grant cannot enqueue');
select throws_ok(
    $$ select public.pgq_dequeue() $$, '42501', null, 'nor dequeue');
select throws_ok(
    $$ select public.pgq_create_queue('q') $$, '42501', null, 'nor create a queue');
select throws_ok(
    $$ select public.pgq_version() $$, '42501', null, 'nor ask for the version');
select throws_ok($$ select from pgq.job $$, '42501', null, 'nor read a table');
select throws_ok($$ select nextval('pgq.token') $$, '42501', null, 'nor touch a sequence');
select throws_ok($$ select pgq._tick() $$, '42501', null, 'nor call an internal function');
reset role;

select * from finish();
rollback;
