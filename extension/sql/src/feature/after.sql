/*
 * Follow-up work: jobs that wait until others have completed.
 *
 * pgq.dependency has a row for each pair. The job that is waited for is marked (is_awaited), so
 * that the completion of others costs nothing. Its own deletes the rows, and notes who waited. At
 * the commit, under the bucket of the waiting job, it becomes ready if no row is left: so the last
 * of many that complete at once sees that it is the last.
 *
 * Nobody waits for an open transaction at a commit: rows of pgq.dependency that others have locked
 * are left alone, and a hint has the ticks look again until the rows are gone.
 */

create function pgq._check_after(p_after bigint[], p_group_keys text[])
returns void
language plpgsql
as $$
declare
    v_id bigint;
begin
    if p_after is null then
        return;
    end if;
    perform pgq._check_array('after', p_after);
    if array_remove(p_group_keys, null) <> '{}' then
        raise exception 'a job cannot have both "after" and a group key'
            using errcode = 'feature_not_supported',
                  hint = 'Leave out one of the two: a group runs in the order of its ids.';
    end if;
    if not pgq._read_committed() then
        raise exception '"after" needs the isolation level READ COMMITTED'
            using errcode = 'active_sql_transaction',
                  detail = 'An older snapshot does not show which jobs have ended.';
    end if;
    perform pgq._check_shard(a) from unnest(p_after) a;
    select a into v_id
      from unnest(p_after) a
     where a < 1 or a > coalesce(pg_sequence_last_value('pgq.number'), 0);
    if found then
        raise exception 'there is no job %', v_id
            using errcode = 'no_data_found', detail = 'The job is named in "after".';
    end if;
end
$$;
comment on function pgq._check_after(bigint[], text[]) is
'Raises 22004, 0A000, 25001, PQ002 or P0002; a null array passes.';

create function pgq._may_await(p_id bigint)
returns boolean
language plpgsql
as $$
declare
    v_job constant pgq.job := pgq._find(p_id);
begin
    if v_job.id is not null then
        return pgq._may_lane(v_job.lane, 'enqueue');
    end if;
    return not exists (
        select from pgq.archive a left join pgq.queue q on a.queue = q.name and a.id > q.first_job
         where a.id = p_id and not pgq._may(q.id, 'enqueue')
    );
end
$$;
comment on function pgq._may_await(bigint) is
'Whether the caller may know of a job, or there is none.';

create function pgq._is_over(p_id bigint)
returns boolean
language plpgsql
as $$
declare
    v_is_over boolean;
begin
    v_is_over := not exists (
        select from pgq.job j where j.id = p_id and j.is_blocked is null
    ) and not exists (
        select from pgq.archive a
         where a.id = p_id and a.state <> 'completed' and a.expires_at > pgq._now()
    );
    -- As in pgq._find.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return v_is_over;
end
$$;
comment on function pgq._is_over(bigint) is
'Says whether a job has completed or is not known, in one snapshot.

It is then neither live nor dead.';

create function pgq._find_for_waiter(
    p_id bigint, p_last bigint[], out rank bigint[], out is_marked boolean
)
language plpgsql
as $$
declare
    v_job pgq.job;
    v_waits boolean;
begin
    loop
        v_job := pgq._find(p_id);
        if v_job.id is not null then
            rank := array[v_job.slot, p_id];
        elsif exists (
            select from pgq.archive a
             where a.id = p_id and a.state <> 'completed' and a.expires_at > pgq._now()
        ) then
            rank := array[6, p_id];
        elsif pgq._is_over(p_id) then
            rank := null;
            return;
        else
            continue;  -- somebody has just retried it
        end if;
        v_waits := coalesce(rank > p_last, true);
        if rank[1] < 6 then
            v_job := pgq._lock_row(v_job.slot, p_id, not v_waits);
            if not pgq._is_job(v_job) then
                raise exception using errcode = 'PQ000';
            end if;
        elsif v_waits then
            -- Somebody may be about to retry it.
            select a.id into v_job.id
              from pgq.archive a
             where a.id = p_id and a.state <> 'completed' for key share;
        else
            select a.id into v_job.id
              from pgq.archive a
             where a.id = p_id and a.state <> 'completed' for key share skip locked;
        end if;
        exit when v_job.id is not null;
        if not v_waits then
            raise exception using errcode = 'PQ000';
        end if;
    end loop;
    is_marked := v_job.is_awaited is not null or rank[1] = 6;
