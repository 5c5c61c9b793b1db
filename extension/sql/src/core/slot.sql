/*
 * The statements of clients on jobs, once per slot and on the slot itself: a plan over pgq.job
 * would lock all slots, and a transaction that stays open would keep all of them from being
 * truncated.
 *
 * Jobs are locked in the order of their ids.
 */

-- Only the ring holds leases.
--@ each ring
create function pgq._renew_{slot}(
    p_ids bigint[], p_tokens bigint[], p_mine integer[], p_lease_ms integer, p_now timestamptz,
    p_checkpoints jsonb[]
)
returns setof pgq.renewal
language sql
begin atomic
    update pgq.job_{slot} j
       set lease_expires_at = p_now + coalesce(p_lease_ms, j.lease_ms) * interval '1 millisecond',
           checkpoint = coalesce(r.checkpoint, j.checkpoint)
      from unnest(p_ids, p_tokens, p_checkpoints) r (id, token, checkpoint), lateral (
               select i.ctid from pgq.job_{slot} i
                where i.id = r.id and i.token = r.token and pgq._is_mine(i.lane, p_mine)
                  for update skip locked
           ) i
     where j.ctid = i.ctid
    returning j.id, j.token, j.lease_expires_at, coalesce(j.cancel_requested, false);
end;
comment on function
    pgq._renew_{slot}(bigint[], bigint[], integer[], integer, timestamptz, jsonb[]) is
'Renews the leases of good receipts; passes by jobs that others have locked.';
--@ end

create function pgq._open(p_slot smallint)
returns void
language plpgsql
as $$
begin
    case p_slot
    --@ each slot
    when {slot} then lock table pgq.job_{slot} in row exclusive mode;
    --@ end
    end case;
end
$$;
comment on function pgq._open(smallint) is
'Locks a slot for writing.

Whoever adds a job draws its number after that: claim positions rely on it.';

-- Rare statements on one job are planned each time.
create function pgq._remove(p_slot smallint, p_id bigint, out job pgq.job)
language plpgsql
as $$
begin
    execute format('delete from pgq.job_%s j where j.id = $1 returning j.*', p_slot)
       into job using p_id;
end
$$;
comment on function pgq._remove(smallint, bigint) is
'Deletes and returns a job that this session has locked.';

create function pgq._lock_row(p_slot smallint, p_id bigint, p_skip boolean, out job pgq.job)
language plpgsql
as $$
begin
    execute format(
        'select j.* from pgq.job_%s j where j.id = $1 for update%s', p_slot,
        case when p_skip then ' skip locked' end
    ) into job using p_id;
end
$$;
comment on function pgq._lock_row(smallint, bigint, boolean) is
'Locks a row of a slot, also one that is no job.

Null if it has gone or, with p_skip, is locked.';

create function pgq._lock(
    p_slot smallint, p_id bigint, p_skip boolean default false, out job pgq.job
)
language plpgsql
as $$
begin
    if p_slot < 4 then
        job := pgq._lock_row(p_slot, p_id, p_skip);
        return;
    end if;
    begin
        job := pgq._lock_row(p_slot, p_id, p_skip);
        if not pgq._is_job(job) then
            -- It has just got its copy in the ring. Who ends that locks this row after it.
            raise exception using errcode = 'PQ000';
        end if;
    exception
        when sqlstate 'PQ000' then
            job := null;
    end;
end
$$;
comment on function pgq._lock(smallint, bigint, boolean) is
'Locks a job. Null if it has gone, also to the ring, or, with p_skip, is locked.';

create function pgq._mark(p_slot smallint, p_id bigint, p_flag name, p_token bigint)
returns boolean
language plpgsql
as $$
declare
    v_count integer;
begin
    execute format(
        'update pgq.job_%s j set %I = true where j.id = $1 and ($2 is null or j.token = $2)',
        p_slot, p_flag
    ) using p_id, p_token;
    get diagnostics v_count = row_count;
    return v_count > 0;
end
$$;
comment on function pgq._mark(smallint, bigint, name, bigint) is
'Sets is_awaited or cancel_requested of a job; false if it is gone.

With a token, only of its lease.';
