/*
 * Groups: at most group_concurrency jobs of a group may be claimed at a time, in id order.
 *
 * Those that may be are its heads: jobs like any other. The followers wait in a parked slot, where
 * no claim looks. Whether a job is a head is decided at COMMIT, for those that enqueue as for those
 * that complete, under a lock on the group's bucket: so it is held for no longer than a commit
 * takes, each decision sees those before it, and neither waits for anybody's open transaction.
 *
 * A transaction notes the groups of the jobs that it adds and of the heads that it ends. Each note
 * queues the event of a deferred trigger. The first one that fires queues another, which takes all
 * notes and locks the buckets of all, in one order. Where that cannot be (PREPARE TRANSACTION,
 * REPEATABLE READ, a second round in one transaction) a hint is left for the next tick.
 *
 * How a job of a group (group_id is not null) is stored:
 *   waiting  "wait" is set: its place in the group, the id unless it came late
 *   new      lease_expires_at is infinity, due is the id of the transaction that enqueues it; in
 *            the ring, until the commit
 *   head     otherwise
 */

--@ define group_seed
coalesce(pg_sequence_last_value('pgq.group_seed'), 0)
--@ end

create function pgq._group_ids(p_queue_id integer, p_group_keys text[])
returns bigint[]
language plpgsql
volatile
strict
set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        select hashtextextended(k collate "C", p_queue_id # {group_seed})
          from unnest(p_group_keys) k
    );
end
$$;
comment on function pgq._group_ids(integer, text[]) is
'what stands for groups; two groups with the same hash take turns, and who does not know the seed '
'cannot find a key that has the hash of a group of somebody else';

create function pgq._is_waiting(p_job pgq.job)
returns boolean
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return p_job.wait is not null or coalesce(p_job.lease_expires_at = 'infinity', false);
end
$$;
comment on function pgq._is_waiting(pgq.job) is
'whether a job waits for others, or is a new one of a group';

-- Of the lane of p_at. Heads that others have below it are overlooked, which does no harm here.
--@ define own_base
coalesce((
                                  select f.base from pgq.floor_{slot} f
                                   where f.lane = p_at.lane order by f.n desc limit 1
                              ), 0)
--@ end
-- A group "g". Heads first: before the last one that waits may lie the dead entries of thousands.
--@ define is_busy_here
((
                       select j.id from pgq.job_{slot} j
                        where j.group_id = g.id and j.wait is null and j.due > {own_base}
                        order by j.due desc limit 1
                   ) is not null or (
                       select j.id from pgq.job_{slot} j
                        where j.group_id = g.id and j.wait is not null
                        order by j.wait desc limit 1
                   ) is not null)
--@ end

create function pgq._idle_groups(p_at pgq.target, p_group_ids bigint[])
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
declare
    v_idle bigint[] := p_group_ids;
begin
    case p_at.parked
    --@ each parked
    when {slot} then
        v_idle := array(select g.id from unnest(v_idle) g (id) where not {is_busy_here});
    --@ end
    end case;
    if v_idle = '{}' then
        return v_idle;
    end if;
    case p_at.slot
    --@ each ring
    when {slot} then
        v_idle := array(
            select g from unnest(v_idle) g
             where (
                       select j.id from pgq.job_{slot} j
                        where j.group_id = g and j.id > {own_base} order by j.id desc limit 1
                   ) is null
        );
    --@ end
    end case;
    return v_idle;
end
$$;
comment on function pgq._idle_groups(pgq.target, bigint[]) is
'those of these groups that have no live job in the slots to which this transaction writes anyway. '
'It says where a new one is put, not what becomes of it: in a group that is busy elsewhere one job '
'is moved at its commit, and is seen then';