end
$$;
comment on function pgq._find_for_waiter(bigint, bigint[]) is
'Locks a job and returns its rank in the order of locks: slot, id.

The slot is 6 if the job is dead or cancelled: it cannot be retried then until the transaction
ends. Null: it has completed or is not known.

Where its rank is not behind p_last, which is locked already, it does not wait: raises PQ000.
So it does where the row has just become the double of a copy in the ring, whose rank is lower.';

create function pgq._lock_awaited(
    p_after bigint[], p_on_dead text, p_others bigint[], out open bigint[], out is_hopeless boolean
)
language plpgsql
as $$
declare
    v_id bigint;
    v_found record;
    v_last bigint[];
begin
    open := array[]::bigint[];
    is_hopeless := false;
    for v_id in
        select a.id
          from (select distinct unnest(p_after || p_others)) a (id), pgq._find(a.id) j
         order by j.slot, a.id
    loop
        continue when not (pgq._is_owner() or pgq._may_await(v_id));
        v_found := pgq._find_for_waiter(v_id, v_last);
        continue when v_found.rank is null or (p_on_dead = 'run' and v_found.rank[1] = 6);
        -- Between the looks for it somebody may have retried it.
        continue when not (pgq._is_owner() or pgq._may_await(v_id));
        v_last := greatest(v_last, v_found.rank);
        continue when v_id <> all (p_after);
        perform pgq._mark(v_found.rank[1]::smallint, v_id, 'is_awaited', null)
          where not v_found.is_marked;
        open := open || v_id;
        is_hopeless := is_hopeless or v_found.rank[1] = 6;
    end loop;
end
$$;
comment on function pgq._lock_awaited(bigint[], text, bigint[]) is
'Locks the jobs for pgq._await.

Raises PQ000 if a job has moved since its rank was looked up, and somebody else has
it locked. To wait for it with later ones locked might be a deadlock.';

create function pgq._await(p_after bigint[], p_on_dead text, p_others bigint[])
returns pgq.awaited
language plpgsql
as $$
declare
    v_awaited pgq.awaited;
begin
    while cardinality(p_after) > 0 loop
        begin
            -- All locks are of this very subtransaction. A lock of one inside it would keep those
            -- who wait for the row until this transaction ends, also after the rollback here.
            select nullif(a.open, '{}'), a.is_hopeless into v_awaited
              from pgq._lock_awaited(p_after, p_on_dead, p_others) a;
            exit;
        exception
            when sqlstate 'PQ000' then
                null;  -- none is locked any more
        end;
    end loop;
    return v_awaited;
end
$$;
comment on function pgq._await(bigint[], text, bigint[]) is
'Returns those of these jobs that have not completed, marked as awaited.

With ''run'' a job that has died or was cancelled counts as completed.
Waits for whoever is about to claim or end one. Those of queues that the caller may not enqueue
into are not known. It locks p_others as well, all in one order.';

create function pgq._add_dependencies(
    p_job_ids bigint[], p_at pgq.target, p_awaited pgq.awaited, p_on_dead text
)
returns void
language plpgsql
as $$
begin
    insert into pgq.dependency (on_id, job_id, lane, on_dead)
    select o, j, p_at.lane, p_on_dead from unnest(p_job_ids) j, unnest(p_awaited.open) o;
    perform pgq._note(p_at.parked, 'w', array(select -j from unnest(p_job_ids) j), null)
      where p_awaited.is_hopeless and p_on_dead = 'die' and p_job_ids <> '{}';
end
$$;
comment on function pgq._add_dependencies(bigint[], pgq.target, pgq.awaited, text) is
'Lets jobs that have just been added wait for those that pgq._await has returned.';

create function pgq._waits_for_jobs(p_job pgq.job)
returns boolean
language sql
immutable
begin atomic
    select p_job.pos is null and p_job.due is null and p_job.place is null;
end;
comment on function pgq._waits_for_jobs(pgq.job) is
'Whether a job waits until others have completed.';
