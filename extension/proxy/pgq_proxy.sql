/*
 * A front for shards: the functions and views of pgq, which run in the database where a job is, or
 * is to be. A superuser runs this in a database that holds nothing else, with PL/Proxy and a server
 * of the name "pgq", whose options p0, p1, ... lead to the shards 0, 1, ...; see docs/scaling.md.
 * To run it again replaces all of it. What there is comes from the catalog of shard 0.
 *
 * Each call of a shard is a transaction of its own, which a rollback here does not undo.
 *
 * On the way of an enqueue, a claim or a completion, functions are in PL/pgSQL even where SQL would
 * do: a session keeps their plans. A function in SQL that is not inlined is parsed and planned for
 * each statement anew: so an enqueue took 2.9 times a direct call, where it takes 2.0 times.
 */

\set ON_ERROR_STOP on
set client_min_messages = warning;
begin;
drop schema if exists pgq_proxy cascade;
create schema pgq_proxy;
comment on schema pgq_proxy is 'The functions and views of pgq, over all shards.';
set local search_path = pgq_proxy;

create sequence _turn;
comment on sequence _turn is 'Which shard has its turn.';
grant usage on sequence _turn to public;

create function _shards()
returns table (shard integer, place text, is_drained boolean)
language sql
stable
as $$
select substr(o.option_name, 2)::integer, o.option_value,
       o.option_value ~ 'application_name=drained$'
  from pg_foreign_server s, pg_options_to_table(s.srvoptions) o
 where s.srvname = 'pgq' and o.option_name ~ '^p\d+$'
$$;
comment on function _shards() is
'The shards: where each is, and whether it gets no new jobs.

The mark of a drained shard is in the options of the server, so it stays when this script runs again.';

create function _shard_of(id bigint)
returns integer
language sql
immutable
as $$
select coalesce(id >> 48, 0)::integer
$$;
comment on function _shard_of(bigint) is
'The shard of a job. What is no id is for the first one, which says so.';

create function _shard_of_key(key text, also integer default null)
returns integer
language plpgsql
stable
as $$
begin
    if key is null then
        return null;
    end if;
    return (
        select s.shard
          from pgq_proxy._shards() s
         where not s.is_drained or s.shard = also
         order by md5(s.shard || ' ' || key) collate "C"
         limit 1
    );
end
$$;
comment on function _shard_of_key(text, integer) is
'The shard of a key; null for null.

A shard that comes takes keys from all others, one that goes leaves its keys to all others. No other
key moves.

* also: a shard that counts although it is drained.';

create function _next_shard()
returns integer
language plpgsql
as $$
declare
    v_shards constant integer[] := array(
        select s.shard from pgq_proxy._shards() s where not s.is_drained order by s.shard
    );
begin
    return v_shards[1 + nextval('pgq_proxy._turn') % cardinality(v_shards)];
end
$$;
comment on function _next_shard() is 'The shard that has its turn to get a job.';

create function _place(group_key text, dedupe_key text, after bigint[])
returns integer
language plpgsql
as $$
declare
    v_after constant integer[] := array(
        select distinct pgq_proxy._shard_of(a) from unnest(after) a
    );
    -- A drained shard keeps the keys of jobs that wait for its jobs.
    v_key constant integer := pgq_proxy._shard_of_key(coalesce(group_key, dedupe_key), v_after[1]);
begin
    if cardinality(v_after) > 1 or v_after[1] <> v_key then
        raise exception 'a job cannot wait for jobs of other shards'
            using errcode = 'feature_not_supported',
                  detail = format('Those in "after" are of %s%s.', v_after,
                                  ', its key is of ' || v_key),
                  hint = 'Jobs with the same key are on one shard; a job without a key goes to the '
                         'shard of the jobs in "after".';
    end if;
    return coalesce(v_key, v_after[1], pgq_proxy._next_shard());
end
$$;
comment on function _place(text, text, bigint[]) is
'The shard for a new job: that of its group key, else of its dedupe key, else of the jobs for '
'which it waits, else the next in turn. Raises 0A000.';

