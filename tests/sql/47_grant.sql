/*
 * Privileges: what pgq_grant gives, and that nobody has more.
 */
begin;
select plan(137);
\ir support/clock.psql
\ir support/member.psql
set local client_min_messages = warning;
select p.pronamespace::regnamespace as schema from pg_proc p where p.proname = 'pgq_version' \gset

-- What a call by a role gives: the result, or the SQLSTATE and message. The caller has taken the
-- role, or logged in as it.
select set_config('test.how', 'role', true), set_config('test.me', session_user, true) \g /dev/null
create function pg_temp.ask(p_role name, p_call text) returns text language plpgsql as $$
declare
    v_answer text; v_message text;
begin
    perform set_config(current_setting('test.how'), p_role, true);
    execute format('select coalesce(string_agg(a::text, '' ''), ''nothing'') from (%s) a', p_call)
       into v_answer;
    perform set_config('session_authorization', current_setting('test.me'), true),
            set_config('role', 'none', true);
    return v_answer;
exception when others then
    get stacked diagnostics v_message = message_text;
    return sqlstate || ' ' || v_message;
end
$$;
create function pg_temp.code(p_role name, p_call text) returns text language sql as $$
    select case when a ~ '^[0-9A-Z]{5} ' then left(a, 5) else 'ok' end
      from pg_temp.ask(p_role, p_call) a
$$;
create function pg_temp.rights(p_role name) returns bigint language sql as $$
    select count(*) from pg_proc p
     where p.proname ~ '^pgq_' and has_function_privilege(p_role, p.oid, 'execute')
$$;
create function pg_temp.commit() returns void language plpgsql as $$
begin
    perform set_config('pgq.decided', '', true);
    set constraints all immediate;
    set constraints all deferred;
    -- Not being at a COMMIT, it has left them to the next tick.
    perform pgq._take_hints(), pgq._run_errands();
end
$$;
-- All that there is of queue b.
create function pg_temp.state_of_b() returns text language sql as $$
    select md5(concat(
        (select array_agg(j order by j.id) from pgq.job j join pgq.lane l on l.id = j.lane
          join pgq.queue q on q.id = l.queue_id where q.name = 'b'),
        (select array_agg(a order by a.id) from pgq.archive a where a.queue = 'b'),
        (select row(q.*, q.xmin)::text from pgq.queue q where q.name = 'b'),
        (select array_agg(s order by s.name) from pgq.schedule s
          join pgq.queue q on q.id = s.queue_id where q.name = 'b'),
        (select array_agg(d order by d.on_id) from pgq.dependency d),
        (select array_agg(p order by p::text) from pgq.privilege p
          join pgq.queue q on q.id = p.queue_id where q.name = 'b')
    ))
$$;

create role regress_nil;
create role regress_ann;
create role regress_bob;
create role regress_chief;
create role regress_eve;
create role "Ann ""O'Neil";
select pgq_create_queue('a', group_on_dead => 'block'),
       pgq_create_queue('b', group_on_dead => 'block') \g /dev/null

-- A role with nothing.
create function pg_temp.not_refused(p_role name) returns setof text language plpgsql as $$
declare
    v_function record; v_view record; v_code text;
begin
    for v_function in
        select p.oid::regprocedure::text as name, p.prorettype,
               format('select %s(%s)', p.oid::regproc, (
                   select string_agg('null::' || format_type(t, null), ', ')
                     from unnest(p.proargtypes) t
               )) as call
          from pg_proc p join member m on m.objid = p.oid and m.classid = 'pg_proc'::regclass
         where p.pronamespace <> 'pgq'::regnamespace
    loop
        v_code := case when v_function.prorettype <> 'trigger'::regtype
                       then pg_temp.code(p_role, v_function.call)
                       when not has_function_privilege(p_role, v_function.name, 'execute')
                       then '42501' end;
        if v_code is distinct from '42501' then
            return next v_function.name;
        end if;
    end loop;
    for v_view in
        select c.oid::regclass::text as name
          from pg_class c join member m on m.objid = c.oid and m.classid = 'pg_class'::regclass
         where c.relkind in ('v', 'm', 'r', 'p', 'S')
    loop
        if pg_temp.code(p_role, 'select * from ' || v_view.name) <> '42501' then
            return next v_view.name;
        end if;
    end loop;
end
$$;
select is_empty($$ select pg_temp.not_refused('regress_nil') $$,
    'without a grant every function, view, table and sequence is refused');
select cmp_ok((select count(*) from pg_temp.not_refused(current_user)), '>', 60::bigint,
    'and those were all there are');

-- Roles with everything on queue a, and on queue b; another one may do everything with all queues.
select pgq_grant('a', 'regress_ann', '{enqueue,consume,observe,manage}'),
       pgq_grant('b', 'regress_eve', '{enqueue,consume,observe,manage}'),
       pgq_grant('*', 'regress_chief', '{enqueue,consume,observe,manage}') \g /dev/null
select is(pg_temp.rights('regress_chief'), (select count(*) from pg_proc where proname ~ '^pgq_'),
    'all privileges together let a role call every function');
select pgq_schedule('of b', '* * * * *', queue => 'b') \g /dev/null
select pgq_enqueue('"dead"', 'b', dedupe_key => 'dead', group_key => 'g') as dead \gset
select pg_temp.commit() \g /dev/null
select pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue(1, '1 minute', 'b') d \g /dev/null
select pgq_enqueue('"expired"', 'b') \g /dev/null
select pg_temp.take(1, 'b', '1 second') \g /dev/null
select pgq_enqueue('"held"', 'b') \g /dev/null
select pg_temp.now_is(pgq._now() + '2 seconds') \g /dev/null
select d.id as held, d.token from pgq_claim((select max(id) from pgq.job), worker => 'w') d \gset
select pgq_enqueue('"ready"', 'b', dedupe_key => 'k') as ready \gset
select nextval('pgq.number') as gone \gset

