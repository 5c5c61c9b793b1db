/*
 * Maintenance: rotation, expired leases without an attempt left, late commits, retention.
 *
 * It runs about twice a second in ordinary calls, for all of them together, and on pgq_maintain().
 * A call only queues it, as the event of a deferred trigger: it runs at COMMIT, once and after all
 * other deferred triggers, so that no lock that it takes outlives the commit. It waits for
 * nothing: rows are locked with SKIP LOCKED, tables with NOWAIT, and what fails is tried again at
 * the next tick.
 *
 * A slot goes free > live > closing > free. It is closed when it seems to hold no job, and claims
 * then pass it by. At a later tick it is locked in ACCESS EXCLUSIVE mode; no transaction that
 * inserted into it can be open then. If it is empty in a snapshot taken after the lock, it is
 * truncated; if not, a late commit has arrived, and it is live again. Nothing else than that look
 * tells that a slot is empty. While pg_dump is at work no slot is truncated.
 *
 * Only READ COMMITTED gives each statement its own snapshot, so nothing is done under other levels.
 */

create function pgq._holds_jobs(p_slot smallint, p_closely boolean)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_found boolean;
begin
    case p_slot
    --@ each slot
    when {slot} then
        v_found := case when p_closely then exists (select from pgq.job_{slot}) else exists (
            select
              from pgq.lane l,
                   lateral (
                      select from pgq.job_{slot} j
                       where j.lane = l.id and j.{key} > {base} limit 1
                   ) j
        ) end;
    --@ end
    end case;
    if not v_found and not p_closely then
        case p_slot
        --@ each parked
        when {slot} then
            v_found := exists (select from pgq.job_{slot} j where j.wait is not null);
        --@ end
        else
        end case;
    end if;
    return v_found;
end
$$;
comment on function pgq._holds_jobs(smallint, boolean) is
'whether a slot holds jobs; closely: all rows are looked at, not only those above the bases';

create function pgq._holds_unleased(p_slot smallint, p_now timestamptz)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
set enable_sort = off
as $$
declare
    v_found boolean;
begin
    case p_slot
    --@ each ring
    when {slot} then
        v_found := exists (
            select
              from pgq.lane l,
                   lateral (
                      select from pgq.job_{slot} j
                       where j.lane = l.id and j.id > {floor}
                         and (j.lease_expires_at is null or j.lease_expires_at <= p_now)
                       order by j.id limit 1
                   ) j
        );
    --@ end
    end case;
    return v_found;
end
$$;
comment on function pgq._holds_unleased(smallint, timestamptz) is
'whether any queue has a job in a slot of the ring that nobody leases; looks from the floors on, '
'which pgq._adjust_floors has just lowered below what is claimable';

create function pgq._truncate(p_slot smallint)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    case p_slot
    --@ each slot
    when {slot} then
        -- Also when the lock cannot be had for hours: a late commit is delivered nevertheless.
        if pgq._holds_jobs({slot}::smallint, false) then
            return 'live';
        end if;
        -- Before the lock, too, which would make a parallel dump fail.
        if pgq._is_dumped() then
            return 'closing';
        end if;
        lock table pgq.job_{slot}, pgq.floor_{slot}, pgq.hold_{slot}
            in access exclusive mode nowait;
        if pgq._holds_jobs({slot}::smallint, true) then
            truncate pgq.floor_{slot};
            return 'live';
        end if;
        if pgq._is_dumped() then
            return 'closing';
        end if;
        truncate pgq.job_{slot}, pgq.floor_{slot}, pgq.hold_{slot};
    --@ end
    end case;
    return 'free';
exception
    -- Somebody has used the table and is not done, or this session has a cursor open on it.
    when lock_not_available or object_in_use then
        return 'closing';
end
$$;
comment on function pgq._truncate(smallint) is
'empties a closing slot and returns what it is then: free, live (it has jobs again), or still '
'closing';

create function pgq._lock_lanes(p_slot smallint)
returns integer[]
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
declare
    v_lanes integer[];
begin
    case p_slot
    --@ each slot
    when {slot} then
        v_lanes := array(
            select l.id
              from (
                       select q.id from pgq.queue q
                        where exists (
                                  select from pgq.lane o
                                   where o.queue_id = q.id and exists (
                                             select from pgq.job_{slot} j where j.lane = o.id
                                         )
                              )
                          for share skip locked
                   ) q
              join pgq.lane l on l.queue_id = q.id
        );
    --@ end
    end case;
    return v_lanes;
