/*
 * Functions that somebody else has made in the schema of the public ones: with one more argument,
 * which has a default, they make calls by that name ambiguous. Others go on.
 */
begin;
select plan(10);
set local client_min_messages = warning;
select p.pronamespace::regnamespace as schema from pg_proc p where p.proname = 'pgq_version' \gset
create role regress_planter;
grant create, usage on schema :schema to regress_planter;

select pgq_create_queue('q') \g /dev/null
select pgq_enqueue_many('{1,2,3,4,5}', 'q', dedupe_keys => '{a,b,c,d,e}') \g /dev/null
create temp table claimed as select d.id, d.token from pgq_dequeue(3, queue => 'q') d;

set local role regress_planter;
do $$
declare
    v_function record;
begin
    for v_function in
        select p.oid::regproc::text as name, pg_get_function_arguments(p.oid) as arguments
          from pg_proc p
         where p.proname in ('pgq_complete', 'pgq_dequeue', 'pgq_cancel', 'pgq_configure_queue',
                             'pgq_maintain', 'pgq_version')
            or (p.proname = 'pgq_heartbeat' and p.proretset)
    loop
        execute format(
            'create function %s(%s planted integer default 0) returns integer language plpgsql '
            'as $f$ begin raise exception ''planted''; end $f$',
            v_function.name, concat_ws(', ', nullif(v_function.arguments, ''), '')
        );
    end loop;
end
$$;
reset role;

select throws_ok('select pgq_version()', '42725', null, 'a call by such a name is ambiguous');
select throws_ok('select pgq_cancel(1, false)', '42725', null, 'also with all arguments');
select isnt(
    (select pgq_heartbeat(c.id, c.token) from claimed c order by c.id limit 1), null,
    'a heartbeat is renewed');
select is(
    array(select d.payload::text
            from (select * from claimed c order by c.id limit 1) c,
                 pgq_complete_and_dequeue(array[c.id], array[c.token], 1, queue => 'q') d),
    '{4}', 'a job is completed, and the next one claimed');
select is(
    array(select d.payload::text
            from (select array_agg(c.id) as ids, array_agg(c.token) as tokens
                    from (select * from claimed c order by c.id offset 1) c) c,
                 pgq_complete_and_dequeue(c.ids, c.tokens, 1, queue => 'q') d),
    '{5}', 'also several');
select is(pgq_create_queue('other', max_attempts => 7), true, 'a queue is created');
select is(
    (select q.max_attempts from pgq_queue_settings q where q.name = 'other'), 7,
    'with its settings');
select pgq_enqueue_many('{6,7}', 'q', dedupe_keys => '{f,g}') \g /dev/null
select is(pgq_cancel_key('q', 'f'), true, 'a job is cancelled by its key');
select is(pgq_cancel_all('q'), 1::bigint, 'and all of a queue');
select is(
    (select count(*) from pgq_jobs j where j.queue = 'q' and j.state = 'cancelled'), 2::bigint,
    'those that were not active');

select * from finish();
rollback;