create temp table call (call text);
insert into call values
    ('pgq_enqueue(''1'', {queue})'), ('pgq_enqueue(''1'', {queue}, 7, now() + ''1 hour'')'),
    ('pgq_enqueue(''2'', {queue}, dedupe_key => ''k'', on_duplicate => ''replace'')'),
    ('pgq_enqueue_many(''{1}'', {queue})'), ('pgq_enqueue_many(''{}'', {queue})'),
    ('pgq_dequeue(1, queue => {queue})'), ('pgq_dequeue(1, ''1 minute'', array[''a'', {queue}])'),
    ('pgq_dequeue(1, ''1 minute'', array[{queue}, ''a''])'),
    ('pgq_pop(1, {queue})'), ('pgq_claim({ready})'), ('pgq_claim({held})'),
    ('pgq_complete({held}, {token})'), ('pgq_complete({held}, {token}, ''1'')'),
    ('pgq_complete(array[{held}], array[{token}])'),
    ('pgq_complete(array[{held}], array[{token}], array[jsonb ''1''])'),
    ('pgq_complete(array[{held}, {held}], array[{token}, {token}])'),
    ('pgq_complete_and_dequeue(array[{held}], array[{token}], queue => ''a'')'),
    ('pgq_complete_and_dequeue(''{}'', ''{}'', queue => {queue})'),
    ('pgq_heartbeat({held}, {token})'), ('pgq_heartbeat({held}, {token}, ''1 hour'', ''1'')'),
    ('pgq_heartbeat(array[{held}], array[{token}])'),
    ('pgq_fail({held}, {token}, ''no'')'),
    ('pgq_fail({held}, {token}, ''no'', cancel => true)'), ('pgq_release({held}, {token})'),
    ('pgq_release_unheld(''w'', ''{}'')'), ('pgq_outcome({held}, {token})'),
    ('pgq_reclaim({queue})'), ('pgq_reclaim()'), ('pgq_pause({queue})'), ('pgq_resume({queue})'),
    ('pgq_unblock({queue}, ''g'')'), ('pgq_drop_queue({queue}, true)'),
    ('pgq_configure_queue({queue}, 5)'), ('pgq_create_queue({queue})'),
    ('pgq_get({ready})'), ('pgq_get({dead})'), ('pgq_cancel({ready})'),
    ('pgq_cancel({held}, true)'), ('pgq_cancel_key({queue}, ''k'')'),
    ('pgq_cancel_all({queue})'), ('pgq_move({ready}, priority => 3)'),
    ('pgq_move({ready}, ''a'')'), ('pgq_move({ready}, {queue}, 3)'),
    ('pgq_retry({dead})'), ('pgq_retry_dead({queue})'),
    ('pgq_purge({queue})'), ('pgq_purge({queue}, array[''dead''])'),
    ('pgq_schedule(''new'', ''* * * * *'', queue => {queue})'), ('pgq_pause_schedule({schedule})'),
    ('pgq_resume_schedule({schedule})'), ('pgq_run_schedule({schedule})'),
    ('pgq_unschedule({schedule})'),
    ('pgq_grant({queue}, ''regress_ann'', ''{enqueue}'')'), ('pgq_revoke({queue}, ''regress_chief'')'),
    ('pgq_check_watch(''pg_class'', {queue})'), ('pgq_watch(''pg_class'', {queue})'),
    ('pgq_unwatch(''pg_class'', {queue})'), ('pgq_channel({queue})'),
    ('pgq_wait(array[{queue}])'), ('pgq_wait(array[''a'', {queue}])');
select set_eq(
    $$ select distinct substring(call from '^\w+') from call $$,
    $$ select proname::text from pg_proc
        where proname ~ '^pgq_' and prorettype <> 'trigger'::regtype
          and proname not in ('pgq_version', 'pgq_wake', 'pgq_maintain', 'pgq_set_shard') $$,
    'all functions that have to do with a queue are tried');

-- Rolled back, with what queue b was like then.
create function pg_temp.try(p_role name, p_call text) returns text language plpgsql as $$
declare
    v_answer text;
begin
    begin
        v_answer := pg_temp.ask(p_role, 'select ' || p_call);
        raise exception using errcode = 'XX999', message = v_answer, detail = pg_temp.state_of_b();
    exception when sqlstate 'XX999' then
        get stacked diagnostics v_answer = pg_exception_detail;
        return sqlerrm || '|' || v_answer;
    end;
end
$$;
select '{"queue": "''b''", "ready": "' || :ready || '", "held": "' || :held || '", "token": "'
       || :token || '", "dead": "' || :dead || '", "schedule": "''of b''"}' as theirs,
       '{"queue": "''c''", "ready": "' || :gone || '", "held": "' || :gone || '", "token": "'
       || :token + 1 || '", "dead": "' || :gone || '", "schedule": "''of c''"}' as nobodys \gset
create function pg_temp.fill(p_call text, p_values jsonb) returns text language plpgsql as $$
declare
    v record;
begin
    for v in select * from jsonb_each_text(p_values) loop
        p_call := replace(p_call, '{' || v.key || '}', v.value);
    end loop;
    return p_call;
end
$$;
-- The same answer but for what the caller has asked for.
create function pg_temp.plain(p_answer text) returns text language sql as $$
    select regexp_replace(regexp_replace(p_answer, '"[bc]"', 'Q', 'g'), '\d{1,20}', '0', 'g')
