/*
 * Watched tables.
 */
begin;
select plan(73);
\ir support/clock.psql
set local client_min_messages = warning;

create role regress_ann;
create role regress_bob;
create role regress_eve;
select pgq_create_queue('a'), pgq_create_queue('b') \g /dev/null
select pgq_grant('a', 'regress_ann', '{enqueue}'), pgq_grant('b', 'regress_bob', '{enqueue}') \g /dev/null
create schema shop authorization regress_ann;
grant usage on schema shop to public;

create function pg_temp.ask(p_role name, p_command text) returns text language plpgsql as $$
begin
    perform set_config('role', p_role, true);
    execute p_command;
    perform set_config('role', 'none', true);
    return 'ok';
exception when others then
    return sqlstate;
end
$$;
-- What the queue holds; it is emptied.
create function pg_temp.jobs(p_queue text default 'a') returns jsonb[] language plpgsql as $$
begin
    return array(select d.payload from pgq_pop(100, p_queue) d);
end
$$;

-- A row, a job, one transaction.
set local role regress_ann;
create table shop.item (id integer primary key, price integer, name text);
create table shop."Odd ""Name'" ("Ke'y ""1" text, b bigint, c text, primary key (b, "Ke'y ""1"));
create table shop.bare (id integer);
select pgq_watch('shop.item', 'a') \g /dev/null
reset role;
insert into shop.item values (1, 10, 'secret'), (2, 20, 'secret');
select is(pg_temp.jobs(), array[
    '{"key": {"id": 1}, "table": "shop.item", "operation": "INSERT"}',
    '{"key": {"id": 2}, "table": "shop.item", "operation": "INSERT"}'
]::jsonb[], 'each row adds a job with its key, and nothing else of it');
update shop.item set price = 11;
delete from shop.item where id = 2;
select is(pg_temp.jobs(), '{}', 'updates and deletions add none');
savepoint before;
insert into shop.item values (3, 30, '');
rollback to before;
select is(pg_temp.jobs(), '{}', 'a row that is rolled back has no job');
select is(pg_temp.ask('regress_ann', $$ select pgq_watch('shop.item', 'a', events => '{insert,update,insert}') $$), 'ok', 'a watch can be replaced');
update shop.item set price = 12;
insert into shop.item values (4, 40, '');
select is(array(select j ->> 'operation' from unnest(pg_temp.jobs()) j), '{UPDATE,INSERT}', 'which counts for updates then');
select is(pg_temp.ask('regress_ann', $$ select pgq_watch('shop.item', 'a', 'new.price > old.price', '{update}') $$), 'ok', 'a condition may name OLD and NEW');
update shop.item set price = price + case id when 1 then 1 else -1 end;
select is(array(select j #>> '{key,id}' from unnest(pg_temp.jobs()) j), '{1}', 'and decides which rows add a job');
select is(pg_temp.ask('regress_ann', $$ select pgq_watch('shop.item', 'a', dedupe => true, events => '{update}') $$), 'ok', 'a watch can dedupe');
update shop.item set price = 0;
update shop.item set price = 1;
select is(array(select j #>> '{key,id}' from unnest(pg_temp.jobs()) j), '{1,4}', 'then a row has one job at a time');
update shop.item set price = 2 where id = 1;
select is(array(select j #>> '{key,id}' from unnest(pg_temp.jobs()) j), '{1}', 'and another one when that has ended');
select is(pg_temp.ask('regress_ann', $$ select pgq_unwatch('shop.item', 'a') $$), 'ok', 'a watch ends');
update shop.item set price = 3;
select is(pg_temp.jobs(), '{}', 'and with it the jobs');
select is(pg_temp.ask('regress_ann', $$ select pgq_watch('shop."Odd ""Name''"', 'a') $$), 'ok', 'names may have quotes');
insert into shop."Odd ""Name'" values ('k"''', 9007199254740993, 'x');
select is(pg_temp.jobs(), array[jsonb_build_object(
    'key', jsonb_build_object('b', 9007199254740993, 'Ke''y "1', 'k"'''),
    'table', 'shop."Odd ""Name''"', 'operation', 'INSERT'
)], 'of the table as of its columns');
select is(pg_temp.ask('regress_ann', $$ select pgq_watch('shop.bare', 'a') $$), '55000', 'a table without a primary key cannot be watched');
select is(pg_temp.ask('regress_ann', $$ select pgq_watch('shop.item', 'a', events => '{delete}') $$), '22023', 'nor can deletions');
select is(pg_temp.ask('regress_ann', $$ select pgq_watch('shop.item', 'a', events => '{}') $$), '22023', 'or nothing');
select is(pg_temp.ask('regress_ann', $$ select pgq_watch('shop.item', 'a', events => array[null]) $$), '22023', 'or null');
select is(pg_temp.ask('regress_ann', $$ select pgq_watch(null, 'a') $$), '22004', 'or no table');

-- Rights. The owner of the table needs the privilege, whoever writes to it does not.
select is(pg_temp.ask('regress_ann', $$ select pgq_watch('shop.item', 'a') $$), 'ok', 'the owner watches');
grant insert on shop.item to regress_eve;
select is(pg_temp.ask('regress_eve', 'insert into shop.item values (5)'), 'ok', 'whoever may write may write');
select is(cardinality(pg_temp.jobs()), 1, 'and adds a job by it');
select is(pg_temp.ask('regress_ann', $$ select pgq_watch('shop.item', 'b') $$), '42501', 'no table feeds a queue which its owner may not add to');
select is(pg_temp.ask('regress_ann', $$ create trigger t after insert on shop.item for each row
    execute function pgq_enqueue_row('b', 'shop.item', 'each', 'id') $$), 'ok', 'a trigger can be made by hand');
select is(pg_temp.ask('regress_ann', 'insert into shop.item values (6)'), '42501', 'which gains nothing');
drop trigger t on shop.item;
select is(
    pg_temp.ask('regress_ann', format(
        'create trigger t %s execute function pgq_enqueue_row(%L, %L, %L); %s', t.fired, 'a', 'shop.item', 'dedupe', t.act
    )), '39P01', 'but not ' || t.fired)
  from (values ('before insert on shop.item for each row', 'insert into shop.item values (6)'),
               ('after insert on shop.item', 'insert into shop.item values (6)'),
               ('after delete on shop.item for each row', 'delete from shop.item')) t (fired, act);
select is(pg_temp.ask('regress_eve', $$ create trigger t after insert on shop.item for each row
    execute function pgq_enqueue_row('b', 'shop.item', 'each', 'id') $$), '42501', 'without a privilege not even that');
select pgq_grant('b', 'regress_eve', '{enqueue}') \g /dev/null
select is(pg_temp.ask('regress_eve', $$ select pgq_watch('shop.item', 'b') $$), '42501', 'a table of somebody else cannot be watched');
grant regress_bob to regress_ann with admin option;
alter table shop.item owner to regress_bob;
revoke regress_bob from regress_ann;
select is(pg_temp.ask('regress_eve', 'insert into shop.item values (7)'), '42501', 'a new owner has to have the privilege, too');
alter table shop.item owner to regress_ann;
select pgq_revoke('a', 'regress_ann') \g /dev/null
select is(pg_temp.ask('regress_eve', 'insert into shop.item values (7)'), '42501', 'so does the old one as long as rows come');
select is((select count(*) from shop.item where id in (6, 7)), 0::bigint, 'no row comes without its job');
select pgq_grant('a', 'regress_ann', '{enqueue}') \g /dev/null

-- Code of the table's owner does not run with the rights of the extension's.
set local role regress_ann;
create type shop.size as enum ('s', 'm');
create domain shop.number as integer;
create domain shop.positive as shop.number check (value > 0);
create table shop.seen (id serial, who text);
create function shop.size_to_json(p_size shop.size) returns json language plpgsql as $$
begin
    insert into shop.seen (who) values (current_user);
    return '"cast"';
end
$$;
create cast (shop.size as json) with function shop.size_to_json(shop.size);
create table shop.shirt (
    size shop.size, number shop.positive, code uuid, other shop.size,
    primary key (size, number, code)
);
select pgq_watch('shop.shirt', 'a') \g /dev/null
create function shop.wants(p_number integer) returns boolean language plpgsql as $$
begin
    insert into shop.seen (who) values (current_user);
    return true;
end
$$;
reset role;
insert into shop.shirt values ('s', 4, '00000000-0000-0000-0000-000000000001', 'm');
select is_empty('select * from shop.seen', 'a conversion to JSON is not called');
select is((pg_temp.jobs())[1] -> 'key',
    '{"size": "s", "number": 4, "code": "00000000-0000-0000-0000-000000000001"}',
    'values of other types are text');
select is(pg_temp.ask('regress_ann', $$ select pgq_watch('shop.item', 'a', 'shop.wants(new.price)') $$), 'ok', 'a condition may call functions');
grant usage on sequence shop.seen_id_seq to regress_eve;
grant insert on shop.seen to regress_eve;
select is(pg_temp.ask('regress_eve', 'insert into shop.item values (8)'), 'ok', 'they run');
select is((select array_agg(s.who) from shop.seen s), '{regress_eve}', 'as whoever writes the row');
select is(pg_temp.ask('regress_ann', $$ select pgq_watch('shop.item', 'a',
    'true) execute function public.pgq_enqueue_row(); alter role regress_ann superuser; --') $$), '42501', 'a condition is SQL of the caller');
select ok(not r.rolsuper, 'whatever it says') from pg_roles r where r.rolname = 'regress_ann';

-- Columns that come, go and change.
set local role regress_ann;
create table shop.part (id integer primary key, n integer) partition by range (id);
create table shop.part_1 partition of shop.part for values from (1) to (10);
select pgq_watch('shop.part', 'a') \g /dev/null
alter table shop.shirt add column extra jsonb;
alter table shop.shirt rename column code to id;
reset role;
select pg_temp.jobs() \g /dev/null
insert into shop.part values (3, 3);
select is(pg_temp.jobs(), '{"{\"key\": {\"id\": 3}, \"table\": \"shop.part\", \"operation\": \"INSERT\"}"}'::jsonb[],
    'the rows of partitions count');
insert into shop.shirt values ('m', 5, '00000000-0000-0000-0000-000000000002');
select is((pg_temp.jobs())[1] -> 'key',
    '{"size": "m", "number": 5, "id": "00000000-0000-0000-0000-000000000002"}',
    'a column of the key may be renamed');
set local role regress_ann;
create table shop.box (id integer, place text, n integer, constraint box_pkey primary key (id) include (n));
select pgq_watch('shop.box', 'a', dedupe => true) \g /dev/null
reset role;
insert into shop.box values (1, 'here', 1);
select is((pg_temp.jobs())[1] -> 'key', '{"id": 1}', 'what the index of the key includes is not of the key');
alter table shop.box drop constraint box_pkey;
select throws_ok(
    $$ insert into shop.box values (2, 'here', 1) $$, '55000', 'table "shop.box" has no primary key',
    'without its key a watched table takes no row');
select is(pg_temp.ask('regress_ann', $$ select pgq_watch('shop.box', 'a') $$), '55000', 'nor can it be watched anew');
alter table shop.box add primary key (id, place);
insert into shop.box values (2, 'here', 1), (2, 'there', 1);
select is(
    array(select j -> 'key' from unnest(pg_temp.jobs()) j),
    '{"{\"id\": 2, \"place\": \"here\"}","{\"id\": 2, \"place\": \"there\"}"}'::jsonb[],
    'another key is that of the rows from then on');
create trigger old after insert on shop.box for each row
    execute function pgq_enqueue_row('a', 'shop.box', 'each', 'gone', 'id');
insert into shop.box values (3, 'here', 1);
select is((pg_temp.jobs())[1] -> 'key', '{"id": 3, "place": "here"}', 'also for triggers that name columns');
drop trigger old on shop.box;
alter table shop.box drop constraint box_pkey;
select is(pg_temp.ask('regress_ann', $$ select pgq_unwatch('shop.box', 'a') $$), 'ok', 'the watch of a table without a key can end');
select lives_ok('insert into shop.box values (4, $$here$$)', 'which takes rows then');
-- The columns of a partition may have other numbers.
set local role regress_ann;
create table shop.part_2 (gone text, n integer, id integer not null);
alter table shop.part_2 drop column gone;
alter table shop.part attach partition shop.part_2 for values from (10) to (20);
reset role;
insert into shop.part values (12, 3);
select is((pg_temp.jobs())[1] -> 'key', '{"id": 12}', 'a partition has its own order of columns');
insert into shop.part select n from generate_series(4, 9) n;
select is(cardinality(pg_temp.jobs()), 6, 'many rows add many jobs');
select pgq_drop_queue('a', true) \g /dev/null
select is(pg_temp.ask('regress_ann', 'insert into shop.part values (1)'), '42501', 'a queue that is gone takes no rows');
savepoint gone;
select is(pg_temp.ask('regress_bob', $$ select pgq_unwatch('shop.part', 'a') $$), '42501', 'only the owner of a table ends its watch');
select is(pgq_unwatch('shop.part', 'a'), true, 'or who may do so, also for a queue that is gone');
select is(pg_temp.ask('regress_ann', 'insert into shop.part values (1)'), 'ok', 'then the table takes rows');
select is(pgq_unwatch(t, q), false, format('%s, %s was not watched', t, q))
  from (values (regclass 'shop.part', 'a'), (null, 'a'), ('shop.part', null)) v (t, q);
rollback to gone;
alter table shop.part owner to current_user;
alter table shop.part_2 owner to current_user;
select throws_ok(
    'insert into shop.part values (13)', '42704', 'queue "a" does not exist',
    'an owner who has all privileges is told that it is gone');
grant insert on shop.part to regress_eve;
select is(pg_temp.ask('regress_eve', 'insert into shop.part values (14)'), '42704', 'so is whoever writes to the table');
rollback to gone;
release gone;
select pgq_create_queue('a'), pgq_grant('a', 'regress_ann', '{enqueue}') \g /dev/null
select is(pg_temp.ask('regress_ann', 'insert into shop.part values (1)'), 'ok', 'when it is there again, it does');
select is(pg_temp.ask('regress_ann', $$ select pgq_watch('shop.part', 'a') $$), 'ok', 'it can be watched for anew');
savepoint owners;
alter table shop.part_2 owner to regress_bob;
select is(pg_temp.ask('regress_ann', 'insert into shop.part values (13)'), '42501', 'the owner of a partition has to have the privilege, too');
select is(pg_temp.ask('regress_ann', $$ select pgq_watch('shop.part', 'a') $$), '42501', 'which is looked at when it begins');
rollback to owners;
select pg_temp.jobs() \g /dev/null
insert into shop.part values (2);
select is(cardinality(pg_temp.jobs()), 1, 'which does not add a second job');
select pg_temp.ask('regress_ann', $$ select pgq_unwatch('shop.part', 'a') $$) \g /dev/null
delete from shop.part;
insert into shop.part values (2);
select is(cardinality(pg_temp.jobs()), 0, 'and can end');
select pgq_create_queue(q), pgq_grant(q, 'regress_ann', '{enqueue}')
  from unnest(array[repeat('é', 100) || '1', repeat('é', 100) || '2', 'Q"''; --']) q \g /dev/null
select is(
    pg_temp.ask('regress_ann', format($$ select pgq_watch('shop.part', %L) $$, q)), 'ok',
    'the name of a queue may be long or strange')
  from unnest(array[repeat('é', 100) || '1', repeat('é', 100) || '2', 'Q"''; --']) q;
insert into shop.part values (1);
select is(cardinality(pg_temp.jobs(q)), 1, 'each is fed')
  from unnest(array[repeat('é', 100) || '1', repeat('é', 100) || '2', 'Q"''; --']) q;

-- A key that looks otherwise with other settings.
create table shop.visit (at timestamptz, data bytea, primary key (at, data));
alter table shop.visit owner to regress_ann;
select pgq_watch('shop.visit', 'a', events => '{insert,update}', dedupe => true) \g /dev/null
select pg_temp.jobs() \g /dev/null
set local timezone = 'Asia/Tokyo';
insert into shop.visit values ('2040-01-01 00:00:00+00', 'x');
set local timezone = 'America/Lima';
set local bytea_output = 'escape';
update shop.visit set at = at;
reset timezone;
reset bytea_output;
select is(
    array(select j -> 'key' from unnest(pg_temp.jobs()) j),
    array[jsonb '{"at": "2040-01-01T00:00:00+00:00", "data": "\\x78"}'],
    'rows have one key, whatever the settings of those who write them');

select * from finish();
rollback;
