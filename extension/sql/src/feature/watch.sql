/*
 * Public: pgq_watch, pgq_unwatch, and what they need: pgq_check_watch, pgq_enqueue_row.
 *
 * A watched table has a trigger that adds a job for each row, in the transaction that writes it. It
 * does so on behalf of the owner of the table, who needs the privilege to enqueue; whoever writes
 * the row needs none. pgq_watch itself runs with the rights of its caller, who creates the trigger.
 * So the right to create triggers on a table is the right to enqueue on behalf of its owner.
 */

create function pgq._check_watch(p_relation oid, p_queue text)
returns void
language plpgsql
stable
as $$
declare
    v_owner name;
    v_id integer;
begin
    select pg_get_userbyid(c.relowner) into v_owner from pg_class c where c.oid = p_relation;
    select q.id into v_id from pgq.queue q where q.name = p_queue;
    if v_id is null and pgq._may_role(v_owner, null, 'enqueue') then
        raise exception 'queue "%" does not exist', p_queue
            using errcode = 'undefined_object',
                  detail = format('Table "%s" feeds this queue.', p_relation::regclass),
                  hint = 'Create the queue again, or end the watch with pgq_unwatch.';
    elsif not pgq._may_role(v_owner, v_id, 'enqueue') then
        raise exception 'permission denied for queue "%"', p_queue
            using errcode = 'insufficient_privilege',
                  detail = format('Table "%s" belongs to role "%s", which needs the privilege '
                                  '"enqueue".', p_relation::regclass, v_owner),
                  hint = 'Grant the privilege with pgq_grant, or end the watch with pgq_unwatch.';
    end if;
end
$$;
comment on function pgq._check_watch(oid, text) is
'Raises 42501 unless the owner of a table may enqueue into a queue.

42704 if there is no queue of that name and the owner may know.';

create function @extschema@.pgq_check_watch(relation regclass, queue text)
returns text
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_not_null('relation', relation is null);
    perform pgq._queue_id(queue, 'enqueue'), pgq._check_watch(relation, queue);
    perform pgq._check_watch(p.relid, queue) from pg_partition_tree(relation) p where p.isleaf;
    return 'pgq_watch_' || case when octet_length(queue) <= 50 then queue
                                else left(encode(sha256(convert_to(queue, 'utf8')), 'hex'), 50) end;
end
$$;
revoke all on function @extschema@.pgq_check_watch(regclass, text) from public;
comment on function @extschema@.pgq_check_watch(regclass, text) is
'Returns the name of the trigger that pgq_watch creates.

Errors:

* 22004: an argument is null.
* 42501: the caller, or the owner of the table or of one of its partitions, may not enqueue.
* 42704: there is no such queue.';

create function pgq._is_builtin(p_type oid)
returns boolean
language plpgsql
stable
as $$
declare
    v_type oid := p_type;
    v_base oid := p_type;
begin
    while v_base <> 0 loop
        v_type := v_base;
        select t.typbasetype into v_base from pg_type t where t.oid = v_type;
    end loop;
    return v_type < 16384;
end
$$;
comment on function pgq._is_builtin(oid) is
'Whether a type, or what a domain is made of, comes with PostgreSQL.';

create function pgq._key_columns(p_relation oid)
returns text
language plpgsql
stable
as $$
declare
    -- The conversion of other types to JSON may be anybody's function, run with the owner's rights.
    v_columns constant text := (
        select string_agg(quote_literal(a.attname) || format(
                   case when pgq._is_builtin(a.atttypid) then ', ($1).%I'
                        else ', format(''%%s'', ($1).%I)' end,
                   a.attname
               ), ', ')
          from pg_index i
          join pg_attribute a on a.attrelid = i.indrelid
                             and a.attnum = any (i.indkey[0 : i.indnkeyatts - 1])
         where i.indrelid = p_relation and i.indisprimary
    );
begin
    if v_columns is null then
        raise exception 'table "%" has no primary key', p_relation::regclass
            using errcode = 'object_not_in_prerequisite_state',
                  detail = 'The table is watched, and the payload of a job is the key of a row.',
                  hint = 'Add a primary key, or end the watch with pgq_unwatch.';
    end if;
    return v_columns;
end
$$;
comment on function pgq._key_columns(oid) is
'Returns SQL for the names and values of the primary key of a row.

Text for types that do not come with PostgreSQL. Raises 55000 without a key.';

create function pgq._has_own_key(p_relation oid, p_name text)
returns boolean
language plpgsql
stable
as $$
declare
    v_named constant oid := to_regclass(p_name)::oid;
begin
    return coalesce(
        v_named in (select p_relation union all select pg_partition_ancestors(p_relation)), false
    ) and not exists (
        select from unnest(array[p_relation, v_named]) r
         where not exists (
                   select from pg_index i join pg_class c on c.oid = i.indrelid
                    where i.indrelid = r and i.indisprimary and i.indimmediate
                      and c.relpersistence <> 't'
               )
    ) and not exists (
        select from pg_index i
          cross join unnest(i.indkey) k
          join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k
         where i.indrelid = p_relation and i.indisprimary
           and a.atttypid <> all ('{smallint,integer,bigint,numeric,uuid,text,varchar,bpchar,date,
                                    timestamp,timestamptz}'::regtype[])
    );
