"""What the system catalogs say of the extension, in lines to compare two databases by.

Everything is in it that a dump or an upgrade could get wrong: members, columns, constraints,
indexes, triggers, functions with their settings and bodies, comments, privileges, initial
privileges, and what pg_dump has to carry along. Oids are not, nor who the owner is.
"""

from __future__ import annotations

from pgserver import Server

__all__ = ["describe", "differences"]

_QUERY = r"""
set search_path = pg_catalog, pg_temp;

create temp view extension as select * from pg_extension where extname = 'pgq';
create temp view member as
select d.classid, d.objid
  from pg_depend d join extension e on e.oid = d.refobjid
 where d.refclassid = 'pg_extension'::regclass and d.deptype = 'e';
-- Indexes and row types are no members, but belong to one.
create temp view relation as
select c.*
  from pg_class c
 where c.relnamespace = to_regnamespace('pgq')::oid
    or c.oid in (select m.objid from member m where m.classid = 'pg_class'::regclass)
    or c.reltype in (select m.objid from member m where m.classid = 'pg_type'::regclass);
create temp view sequence as
select s.*, d.refobjid, d.refobjsubid
  from pg_sequence s
  left join pg_depend d on d.classid = 'pg_class'::regclass and d.objid = s.seqrelid
                       and d.refclassid = 'pg_class'::regclass and d.deptype in ('a', 'i');

create function pg_temp.role(p_role oid) returns text language sql as $$
select case when p_role = 0 then 'public'
            when p_role = (select e.extowner from extension e) then '(owner)'
            else pg_get_userbyid(p_role)::text end
$$;
-- PostgreSQL 17 added MAINTAIN, which pg_upgrade does not give to owners.
create function pg_temp.acl(p_acl aclitem[], p_default "char", p_owner oid) returns text[]
language sql as $$
select array(
    select format('%s has %s%s from %s', pg_temp.role(a.grantee), a.privilege_type,
                  case when a.is_grantable then ', to grant' end, pg_temp.role(a.grantor))
      from aclexplode(coalesce(p_acl, acldefault(p_default, p_owner))) a
     where a.privilege_type <> 'MAINTAIN'
     order by 1
)
$$;

select 'extension', e.extname, jsonb_build_object(
           'version', e.extversion, 'schema', n.nspname, 'relocatable', e.extrelocatable)
  from extension e join pg_namespace n on n.oid = e.extnamespace;
select 'dumped', u.oid::regclass, to_jsonb(u.condition)
  from extension e, unnest(e.extconfig, e.extcondition) u (oid, condition);
select 'member', i.identity, to_jsonb(i.type)
  from member m, pg_identify_object(m.classid, m.objid, 0) i;
select 'comment', i.identity, to_jsonb(d.description)
  from pg_description d, pg_identify_object(d.classoid, d.objoid, d.objsubid) i
 where (d.classoid, d.objoid) in (select m.classid, m.objid from member m)
    or (d.classoid = 'pg_class'::regclass and d.objoid in (select r.oid from relation r))
    or (d.classoid = 'pg_extension'::regclass and d.objoid in (select e.oid from extension e));
-- pg_upgrade leaves out those that are the default anyway.
select 'initial privileges', i.identity, to_jsonb(a.initial)
  from extension e
 cross join member m
  join pg_init_privs p on (p.classoid, p.objoid, p.objsubid) = (m.classid, m.objid, 0),
       lateral (
           select case i.type when 'function' then 'f' when 'schema' then 'n' when 'type' then 'T'
                              when 'sequence' then 's' else 'r' end::"char", i.identity
             from pg_identify_object(m.classid, m.objid, 0) i
       ) i (kind, identity),
       lateral (
           select pg_temp.acl(p.initprivs, i.kind, e.extowner),
                  pg_temp.acl(null, i.kind, e.extowner)
       ) a (initial, usual)
 where a.initial <> a.usual;
select 'schema', n.nspname, jsonb_build_object(
           'owner', pg_temp.role(n.nspowner), 'acl', pg_temp.acl(n.nspacl, 'n', n.nspowner))
  from pg_namespace n where n.nspname = 'pgq';
select 'relation', r.oid::regclass, jsonb_build_object(
           'kind', r.relkind, 'owner', pg_temp.role(r.relowner), 'persistence', r.relpersistence,
           'options', r.reloptions, 'identity', r.relreplident,
           'security', array[r.relrowsecurity, r.relforcerowsecurity],
           'parent', (select i.inhparent::regclass from pg_inherits i where i.inhrelid = r.oid),
           'bound', pg_get_expr(r.relpartbound, r.oid),
           'key', case when r.relkind = 'p' then pg_get_partkeydef(r.oid) end,
           'view', case when r.relkind = 'v' then pg_get_viewdef(r.oid) end,
           'acl', pg_temp.acl(r.relacl, case r.relkind when 'S' then 's'::"char" else 'r' end,
                              r.relowner))
  from relation r;
select 'column', format('%s.%I', r.oid::regclass, a.attname), jsonb_build_object(
           'place', row_number() over (partition by r.oid order by a.attnum),
           'type', format_type(a.atttypid, a.atttypmod), 'not null', a.attnotnull,
           'collation', case when a.attcollation <> 0 then a.attcollation::regcollation end,
           'default', pg_get_expr(d.adbin, r.oid), 'identity', a.attidentity,
           'generated', a.attgenerated, 'storage', a.attstorage, 'compression', a.attcompression,
           'options', a.attoptions, 'acl', pg_temp.acl(a.attacl, 'c', r.relowner))
  from relation r
  join pg_attribute a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
  left join pg_attrdef d on d.adrelid = r.oid and d.adnum = a.attnum;
-- NOT NULL is told with the columns: its constraints, since PostgreSQL 18, have any name.
select 'constraint', format('%s.%I', r.oid::regclass, c.conname), jsonb_build_object(
           'definition', pg_get_constraintdef(c.oid), 'valid', c.convalidated,
           'index', nullif(c.conindid, 0)::regclass)
  from relation r join pg_constraint c on c.conrelid = r.oid and c.contype <> 'n';
select 'index', r.oid::regclass, jsonb_build_object(
           'definition', pg_get_indexdef(r.oid), 'valid', i.indisvalid, 'unique', i.indisunique,
           'primary', i.indisprimary, 'identity', i.indisreplident)
  from relation r join pg_index i on i.indexrelid = r.oid;
select 'trigger', format('%s.%I', r.oid::regclass, t.tgname), jsonb_build_object(
           'definition', pg_get_triggerdef(t.oid), 'enabled', t.tgenabled)
  from relation r join pg_trigger t on t.tgrelid = r.oid
 where not t.tgisinternal;
select 'sequence', r.oid::regclass, jsonb_build_object(
           'type', s.seqtypid::regtype, 'start', s.seqstart, 'by', s.seqincrement,
           'range', array[s.seqmin, s.seqmax], 'cache', s.seqcache, 'cycles', s.seqcycle,
           'of', case when s.refobjid is not null
                      then (pg_identify_object('pg_class'::regclass, s.refobjid, s.refobjsubid)
                           ).identity end)
  from relation r join sequence s on s.seqrelid = r.oid;
select 'type', t.oid::regtype, jsonb_build_object(
           'kind', t.typtype, 'owner', pg_temp.role(t.typowner),
           'acl', pg_temp.acl(t.typacl, 'T', t.typowner))
  from pg_type t join member m on m.classid = 'pg_type'::regclass and m.objid = t.oid;
select 'function', p.oid::regprocedure, jsonb_build_object(
           'owner', pg_temp.role(p.proowner), 'arguments', pg_get_function_arguments(p.oid),
           'result', pg_get_function_result(p.oid), 'kind', p.prokind,
           'language', (select l.lanname from pg_language l where l.oid = p.prolang),
           'settings', p.proconfig, 'volatility', p.provolatile, 'parallel', p.proparallel,
           'flags', array[p.prosecdef, p.proisstrict, p.proleakproof],
           'cost', array[p.procost, p.prorows], 'body', md5(p.prosrc),
           'acl', pg_temp.acl(p.proacl, 'f', p.proowner))
  from pg_proc p join member m on m.classid = 'pg_proc'::regclass and m.objid = p.oid;
"""


def describe(server: Server, database: str) -> list[str]:
    """Return a line for each object of the extension in a database and what is said of it."""
    return sorted(server.psql(_QUERY, database=database).splitlines())


def differences(before: list[str], after: list[str]) -> list[str]:
    """Return the lines that only one of two descriptions has, marked as in a diff."""
    gone = [f"- {line}" for line in set(before) - set(after)]
    come = [f"+ {line}" for line in set(after) - set(before)]
    return sorted(gone + come, key=lambda line: (line[2:], line[0] == "+"))
