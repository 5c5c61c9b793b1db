/*
 * What is taken for pg_cron: the functions of the extension of that name, if they may be called.
 * Here the extension is an entry in the catalog.
 */
begin;
select plan(13);
\ir support/clock.psql
set local client_min_messages = warning;
set local allow_system_table_mods = on;

create function pg_temp.add_extension(p_name name, p_oid oid) returns void language sql as $$
    insert into pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion)
    select p_oid, p_name, r.oid, 'pg_catalog'::regnamespace, false, '1'
      from pg_roles r where r.rolname = current_user
$$;
-- A schema with what pg_cron has.
create function pg_temp.make(p_schema name) returns void language plpgsql as $$
begin
    execute replace($sql$
        create schema @;
        create table @.job (jobid bigserial, jobname text, command text, username text);
        create table @.job_run_details (jobid bigint);
        create function @.schedule(text, text, text) returns bigint language sql as
            'insert into @.job (jobname, command, username) values ($1, $3, current_user)
             returning jobid';
        create function @.unschedule(bigint) returns boolean language sql as
            'delete from @.job j where j.jobid = $1 returning true';
        create function @.schedule(text, text) returns bigint language sql as 'select 1::bigint';
        create function @.unschedule(text) returns boolean language sql as 'select true';
        create function @.say(text, text, text) returns bigint language sql as 'select 1::bigint';
        create function @.run(bigint) returns boolean language sql as 'select true';
    $sql$, '@', p_schema);
end
$$;
-- Its functions, or some, become members of an extension, or depend on it.
create function pg_temp.add_to(p_schema name, p_change text, p_pattern text default '')
returns void language plpgsql as $$
declare
    v_function regprocedure;
begin
    for v_function in
        select p.oid::regprocedure from pg_proc p
         where p.pronamespace = p_schema::regnamespace and p.oid::regprocedure::text ~ p_pattern
    loop
        execute format(p_change, v_function);
    end loop;
end
$$;
create function pg_temp.jobs(p_schema name) returns text[] language plpgsql as $$
declare
    v_jobs text[];
begin
    execute format('select array_agg(j.jobname order by j.jobid) from %I.job j', p_schema)
       into v_jobs;
    return coalesce(v_jobs, '{}');
end
$$;

-- Others.
select pg_temp.make('forged'), pg_temp.make('other') \g /dev/null
select pg_temp.add_extension('pg_cron', '4000000001'),
       pg_temp.add_extension('pg_other', '4000000002'),
       pg_temp.add_to('forged', 'alter function %s depends on extension pg_cron'),
       pg_temp.add_to('other', 'alter extension pg_other add function %s') \g /dev/null
select pgq_schedule('s', '0 0 * * *') \g /dev/null
select is(
    pg_temp.jobs('forged'), '{}',
    'a schema that anybody has made is not called, whatever it depends on');
select is(pg_temp.jobs('other'), '{}', 'nor is that of another extension');

-- Too little.
select pg_temp.make('cron') \g /dev/null
select pg_temp.add_to('cron', 'alter extension pg_cron add function %s', ' schedule|\.schedule')
    \g /dev/null
select pgq_schedule('s', '0 0 * * *') \g /dev/null
select is(pg_temp.jobs('cron'), '{}', 'nor is pg_cron where it cannot take back what it runs');
select pg_temp.add_to('cron', 'alter extension pg_cron add function %s', '\.(unschedule|say|run)')
    \g /dev/null

-- Enough.
select pgq_schedule('s', '0 0 * * *') \g /dev/null
select is(pg_temp.jobs('cron'), '{pgq}', 'otherwise it runs maintenance');
insert into cron.job (jobname, username) values ('pgq', 'somebody'), ('mine', current_user);
select is(pgq_pause_schedule('s'), true, 'the only schedule is paused');
select is(pg_temp.jobs('cron'), '{pgq,mine}', 'then it does not, and what others run stays');
select is(
    array(select j.username from cron.job j where j.jobname = 'pgq'), '{somebody}',
    'also under that name');
select pgq_resume_schedule('s') \g /dev/null
select is(cardinality(pg_temp.jobs('cron')), 3, 'it does again when the schedule is resumed');
delete from cron.job;

-- Without a right nothing is called.
create role regress_owner;
grant usage on schema pgq, cron to regress_owner;
grant execute on all functions in schema pgq to regress_owner;
grant select on pgq.schedule to regress_owner;
grant insert, select, delete on cron.job to regress_owner;
grant usage on sequence cron.job_jobid_seq to regress_owner;
-- How many jobs it has added; all is taken back.
create function pg_temp.ask(p_change text default 'select') returns text language plpgsql as $$
declare
    v_jobs text;
begin
    execute p_change;
    set local role regress_owner;
    perform pgq._use_pg_cron();
    reset role;
    v_jobs := cardinality(pg_temp.jobs('cron'));
    raise exception using errcode = 'ZZ000';
exception
    when sqlstate 'ZZ000' then
        return v_jobs;
    when insufficient_privilege then
        return sqlerrm;
end
$$;
revoke execute on all functions in schema cron from public;
grant execute on all functions in schema cron to regress_owner;
select is(pg_temp.ask(), '1', 'an owner of pgq with all rights uses pg_cron');
select is(
    pg_temp.ask('revoke ' || r || ' from regress_owner'), '0', 'one without does not: ' || r)
  from unnest(array[
           'execute on function cron.schedule(text, text, text)',
           'execute on function cron.unschedule(bigint)',
           'usage on schema cron', 'select on cron.job'
       ]) r;

select * from finish();
rollback;
