/*
 * Rules for everything that the extension creates, asked of the catalog.
 */
begin;
select plan(31);
\ir support/member.psql

create temp view routine as
select p.*, p.pronamespace = 'pgq'::regnamespace as internal
  from pg_proc p
  join member m on m.classid = 'pg_proc'::regclass and m.objid = p.oid;
create temp view relation as
select c.* from pg_class c where c.relnamespace = 'pgq'::regnamespace;

select is_empty(
    $$ select r.oid::regprocedure from routine r
        where coalesce(obj_description(r.oid, 'pg_proc'), '') = '' $$,
    'every function has a comment');
select is_empty(
    $$ select r.oid::regprocedure from routine r
        where obj_description(r.oid, 'pg_proc') !~ '^[A-Z].*\.$' $$,
    'which is made of sentences');
select is_empty(
    $$ select t.oid::regtype
         from pg_type t
         join member m on m.classid = 'pg_type'::regclass and m.objid = t.oid
         join pg_class c on c.oid = t.typrelid
        where c.relkind = 'c' and coalesce(obj_description(t.oid, 'pg_type'), '') = '' $$,
    'every type has a comment');
select is_empty(
    $$ select r.oid::regclass from relation r
        where r.relkind in ('r', 'p') and not r.relispartition
          and coalesce(obj_description(r.oid, 'pg_class'), '') = '' $$,
    'every table has a comment');
select is_empty(
    $$ select m.objid::regclass
         from member m
         join pg_class c on m.classid = 'pg_class'::regclass and c.oid = m.objid
        where c.relkind = 'v' and coalesce(obj_description(c.oid, 'pg_class'), '') = '' $$,
    'every view has a comment');
create temp view described as
select pg_describe_object(m.classid, m.objid, 0) as object, d.description
  from member m
  join pg_description d on (d.classoid, d.objoid, d.objsubid) = (m.classid, m.objid, 0);
select is_empty(
    $$ select d.object from described d where d.description !~ '^[^\n]{1,80}(\n\n|$)' $$,
    'a comment begins with a summary of one line');
select is_empty(
    $$ select d.object from described d
        where d.description ~ 'Errors'
          and d.description
              !~ '\n\nErrors:\n\n((\* ([0-9A-Z]{5}: |those of pgq_)|  )[^\n]+(\n|$))+$' $$,
    'and one of a public function ends with a list of errors, one SQLSTATE an item');
select isnt(obj_description('pgq'::regnamespace, 'pg_namespace'), null,
    'the internal schema has a comment');

create temp view door as
with recursive reached (oid) as (
        select d.refobjid from pg_depend d
         where d.refclassid = 'pg_proc'::regclass and d.classid <> 'pg_proc'::regclass
     union
        -- A "begin atomic" function depends on those that it calls.
        select d.refobjid from reached r
          join pg_depend d on d.classid = 'pg_proc'::regclass and d.objid = r.oid
         where d.refclassid = 'pg_proc'::regclass
     )
select r.* from routine r
 where r.prosqlbody is null
   and (r.prosecdef or r.pronamespace <> 'pgq'::regnamespace
        or r.prorettype in ('trigger'::regtype, 'event_trigger'::regtype)
        or r.oid in (select d.oid from reached d));
select is_empty(
    $$ select d.oid::regprocedure from door d
        where not coalesce(d.proconfig, '{}') @> '{"search_path=pg_catalog, pg_temp"}' $$,
    'each function that something outside calls (a user, a view, a trigger, a policy, a default) '
    'pins search_path to pg_catalog, with pg_temp last');
select cmp_ok((select count(*) from door), '>', 40::bigint, 'those functions were found');
select is_empty(
    $$ select r.oid::regprocedure from routine r
        where r.prosrc ~ ('\m' || (select quote_ident(p.pronamespace::regnamespace::text)
                                     from routine p where p.proname = 'pgq_version')
                          || '\.pgq_\w+\s*\(')
          and r.proname <> 'pgq_watch' $$,
    'no function calls a public one, whose name others may overload, but for the one that has its '
    'caller''s rights');
select is_empty(
    $$ select r.oid::regprocedure from routine r
        where r.proconfig && '{enable_seqscan=off, enable_sort=off}'
          and not r.proconfig @> '{jit=off}' $$,
    'no function that makes plans look dear has them compiled by LLVM');