create function pgq._note_alike(
    p_noted smallint, p_lane integer, p_group_ids bigint[], p_places bigint[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    case {event_table}
    --@ each event
    when {slot} then
        insert into pgq.group_event_{slot} (xid, noted, lane, group_ids, places)
        values (pg_current_xact_id(), p_noted, p_lane, p_group_ids, p_places);
    --@ end
    end case;
end
$$;
comment on function pgq._note_alike(smallint, integer, bigint[], bigint[]) is
'pgq._note_groups where the same holds for all: only jobs that wait were added (p_noted: -2; a '
'group may be there more than once), or the job was completed that is one of the heads of the '
'group, once (-3)';

create function pgq._note_groups(
    p_group_ids bigint[], p_places bigint[], p_slots smallint[], p_lanes integer[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_group_ids is null then
        return;
    end if;
    case {event_table}
    --@ each event
    when {slot} then
        insert into pgq.group_event_{slot} (xid, group_ids, places, slots, lanes)
        values (pg_current_xact_id(), p_group_ids, p_places, p_slots, p_lanes);
    --@ end
    end case;
end
$$;
comment on function pgq._note_groups(bigint[], bigint[], smallint[], integer[]) is
'called with groups that are to be looked at when the transaction commits, each once: to which '
'jobs were added, from which place on, and where the first one is if it is new (-2: they wait); or '
'(slot -1) of which a job has ended, and its id. Where nobody else can read it, as it would tell '
'the seed of the ids of groups, nor write it';

create function pgq._note_ended(p_jobs pgq.job[], p_completed boolean default false)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_groups bigint[]; v_places bigint[]; v_slots smallint[]; v_lanes integer[];
    v_awaited boolean;
begin
    select array_agg(g.group_id) filter (where g.group_id is not null),
           array_agg(g.id) filter (where g.group_id is not null),
           array_agg(smallint '-1') filter (where g.group_id is not null),
           array_agg(g.lane) filter (where g.group_id is not null), bool_or(g.awaited)
      into v_groups, v_places, v_slots, v_lanes, v_awaited
      from (select j.group_id, min(j.id) as id, min(j.lane) as lane,
                   bool_or(j.is_awaited or j.wait is not null) as awaited
              from unnest(p_jobs) j group by j.group_id) g;
    if p_completed and v_lanes[1] = all (v_lanes) then
        perform pgq._note_alike(-3::smallint, v_lanes[1], v_groups, v_places);
    elsif v_groups is not null then
        perform pgq._note_groups(v_groups, v_places, v_slots, v_lanes);
    end if;
    if v_awaited then
        perform pgq._note_awaited(p_jobs, p_completed);
    end if;
end
$$;
comment on function pgq._note_ended(pgq.job[], boolean) is
'called with jobs that have ended, or wait now: notes their groups and those that wait for them';

create function pgq._lift_blocks(p_job_ids bigint[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_groups bigint[]; v_places bigint[]; v_slots smallint[]; v_lanes integer[];
begin
    with lifted as (
        delete from pgq.group_block b where b.job_id = any (p_job_ids)
        returning b.group_id, b.queue_id
    )
    select array_agg(g.id), array_agg(bigint '0'), array_agg(smallint '-1'), array_agg(g.lane)
      into v_groups, v_places, v_slots, v_lanes
      from (select l.group_id as id, min(o.id) as lane
              from lifted l join pgq.lane o on o.queue_id = l.queue_id group by l.group_id) g;
    perform pgq._note_groups(v_groups, v_places, v_slots, v_lanes);
end
$$;
comment on function pgq._lift_blocks(bigint[]) is
'lets groups go on that were blocked by these dead jobs';

create function pgq._wait(p_job pgq.job)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    select r.parked[cardinality(r.parked)] into p_job.slot
      from pgq.ring r order by r.gen desc limit 1;
    p_job.wait := p_job.id;
    p_job.due := null;
    p_job.lease_expires_at := null;
    perform pgq._open_slot(p_job.slot);
    insert into pgq.job select p_job.*;
end
$$;
comment on function pgq._wait(pgq.job) is
'puts a job that has just been deleted from pgq.job or pgq.archive behind those of its group';
