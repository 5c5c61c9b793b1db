/*
 * What maintenance believes of other sessions, and of its own. Any role may call its session
 * pg_dump, keep a transaction open that has read catalogs, and set what begins with "pgq.". So a
 * dump counts only of a role that could dump the jobs, and a setting only of an owner.
 */

create function pgq._slot_size()
returns bigint
language plpgsql
stable
as $$
begin
    return substring(coalesce(
        case when pgq._is_owner() then nullif(current_setting('pgq.slot_size', true), '') end,
        (
            select substring(c from '^pgq[.]slot_size=(.*)')
              from pg_db_role_setting s, unnest(s.setconfig) c
             where s.setrole = 0 and c ~ '^pgq[.]slot_size='
               and s.setdatabase = (
                       select d.oid from pg_database d where d.datname = current_database()
                   )
        )
    ) from '^[0-9]{1,12}$')::bigint;
end
$$;
comment on function pgq._slot_size() is
'Returns pgq.slot_size, as the owner of pgq or of the database has set it.

The owner of pgq sets it for the session, the owner of the database for the database. Null:
nobody has.';

create function pgq._may_dump(p_role oid)
returns boolean
language plpgsql
stable
as $$
begin
    return exists (
        select from pg_roles r
         where pg_has_role(p_role, r.oid, 'member')
           and has_schema_privilege(r.oid, 'pgq', 'usage')
           and has_table_privilege(r.oid, 'pgq.job', 'select')
    );
end
$$;
comment on function pgq._may_dump(oid) is
'Whether a role, or one that it may become, can read the jobs themselves.';

create function pgq._dumps()
returns table (pid integer, role name, since timestamptz, query text)
language plpgsql
as $$
begin
    -- The caller's transaction may have looked long ago.
    perform pg_stat_clear_snapshot();
    return query
    select a.pid, a.usename, a.xact_start, a.query
      from pg_stat_activity a
     where a.datname = current_database()
       and (
           (a.application_name = 'pg_dump' and a.backend_xmin is not null)
           or a.pid in (
               select l.pid
                 from pg_locks l
                where l.relation in ('pg_extension'::regclass, 'pg_foreign_table'::regclass)
                  and l.database = a.datid
                  and l.mode = 'AccessShareLock' and l.pid <> pg_backend_pid()
                group by l.pid having count(distinct l.relation) = 2
           )
       )
       and pgq._may_dump(a.usesysid);
end
$$;
comment on function pgq._dumps() is
'Returns where pg_dump has a snapshot.

Its name tells, or under another name the catalogs that it has read since. pg_dump locks tables
of an extension only when it comes to them. By then a truncated table is empty for old snapshots,
too, and they do not see where its jobs went.';

create function pgq._is_dumped(p_for interval default '1 day')
returns boolean
language plpgsql
as $$
begin
    return exists (
        select from pgq._dumps() d where (d.since > clock_timestamp() - p_for) is not false
    );
end
$$;
comment on function pgq._is_dumped(interval) is
'Says whether pg_dump is at work, for less than a day.

It counts, too, where the owner of pgq may not see for how long.';

create function pgq._dump_health(p_now timestamptz)
returns table (
    subject text, status text, detail text, age interval, pid integer, query text
)
language plpgsql
as $$
begin
    return query
    select 'dump', case when d.since < p_now - interval '1 hour' then 'warning' else 'ok' end,
           format('by "%s": %s', d.role,
                  case when d.since < p_now - interval '1 day'
                       then 'for more than a day, it is not waited for any more'
                       else 'no slot is emptied until it ends, or for a day' end),
           p_now - d.since, d.pid, d.query
      from pgq._dumps() d;
end
$$;
comment on function pgq._dump_health(timestamptz) is
'For pgq._health: who keeps slots as they are.';
