/*
 * Shards: databases that share the jobs of an application, each with pgq for itself. The high bits
 * of an id are the number of the shard, because pgq.number begins there. So an id is unique in all
 * of them, and says where its job is. pgq.number is all that knows the shard: a dump carries it.
 *
 * Only a call that has not found a job looks whether the id is of another shard.
 *
 * Public: pgq_set_shard.
 */

create function pgq._shard()
returns integer
language sql
begin atomic
    select pgq._shard_of(coalesce(pg_sequence_last_value('pgq.number'), 0));
end;
comment on function pgq._shard() is 'The number of this shard, 0 if it has got none.';

create function pgq._check_shard(p_id bigint)
returns void
language plpgsql
as $$
begin
    if pgq._shard_of(p_id) between 0 and 16383 and pgq._shard_of(p_id) <> pgq._shard() then
        raise exception 'job % is of another shard', p_id
            using errcode = 'PQ002',
                  detail = format('This database is shard %s.', pgq._shard()),
                  hint = format('Ask shard %s.', pgq._shard_of(p_id));
    end if;
end
$$;
comment on function pgq._check_shard(bigint) is
'For an id that is not found: raises PQ002 if it is of another shard.';

create function @extschema@.pgq_set_shard(shard integer)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgq._check_may('manage'), pgq._check_not_null('shard', shard is null),
            pgq._check_range('shard', shard, 0, 16383);
    if shard = pgq._shard() then
        return;
    end if;
    -- Who enqueues has locked a slot before it draws a number.
    lock table pgq.job in share row exclusive mode nowait;
    if pg_sequence_last_value('pgq.number') is not null then
        raise exception 'this database is shard % already', pgq._shard()
            using errcode = 'object_not_in_prerequisite_state',
                  detail = 'A shard gets its number once, before its first job.',
                  hint = 'Install pgq in another database.';
    end if;
    perform setval('pgq.number', shard::bigint << 48);
end
$$;
revoke all on function @extschema@.pgq_set_shard(integer) from public;
comment on function @extschema@.pgq_set_shard(integer) is
'Makes this database one of several shards.

The number is part of the ids of all its jobs, so ids are unique in all shards. Call the function
once, before the first job. A second call with the same number does nothing. A rollback does not
undo the call.

* shard: 0, as without the call, to 16383.

Errors:

* 22004: shard is null.
* 22023: shard is out of range.
* 42501: the privilege to manage all queues is missing.
* 55000: the database is another shard, or has had jobs.
* 55P03: a transaction is enqueueing just now.';
