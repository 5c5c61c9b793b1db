/*
 * pgq_health: what it shows of the own session, of replication slots, hints and tables.
 */
begin;
select plan(16);
\ir support/clock.psql

create function pg_temp.detail(p_subject text) returns setof text language plpgsql as $$
begin
    return query select h.detail from pgq_health h where h.subject = p_subject;
end
$$;

-- Maintenance.
select pg_temp.wait('0'), pg_temp.pass('2 minutes') \g /dev/null
select is(
    (select row(h.status, h.age)::text from pgq_health h where h.subject = 'maintenance'),
    row('ok', interval '2 minutes')::text, 'where nothing is to be done no tick is missed');
select is_empty($$ select pg_temp.detail('clock') $$, 'a clock that was never set back has no row');
select pg_temp.add('claimed') as claimed \gset
select pgq_claim(:claimed), pg_temp.pass('2 minutes') \g /dev/null
select is(
    (select count(*) from pgq.hint h where h.kind = 'l'), 1::bigint, 'a claim by id leaves a hint');
select is(
    (select h.status from pgq_health h where h.subject = 'maintenance'), 'ok',
    'which makes no tick due');
insert into pgq.hint (kind, key) values ('g', 0);
select is(
    (select h.status from pgq_health h where h.subject = 'maintenance'), 'warning',
    'as the hints of commits do');
delete from pgq.hint;
select pgq_complete(d.id, d.token) from pgq_claim(pg_temp.add('counted')) d \g /dev/null
select pg_temp.pass('-1 hour'), pg_temp.tick(3) \g /dev/null
select is(
    (select h.status from pgq_health h where h.subject = 'maintenance'), 'ok',
    'nor do jobs that have ended by a clock that was ahead');
select is(
    (select row(h.status, h.age)::text from pgq_health h where h.subject = 'clock'),
    row('warning', interval '2 s')::text, 'which is told');

-- Who is in the way. This transaction has written to slots, and has a snapshot.
select is_empty(
    $$ select from pgq_health h where h.subject = 'slot in use' and h.pid = pg_backend_pid() $$,
    'the session that asks does not show as a user of slots');
select is_empty(
    $$ select from pgq_health h where h.subject = 'xmin held' and h.pid = pg_backend_pid() $$,
    'nor as one that holds the horizon');
select cmp_ok(
    (select count(*) from pg_stat_activity a
      where a.backend_xmin is null and a.backend_xid is null), '>', 0::bigint,
    'processes of the server have no snapshot');
select is_empty(
    $$ select h.detail from pgq_health h
        where h.subject = 'xmin held' and h.detail ~ '^by a session'
          and h.detail !~ ', -?[0-9]+ transactions$' $$,
    'they hold no horizon');
select slot_name from pg_create_physical_replication_slot('regress_pgq', false, true)
    \g /dev/null
select is_empty(
    $$ select from pgq_health h where h.subject = 'xmin held' and h.detail ~ 'regress_pgq' $$,
    'nor does a replication slot without one');
select pg_drop_replication_slot('regress_pgq') \g /dev/null

-- Tables.
truncate pgq.archive;
select is(
    array(select pg_temp.detail('archive')), '{"0 partitions, "}',
    'of an empty archive no partition counts');
select pgq_complete(j.id, j.token) from pgq.job j where j.id = :claimed \g /dev/null
select is(
    array(select pg_temp.detail('archive')),
    array(
        select format('1 partitions, %s', pg_size_pretty(pg_total_relation_size(a.tableoid)))
          from pgq.archive a
    ), 'else those with jobs do');
create schema regress_other;
create table regress_other.job_1 ();
select is(
    array(select split_part(pg_temp.detail('slot'), ':', 1) order by 1),
    '{job_0,job_1,job_2,job_3,job_4,job_5}', 'each slot is shown, and no other table of that name');
select is(
    (select h.status from pgq_health h where h.subject = 'rotation'), 'ok',
    'a ring that is not full is as it should be');

select * from finish();
rollback;