create function _left_on(shard integer)
returns table (jobs bigint, schedules bigint)
language plproxy
as $$
    cluster 'pgq';
    run on shard;
    select (select coalesce(sum(q.ready + q.scheduled + q.waiting + q.active), 0)::bigint
              from pgq_queues q) as jobs,
           (select count(*) from pgq_schedules) as schedules;
$$;
comment on function _left_on(integer) is 'What there is on a shard that has not ended.';

create function _has_schedule(shard integer, name text)
returns boolean
language plproxy
as $$
    cluster 'pgq';
    run on shard;
    select exists (select from pgq_schedules s where s.name = $2);
$$;
comment on function _has_schedule(integer, text) is
'Whether a shard has a schedule that the caller may observe.';

create function _shard_of_schedule(name text)
returns integer
language sql
as $$
select coalesce(
           (select s.shard
              from pgq_proxy._shards() s
             where pgq_proxy._has_schedule(s.shard, name)
             order by s.shard limit 1),
           pgq_proxy._shard_of_key(name), 0
       )
$$;
comment on function _shard_of_schedule(text) is
'The shard that has a schedule, else that of its name; the first one, which says so, for null.

A schedule stays where it is when the shard of its name becomes another one.';

create function _tell_of_limits(max_active integer, rate_limit integer, max_ready integer)
returns void
language plpgsql
as $$
begin
    if greatest(max_active, rate_limit, max_ready) > 0 then
        raise notice 'max_active, rate_limit and max_ready are for each of % shards',
                     (select count(*) from pgq_proxy._shards())
            using hint = 'Give each shard its part of what all of them may do.';
    end if;
end
$$;
comment on function _tell_of_limits(integer, integer, integer) is
'Tells that limits are not those of all shards together, if there are any.';

create procedure drain(shard integer)
language plpgsql
as $$
declare
    v_place text; v_is_drained boolean; v_others bigint;
    v_begun text[]; v_jobs bigint; v_told text; v_tells text;
begin
    select min(s.place) filter (where s.shard = drain.shard),
           bool_or(s.is_drained) filter (where s.shard = drain.shard),
           count(*) filter (where s.shard <> drain.shard and not s.is_drained)
      into v_place, v_is_drained, v_others from pgq_proxy._shards() s;
    if v_place is null then
        raise exception 'there is no shard %', shard using errcode = 'undefined_object';
    elsif v_others = 0 then
        raise exception 'no other shard gets new jobs'
            using errcode = 'object_not_in_prerequisite_state';
    elsif (select l.schedules from pgq_proxy._left_on(shard) l) > 0 then
        raise exception 'shard % has schedules', shard
            using errcode = 'object_in_use',
                  hint = 'Call pgq_unschedule for each, and pgq_schedule when this has ended.';
    elsif not v_is_drained then
        execute format(
            'alter server pgq options (set %I %L)', 'p' || shard,
            v_place || ' application_name=drained'
        );
    end if;
    commit;
    -- Who began before may have chosen the shard.
    v_begun := array(select a.pid || ' ' || a.xact_start from pg_stat_activity a
                      where a.datname = current_database() and a.pid <> pg_backend_pid());
    loop
        v_begun := array(select a.pid || ' ' || a.xact_start from pg_stat_activity a
                          where a.pid || ' ' || a.xact_start = any (v_begun));
        v_jobs := (select l.jobs from pgq_proxy._left_on(shard) l);
        exit when v_jobs = 0 and cardinality(v_begun) = 0;
        v_tells := format('shard %s: %s jobs left, %s older transactions of the front', shard,
                          v_jobs, cardinality(v_begun));
        if v_tells is distinct from v_told then
            raise notice '%', v_tells;
            v_told := v_tells;
        end if;
        commit;
        perform pg_sleep(0.5);
    end loop;
end
$$;
comment on procedure drain(integer) is
'Ends when a shard has no jobs left; from its beginning on the front sends no new ones there.

Only the jobs that wait for jobs of the shard still go there. The workers go on to work it off. If
this is interrupted, call it again. ALTER SERVER takes the mark away. The caller owns the server,
and sees the sessions of the others (pg_read_all_stats).

