/*
 * What locks rows of the catalogs, or of pg_cron, that all queues need: at the commit, by a tick.
 */

create function pgq._run_errands()
returns void
language plpgsql
set lock_timeout = '100ms'
as $$
declare
    v_role oid;
    v_roles oid[];
begin
    if not exists (select from pgq.errand) then
        return;
    end if;
    begin
        lock table pgq.privilege in share update exclusive mode;
        with gone as (delete from pgq.errand e returning e.role)
        select array_agg(distinct g.role) into v_roles from gone g;
        foreach v_role in array coalesce(v_roles, '{}') loop
            begin
                perform pgq._use_pg_cron() where v_role is null;
                perform pgq._set_grants('public') where v_role = 0;
                perform pgq._set_grants(r.rolname) from pg_roles r where r.oid = v_role;
            exception
                -- No errand may fail the commit of somebody else: a catalog row is full of grants,
                -- or an event trigger refuses them.
                when program_limit_exceeded or insufficient_resources
                    or syntax_error_or_access_rule_violation or plpgsql_error
                then
                    raise log 'pgq could not set the grants of role %: % (%)', v_role, sqlerrm,
                            sqlstate
                        using errcode = '01000', hint = 'Call pgq_grant for the role again.';
            end;
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
'Does what pgq.errand has; for commits and ticks.

What is locked is left to the next tick. What cannot be done is told in the log of the server,
and dropped.';

create function pgq._tell_cron()
returns void
language plpgsql
as $$
begin
    if pgq._may(null, 'manage') then
        perform pgq._use_pg_cron();
    else
        insert into pgq.errand (role) values (null);
        insert into pgq.chore default values;
    end if;
end
$$;
comment on function pgq._tell_cron() is
'Calls pgq._use_pg_cron, at the commit for who manages single queues.

It locks what all schedules need.';