$$;
create temp table answer as
select c.call, pg_temp.try('regress_ann', pg_temp.fill(c.call, :'theirs')) as theirs,
       pg_temp.try('regress_ann', pg_temp.fill(c.call, :'nobodys')) as nobodys,
       pg_temp.try('regress_chief', pg_temp.fill(c.call, :'theirs')) as allowed
  from call c;
select is_empty(
    $$ select call, theirs from answer where split_part(theirs, '|', 2) <> pg_temp.state_of_b() $$,
    'whoever has everything on one queue changes nothing of another one');
select is_empty(
    $$ select call, theirs, nobodys from answer
        where pg_temp.plain(split_part(theirs, '|', 1)) <> pg_temp.plain(split_part(nobodys, '|', 1))
    $$,
    'and gets the answer that there is for a queue, job, receipt or schedule that does not exist');
select is_empty(
    $$ select call, allowed from answer
        where allowed = theirs and call !~ '^(pgq_unwatch|pgq_watch|pgq_check)' $$,
    'while the same call by whoever has the privilege does something');

select set_config('test.how', 'session_authorization', true) \g /dev/null
create temp table login as
select c.call, pg_temp.try('regress_ann', pg_temp.fill(c.call, :'theirs')) as theirs from call c;
select set_config('test.how', 'role', true) \g /dev/null
select is_empty(
    $$ select call, theirs from login where split_part(theirs, '|', 2) <> pg_temp.state_of_b() $$,
    'whoever has logged in as the role changes nothing, either');
select is_empty(
    $$ select l.call, l.theirs, a.theirs from login l join answer a on a.call = l.call
        where pg_temp.plain(split_part(l.theirs, '|', 1)) <> pg_temp.plain(split_part(a.theirs, '|', 1))
    $$,
    'and gets the same answers');

-- Receipts of both queues in one call.
select pgq_enqueue('1', 'a'), pgq_enqueue('2', 'a') \g /dev/null
select array_agg(d.id) || :held as ids, array_agg(d.token) || :token as tokens
  from pgq_dequeue(2, '1 hour', 'a') d \gset
select is(
    pg_temp.ask('regress_ann', format('select count(*) from pgq_heartbeat(%L::bigint[], %L::bigint[])', i, t)),
    '(2)', 'of receipts of several queues those are good that may be used')
  from (values (:'ids', :'tokens')) v (i, t);
select is(
    pg_temp.ask('regress_ann', format('select count(*) from pgq_complete(%L::bigint[], %L::bigint[])', i, t)),
    '(2)', 'also to complete')
  from (values (:'ids', :'tokens')) v (i, t);
select is((select j.token from pgq.job j where j.id = :held), :token::bigint, 'and the others are not touched');

-- By and by.
select is(pg_temp.ask('regress_ann', 'select pgq_reclaim()'), 'nothing',
    'pgq_reclaim() takes back leases of other queues from nobody');
select pgq_enqueue('1', 'a'), pgq_enqueue('2', 'a'), pgq_enqueue('3', 'a') \g /dev/null
select pgq_create_queue('a2'), pgq_grant('a2', 'regress_ann', '{consume}') \g /dev/null
select pgq_enqueue('4', 'a2'), pgq_enqueue('5', 'a2') \g /dev/null
select pgq_dequeue(9, '1 second', '{a,a2}'::text[]) \g /dev/null
select pg_temp.now_is(pgq._now() + '2 seconds') \g /dev/null
select is(pg_temp.ask('regress_ann', 'select count(*) from pgq_reclaim(max => 4)'), '(4)',
    'of several queues it takes back what it may');
select is((select count(*) from pgq.job j join pgq.lane l on l.id = j.lane
             join pgq.queue q on q.id = l.queue_id
            where q.name ~ '^a' and j.token is not null), 1::bigint,
    'and no more than it returns');
select pgq_pop(9, 'a'), pgq_reclaim('a'), pgq_reclaim('a2') \g /dev/null
select pgq_pop(9, 'a'), pgq_pop(9, 'a2') \g /dev/null
select isnt(pg_temp.ask('regress_ann', $$ select pgq_enqueue('1', 'a', dedupe_key => 'k') $$),
    format('(%s)', :ready), 'a dedupe key of another queue is not found');
select pgq_purge('a') \g /dev/null

-- Jobs that come after others.
create function pg_temp.after(p_role name, p_ids text) returns text language sql as $$
    select pg_temp.ask(p_role, format(
        $q$ select pgq_enqueue('"after"', 'a', after => '%s', after_on_dead => 'die') $q$, p_ids
    ))
$$;
create temp view mine as
select pgq._waits_for_jobs(j) as waits from pgq.job j join pgq.lane l on l.id = j.lane
  join pgq.queue q on q.id = l.queue_id where q.name = 'a';
select pg_temp.state_of_b() as before \gset
select pg_temp.after('regress_ann', format('{%s,%s,%s}', :ready, :held, :dead)) \g /dev/null
select pg_temp.commit() \g /dev/null
select results_eq($$ select * from mine $$, array[false],
    'a job after those of another queue is ready at once, as if they had completed');
select is(pg_temp.state_of_b(), :'before', 'and nothing tells them that somebody waits');
select pgq_purge('a') \g /dev/null
select pgq_grant('b', 'regress_ann', '{consume,observe,manage}') \g /dev/null
select pg_temp.after('regress_ann', format('{%s}', :ready)) \g /dev/null
select results_eq($$ select * from mine $$, array[false],
    'so it is with all privileges there but enqueue');
