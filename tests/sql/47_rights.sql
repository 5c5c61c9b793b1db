/*
 * What pgq_grant and pgq_revoke change in the catalog, and what they leave alone.
 */
begin;
select plan(20);
\ir support/clock.psql
set local client_min_messages = warning;
select p.pronamespace::regnamespace as schema from pg_proc p where p.proname = 'pgq_version' \gset
create role regress_ann;
create role regress_bob;
create role regress_head;

create function pg_temp.may(p_role name, p_name name) returns boolean language sql as $$
    select bool_and(has_function_privilege(p_role, p.oid, 'execute'))
      from pg_proc p where p.proname = p_name
$$;
create function pg_temp.shown() returns text language plpgsql as $$
begin
    return (
        select string_agg(concat_ws(' ', p.queue, p.role, p.privileges), ', '
                          order by p.queue, p.role)
          from pgq_privileges p
    );
end
$$;

-- The schema, which a role needs to find the functions.
revoke usage on schema :schema from public;
select is(has_schema_privilege('regress_ann', :'schema', 'usage'), false,
          'a role without the schema');
select pgq_create_queue('q'), pgq_grant('q', 'regress_ann', '{enqueue,observe}') \g /dev/null
select is(has_schema_privilege('regress_ann', :'schema', 'usage'), true,
          'gets it with a privilege');
select is(pg_temp.may('regress_ann', 'pgq_enqueue'), true, 'and the functions');
select is(pg_temp.shown(), 'q regress_ann {enqueue,observe}',
          'the view shows the privileges alone');
select pgq_revoke('q', 'regress_ann', '{observe}') \g /dev/null
select is(has_schema_privilege('regress_ann', :'schema', 'usage'), true,
          'it keeps the schema with the last privilege');
select pgq_revoke('q', 'regress_ann') \g /dev/null
select is(has_schema_privilege('regress_ann', :'schema', 'usage'), false, 'and no longer');
select is(pg_temp.may('regress_ann', 'pgq_version'), false, 'nor any function');
grant usage on schema :schema to regress_bob;
select pgq_grant('q', 'regress_bob', '{enqueue}'), pgq_revoke('q', 'regress_bob') \g /dev/null
select is(has_schema_privilege('regress_bob', :'schema', 'usage'), true,
          'a role that had it before keeps it');
grant usage on schema :schema to public;

-- One queue, and one queue only.
select pgq_create_queue('r'), pgq_grant('q', 'regress_ann', '{enqueue}'),
       pgq_grant('r', 'regress_ann', '{enqueue}'), pgq_grant('*', 'regress_ann', '{observe}')
    \g /dev/null
select pgq_revoke('q', 'regress_ann') \g /dev/null
select is(pg_temp.shown(), '* regress_ann {observe}, r regress_ann {enqueue}',
          'what is taken back on a queue stays on others');
select pgq_revoke('*', 'regress_ann') \g /dev/null
select is(pg_temp.shown(), 'r regress_ann {enqueue}', 'so does what is taken back on all');
select pgq_revoke('r', 'regress_ann') \g /dev/null

-- Rights that were given in other ways.
grant execute on function pgq_version() to regress_bob;
grant execute on function pgq_wake() to public;
select pgq_grant('q', 'regress_ann', '{enqueue}') \g /dev/null
select is(pg_temp.may('regress_bob', 'pgq_version'), true,
          'a grant takes nothing from other roles that somebody gave them by hand');
select is(pg_temp.may('regress_head', 'pgq_wake'), true, 'nor from public');
select is(pg_temp.may('regress_bob', 'pgq_enqueue'), false, 'and gives them nothing');
alter function pgq_channel(text) owner to regress_head;
select pgq_grant('q', 'regress_ann', '{consume}') \g /dev/null
select is(pg_temp.may('regress_ann', 'pgq_dequeue'), true, 'it gives what the owner of pgq owns');
select is(pg_temp.may('regress_ann', 'pgq_channel'), false, 'and nothing that is of others');

-- A role that is gone.
select pgq_grant('r', 'regress_bob', '{enqueue}'), pgq_grant('r', 'public', '{observe}')
    \g /dev/null
drop owned by regress_bob;
drop role regress_bob;
select is(pg_temp.shown(), 'q regress_ann {consume,enqueue}, r public {observe}',
          'a dropped role is not shown, public is');
select pgq_revoke('r', 'public'), pgq_revoke('q', 'regress_ann') \g /dev/null

-- Who manages single queues does at the commit what locks rows that all queues need.
delete from pgq.errand;
select pgq_grant('q', 'regress_head', '{manage}') \g /dev/null
select is((select count(*) from pgq.errand), 0::bigint, 'who manages all grants at once');
set local session authorization regress_head;
select pgq_grant('q', 'regress_ann', '{enqueue}') \g /dev/null
reset session authorization;
select is(pg_temp.may('regress_ann', 'pgq_enqueue'), false, 'who manages one queue does not');
select is(
    (select count(*) from pgq.errand e where e.role = 'regress_ann'::regrole::oid), 1::bigint,
    'but the commit does');
delete from pgq.errand;
set local session authorization regress_head;
select pgq_schedule('s', '@daily', queue => 'q') \g /dev/null
reset session authorization;
select is(
    (select count(*) from pgq.errand e where e.role is null), 1::bigint,
    'it is the commit, too, that tells pg_cron of their schedules');

select * from finish();
rollback;