Errors:

* 42704: there is no such shard.
* 55000: no other shard gets new jobs.
* 55006: the shard has schedules.';

create temp table route on commit drop as
select n as name, r.kind, r.hint
  from (values
           -- To the shard for a new job.
           ('place', '{pgq_enqueue}', null),
           ('many', '{pgq_enqueue_many}', null),
           -- To one shard after the other, until one has jobs.
           ('turn', '{pgq_dequeue}', null),
           -- To the shard of the id.
           ('id', '{pgq_heartbeat,pgq_complete,pgq_fail,pgq_release,pgq_outcome,pgq_claim,pgq_get,'
                  'pgq_cancel,pgq_move,pgq_retry}', null),
           -- To the shard that has the schedule.
           ('name', '{pgq_schedule,pgq_run_schedule}', null),
           -- To any shard.
           ('any', '{pgq_version}', null),
           -- To all shards; of their answers one is made.
           ('all', '{pgq_create_queue,pgq_configure_queue,pgq_drop_queue,pgq_pause,pgq_resume,'
                   'pgq_unblock,pgq_cancel_key,pgq_cancel_all,pgq_retry_dead,pgq_purge,pgq_reclaim,'
                   'pgq_grant,pgq_revoke,pgq_maintain,pgq_unschedule,pgq_pause_schedule,'
                   'pgq_resume_schedule}', null),
           -- To none.
           ('refused', '{pgq_pop,pgq_complete_and_dequeue}',
            'It does all in one transaction: call it in a shard, or pgq_dequeue and pgq_complete.'),
           ('refused', '{pgq_channel,pgq_wait,pgq_wake,pgq_release_unheld}',
            'It is for workers, which connect to the shards.'),
           ('refused', '{pgq_watch,pgq_unwatch,pgq_check_watch}',
            'Call it in the shard that holds the table.'),
           ('refused', '{pgq_set_shard}', 'The script that makes the front calls it.')
       ) r (kind, names, hint),
       unnest(r.names::text[]) n;
comment on table route is 'How the front sends each function to shards.';

-- Each shard gets its number, or says that it has another one.
create function _set_shard(shard integer) returns void language plproxy as $$
    cluster 'pgq'; run on shard; target pgq_set_shard;
$$;
do $set$ begin perform _set_shard(s.shard) from _shards() s; end $set$;

create function _catalog()
returns table (
    kind text, name text, arguments text, plain text, names text[], result text, is_set boolean,
    comment text
)
language plproxy
as $$
    cluster 'pgq';
    run on 0;
    select case c.relkind when 'c' then 'type' else 'view' end as kind, c.relname::text as name,
           null::text as arguments, null::text as plain, null::text[] as names,
           (select string_agg(
                       format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', '
                       order by a.attnum
                   ) from pg_attribute a
             where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped) as result,
           true as is_set, obj_description(c.oid, 'pg_class') as comment
      from pg_class c
     where c.oid in (select unnest(array[
               'pgq_job', 'pgq_jobs', 'pgq_queues', 'pgq_queue_settings', 'pgq_privileges',
               'pgq_schedules', 'pgq_workers'
           ])::regclass)
     union all
    select 'function', p.proname::text, pg_get_function_arguments(p.oid),
           pg_get_function_identity_arguments(p.oid), p.proargnames[:p.pronargs],
           pg_get_function_result(p.oid), p.proretset, obj_description(p.oid, 'pg_proc')
      from pg_proc p
     where p.pronamespace = (
               select v.pronamespace from pg_proc v where v.oid = to_regprocedure('pgq_version()')
           )
       and p.proname like 'pgq\_%' and p.prorettype <> 'trigger'::regtype;
$$;

create function _create(p_head text, p_language text, p_body text)
returns void
language plpgsql
as $$
begin
    execute format('create function pgq_proxy.%s language %s as %L', p_head, p_language, p_body);
end
$$;

