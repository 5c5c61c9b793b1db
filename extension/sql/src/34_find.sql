/*
 * Finding and locking single jobs, wherever they are moved to.
 */

create function pgq._slots()
returns smallint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select r.live || r.parked || r.closing || r.parked_closing
              from pgq.ring r order by r.gen desc limit 1);
end
$$;
comment on function pgq._slots() is 'the slots that may hold jobs';

create function pgq._check_moved()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
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
comment on function pgq._check_moved() is
'raises 40001 if an old snapshot cannot tell whether a job that it does not see was moved';

create function pgq._bare(p_job pgq.job)
returns pgq.job
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    p_job.payload := null;
    p_job.headers := null;
    p_job.checkpoint := null;
    p_job.last_error := null;
    return p_job;
end
$$;
comment on function pgq._bare(pgq.job) is
'a job without what may be large: an array of a million would be too long';

create function pgq._find_at_once(p_id bigint, out job pgq.job)
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
begin
    select j.* into job from pgq.lane l, lateral (
        select j.* from pgq.job j where j.lane = l.id and j.id = p_id offset 0
    ) j;
    -- As in pgq._live_keys.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return;
end
$$;
comment on function pgq._find_at_once(bigint) is
'the live job of that id, unlocked, or null; looks into all slots with one snapshot, in which a '
'job that is being moved is in one place, and leaves no lock on them';

create function pgq._find(p_id bigint, out job pgq.job)
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
declare
    v_slot smallint;
begin
    foreach v_slot in array pgq._slots() loop
        case v_slot
        --@ each slot
        when {slot} then
            if pg_relation_size('pgq.job_{slot}') > 0 then
                select j.* into job from pgq.lane l, lateral (
                    select j.* from pgq.job_{slot} j where j.lane = l.id and j.id = p_id offset 0
                ) j;
            end if;
        --@ end
        end case;
        if job.id is not null then
            return;
        end if;
    end loop;
    -- An older snapshot may have put it into another slot, or it was moved behind these looks.
    job := pgq._find_at_once(p_id);
    if job.id is null then
        perform pgq._check_moved();
    end if;
end
$$;
comment on function pgq._find(bigint) is
'the live job of that id, unlocked, or null; looks slot by slot first so that it leaves no lock on '
'the others. Raises 40001 if an old snapshot cannot tell';

create function pgq._lock(
    p_slot smallint, p_lane integer, p_id bigint, p_skip boolean, out job pgq.job
)
language plpgsql
set search_path = pg_catalog, pg_temp
{index_scans}
as $$
begin
    case p_slot
    --@ each slot
    when {slot} then
        if p_skip then
            select j.* into job
              from pgq.job_{slot} j where j.lane = p_lane and j.id = p_id for update skip locked;
        else
            select j.* into job
              from pgq.job_{slot} j where j.lane = p_lane and j.id = p_id for update;
        end if;
    --@ end
    end case;
end
$$;
comment on function pgq._lock(smallint, integer, bigint, boolean) is
'locks one job; null if it has gone or, with p_skip, is locked';

create function pgq._find_and_lock(p_id bigint, p_active boolean, out job pgq.job)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    loop
        job := pgq._find(p_id);
        exit when job.id is null or (job.token is not null and not p_active);
        job := pgq._lock(job.slot, job.lane, job.id, false);
        -- Null if it has gone meanwhile: ended, or moved to another slot by maintenance.
        exit when job.id is not null;
    end loop;
end
$$;
comment on function pgq._find_and_lock(bigint, boolean) is
'the live job of that id, wherever it is moved to, or null; locked, but an active one only with '
'p_active: else it may come back unlocked. Waits for whoever has it locked';
