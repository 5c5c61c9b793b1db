/*
 * Code of others that PostgreSQL runs in the session of somebody mightier: no public function and
 * no view does anything for it, whatever the session may do.
 */
begin;
select plan(6);
\ir support/clock.psql
\ir support/member.psql
\ir support/calls.psql
set local client_min_messages = warning;

-- Receipts that are good, of jobs that are not kept.
select pgq_configure_queue('default', keep_completed => '0') \g /dev/null
select pgq_enqueue('1') from generate_series(1, 2) \g /dev/null
select id as dead, token from pgq_dequeue(1, '1 hour') \gset
select pgq_fail(:dead, :token, 'e', retryable => false) \g /dev/null
select pgq_schedule('default', '@daily'), pgq_watch('orders') \g /dev/null
select id, token from pgq_dequeue(1, '1 hour') \gset
update pg_temp.good set value = :'id' where name = 'id';
update pg_temp.good set value = :'token' where name = 'token';
update pg_temp.good set value = format('array[%s]', :'id') where name = 'ids';
update pg_temp.good set value = format('array[%s]', :'token') where name = 'tokens';

create schema regress_somebody authorization regress_somebody;
set local role regress_somebody;
create table regress_somebody.answer (n serial, call text, answer text);
create table regress_somebody.bait (call text);
create function regress_somebody.note(p_call text, p_answer text) returns void language sql as $$
    insert into regress_somebody.answer (call, answer) values (p_call, p_answer)
$$;
create function regress_somebody.run(p_call text) returns text language plpgsql immutable as $$
declare
    v_answer text;
begin
    execute p_call into v_answer;
    perform regress_somebody.note(p_call, format('answer %s', v_answer));
    return '';
exception when others then
    perform regress_somebody.note(p_call, sqlstate || ' ' || sqlerrm);
    return '';
end
$$;
reset role;

-- Every function with good arguments, and every view, by their full names.
update pg_temp.good set value = quote_literal(format('%I.orders', current_schema))
 where name = 'relation';
create temp table attempt (call text);
select current_setting('search_path') as path \gset
set local search_path = pg_temp;
insert into attempt
select pg_temp.call(p) from pg_temp.public_function p
 union all
select format('select jsonb_agg(to_jsonb(v)) from %s v', c.oid::regclass)
  from pg_class c
  join pg_temp.member m on m.objid = c.oid and m.classid = 'pg_class'::regclass
 where c.relkind = 'v' and c.relnamespace <> 'pgq'::regnamespace;
select set_config('search_path', :'path', true) \g /dev/null
update attempt set call = replace(call, :'id', :'dead') where call ~ 'pgq_retry';
update attempt set call = replace(call, ')', ', priority => 1)') where call ~ 'pgq_move';
select cmp_ok(count(*), '>=', 56::bigint, 'these are all of them')
  from attempt where call is not null;

-- Who writes the rows has privileges on another queue. Then those who may do all build the index.
select pgq_create_queue('b'),
       pgq_grant('b', 'regress_somebody', '{enqueue,consume,observe,manage}') \g /dev/null
select format('grant execute on function %s to regress_somebody', p.function)
  from public_function p \gexec
grant select on pg_temp.attempt to regress_somebody;
create role regress_chief in role regress_somebody;
select pgq_grant('*', 'regress_chief', '{enqueue,consume,observe,manage}') \g /dev/null
set local role regress_somebody;
create index on regress_somebody.bait (regress_somebody.run(call));
insert into regress_somebody.bait select a.call from pg_temp.attempt a;
reset role;
create function pg_temp.all_there_is() returns text language sql as $$
    select concat((select string_agg(j::text, ' ' order by j.id) from pgq.job j),
                  (select string_agg(a::text, ' ' order by a.id) from pgq.archive a),
                  (select string_agg(q::text, ' ' order by q.id) from pgq.queue q),
                  (select string_agg(p::text, ' ' order by p) from pgq.privilege p),
                  (select string_agg(s::text, ' ' order by s.name) from pgq.schedule s))
$$;
select pg_temp.all_there_is() as before \gset

-- What does nothing to a queue, asks PostgreSQL itself, or shows a view's reader its own queues.
create temp view unexpected as
select a.call, a.answer
  from regress_somebody.answer a
 where a.answer <> '42501 cannot execute UNLISTEN within security-restricted operation'
   and (a.call ~ 'v$' and a.answer ~ '^answer' and a.answer !~ '"default"'
        or a.call ~ 'pgq_version' and a.answer = 'answer ' || pgq_version()
        or a.call ~ 'pgq_wake' and a.answer = 'answer '
        or a.call ~ 'pgq_enqueue_row' and a.answer ~ '^0A000'
        or a.call ~ 'pgq_unwatch' and a.answer = '42501 must be owner of relation orders'
        or a.call ~ 'pgq_maintain' and a.answer ~ '^42501 cannot fire deferred trigger'
       ) is not true;
truncate regress_somebody.answer;
reindex table regress_somebody.bait;
select is((select count(*) from regress_somebody.answer), (select count(*) from attempt),
    'REINDEX of a superuser makes each call');
select is_empty('select * from unexpected', 'not as a superuser');
truncate regress_somebody.answer;
set local role regress_chief;
reindex table regress_somebody.bait;
reset role;
select is((select count(*) from regress_somebody.answer), (select count(*) from attempt),
    'that of a role with all privileges on all queues, too');
select is_empty('select * from unexpected', 'nor with its privileges');
select is(pg_temp.all_there_is(), :'before', 'and nothing has changed');

select * from finish();
rollback;