create function _create_view(p_name text, p_columns text, p_comment text)
returns void
language plpgsql
as $$
begin
    perform pgq_proxy._create(
        format('%I() returns table (%s)', '_' || p_name, p_columns), 'plproxy',
        format('cluster ''pgq''; run on all; select v.* from %I v;', p_name)
    );
    execute format(
        'create view pgq_proxy.%I as select %s from pgq_proxy.%I() v %s', p_name,
        case p_name
            -- Settings and privileges are the same everywhere.
            when 'pgq_queue_settings' then 'distinct on (v.name) v.*'
            when 'pgq_privileges' then 'distinct v.*'
            when 'pgq_queues' then (
                select string_agg(format(
                           case when a.name = 'queue' then 'v.queue'
                                when a.name = 'oldest_ready_age' then 'max(v.%1$I)'
                                when a.name = 'description' then 'max(v.%1$I)'
                                when a.name = 'next_due' then 'min(v.%1$I)'
                                when a.type = 'boolean' then 'bool_or(v.%1$I)'
                                else 'sum(v.%1$I)::%2$s' end || ' as %1$I', a.name, a.type), ', ')
                  from unnest(string_to_array(p_columns, ', ')) c,
                       lateral (
                           select split_part(c, ' ', 1), substr(c, strpos(c, ' ') + 1)
                       ) a (name, type)
            )
            else 'v.*' end,
        '_' || p_name, case when p_name = 'pgq_queues' then 'group by v.queue' end
    );
    execute format('comment on view pgq_proxy.%I is %L', p_name, p_comment);
end
$$;

create function _body_of_many()
returns text
language sql
as $$
select $body$
declare
    v_turn constant integer := pgq_proxy._place(null, null, after);
    v_n bigint[] = '{}';
    v_ids bigint[] = '{}';
    r record;
begin
    -- What has no keys is one batch, in one transaction; so is what is bad, for a shard to say so.
    if coalesce(dedupe_keys, group_keys) is null
        or cardinality(payloads) <> cardinality(coalesce(dedupe_keys, group_keys))
        or cardinality(payloads) <> cardinality(coalesce(group_keys, dedupe_keys))
    then
        return query
        select c.* from pgq_proxy._pgq_enqueue_many(
            v_turn, payloads, queue, priority, run_at, dedupe_keys, group_keys, max_attempts,
            headers, on_duplicate, expires_at, after, after_on_dead
        ) c;
        return;
    end if;
    for r in
        select case when coalesce(u.group_key, u.dedupe_key) is null then v_turn
                    else pgq_proxy._place(u.group_key, u.dedupe_key, after) end as shard,
               array_agg(u.n order by u.n) as n, array_agg(u.payload order by u.n) as payloads,
               array_agg(u.dedupe_key order by u.n) as dedupe_keys,
               array_agg(u.group_key order by u.n) as group_keys
          from unnest(payloads, dedupe_keys, group_keys)
               with ordinality u (payload, dedupe_key, group_key, n)
         group by 1 order by 1
    loop
        v_n := v_n || r.n;
        v_ids := v_ids || array(
            select c from pgq_proxy._pgq_enqueue_many(
                r.shard, r.payloads, queue, priority, run_at,
                case when dedupe_keys is not null then r.dedupe_keys end,
                case when group_keys is not null then r.group_keys end, max_attempts,
                headers, on_duplicate, expires_at, after, after_on_dead
            ) c
        );
    end loop;
    return query select u.id from unnest(v_n, v_ids) u (n, id) order by u.n;
end
$body$
$$;

create function _body_of_turn(p_names text)
returns text
language sql
as $$
select format($body$
declare
    v_shards constant integer := (select count(*) from pgq_proxy._shards());
    v_turn constant bigint := nextval('pgq_proxy._turn');
    v_failed integer := 0;
begin
    for v_n in 1..v_shards loop
        begin
            return query
            select c.* from pgq_proxy._pgq_dequeue(((v_turn + v_n) %% v_shards)::integer, %s) c;
            if found then
                return;
            end if;
        exception
            -- PL/Proxy has no other code for a shard to which it cannot connect.
            when internal_error or operator_intervention then
                v_failed := v_failed + 1;
                if v_failed = v_shards then
                    raise;
                end if;
                raise warning '%%', sqlerrm using errcode = '01000';
        end;
    end loop;
end
$body$, p_names)
$$;

