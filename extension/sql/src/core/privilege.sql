/*
 * Privileges. All public functions run with the rights of the extension's owner, so that the tables
 * are closed to everybody else; what the caller may do is looked up in pgq.privilege. The caller is
 * the role that the session has set, or has logged in as: not the owner of a function with SECURITY
 * DEFINER that calls pgq, whom PostgreSQL does not tell.
 *
 * Where PostgreSQL itself runs code of others than the session's role (index expressions in REINDEX
 * and ANALYZE, also by autovacuum; materialized views), nobody has privileges. UNLISTEN, which does
 * nothing here, is one of the statements that fail there.
 *
 * What a role may not touch does not exist for it: a receipt is lost, a job unknown, and of a queue
 * it does not learn whether there is one.
 */

create function pgq._check_restricted()
returns void
language plpgsql
as $$
begin
    unlisten pgq_nobody;
    -- As in pgq._live_keys. A session that has ever listened could not prepare the transaction.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return;
end
$$;
comment on function pgq._check_restricted() is
'Raises 42501 where PostgreSQL runs code of others than the session''s role.';

create function pgq._is_owner()
returns boolean
language sql
stable
begin atomic
    select session_user = current_user and current_setting('role') = 'none';
end;
comment on function pgq._is_owner() is
'Whether the caller is the owner of pgq, for whom nothing needs to be looked up.';

create function pgq._caller()
returns name
language plpgsql
as $$
begin
    perform pgq._check_restricted();
    return case current_setting('role') when 'none' then session_user
                                        else current_setting('role')::name end;
end
$$;
comment on function pgq._caller() is
'Returns the role on whose behalf a public function runs.

Raises 42501 if PostgreSQL runs code of others.';

create function pgq._may_role(p_role name, p_queue_id integer, p_verb text)
returns boolean
language plpgsql
stable
as $$
begin
    return pg_has_role(p_role, current_user, 'usage') or exists (
        select from pgq.privilege p
         where p.verb = p_verb and (p.queue_id is null or p.queue_id = p_queue_id)
           and (p.role = 0::oid or pg_has_role(p_role, p.role::oid, 'usage'))
    );
end
$$;
comment on function pgq._may_role(name, integer, text) is
'Whether a role has a privilege on a queue, or (null) on all of them.';

create function pgq._may(p_queue_id integer, p_verb text)
returns boolean
language plpgsql
as $$
begin
    return pgq._may_role(pgq._caller(), p_queue_id, p_verb);
end
$$;
comment on function pgq._may(integer, text) is 'As pgq._may_role, for the caller.';

create function pgq._raise_unknown_queue(p_queue text, p_verb text)
returns void
language plpgsql
as $$
begin
    perform pgq._check_not_null('queue', p_queue is null);
    if not pgq._may(null, p_verb) then
        raise exception 'permission denied for queue "%"', p_queue
            using errcode = 'insufficient_privilege',
                  detail = format('Role "%s" needs the privilege "%s".', pgq._caller(), p_verb),
                  hint = 'If the queue exists, a role that manages it can grant the privilege '
                         'with pgq_grant.';
    end if;
    raise exception 'queue "%" does not exist', p_queue
        using errcode = 'undefined_object',
              hint = format('Create it first: SELECT pgq_create_queue(%s).',
                            quote_literal(p_queue));
end
$$;
comment on function pgq._raise_unknown_queue(text, text) is
'Raises 42704 for a name, 22004 for null.

42501 if the caller may not know whether there is such a queue.';

create function pgq._queue_id(p_queue text, p_verb text)
returns integer
language plpgsql
as $$
declare
    v_id integer;
begin
    perform pgq._check_restricted();
    select q.id into v_id
      from pgq.queue q where q.name = p_queue and (pgq._is_owner() or pgq._may(q.id, p_verb));
    if not found then
        perform pgq._raise_unknown_queue(p_queue, p_verb);
    end if;
    return v_id;
end
$$;
comment on function pgq._queue_id(text, text) is
'Returns the id of a queue on which the caller has a privilege.

Raises 42704, 42501 or 22004.';

create function pgq._may_lane(p_lane bigint, p_verb text)
returns boolean
language plpgsql
as $$
begin
    perform pgq._check_restricted();
    return pgq._is_owner() or (
        pgq._may(pgq._queue_of(p_lane), p_verb)
        and exists (select from pgq.queue q where q.id = pgq._queue_of(p_lane))
    );
end
$$;
comment on function pgq._may_lane(bigint, text) is
'As pgq._may, for the queue of a lane.

False if the queue was dropped, but for the owner.';

create function pgq._hold_queue(p_queue text, p_queue_id integer, p_verb text)
returns void
language plpgsql
as $$
begin
    perform from pgq.queue q where q.id = p_queue_id for key share;
    if not found then
        perform pgq._raise_unknown_queue(p_queue, p_verb);
    end if;
end
$$;
comment on function pgq._hold_queue(text, integer, text) is
'Keeps a queue from being dropped until the transaction ends.

Raises 42704 if it has been since.';

create function pgq._mine(p_verb text)
returns integer[]
language plpgsql
as $$
declare
    v_caller constant name := pgq._caller();
begin
    if pgq._may_role(v_caller, null, p_verb) then
        return null;
    end if;
    return array(
        select p.queue_id from pgq.privilege p
         where p.verb = p_verb and (p.role = 0::oid or pg_has_role(v_caller, p.role::oid, 'usage'))
    );
end
$$;
comment on function pgq._mine(text) is
'The queues on which the caller has a privilege. Null: all.';

create function pgq._is_mine(p_lane bigint, p_mine integer[])
returns boolean
language sql
immutable
begin atomic
    select p_mine is null or (p_lane >> 16)::integer = any (p_mine);
end;
comment on function pgq._is_mine(bigint, integer[]) is
'Whether the queue of a lane is among those that pgq._mine has returned.';

create function pgq._check_may(p_verb text)
returns void
language plpgsql
as $$
begin
    if not pgq._may(null, p_verb) then
        raise exception 'permission denied for queue "*"'
            using errcode = 'insufficient_privilege',
                  detail = format('Role "%s" needs the privilege "%s" on all queues.',
                                  pgq._caller(), p_verb),
                  hint = 'A role that has the privilege can grant it with pgq_grant on "*".';
    end if;
end
$$;
comment on function pgq._check_may(text) is 'Raises 42501 without a privilege on all queues.';
