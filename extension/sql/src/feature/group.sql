/*
 * Groups: at most group_concurrency jobs of a group may be ready or active at a time, in id order.
 *
 * All jobs of a group stand in its line, in the parked slots, by (place, id). The first ones, as
 * many as may run, are heads: is_head is set, and a copy in the ring is what claims find. (A head
 * that is not due has no copy; due is set in the line.) A row leaves the line when its job ends.
 *
 *   Once a transaction has committed, the heads of a group are the first rows of its line, unless
 *   a hint names the group or a head is blocked.
 *
 * That is decided at COMMIT, under a lock on the bucket of the group: by whoever has added jobs to
 * the line, or has ended a head. So each decision sees those before it, and an open transaction
 * keeps nobody waiting. Where nothing can be decided (PREPARE TRANSACTION, an old snapshot, SET
 * CONSTRAINTS) a hint is left for the next tick.
 *
 * The place of a job is twice its id, and one more when a dead job is retried. A job that commits
 * after a higher id has become head is late: its place is behind that head. A dead job that blocks
 * its group stays in the line as its head.
 */

create function pgq._group_ids(p_queue_id integer, p_group_keys text[])
returns bigint[]
language plpgsql
strict
as $$
begin
    return array(
        select hashtextextended(
                   k collate "C",
                   p_queue_id # pg_sequence_last_value('pgq.group_seed')
               )
          from unnest(p_group_keys) k
    );
end
$$;
comment on function pgq._group_ids(integer, text[]) is
'Returns the numbers of groups. Two groups with the same hash take turns.

Who does not know the seed cannot find a key with the hash of somebody else''s group.';

create function pgq._note(p_slot smallint, p_kind "char", p_keys bigint[], p_places bigint[])
returns void
language plpgsql
as $$
begin
    if p_keys is not null then
        insert into pgq.note (slot, xid, kind, keys, places)
        values (p_slot, pg_current_xact_id(), p_kind, p_keys, p_places);
    end if;
end
$$;
comment on function pgq._note(smallint, "char", bigint[], bigint[]) is
'Leaves groups (kind g) or waiting jobs (w) for the commit.

p_slot: one that is locked for writing.';

create function pgq._leave_lines(p_ids bigint[], p_block boolean)
returns void
language plpgsql
as $$
declare
    v_left integer := cardinality(p_ids);
    v_count integer;
    v_slot smallint := pgq._parked_slot();
begin
    -- A tick may be moving a row from one slot to the other.
    foreach v_slot in array array[v_slot, (9 - v_slot)::smallint, v_slot] loop
        case v_slot
        --@ each parked
        when {slot} then
            continue when pg_relation_size('pgq.job_{slot}') = 0;
            if p_block then
                update pgq.job_{slot} j set is_blocked = true, dedupe_queue_id = null
                 where j.id = any (p_ids);
            else
                delete from pgq.job_{slot} j where j.id = any (p_ids);
            end if;
            get diagnostics v_count = row_count;
        --@ end
        end case;
        v_left := v_left - v_count;
        exit when v_left = 0;
    end loop;
    perform pgq._check_snapshot() where v_left > 0;
end
$$;
comment on function pgq._leave_lines(bigint[], boolean) is
'Takes the rows of heads out of their lines, after their copies have ended.

With p_block they block the lines.';

create function pgq._note_ended(p_jobs pgq.job[], p_state text)
returns void
language plpgsql
as $$
declare
    v_end record;
begin
    for v_end in
        select min(j.slot) as slot, q.group_on_dead = 'block' and p_state = 'dead' as blocks,
               -- A head that is not due has no copy: its row in the line has just been deleted.
               array_agg(j.id) filter (where j.head_place is not null and j.place is null) as heads,
               array_agg(j.group_id) filter (where j.head_place is not null) as groups,
               array_agg(j.head_place) filter (where j.head_place is not null) as places,
               array_agg(j.id) filter (where j.is_awaited) as awaited,
               array_agg(j.lane) filter (where j.is_awaited) as awaited_lanes,
               array_agg(j.id) filter (where pgq._waits_for_jobs(j)) as waiters
          from unnest(p_jobs) j left join pgq.queue q on q.id = pgq._queue_of(j.lane)
         group by 2
    loop
        perform pgq._leave_lines(v_end.heads, v_end.blocks) where v_end.heads is not null;
        perform pgq._note(v_end.slot, 'g', v_end.groups, v_end.places)
          where v_end.blocks is not true;
        perform pgq._drop_dependencies(v_end.waiters);
        perform pgq._tell_waiters(
                    v_end.slot, v_end.awaited, v_end.awaited_lanes, p_state = 'completed'
                ) where v_end.awaited is not null;
    end loop;
end
$$;
comment on function pgq._note_ended(pgq.job[], text) is
'Lets groups go on after jobs that were just deleted because they ended.

Jobs that wait for them are noted.';

create function pgq._unblock(p_ids bigint[])
returns boolean
language plpgsql
as $$
declare
    v_slot smallint; v_row pgq.job; v_count integer := 0;
begin
    -- A tick may be moving a row from one slot to the other.
    foreach v_slot in array '{4,5,4}'::smallint[] loop
        for v_row in
            delete from pgq.job j
             where j.slot in (4, 5) and j.slot = v_slot and j.is_blocked and j.id = any (p_ids)
            returning j.*
        loop
            v_count := v_count + 1;
            perform pgq._note(v_row.slot, 'g', array[v_row.group_id], array[v_row.head_place]);
        end loop;
    end loop;
    perform pgq._check_snapshot() where v_count = 0;
    return v_count > 0;
end
$$;
comment on function pgq._unblock(bigint[]) is
'Takes dead jobs out of the lines of their groups, so that the next job runs.';