select pgq_purge('a'), pgq_revoke('b', 'regress_ann'), pgq_grant('b', 'regress_ann', '{enqueue}') \g /dev/null
select pg_temp.after('regress_ann', format('{%s}', :ready)) \g /dev/null
select results_eq($$ select * from mine $$, array[true], 'with that privilege it waits');
select pgq_purge('a') \g /dev/null
select pg_temp.after('regress_ann', format('{%s}', :dead)) \g /dev/null
select pg_temp.commit() \g /dev/null
select is_empty($$ select * from mine $$, 'or dies after one that is dead');
select pgq_revoke('b', 'regress_ann') \g /dev/null

-- Settings, in which pgq 0.1 noted what is to be done at the commit, change nothing.
select pgq_enqueue('1', 'b', group_key => 'h'), pgq_enqueue('2', 'b', group_key => 'h') \g /dev/null
select pgq_enqueue('3', 'b', after => array[:ready]) \g /dev/null
select pg_temp.commit() \g /dev/null
select pg_temp.state_of_b() as before \gset
select pg_temp.ask('regress_ann', format(
           $q$ select pgq_enqueue('1', 'a', group_key => 'x'), set_config('pgq.waiters', %L, true) $q$,
           string_agg(format('%s%s,%s', s, j.id, j.lane), ',')
       ))
  from pgq.job j, unnest(array['', '-']) s where pgq._waits_for_jobs(j) \g /dev/null
select pg_temp.commit() \g /dev/null
select is(pg_temp.state_of_b(), :'before', 'a forged note releases and kills nobody who waits');
select pgq_cancel_all('a', true) \g /dev/null

-- Code of others that PostgreSQL runs in the session of somebody mightier.
create schema regress_ann authorization regress_ann;
set local role regress_ann;
create table regress_ann.answer (n serial, answer text);
create function regress_ann.note(p_answer text) returns void language sql as $$
    insert into regress_ann.answer (answer) values (p_answer)
$$;
create function regress_ann.mean(p_n integer) returns integer language plpgsql immutable as $$
begin
    perform public.pgq_purge('b');
    perform regress_ann.note('done');
    return p_n;
exception when others then
    perform regress_ann.note(sqlstate);
    return p_n;
end
$$;
create table regress_ann.bait (n integer);
create index on regress_ann.bait (regress_ann.mean(n));
insert into regress_ann.bait values (1);
reset role;
create function pg_temp.heard() returns text language sql as $$
    select answer from regress_ann.answer order by n desc limit 1
$$;
select is(pg_temp.heard(), '42501', 'an index expression may do what the session may');
select pg_temp.state_of_b() as before \gset
truncate regress_ann.answer;
reindex table regress_ann.bait;
select is(pg_temp.heard(), '42501', 'REINDEX runs it for a superuser, but not as one');
truncate regress_ann.answer;
analyze regress_ann.bait;
select is(pg_temp.heard(), '42501', 'so does ANALYZE');
select is(pg_temp.state_of_b(), :'before', 'nothing has happened');

-- Nor does it help to shadow names.
set local role regress_ann;
create function pg_temp.pg_has_role(name, name, text) returns boolean language sql as 'select true';
create function pg_temp.pg_has_role(name, oid, text) returns boolean language sql as 'select true';
create temp table pg_roles as select 'regress_ann'::name as rolname;
create function pg_temp.current_setting(text) returns text language sql as $$ select 'none' $$;
set local search_path = pg_temp, pg_catalog, public;
select set_config('test.mean', '', true) \g /dev/null
do $$ begin perform public.pgq_purge('b'); exception when others then
    perform set_config('test.mean', sqlstate, true);
end $$;
reset role;
set local search_path = :schema, public;
select is(current_setting('test.mean'), '42501', 'functions of the caller are not called');
drop function pg_temp.pg_has_role(name, name, text), pg_temp.pg_has_role(name, oid, text),
    pg_temp.current_setting(text);
drop table pg_temp.pg_roles;

-- Whoever may create functions beside those of pgq cannot put one in between.
select format('grant create on schema %s to regress_ann', :'schema') \gexec
set local role regress_ann;
truncate regress_ann.answer;
create function :schema.pgq_complete(bigint, bigint) returns boolean language plpgsql as $$
begin
    perform regress_ann.note(current_user);
    return true;
end
$$;
reset role;
select pgq_enqueue('1', 'a') \g /dev/null
select is(pg_temp.code('regress_ann', format($$ select pgq_dequeue(1, '1 minute', array['a', %L]) $$, q)),
    '42501', 'several queues are all looked at, also if the first has enough')
  from unnest('{b,c}'::text[]) q;
select is(
    pg_temp.code('regress_ann', $$ select c.* from pgq_dequeue(1, '1 minute', 'a') d,
        pgq_complete_and_dequeue(array[d.id], array[d.token], queue => 'a') c $$),
    'ok', 'one with fewer arguments is not in the way');
select is_empty('select * from regress_ann.answer', 'and is not called');
drop function :schema.pgq_complete(bigint, bigint);
select format('revoke create on schema %s from regress_ann', :'schema') \gexec

-- Objects of others that are called like those of pgq, and lie beside them.
select format('grant create on schema %s to regress_ann', :'schema') \gexec
set local role regress_ann;
create function :schema.pgq_report() returns integer language sql as 'select 1';
create view :schema.pgq_report as select 1 as n;
reset role;
create function :schema.pgq_get(text) returns integer language sql as 'select 1';
create view :schema.pgq_totals as select 1 as n;
create temp view alike as
select f::oid as id, p.proacl as acl
  from unnest(array[format('%s.pgq_report()', :'schema'),
                    format('%s.pgq_get(text)', :'schema')]::regprocedure[]) f
  join pg_proc p on p.oid = f
 union all
