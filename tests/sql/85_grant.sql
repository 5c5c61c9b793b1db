/*
 * pgq_grant under REPEATABLE READ, whose snapshot may not show what others have granted.
 */
begin isolation level repeatable read;
select plan(2);
\ir support/clock.psql
set local client_min_messages = warning;
create role regress_ann;

select pgq_grant('default', 'regress_ann', '{observe}') \g /dev/null
select is(
    has_function_privilege('regress_ann', 'pgq_get(bigint)', 'execute'), true,
    'a role can call what it has the privilege for');
select is(
    (select count(*) from pgq.errand e where e.role = 'regress_ann'::regrole::oid), 1::bigint,
    'and the next tick looks at all that it has');

select * from finish();
rollback;