end
$$;
comment on function pgq._lock_lanes(smallint) is
'the lanes of the queues that have jobs in a slot, except of those that others are just about to '
'configure: their active jobs may get permits where they are. Keeps the settings until the '
'transaction ends';

create function pgq._move(p_from smallint, p_to smallint, p_now timestamptz, p_ids bigint[])
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_lane record; v_us constant bigint := pgq._us(greatest(p_now, pgq._open_slot(p_to)));
    v_lanes constant integer[] := pgq._lock_lanes(p_from);
begin
    case p_from
    --@ each slot
    when {slot} then
        for v_lane in with chosen as materialized (
            select i.ctid
              from (select i.ctid, i.group_id from pgq.job_{slot} i
                     where i.lease_expires_at is distinct from 'infinity'
                       and (i.token is null or i.lane = any (v_lanes))
                       and (i.id = any (p_ids)) is not false
                       and i.id::text <> all ((select pgq._skips('job'))::text[]) limit 1000) i
              left join lateral pgq._lock_groups(array[i.group_id], true) g on true
             where i.group_id is null or g is not null
        ), moved as (
            delete from pgq.job_{slot} j
             where j.ctid = any (array(
                       select l.ctid
                         from chosen c,
                              lateral (
                                  select o.ctid from pgq.job_{slot} o
                                   where o.ctid = c.ctid for update skip locked
                              ) l
                   ))
            returning j.*
        ), parked as (
            insert into pgq.job (
                id, enqueued_at, lane, slot, attempt, max_attempts, run_at, due, token, claimed_at,
                lease_expires_at, lease_ms, pid, worker, payload, headers, last_error, dedupe_key,
                dedupe_queue_id, group_key, group_id, wait, cancel_requested, checkpoint, start_by,
                is_awaited)
            select m.id, m.enqueued_at, m.lane, p_to, m.attempt, m.max_attempts, m.run_at,
                   case when m.wait is null then greatest(m.due, v_us + m.id {spread}) end,
                   m.token, m.claimed_at, m.lease_expires_at, m.lease_ms, m.pid, m.worker,
                   m.payload, m.headers, m.last_error, m.dedupe_key, m.dedupe_queue_id, m.group_key,
                   m.group_id, m.wait, m.cancel_requested, m.checkpoint, m.start_by, m.is_awaited
              from moved m
            returning lane, due
        ), held as (
            insert into pgq.hold (slot, queue_id, permit, token, lane, id)
            select p_to, h.queue_id, h.permit, h.token, h.lane, h.id
              from moved m join pgq.hold_{slot} h on h.token = m.token and h.id = m.id
        )
        select p.lane, min(p.due) as due from parked p group by p.lane
        loop
            -- Who is about to sleep may have looked there before, and here afterwards.
            perform pgq._admit(p_to, v_lane.lane, v_lane.due), pgq._wake_lane(v_lane.lane);
        end loop;
    --@ end
    end case;
    return found;
end
$$;
comment on function pgq._move(smallint, smallint, timestamptz, bigint[]) is
'moves 1000 jobs of a slot (of these, or null: any), leases and all, to a parked slot, where each '
'takes its place as of now; false if all are locked';

create function pgq._evacuate(
    p_from smallint, p_to smallint, p_now timestamptz, p_ids bigint[] default null
)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ids bigint[] := p_ids;
    v_half integer;
    v_lane integer;
    v_state text; v_error text;
begin
    begin
        return pgq._move(p_from, p_to, p_now, p_ids);
    exception
        when disk_full then
            return false;
        when {fault_of_one} then
            v_state := sqlstate;
            v_error := sqlerrm;
    end;
    if v_ids is null then
        v_ids := array(select j.id from pgq.job j where j.slot = p_from limit 1000);
    end if;
    if cardinality(v_ids) < 2 then
        select j.lane into v_lane from pgq.job j where j.slot = p_from and j.id = v_ids[1];
        perform pgq._skip('job', v_ids[1]::text, v_lane, v_state, v_error);
        return false;
    end if;
    v_half := cardinality(v_ids) / 2;
    return (
        select bool_or(e)
          from (values (v_ids[:v_half]), (v_ids[v_half + 1:])) h (ids),
               pgq._evacuate(p_from, p_to, p_now, h.ids) e
    );
end
$$;
comment on function pgq._evacuate(smallint, smallint, timestamptz, bigint[]) is
'pgq._move; where that fails, for a half of the jobs after the other, down to the one that fails';