-- A session keeps the plans of its first calls, whichever they were: made while a slot is small, a
-- plan must be good for a large one.
create temp view routine_of_plans as
select r.*,
       coalesce(r.proconfig, '{}') @> array['plan_cache_mode=force_generic_plan', 'enable_seqscan=off',
                                            'enable_bitmapscan=off', 'jit=off'] as is_pinned
  from routine r;
select is_empty(
    $$ with recursive reached as (
        select r.oid, r.proname
          from routine_of_plans r
         where not r.is_pinned
           and (r.prosrc ~ '\m(from|join|update|into)\s+(only\s+)?pgq\.(job|floor)(_|\M)'
                or r.prosrc ~ 'pgq\.job_%')
         union
        select r.oid, r.proname
          from reached d
          join routine_of_plans r on r.prosrc ~ ('\mpgq\.' || d.proname || '\s*\(')
         where not r.is_pinned
       )
       select d.oid::regprocedure from reached r join door d on d.oid = r.oid $$,
    'what something outside calls reaches the slots with the same settings of the planner');
select is_empty(
    $$ select r.oid::regprocedure from routine r
        where not r.internal and not r.prosecdef
          and r.proname not in ('pgq_watch', 'pgq_unwatch') $$,
    'every public function runs with the rights of the owner, but for those that create triggers');
select set_eq(
    $$ select r.proname::text from routine r where r.internal and r.prosecdef $$,
    array['_at_commit', '_at_note', '_check_lanes', '_check_dropped', '_queues', '_workers', '_health',
          '_locks', '_obstacles'],
    'no internal function does, but for triggers that run at commit and what views show');
select is_empty(
    $$ select r.oid::regprocedure from routine r
        where r.proacl is null
           or exists (select from aclexplode(r.proacl) a where a.grantee = 0) $$,
    'nothing is executable by PUBLIC');
select bag_eq(
    $$ select g.function::regprocedure from pgq.grantable g where g.view is null $$,
    $$ select r.oid::regprocedure from routine r
        where not r.internal or (r.prosecdef and r.prorettype <> 'trigger'::regtype) $$,
    'every public function has the privilege by which it is granted, and so have those of views');
select bag_eq(
    $$ select g.view::regclass from pgq.grantable g where g.function is null $$,
    $$ select c.oid::regclass
         from member m
         join pg_class c on m.classid = 'pg_class'::regclass and c.oid = m.objid
        where c.relkind = 'v' and c.relnamespace <> 'pgq'::regnamespace $$,
    'every public view, too');
select set_eq(
    'select g.verb from pgq.grantable g', array['enqueue', 'consume', 'observe', 'manage', 'any'],
    'there are no others');
select is_empty(
    $$ select r.oid::regclass from relation r
        where exists (select from aclexplode(r.relacl) a where a.grantee = 0) $$,
    'PUBLIC has no privilege on a table or sequence');
select is_empty(
    $$ select a.attrelid::regclass from pg_attribute a join relation r on r.oid = a.attrelid
        where exists (select from aclexplode(a.attacl) x where x.grantee = 0) $$,
    'nor on a column');
select is_empty(
    $$ select from pg_namespace n, aclexplode(n.nspacl) a
        where n.nspname = 'pgq' and a.grantee = 0 $$,
    'nor on the internal schema');

select is_empty(
    $$ select r.oid::regprocedure from routine r where not r.internal and r.proname !~ '^pgq_' $$,
    'the names of public functions start with pgq_');
select set_eq(
    $$ select t.typname::text
         from pg_type t
         join member m on m.classid = 'pg_type'::regclass and m.objid = t.oid
        where t.typnamespace <> 'pgq'::regnamespace and t.typname !~ '^_'
          and not exists (select from pg_class c where c.oid = t.typrelid and c.relkind = 'v') $$,
    array['pgq_job'],
    'pgq_job is the only public type');
select is_empty(
    $$ select m.objid::regclass
         from member m
         join pg_class c on m.classid = 'pg_class'::regclass and c.oid = m.objid
        where c.relnamespace <> 'pgq'::regnamespace and c.relkind not in ('c', 'v') $$,
    'all tables and sequences are in the internal schema');