select c.oid, c.relacl from pg_class c where c.relname in ('pgq_report', 'pgq_totals');
create temp view given as
select a.grantee::regrole::text as grantee, a.privilege_type
  from alike i, aclexplode(i.acl) a where a.grantee::regrole::text = 'regress_bob';
select is((select count(*) from alike), 4::bigint, 'there are functions and views of others');
select is(pg_temp.code('regress_chief', $$ select pgq_grant('*', 'regress_bob', '{enqueue,consume,observe,manage}') $$),
    'ok', 'they are not in the way of a grant');
select is_empty('select * from given', 'which does not give them');
select format('grant execute on function %s.pgq_get(text), %1$s.pgq_report() to regress_bob', :'schema') \gexec
select format('grant select on %s.pgq_totals, %1$s.pgq_report to regress_bob', :'schema') \gexec
select is(pg_temp.code('regress_chief', $$ select pgq_revoke('*', 'regress_bob') $$), 'ok', 'nor of a revocation');
select is((select count(*) from given), 4::bigint, 'which does not take them back');
select is(pg_temp.rights('regress_bob'), 2::bigint, 'and takes back all others');
drop function :schema.pgq_get(text), :schema.pgq_report();
drop view pg_temp.given, pg_temp.alike;
drop view :schema.pgq_report, :schema.pgq_totals;
select format('revoke create on schema %s from regress_ann', :'schema') \gexec

-- Views.
select pgq_enqueue('"mine"', 'a') \g /dev/null
select is(pg_temp.ask('regress_ann', 'select queue from pgq_queues'), '(a)', 'pgq_queues shows what the caller may observe');
select is(pg_temp.ask('regress_ann', 'select name from pgq_queue_settings'), '(a)', 'so does pgq_queue_settings');
select is(pg_temp.ask('regress_chief', 'select count(*) from pgq_queue_settings'),
    (select format('(%s)', count(*)) from pgq.queue), 'all for those who may observe all');
select is(
    array(select concat_ws(' ', v.queue, v.role, v.privileges) from pgq_privileges v
           where v.role ~ '^regress_' order by v.queue, v.role),
    array[
        '* regress_chief {consume,enqueue,manage,observe}',
        'a regress_ann {consume,enqueue,manage,observe}', 'a2 regress_ann {consume}',
        'b regress_eve {consume,enqueue,manage,observe}'
    ], 'pgq_privileges shows what was granted');
select is(pg_temp.ask('regress_ann', 'select distinct queue from pgq_privileges'), '(a)',
    'of the queues that the caller may observe');
select is(pg_temp.code('regress_bob', 'select * from pgq_privileges'), '42501', 'and nothing to others');
select is(pg_temp.ask('regress_ann', 'select distinct queue from pgq_jobs'), '(a)', 'pgq_jobs, too, dead jobs included');
select is(pg_temp.ask('regress_ann', format('select * from pgq_jobs where id in (%s,%s)', :ready, :dead)),
    'nothing', 'also asked for an id');
select is(pg_temp.ask('regress_ann', 'select distinct queue from pgq_workers'), 'nothing', 'and pgq_workers');
select is(pg_temp.ask('regress_chief', 'select distinct queue from pgq_workers'), '(b)', 'which has something to show');
select is(pg_temp.ask('regress_ann', 'select * from pgq_health'), 'nothing', 'pgq_health is empty for one queue');
select isnt(pg_temp.ask('regress_chief', 'select * from pgq_health'), 'nothing', 'not for all');
select is(pg_temp.ask('regress_ann', 'select * from pgq_locks'), 'nothing', 'pgq_locks, too');
select pgq_enqueue('1', 'b') as awaited \gset
select pgq_enqueue('2', 'a', after => array[:awaited]) as waiter \gset
select pgq_claim(:awaited, '1 minute', 'w') \g /dev/null
select is(
    pg_temp.ask('regress_ann', 'select queue, cause, job_id, state, worker, pid, since from pgq_obstacles'
                               ' where cause = $$after$$'),
    format('(a,after,%s,active,,,)', :awaited),
    'pgq_obstacles shows what jobs wait for, and nothing more of a queue that the caller may not observe');
select is(
    pg_temp.ask('regress_chief', 'select queue, job_id, worker, pid = pg_backend_pid() from pgq_obstacles'
                                 ' where cause = $$after$$'),
    format('(a,%s,w,t)', :awaited), 'those who may are told who holds it');
select is(pg_temp.code('regress_bob', 'select * from pgq_obstacles'), '42501', 'and others nothing');
select pgq_cancel(j, true) from unnest(array[:waiter, :awaited]) j \g /dev/null
select is(pg_temp.ask('regress_chief', 'select count(distinct queue) from pgq_jobs'), '(3)', 'all see all');
select pgq_schedule(q || 's', '@daily', '{"n": 1}', q) from unnest('{a,b}'::text[]) q \g /dev/null
select is(pg_temp.ask('regress_ann', 'select name, queue from pgq_schedules'), '(as,a)',
    'pgq_schedules shows those of the queues that the caller may observe');
select is(
    (select row(v.cron, v.timezone, v.paused, v.missed, v.priority, v.max_attempts, v.payload,
                v.headers, v.next_at > pgq._now(), v.last_at)::text
       from pgq_schedules v where v.name = 'bs'),
    '(@daily,UTC,f,once,0,,"{""n"": 1}",,t,)', 'with their settings and times');