create function _create_function(f record, p_route text, p_hint text)
returns void
language plpgsql
as $$
declare
    v_route constant text :=
        case when p_route = 'id' and f.names[1] = 'ids' then 'ids' else p_route end;
    v_names constant text := array_to_string(f.names, ', ');
    v_head constant text := format('%I(%s) returns %s', f.name, f.arguments, f.result);
    v_place constant text := case v_route
        when 'place' then 'pgq_proxy._place(group_key, dedupe_key, after)'
        when 'id' then 'pgq_proxy._shard_of(id)'
        when 'ids' then 'pgq_proxy._shard_of(ids)'
        when 'any' then 'any'
        when 'all' then 'all'
        else 'shard'
    end;
begin
    if v_route in ('place', 'id', 'any') or (v_route = 'all' and f.is_set) then
        perform pgq_proxy._create(v_head, 'plproxy', format(
            'cluster ''pgq''; run on %s; target %s;', v_place, f.name
        ));
        return;
    elsif v_route = 'refused' then
        perform pgq_proxy._create(v_head, 'plpgsql', format(
            'begin raise exception %L using errcode = ''feature_not_supported'', hint = %L; end',
            f.name || ' is not possible over shards', p_hint
        ));
        return;
    end if;
    -- What the public function calls in the shards.
    perform pgq_proxy._create(
        format(
            '%I(%s) returns %s', '_' || f.name,
            concat_ws(', ', case when v_place = 'shard' then 'shard integer' end,
                      nullif(f.plain, '')),
            case when f.is_set then f.result else 'setof ' || f.result end
        ),
        'plproxy',
        format('cluster ''pgq''; %s run on %s; select c.* from %s(%s) c;',
               case when v_route = 'ids' then 'split all;' end, v_place, f.name, v_names)
    );
    if v_route = 'many' then
        perform pgq_proxy._create(v_head, 'plpgsql', pgq_proxy._body_of_many());
    elsif v_route = 'turn' then
        perform pgq_proxy._create(v_head, 'plpgsql', pgq_proxy._body_of_turn(v_names));
    else
        perform pgq_proxy._create(v_head, 'plpgsql', format(
            'begin %s%s from pgq_proxy.%I(%s) c%s; end',
            case when 'max_active' = any (f.names)
                 then 'perform pgq_proxy._tell_of_limits(max_active, rate_limit, max_ready); ' end,
            case when f.is_set then 'return query select c.*'
                 when f.result = 'void' then 'perform count(*)'
                 when v_route = 'name' then 'return (select c'
                 when f.result = 'boolean' then 'return (select coalesce(bool_or(c), false)'
                 else 'return (select sum(c)::bigint' end,
            '_' || f.name,
            concat_ws(
                ', ', case when v_route = 'name' then 'pgq_proxy._shard_of_schedule(name)' end,
                -- PL/Proxy does not split null.
                regexp_replace(v_names, '\m(results|checkpoints)\M',
                               'coalesce(\1, array_fill(null::jsonb, array[cardinality(ids)]))')
            ),
            case when not f.is_set and f.result <> 'void' then ')' end
        ));
    end if;
end
$$;

do $create$
declare
    f record;
begin
    for f in select c.* from pgq_proxy._catalog() c order by c.kind = 'function', c.name loop
        if f.kind = 'type' then
            execute format('create type pgq_proxy.%I as (%s)', f.name, f.result);
        elsif f.kind = 'view' then
            perform pgq_proxy._create_view(f.name, f.result, f.comment);
        else
            perform pgq_proxy._create_function(f, r.kind, r.hint)
               from (select) one left join route r on r.name = f.name;
            execute format(
                'comment on function pgq_proxy.%I(%s) is %L', f.name, f.plain, f.comment
            );
        end if;
    end loop;
end
$create$;
drop function
    _set_shard(integer), _catalog(), _create(text, text, text), _create_view(text, text, text),
    _body_of_many(), _body_of_turn(text), _create_function(record, text, text);
commit;