select is_empty(
    $$ select r.oid::regclass
         from pg_index i
         join relation r on r.oid = i.indexrelid
         join relation t on t.oid = i.indrelid
        where r.relname !~ ('^' || t.relname || '_(\w+_)?'
                  || case when i.indisprimary then 'pkey'
                          when exists (select from pg_constraint c where c.conindid = i.indexrelid)
                          then 'key'
                          else 'idx' end || '$') $$,
    'an index is named table_columns_idx, table_pkey or table_columns_key');
select is_empty(
    $$ select c.conname
         from pg_constraint c
         join relation t on t.oid = c.conrelid
        where c.contype in ('c', 'f', 'p', 'u', 'x') and c.conislocal
          and c.conname !~ ('^' || t.relname || '_(\w+_)?'
                  || case c.contype when 'c' then 'check' when 'f' then 'fkey' when 'p' then 'pkey'
                                    when 'u' then 'key' else 'excl' end || '$') $$,
    'a constraint is named table_columns_check, _fkey, _key or table_pkey');
select is_empty(
    $$ select r.oid::regclass
         from relation r
         join pg_index i on i.indrelid = r.oid, unnest(i.indkey) k (number)
         join pg_attribute a on a.attnum = k.number
        where r.relname ~ '^job_\d' and a.attrelid = r.oid
          and a.attname not in ('lane', 'id', 'pos', 'due', 'dedupe_key', 'dedupe_queue_id', 'group_id',
                                'place') $$,
    'no index of a slot covers what a claim or a heartbeat changes, so that both are HOT updates');
select is_empty(
    $$ select r.oid::regclass from relation r
        where r.relname ~ '^(job|floor)_\d$'
          and not coalesce(r.reloptions, '{}') @> '{vacuum_truncate=off}' $$,
    'no vacuum locks a slot against claims to shrink it');

-- One that is called costs as much as twenty of its kind that are not.
create function pg_temp.is_called(p_name text, p_types oid[]) returns boolean language plpgsql as $$
declare
    v_types constant text := (select format('(%s)', string_agg(t::regtype::text, ', ')) from unnest(p_types) t having count(*) > 0);
    v_nulls constant text := (select format('(%s)', string_agg('null', ', ')) from unnest(p_types) having count(*) > 0);
    v_line text;
    v_is_called boolean := false;
begin
    execute format(
        'prepare called%s as select %s(%s)', v_types, p_name,
        (select string_agg(format('$%s', n), ', ') from generate_series(1, cardinality(p_types)) n)
    );
    for v_line in execute format('explain (verbose, costs off) execute called%s', v_nulls) loop
        v_is_called := v_is_called or strpos(v_line, p_name || '(') > 0;
    end loop;
    deallocate called;
    return v_is_called;
end
$$;
set local plan_cache_mode = force_generic_plan;
select is_empty(
    $$ select r.oid::regprocedure from routine r
        where r.internal and not r.proretset and r.prorettype <> 'void'::regtype
          and pg_get_function_sqlbody(r.oid) !~ '\n *FROM '
          and pg_temp.is_called('pgq.' || r.proname, r.proargtypes::oid[]) $$,
    'a function of one expression becomes part of the expression that calls it');

create temp view undumped as
select r.relname::text as name
  from relation r
 where r.relkind in ('r', 'S')
   and r.oid <> all (select unnest(e.extconfig) from pg_extension e where e.extname = 'pgq');
select case when exists (select from pg_extension e where e.extname = 'pgq') then set_eq(
    'select u.name from undumped u',
    array['gate', 'lane_gate', 'bucket', 'chore', 'errand', 'note_0', 'note_1', 'note_2', 'note_3', 'note_4', 'note_5',
          'floor_0', 'floor_1', 'floor_2', 'floor_3', 'floor_4', 'floor_5', 'floor_n',
          'next_tick', 'last_tick', 'xid_recent', 'xid_old', 'xid_shifted', 'home', 'skipped', 'stat', 'stat_0', 'stat_1', 'stat_2', 'stat_n', 'stat_seen'],
    'pg_dump carries along all tables and sequences, but for these')
else pass('pg_dump carries along all, where pgq is no extension') end;

select * from finish();
rollback;
