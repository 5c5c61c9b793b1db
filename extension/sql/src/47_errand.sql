/*
 * What locks rows of the catalogs, or of pg_cron, that all queues need: at the commit, by a tick.
 */

create function pgq._run_errands()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
    v_role oid;
begin
    if not exists (select from pgq.errand) then
        return;
    end if;
    begin
        lock table pgq.privilege in share update exclusive mode;
        for v_role in
            with gone as (
                delete from pgq.errand e
                 where e.ctid = any (array(
                           select o.ctid from pgq.errand o for update skip locked
                       ))
                returning e.role
            )
            select distinct g.role from gone g
        loop
            perform pgq._use_pg_cron() where v_role is null;
            perform pgq._set_grants('public') where v_role = 0;
            perform pgq._set_grants(r.rolname) from pg_roles r where r.oid = v_role;
        end loop;
        delete from pgq.privilege p
         where p.role <> 0::oid and not exists (select from pg_roles r where r.oid = p.role);
    exception
        -- Somebody else changes the same functions, or has just done so.
        when lock_not_available or internal_error then
            return;
    end;
end
$$;
comment on function pgq._run_errands() is
'for commits and ticks: does what pgq.errand has; what cannot be done is left to the next tick';

create function pgq._is_chief()
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return {is_owner} or pgq._may(null, 'manage');
end
$$;
comment on function pgq._is_chief() is 'whether the caller manages all queues';

create function pgq._tell_cron()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if pgq._is_chief() then
        perform pgq._use_pg_cron();
    else
        insert into pgq.errand (role) values (null);
        insert into pgq.chore default values;
    end if;
end
$$;
comment on function pgq._tell_cron() is
'pgq._use_pg_cron, at the commit for who manages single queues: it locks what all schedules need';
