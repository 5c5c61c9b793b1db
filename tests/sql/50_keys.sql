/*
 * Watched tables: whose privileges count, and which columns are the key of a row.
 */
begin;
select plan(20);
\ir support/clock.psql
set local client_min_messages = warning;

create role regress_ann;
create role regress_bob;
select pgq_create_queue('a'), pgq_grant('a', 'regress_ann', '{enqueue}') \g /dev/null
create schema shop;
grant usage, create on schema shop to regress_ann, regress_bob;
create function pg_temp.jobs() returns jsonb[] language plpgsql as $$
begin
    return array(select d.payload -> 'key' from pgq_pop(100, 'a') d);
end
$$;

-- Whoever watches, the owners of the tables that get rows need the privilege.
create table shop.mine (id integer primary key);
create table shop.theirs (id integer primary key);
create table shop.part (id integer primary key) partition by range (id);
create table shop.middle partition of shop.part for values from (0) to (20)
    partition by range (id);
create table shop.leaf partition of shop.middle for values from (0) to (10);
alter table shop.mine owner to regress_ann;
alter table shop.theirs owner to regress_bob;
alter table shop.part owner to regress_ann;
alter table shop.middle owner to regress_bob;
alter table shop.leaf owner to regress_ann;
select is(
    pgq_check_watch('shop.mine', 'a'), 'pgq_watch_a',
    'a table can be watched whose owner may enqueue');
select throws_ok(
    $$ select pgq_check_watch('shop.theirs', 'a') $$, '42501', null,
    'no other one can, whoever asks');
select throws_ok(
    $$ select pgq_check_watch('shop.theirs', 'none') $$, '42704', null,
    'nor for a queue that is unknown');
select is(
    pgq_check_watch('shop.part', 'a'), 'pgq_watch_a',
    'who owns a partition that is divided itself does not matter: it gets no rows');
alter table shop.leaf owner to regress_bob;
select throws_ok(
    $$ select pgq_check_watch('shop.part', 'a') $$, '42501', null,
    'who owns one that gets rows does');
alter table shop.leaf owner to regress_ann;
alter table shop.part owner to regress_bob;
select throws_ok(
    $$ select pgq_check_watch('shop.part', 'a') $$, '42501', null,
    'and so does the table that is watched');

-- The key is that of the primary key, whatever other indexes there are.
create table shop.item (id integer primary key, name text, data jsonb);
create unique index on shop.item (name);
create index on shop.item (data);
select pgq_watch('shop.item', 'a', dedupe => true) \g /dev/null
insert into shop.item values (1, 'x', '{}');
select is(pg_temp.jobs(), '{"{\"id\": 1}"}', 'columns of other indexes are not of the key');
create table shop.wide (digits numeric[] primary key);
select pgq_watch('shop.wide', 'a') \g /dev/null
select throws_ok(
    $$ insert into shop.wide values (array_fill(numeric '1e131071', array[700])) $$, '54000',
    '"key" is too large', 'a key has at most 64 MB, as it is written');
create table shop.bare (id integer not null unique);
select throws_ok(
    $$ select pgq_watch('shop.bare', 'a') $$, '55000', 'table "shop.bare" has no primary key',
    'a unique index is no primary key');

-- Whether the key tells rows apart, so that the lock on a row does as one on its key.
create function pg_temp.is_own(p_table text, p_name text default null) returns boolean
language sql as $$
    select pgq._has_own_key(p_table::regclass, coalesce(p_name, p_table))
$$;
select is(pg_temp.is_own('shop.item'), true, 'no two rows have one key');
select is(pg_temp.is_own('shop.item', 'shop.mine'), false, 'but another table may have the name');
select is(pg_temp.is_own('shop.item', 'shop.gone'), false, 'or none');
select is(pg_temp.is_own('shop.leaf', 'shop.part'), true, 'partitions have the name of the whole');
create table shop.later (id integer primary key deferrable);
create index on shop.later (id);
select is(
    pg_temp.is_own('shop.later'), false, 'a key that is looked at later does not tell them apart');
create table shop.loose (id integer primary key, n numeric) partition by range (id);
create table shop.loose_1 partition of shop.loose for values from (0) to (9);
alter table shop.loose drop constraint loose_pkey;
create index on shop.loose (id);
alter table shop.loose_1 add primary key (id);
select is(pg_temp.is_own('shop.loose_1'), true, 'a partition may have a key');
select is(
    pg_temp.is_own('shop.loose_1', 'shop.loose'), false,
    'which does not tell the rows of others apart');
create temp table visit (id integer primary key);
select is(pg_temp.is_own('visit'), false, 'each session may have a temporary table of that name');
create type shop.size as enum ('s', 'm');
create table shop.shirt (size shop.size primary key);
select is(pg_temp.is_own('shop.shirt'), false, 'values of other types may look alike');
create table shop.flag (flag boolean primary key, id bigint);
select is(pg_temp.is_own('shop.flag'), false, 'only those of some types are known not to');
create table shop.all_types (
    a smallint, b bigint, c numeric, d uuid, e text, f varchar, g char(3), h date, i timestamp,
    j timestamptz, primary key (a, b, c, d, e, f, g, h, i, j)
);
select is(pg_temp.is_own('shop.all_types'), true, 'which may be many');

select * from finish();
rollback;
