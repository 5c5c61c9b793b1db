/*
 * Public: pgq_grant, pgq_revoke.
 */

create function pgq._role_id(p_role name)
returns oid
language plpgsql
stable
as $$
begin
    return case when p_role = 'public' then 0::oid
                else (select r.oid from pg_roles r where r.rolname = p_role) end;
end
$$;
comment on function pgq._role_id(name) is
'The oid of a role: 0 for public, null if it does not exist.';

create function pgq._set_grants(p_role name)
returns void
language plpgsql
as $$
declare
    v_id constant oid := pgq._role_id(p_role);
    v_verbs constant text[] := array(
        select distinct p.verb from pgq.privilege p where p.role = v_id and p.verb <> 'usage'
    );
    v_right record;
begin
    -- What the owner has comes from nobody; the functions run with it.
    if p_role = current_user then
        return;
    end if;
    -- To find the public functions; that is taken back unless it could without.
    if v_verbs = '{}' then
        delete from pgq.privilege p where p.role = v_id and p.verb = 'usage';
        if found then
            execute format('revoke usage on schema %s from %I', '@extschema@', p_role);
        end if;
    elsif not has_schema_privilege(p_role, '@extschema@'::regnamespace, 'usage') then
        insert into pgq.privilege (role, queue_id, verb) values (v_id, null, 'usage')
        on conflict do nothing;
        execute format('grant usage on schema %s to %I', '@extschema@', p_role);
    end if;
    for v_right in
        select g.function::regprocedure as function, g.view::regclass as view, w.wanted
          from pgq.grantable g
          left join pg_proc p on p.oid = g.function
          left join pg_class c on c.oid = g.view,
               lateral (
                   select g.verb = any (v_verbs) or (g.verb = 'any' and v_verbs <> '{}') as wanted
               ) w
         where pg_get_userbyid(coalesce(p.proowner, c.relowner)) = current_user
           and w.wanted <> exists (
                   select from aclexplode(coalesce(p.proacl, c.relacl)) a where a.grantee = v_id
               )
    loop
        if v_right.wanted and v_right.view is null then
            execute format('grant execute on function %s to %I', v_right.function, p_role);
        elsif v_right.wanted then
            execute format('grant select on %s to %I', v_right.view, p_role);
        elsif v_right.view is null then
            execute format('revoke execute on function %s from %I', v_right.function, p_role);
        else
            execute format('revoke select on %s from %I', v_right.view, p_role);
        end if;
    end loop;
end
$$;
comment on function pgq._set_grants(name) is
'Lets a role call and read what its privileges are for, and no more.';

create function pgq._regrant(p_roles oid[])
returns void
language plpgsql
as $$
begin
    if pgq._may(null, 'manage') then
        begin
            -- What a role may call follows from all that it has.
            lock table pgq.privilege in share update exclusive mode nowait;
            perform pgq._set_grants('public') where 0::oid = any (p_roles);
            perform pgq._set_grants(r.rolname) from pg_roles r where r.oid = any (p_roles);
            if pgq._read_committed() then
                return;
            end if;
        exception
            -- Somebody else sets rights.
            when lock_not_available then
                null;
        end;
    end if;
    insert into pgq.errand (role) select unnest(p_roles);
    insert into pgq.chore default values;
end
$$;
comment on function pgq._regrant(oid[]) is
'Lets roles call what their privileges are for.

At once for who manages all queues, unless somebody else is at it, and at the commit for others.
It locks what all grants need.';

create function pgq._drop_grants(p_queue_id integer)
returns void
language plpgsql
as $$
declare
    v_roles oid[];
begin
    with gone as (
        delete from pgq.privilege p where p.queue_id = p_queue_id returning p.role
    )
    select array_agg(distinct g.role::oid) into v_roles from gone g;
    perform pgq._regrant(v_roles) where v_roles is not null;
end
$$;
comment on function pgq._drop_grants(integer) is 'Takes back what was granted on a queue.';

create function pgq._check_grant(p_queue text, p_role name, p_privileges text[])
returns integer
language plpgsql
as $$
declare
    v_verb text;
    v_queue_id integer;
begin
    perform pgq._check_not_null('role', p_role is null),
            pgq._check_array('privileges', p_privileges);
    select v into v_verb
      from unnest(p_privileges) v where v not in ('enqueue', 'consume', 'observe', 'manage');
    if found then
        raise exception 'there is no privilege "%"', v_verb
            using errcode = 'invalid_parameter_value',
                  hint = 'The privileges are enqueue, consume, observe and manage.';
    end if;
    if p_queue = '*' then
        perform pgq._check_may('manage');
    else
        v_queue_id := pgq._queue_id(p_queue, 'manage');
        perform pgq._hold_queue(p_queue, v_queue_id, 'manage');
    end if;
    return v_queue_id;
end
$$;
comment on function pgq._check_grant(text, name, text[]) is
'The id of the queue, null for all; raises 22004, 22023, 42501, 42704.';

create function @extschema@.pgq_grant(
    queue text,
    role name,
    privileges text[]
)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue_id constant integer := pgq._check_grant(queue, role, privileges);
begin
    if pgq._role_id(role) is null then
        raise exception 'role "%" does not exist', role
            using errcode = 'undefined_object';
    end if;
    insert into pgq.privilege (role, queue_id, verb)
    select pgq._role_id(pgq_grant.role), v_queue_id, v from unnest(privileges) v
    on conflict do nothing;
    perform pgq._regrant(array[pgq._role_id(role)]);
end
$$;
revoke all on function @extschema@.pgq_grant(text, name, text[]) from public;
comment on function @extschema@.pgq_grant(text, name, text[]) is
'Gives a role privileges on a queue, or on all queues.

The role can call the functions after the commit; at once if the caller manages all queues.
Without the privilege, receipts count as lost, jobs as unknown, and any queue name gives 42501,
existing or not. A SECURITY DEFINER function that calls pgq has the privileges of the role of the
session.

* queue: ''*'' means all queues, also later ones. To create queues, a role needs manage on ''*''.
* role: public means everybody.
* privileges: ''enqueue'' to add jobs, ''consume'' to claim and end them, ''observe'' to see the
  queue and its jobs in the views, ''manage'' for everything else, this function included.

Errors:

* 22004: an argument or a privilege is null.
* 22023: there is no such privilege.
* 42501: the caller may not manage the queue.
* 42704: there is no such queue or role.';

create function @extschema@.pgq_revoke(
    queue text,
    role name,
    privileges text[] default '{enqueue,consume,observe,manage}'
)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue_id constant integer := pgq._check_grant(queue, role, privileges);
begin
    delete from pgq.privilege p
     where p.role = pgq._role_id(pgq_revoke.role) and p.queue_id is not distinct from v_queue_id
       and p.verb = any (privileges);
    perform pgq._regrant(array[pgq._role_id(role)]) where pgq._role_id(role) is not null;
end
$$;
revoke all on function @extschema@.pgq_revoke(text, name, text[]) from public;
comment on function @extschema@.pgq_revoke(text, name, text[]) is
'Takes back what pgq_grant gave on a queue, or on all queues.

A privilege on all queues cannot be taken back for one of them. The role may have been dropped.

* queue: ''*'' for the privileges on all queues.

Errors:

* 22004: an argument or a privilege is null.
* 22023: there is no such privilege.
* 42501: the caller may not manage the queue.
* 42704: there is no such queue.';