select is(pg_temp.code('regress_bob', 'select * from pgq_schedules'), '42501', 'and nothing to others');
select pgq_grant('*', 'regress_bob', '{consume}') \g /dev/null
select is(pg_temp.code('regress_bob', 'select * from pgq_jobs'), '42501', 'consumers see nothing');
select is(pg_temp.code('regress_bob', $$ select pgq_enqueue('1', 'a') $$), '42501', 'and add nothing');
select is(pg_temp.ask('regress_bob', $$ select payload #>> '{}' from pgq_pop(1, 'a') $$), '(mine)', 'but consume');
select pgq_create_queue('late') \g /dev/null
select is(pg_temp.code('regress_bob', $$ select pgq_pop(1, 'late') $$), 'ok', 'all queues are also those to come');
select is(pg_temp.ask('regress_bob', $$ select pgq_pop(1, 'no') $$), '42704 queue "no" does not exist',
    'who may use them all learns which there are');
select pgq_revoke('late', 'regress_bob') \g /dev/null
select is(pg_temp.code('regress_bob', $$ select pgq_pop(1, 'late') $$), 'ok', 'which is not taken back for one');
select pgq_revoke('*', 'regress_bob', '{consume}') \g /dev/null
select is(pg_temp.code('regress_bob', $$ select pgq_pop(1, 'late') $$), '42501', 'but for all');
select is_empty($$ select pg_temp.not_refused('regress_bob') $$, 'and leaves nothing');

-- What has become of a job that has ended.
select pgq_create_queue('ended'), pgq_enqueue('1', 'ended'), pgq_create_queue('other'),
       pgq_grant('ended', 'regress_bob', '{consume}'),
       pgq_grant('other', 'regress_ann', '{consume}') \g /dev/null
select d.id as ended, d.token as receipt from pgq_dequeue(1, '1 minute', 'ended') d \gset
select pgq_complete(:ended, :receipt) \g /dev/null
select format('select pgq_outcome(%s, %s)', :ended, :receipt) as theirs,
       format('select pgq_outcome(%s, %s)', :gone, :receipt) as nobodys \gset
select is(pg_temp.ask('regress_bob', :'theirs'), '(completed)', 'whoever may consume is told it');
select is(pg_temp.ask('regress_ann', :'theirs'), pg_temp.ask('regress_ann', :'nobodys'),
    'others are told the same as of a job that does not exist');
select set_config('test.how', 'session_authorization', true) \g /dev/null
select is(pg_temp.ask('regress_ann', :'theirs'), pg_temp.ask('regress_ann', :'nobodys'),
    'also when they have logged in');
select set_config('test.how', 'role', true), pgq_revoke('ended', 'regress_bob'),
       pgq_revoke('other', 'regress_ann') \g /dev/null

-- A new queue of the name of a dropped one: what that left is not of it.
select pgq_create_queue('again') \g /dev/null
select pgq_enqueue('"done"', 'again') as done, pgq_enqueue('"off"', 'again') as off \gset
select pgq_cancel(:off), pgq_pop(1, 'again'), pg_temp.wait('1 s') \g /dev/null
select pgq_drop_queue('again') \g /dev/null
select pgq_create_queue('again') \g /dev/null
select pgq_grant('again', 'regress_ann', '{enqueue,observe,manage}') \g /dev/null
select pgq_enqueue('"new"', 'again') as new \gset
select is(
    pg_temp.ask('regress_ann', $$ select payload #>> '{}' from pgq_jobs where queue = 'again' $$), '(new)',
    'who may observe a new queue does not see jobs of an old one of its name');
select is(pg_temp.ask('regress_ann', format('select pgq_get(i) from unnest(array[%s, %s]) i', :done, :off)),
    'nothing', 'nor one of them by its id');
select is(pg_temp.ask('regress_chief', $$ select count(*) from pgq_jobs where queue = 'again' $$), '(3)',
    'who may observe all queues does');
select pg_temp.after('regress_ann', format('{%s}', :off)) \g /dev/null
select pg_temp.commit() \g /dev/null
select results_eq($$ select * from mine $$, array[false],
    'who may enqueue into the new one does not learn what has become of them');
select is(pg_temp.ask('regress_ann', $$ select pgq_purge('again', '{completed,cancelled}') $$), '(0)',
    'and who manages it deletes none of them');
select pgq_purge('a'), pgq_drop_queue('again', true) \g /dev/null

-- Managing one queue.
select is(pg_temp.code('regress_ann', $$ select pgq_grant('a', 'regress_bob', '{enqueue}') $$), 'ok', 'who manages a queue grants on it');
select is(pg_temp.code('regress_bob', $$ select pgq_enqueue('1', 'a') $$), '42501',
    'which changes no function that others grant while the transaction is open');
select pg_temp.commit() \g /dev/null
select is(pg_temp.code('regress_bob', $$ select pgq_enqueue('1', 'a') $$), 'ok', 'it counts from the commit on');
select is(pg_temp.code('regress_bob', $$ select pgq_enqueue('1', 'b') $$), '42501', 'there');
select is(pg_temp.code('regress_bob', $$ select pgq_grant('a', 'regress_bob', '{manage}') $$), '42501', 'others do not');
select is(pg_temp.code('regress_ann', $$ select pgq_grant('*', 'regress_ann', '{enqueue}') $$), '42501', 'nor on all queues');
select is(pg_temp.code('regress_ann', $$ select pgq_revoke('*', 'regress_chief') $$), '42501', 'nor do they revoke there');
select is(pg_temp.code('regress_ann', $$ select pgq_create_queue('mine') $$), '42501', 'or create queues');
select is(pg_temp.ask('regress_ann', $$ select pgq_schedule('of b', '@daily', queue => 'a') $$),
    '42501 permission denied for schedule "of b"', 'or take the name of a schedule');
select is((select s.cron from pgq.schedule s where s.name = 'of b'), '* * * * *', 'which stays as it was');
select is(pg_temp.code('regress_ann', format('select pgq_revoke(%L, %L)', 'a', session_user)), 'ok',
    'they may revoke from the owner');
select is_empty(
    $$ select p.oid::regprocedure from pg_proc p
        where p.proname ~ '^pgq_' and not exists (
            select from aclexplode(p.proacl) a where a.grantee = p.proowner
        ) $$,
    'who loses nothing by it');

-- What roles have by other means stays, whoever sets the rights of somebody else.
create role regress_hand;
create role regress_gone;
select pgq_grant('late', r, '{observe}') from unnest('{public,regress_gone}'::name[]) r \g /dev/null
grant execute on function pgq_pop(integer, text) to regress_hand, public;
create function pg_temp.others() returns text language sql as $$
    select format(
               'by hand %s, public %s, gone %s',
               (select count(*) from pg_proc p, aclexplode(p.proacl) a
                 where p.proname = 'pgq_pop' and a.grantee in (0, 'regress_hand'::regrole)),
               (select count(*) from pgq.privilege p where p.role = 0 and p.verb <> 'usage'),
               (select count(*) from pgq.privilege p
                 where p.role <> 0 and not exists (select from pg_roles r where r.oid = p.role))
           )
$$;
select pgq_grant('late', 'regress_nil', '{enqueue}'), pgq_revoke('late', 'regress_nil') \g /dev/null
select is(pg_temp.others(), 'by hand 2, public 1, gone 0', 'grants of an owner touch one role');
drop owned by regress_gone;
drop role regress_gone;
select pg_temp.code('regress_ann', $$ select pgq_grant('a', 'regress_nil', '{enqueue}') $$) \g /dev/null
select is(pg_temp.others(), 'by hand 2, public 1, gone 1', 'what a role had that is dropped stays for a while');
select pg_temp.commit() \g /dev/null
select is(pg_temp.others(), 'by hand 2, public 1, gone 0', 'those of others touch one role, too, and tidy up');
revoke execute on function pgq_pop(integer, text) from regress_hand, public;
select pgq_revoke('late', 'public'), pgq_revoke('a', 'regress_nil') \g /dev/null
revoke usage on schema :schema from public;
grant usage on schema :schema to regress_hand;
create function pg_temp.finds(p_schema name) returns text language sql as $$
    select string_agg(r || ' ' || has_schema_privilege(r, p_schema, 'usage'), ', ')
      from unnest('{regress_hand,regress_nil}'::text[]) r
$$;
select pgq_grant('late', r, '{enqueue}') from unnest('{regress_hand,regress_nil}'::name[]) r \g /dev/null
select is(pg_temp.finds(:'schema'), 'regress_hand true, regress_nil true', 'who is granted something finds the schema');
select pgq_revoke('late', r) from unnest('{regress_hand,regress_nil}'::name[]) r \g /dev/null
select is(pg_temp.finds(:'schema'), 'regress_hand true, regress_nil false', 'and no longer than that, without a grant of others');
select is(pg_temp.rights('regress_nil'), 0::bigint, 'nor calls anything');
grant usage on schema :schema to public;
revoke usage on schema :schema from regress_hand;
drop role regress_hand;

-- Names, membership, SET ROLE.
select pgq_create_queue('Qu"e''ue; --') \g /dev/null
select pgq_grant('Qu"e''ue; --', 'Ann "O''Neil', '{enqueue,consume}') \g /dev/null
select is(pg_temp.code('Ann "O''Neil', $$ select pgq_enqueue('1', 'Qu"e''ue; --') $$), 'ok', 'names may have quotes and capitals');
select is(pg_temp.code('Ann "O''Neil', $$ select pgq_enqueue('1', 'a') $$), '42501', 'without a change of meaning');
create role regress_member;
create role regress_stranger noinherit;
grant regress_bob to regress_member;
grant regress_bob to regress_stranger;
select is(pg_temp.code('regress_member', $$ select pgq_enqueue('1', 'a') $$), 'ok', 'members have what their role has');
select is(pg_temp.code('regress_member', $$ select pgq_enqueue('1', 'b') $$), '42501', 'and no more');
select is(pg_temp.code('regress_stranger', $$ select pgq_enqueue('1', 'a') $$), '42501', 'if they inherit it');
revoke regress_bob from regress_member;
select is(pg_temp.code('regress_member', $$ select pgq_enqueue('1', 'a') $$), '42501', 'as long as they are');
select pgq_grant('late', 'public', '{enqueue}') \g /dev/null
select is(pg_temp.code('regress_nil', $$ select pgq_enqueue('1', 'late') $$), 'ok', 'public is everybody');
select is(pg_temp.code('regress_nil', $$ select pgq_enqueue('1', 'b') $$), '42501', 'for that queue');
select pgq_revoke('late', 'public') \g /dev/null
select is_empty($$ select pg_temp.not_refused('regress_nil') $$, 'until it is revoked');
create function pg_temp.wrapper() returns bigint language sql security definer as $$
    select pgq_enqueue('1', 'late')
$$;
alter function pg_temp.wrapper() owner to regress_chief;
select is(pg_temp.code('regress_ann', 'select pg_temp.wrapper()'), '42501', 'a function with SECURITY DEFINER gives its callers no privilege');
select is(pg_temp.code('regress_chief', 'select pg_temp.wrapper()'), 'ok', 'it runs with those of the session');

-- Bad arguments.
select is(pg_temp.code('regress_chief', 'select ' || c.call), c.code, c.call)
  from (values
           ($$pgq_grant(null, 'regress_nil', '{enqueue}')$$, '22004'),
           ($$pgq_grant('a', null, '{enqueue}')$$, '22004'),
           ($$pgq_grant('a', 'regress_nil', null)$$, '22004'),
           ($$pgq_grant('a', 'regress_nil', '{enqueue,null}')$$, '22004'),
           ($$pgq_grant('a', 'regress_nil', '{enqueue,usage}')$$, '22023'),
           ($$pgq_grant('a', 'regress_nil', '{ENQUEUE}')$$, '22023'),
           ($$pgq_grant('a', 'regress_nil', '{{enqueue}}'::text[])$$, '22023'),
           ($$pgq_grant('no', 'regress_nil', '{enqueue}')$$, '42704'),
           ($$pgq_grant('a', 'no', '{enqueue}')$$, '42704'),
           ($$pgq_grant('a', '', '{enqueue}')$$, '42704'),
           ($$pgq_grant('a', 'none', '{enqueue}')$$, '42704'),
           ($$pgq_grant('a', 'PUBLIC', '{enqueue}')$$, '42704'),
           ($$pgq_grant('a', 'regress_nil', '{}')$$, 'ok'),
           ($$pgq_grant('a', 'regress_nil', '{observe,observe}')$$, 'ok'),
           ($$pgq_grant('a', 'regress_nil', '{observe}')$$, 'ok'),
           ($$pgq_revoke('a', 'regress_nil', '{usage}')$$, '22023'),
           ($$pgq_revoke('no', 'regress_nil')$$, '42704'),
           ($$pgq_revoke('a', 'regress_nil')$$, 'ok'),
           ($$pgq_revoke('a', 'regress_nil')$$, 'ok')
       ) c (call, code);
select is_empty($$ select pg_temp.not_refused('regress_nil') $$, 'nothing is left of it');

-- The end.
select is(pg_temp.code('regress_ann', $$ select pgq_revoke('a', 'regress_bob') $$), 'ok', 'who grants revokes');
select pg_temp.commit() \g /dev/null
select lives_ok('drop role regress_bob, regress_member', 'then the role can be dropped');
select pgq_drop_queue('Qu"e''ue; --', true) \g /dev/null
select is(pg_temp.rights('Ann "O''Neil'), 0::bigint, 'with a queue goes what was granted on it');
select lives_ok($$ drop role "Ann ""O'Neil" $$, 'and what could keep a role');
select pgq_grant('b', 'regress_stranger', '{enqueue}') \g /dev/null
drop owned by regress_stranger;
drop role regress_stranger;
create role regress_stranger;
select pgq_grant('a', 'regress_stranger', '{enqueue}') \g /dev/null
select is(pg_temp.code('regress_stranger', $$ select pgq_enqueue('1', 'b') $$), '42501', 'a new role has nothing of an old one of its name');
select lives_ok($$ select pgq_revoke('a', 'never') $$, 'nothing is revoked from who does not exist');

-- Installed by a role that is no superuser, in a schema that is closed to others.
set constraints all immediate;
select exists (select from pg_extension where extname = 'pgq') as is_extension \gset
\if :is_extension
    drop extension pgq cascade;
\else
    \ir ../../python/src/pgq/_scripts/pgq-uninstall.sql
\endif
create role regress_keeper;
create schema hall authorization regress_keeper;
select format('grant create on database %I to regress_keeper', current_database()) \gexec
set local role regress_keeper;
create extension pgq schema hall;
grant usage on schema hall to regress_ann;
select hall.pgq_create_queue('a') \g /dev/null
select hall.pgq_grant('a', r, '{enqueue,consume}') from unnest('{regress_nil,regress_ann}'::name[]) r \g /dev/null
reset role;
select is(pg_temp.code('regress_nil', $$ select hall.pgq_enqueue('1', 'a') $$), 'ok', 'grants work there, too');
select is(pg_temp.code('regress_nil', $$ select hall.pgq_pop(1, 'a') $$), 'ok', 'for producers and consumers that own nothing');
select is(pg_temp.code('regress_nil', $$ select hall.pgq_enqueue('1', 'default') $$), '42501', 'not for other queues');
set local role regress_keeper;
select hall.pgq_revoke('a', r) from unnest('{regress_nil,regress_ann,regress_keeper}'::name[]) r \g /dev/null
reset role;
select is(pg_temp.code('regress_keeper', $$ select hall.pgq_enqueue('1', 'a') $$), 'ok', 'the owner cannot lose its rights');
select ok(has_schema_privilege('regress_ann', 'hall', 'usage'), 'the usage of the schema stays with whom others gave it');
select lives_ok('drop role regress_nil', 'and goes with the last privilege of others');
alter function hall.pgq_version() owner to regress_ann;
select is(
    pg_temp.code('regress_keeper', $$ select hall.pgq_grant('a', 'regress_stranger', '{enqueue}') $$), 'ok',
    'what has got another owner is not in the way');
select ok(
    not exists (select from pg_proc p, aclexplode(p.proacl) a
                 where p.proname = 'pgq_version' and a.grantee::regrole::text = 'regress_stranger'),
    'and is not given');
select pg_temp.ask('regress_keeper', $$ select hall.pgq_grant('a', 'public', '{enqueue}') $$) \g /dev/null
select is(pg_temp.code('regress_chief', $$ select hall.pgq_enqueue('1', 'a') $$), 'ok', 'public finds the schema');

select * from finish();
rollback;
