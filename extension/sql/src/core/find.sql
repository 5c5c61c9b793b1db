/*
 * Finding and locking single jobs, wherever they are moved to.
 */

create function pgq._state_of(p_job pgq.job, p_now timestamptz)
returns text
language sql
immutable
begin atomic
    select case when p_job.token is not null then 'active'
                when p_job.pos is not null then 'ready'
                when p_job.due is null then case when p_job.is_head then 'copied' else 'waiting' end
                when p_job.run_at > p_now then 'scheduled'
                else 'ready' end;
end;
comment on function pgq._state_of(pgq.job, timestamptz) is
'Returns the state of a job.

copied: the row in a line of a job that has its copy in the ring, or that is dead and blocks.';

create function pgq._is_job(p_job pgq.job)
returns boolean
language sql
immutable
begin atomic
    select p_job.is_head is null or p_job.due is not null;
end;
comment on function pgq._is_job(pgq.job) is
'Says whether a row is a job, and no double of one in a line.

A row in a line is none if its job has its copy in the ring, or is dead and blocks its group.';

create function pgq._check_snapshot()
returns void
language plpgsql
as $$
begin
    -- TRUNCATE is seen by all snapshots at once, what maintenance moved before it only by new ones.
    if not pgq._read_committed() and exists (
        select from pg_class c join pg_inherits i on i.inhrelid = c.oid
         where i.inhparent = 'pgq.job'::regclass
           and c.relfilenode <> pg_relation_filenode(c.oid)
    ) then
        raise exception 'could not serialize access: jobs were moved by maintenance'
            using errcode = 'serialization_failure',
                  hint = 'The transaction might succeed if retried.';
    end if;
end
$$;
comment on function pgq._check_snapshot() is
'Raises 40001 if an old snapshot cannot tell whether an unseen job was moved.';

create function pgq._bare(p_job pgq.job)
returns pgq.job
language plpgsql
immutable
as $$
begin
    p_job.payload := null;
    p_job.headers := null;
    p_job.checkpoint := null;
    p_job.history := null;
    p_job.last_error := null;
    return p_job;
end
$$;
comment on function pgq._bare(pgq.job) is
'A job without what may be large: an array of a million would be too long.';

create function pgq._find(p_id bigint, out job pgq.job)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
    select j.* into job from pgq.job j where j.id = p_id and pgq._is_job(j);
    -- Rolls back to here, so that no lock on a slot remains. A slot is not truncated while anybody
    -- holds one.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        perform pgq._check_snapshot(), pgq._check_shard(p_id) where job.id is null;
end
$$;
comment on function pgq._find(bigint) is
'Returns the live job with an id, unlocked, or null.

In one snapshot, in which a job that is being moved is in one place. Raises 40001 if an old
snapshot cannot tell, PQ002 for a job of another shard.';

create function pgq._find_mine(p_id bigint, p_verb text)
returns pgq.job
language plpgsql
as $$
declare
    v_job pgq.job := pgq._find(p_id);
begin
    if v_job.id is not null and not pgq._may_lane(v_job.lane, p_verb) then
        -- What pgq._find does if there is none.
        perform pgq._check_snapshot();
        return null;
    end if;
    return v_job;
end
$$;
comment on function pgq._find_mine(bigint, text) is
'As pgq._find, for a queue on which the caller has a privilege.';

create function pgq._find_and_lock(p_id bigint, p_active boolean, out job pgq.job)
language plpgsql
as $$
begin
    loop
        job := pgq._find(p_id);
        exit when job.id is null or (job.token is not null and not p_active);
        job := pgq._lock(job.slot, job.id);
        -- Null if it has gone meanwhile: ended, or moved to another slot.
        exit when job.id is not null;
    end loop;
end
$$;
comment on function pgq._find_and_lock(bigint, boolean) is
'Locks and returns the live job with an id, wherever it is moved to, or null.

An active job is locked only with p_active: else it may come back unlocked. Waits for whoever has
it locked.';

create function pgq._lock_parked_one(p_id bigint)
returns smallint
language plpgsql
as $$
declare
    v_slot smallint;
begin
    -- A tick may be moving the row from one slot to the other.
    foreach v_slot in array '{4,5,4}'::smallint[] loop
        perform from pgq.job j
          where j.slot in (4, 5) and j.slot = v_slot and j.id = p_id for update;
        if found then
            return v_slot;
        end if;
    end loop;
    perform pgq._check_snapshot();
    return null;
end
$$;
comment on function pgq._lock_parked_one(bigint) is
'Locks the parked row of a job, in a line or not, and returns its slot.';