end
$$;
comment on function pgq._has_own_key(oid, text) is
'Says whether no two transactions can have written rows with the same key.

Not with a primary key that is deferrable, or whose values may differ and look alike (names of
temporary tables do). Nor where another table has the name that the watched table had, or each
session one of its own.';

create function @extschema@.pgq_enqueue_row()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set timezone = 'UTC'  -- these show in the key, which is to be the same for all
set datestyle = 'ISO'
set intervalstyle = 'postgres'
set bytea_output = 'hex'
set extra_float_digits = 1
as $$
declare
    v_key jsonb;
begin
    if tg_when <> 'AFTER' or tg_level <> 'ROW' or tg_op not in ('INSERT', 'UPDATE') then
        raise exception 'trigger "%" must be fired after a row is inserted or updated', tg_name
            using errcode = 'trigger_protocol_violated',
                  hint = 'Create the trigger with pgq_watch.';
    end if;
    perform pgq._check_watch(tg_relid, tg_argv[0]);
    execute format('select jsonb_build_object(%s)', pgq._key_columns(tg_relid))
       into v_key using new;
    perform pgq._check_size('key', array[v_key]);
    perform from pgq._enqueue(
        array[jsonb_build_object('table', tg_argv[1], 'operation', tg_op, 'key', v_key)],
        tg_argv[0], 0, null,
        case when tg_argv[2] = 'dedupe' then array[encode(sha256(convert_to(
            concat_ws(':', tg_argv[1], v_key), 'utf8'
        )), 'hex')] end,
        null, null, null, 'keep', null, null, 'die',
        tg_argv[2] = 'dedupe' and pgq._has_own_key(tg_relid, tg_argv[1])
    );
    return null;
end
$$;
revoke all on function @extschema@.pgq_enqueue_row() from public;
comment on function @extschema@.pgq_enqueue_row() is
'Is the trigger function of pgq_watch.

Its arguments are the queue, the table, and whether to dedupe.

Errors:

* 39P01: the trigger does not fire after a row is inserted or updated.
* 42501: the owner of the table may no longer enqueue.
* 55000: the table no longer has a primary key.
* those of pgq_enqueue.';

create function @extschema@.pgq_watch(
    relation regclass,
    queue text default 'default',
    condition text default null,
    events text[] default '{insert}',
    dedupe boolean default false
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_trigger constant name := @extschema@.pgq_check_watch(relation, queue)::name;
begin
    if events is null or dedupe is null then
        raise exception '"%" must not be null', case when events is null then 'events'
                                                     else 'dedupe' end
            using errcode = 'null_value_not_allowed';
    end if;
    if events = '{}' or not events <@ '{insert,update}'::text[] then
        raise exception '"events" must be insert, update or both'
            using errcode = 'invalid_parameter_value';
    end if;
    if not exists (select from pg_index i where i.indrelid = relation and i.indisprimary) then
        raise exception 'table "%" has no primary key', relation
            using errcode = 'object_not_in_prerequisite_state',
                  detail = 'The payload of a job is the key of a row.',
                  hint = 'Add a primary key.';
    end if;
    execute format(
        'create or replace trigger %I after %s on %s for each row %s execute function '
        '%s.pgq_enqueue_row(%s, %s, %s)',
        v_trigger, (select string_agg(distinct e, ' or ') from unnest(events) e), relation,
        'when (' || condition || ')',
        '@extschema@',
        quote_literal(queue), quote_literal(relation::text),
        case when dedupe then 'dedupe' else 'each' end
    );
end
$$;
revoke all on function
    @extschema@.pgq_watch(regclass, text, text, text[], boolean) from public;
comment on function
    @extschema@.pgq_watch(regclass, text, text, text[], boolean) is
'Adds a job, in the same transaction, for each row that a table gets.

The payload is {"table": ..., "operation": "INSERT" or "UPDATE", "key": the columns of the
primary key}. A second call for the same table and queue replaces the first. The caller needs the
right to create triggers on the table. The owner of the table, and of each partition, needs the
privilege to enqueue.

* condition: SQL that may name NEW and, with updates alone, OLD. Qualify functions by their
  schema. Null: all rows.
* events: insert, update or both.
* dedupe: a row adds no job while a job for the same row lives.

Errors:

* 22004: an argument that is not the condition is null.
* 22023: the events are not insert, update or both.
* 42501: a right is missing.
* 42704: there is no such queue.
* 55000: the table has no primary key.';

create function @extschema@.pgq_unwatch(relation regclass, queue text default 'default')
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_trigger constant name := ('pgq_watch_' || case
        when octet_length(queue) <= 50 then queue
        else left(encode(sha256(convert_to(queue, 'utf8')), 'hex'), 50) end)::name;
begin
    if not exists (
        select from pg_trigger t where t.tgrelid = relation and t.tgname = v_trigger
    ) then
        return false;
    end if;
    execute format('drop trigger %I on %s', v_trigger, relation);
    return true;
end
$$;
revoke all on function @extschema@.pgq_unwatch(regclass, text) from public;
comment on function @extschema@.pgq_unwatch(regclass, text) is
'Ends what pgq_watch began, also for a queue that no longer exists.

* Returns false if the table was not watched for this queue.

Errors:

* 42501: the caller does not own the table.';
