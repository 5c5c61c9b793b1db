/*
 * Finds what is there of pgq, for the guard of each script. It sets, for this transaction:
 *
 *   pgq.found    nothing | extension | script | tables | functions | skytools | foreign
 *   pgq.version  of what was found, or ''
 *   pgq.home     the schema of its functions, or ''
 *
 * "tables" and "functions" are what a half removed installation has left. docs/install.md says how
 * to go on from each. Others may create a function called pgq_version: it counts if it belongs to
 * the owner of the schema pgq, or, where there is none, to a role of the current user.
 */

set local search_path = pg_catalog, pg_temp;

select set_config('pgq.found', f.found, true),
       set_config('pgq.version', coalesce(f.version, ''), true),
       set_config('pgq.home', coalesce(f.home, ''), true)
  from (
           select case
                      when s.is_skytools then 'skytools'
                      when s.version is not null then 'extension'
                      when s.is_own and v.version is not null then 'script'
                      when s.is_own then 'tables'
                      when s.oid is not null then 'foreign'
                      when v.version is not null then 'functions'
                      else 'nothing'
                  end as found,
                  coalesce(s.version, v.version) as version,
                  coalesce(s.home, v.home) as home
             from (values (1)) one
             left join (
                      select n.oid, n.nspowner, e.extversion as version,
                             e.extnamespace::regnamespace::text as home,
                             exists (
                                 select
                                   from pg_class c
                                  where c.relnamespace = n.oid
                                    and c.relname in ('tick', 'subscription')
                             ) as is_skytools,
                             obj_description(n.oid, 'pg_namespace') like '%extension pgq%'
                             or exists (
                                    select
                                      from pg_class c
                                     where c.relnamespace = n.oid and c.relname = 'job_0'
                                ) as is_own
                        from pg_namespace n
                        left join pg_depend d
                          on d.classid = 'pg_namespace'::regclass and d.objid = n.oid
                         and d.deptype = 'e'
                        left join pg_extension e on e.oid = d.refobjid and e.extname = 'pgq'
                       where n.nspname = 'pgq'
                  ) s on true
             left join lateral (
                      select p.pronamespace::regnamespace::text as home,
                             substring(p.prosrc, '''(.+)''') as version
                        from pg_proc p
                       where p.proname = 'pgq_version' and p.pronargs = 0
                         and case
                                 when s.oid is null then pg_has_role(p.proowner, 'usage')
                                 else p.proowner = s.nspowner
                             end
                       order by p.oid
                       limit 1
                  ) v on true
       ) f;
