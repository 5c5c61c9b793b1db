/*
 * Buckets of groups, and of jobs that wait for others: who decides about one has it locked. They
 * are locked in the order of their ids, or without waiting.
 */

create function pgq._bucket_of(p_key bigint)
returns integer
language sql
immutable
begin atomic
    select 16384 + abs(p_key % 16384)::integer;
end;
comment on function pgq._bucket_of(bigint) is
'Returns the bucket of a group or waiting job: the same for id and minus id.';

create function pgq._lock_buckets(p_keys bigint[])
returns void
language plpgsql
as $$
begin
    perform from pgq.bucket b
      where b.id = any (array(select distinct pgq._bucket_of(k) from unnest(p_keys) k))
      order by b.id for update;
end
$$;
comment on function pgq._lock_buckets(bigint[]) is 'Locks the buckets of groups or waiting jobs.';

create function pgq._try_buckets(p_keys bigint[])
returns bigint[]
language plpgsql
as $$
begin
    return array(
        select k from unnest(p_keys) k, lateral (
            select from pgq.bucket b where b.id = pgq._bucket_of(k) for update skip locked
        ) b
    );
end
$$;
comment on function pgq._try_buckets(bigint[]) is
'Locks buckets without waiting, for ticks.

Returns the keys of those that could be locked.';
