/*
 * The claim from a parked slot where a queue has one priority: the ordinary case of groups, of
 * which all heads but the first ones are parked. A part of pgq_dequeue.
 */

-- Above all ids.
--@ define no_bound
9223372036854775807
--@ end
--@ define leased
where j.ctid = f.ctid
            returning j.id, j.token, v_queue, v_priority, 'active', j.attempt::integer,
                   coalesce(j.max_attempts, v_max), j.payload, j.headers, j.group_key, j.dedupe_key,
                   j.worker, j.enqueued_at, coalesce(j.run_at, j.enqueued_at), j.claimed_at,
                   j.lease_expires_at, j.last_error, false, j.checkpoint
--@ end
-- How many of those that fell due first are looked at: others may just be claiming some of them,
-- and more of them where that was too few within the last 20 milliseconds.
--@ define due_limit
greatest(batch, case when v_us / 1000 - pg_sequence_last_value('pgq.crowded') between 0 and 20
                                then 100 else least(100, greatest(40, 4 * batch)) end)
--@ end
--@ define due_window
select i.ctid as tid, i.id, i.group_id from pgq.job_{slot} i
                        where {due} order by i.due limit v_limit
--@ end
-- A window "w" that does not show all that is due will do if each of its jobs is of another group.
--@ define will_do
((v_serial and not exists (select from w where w.group_id is null))
                                           or (select count(*) < v_limit from w))
--@ end
-- The same for the other slot: the lowest id in its window, null if nothing is due there; 0: its
-- window does not tell.
--@ define first_of_second
(
            select case when (v_serial and w.grouped) or coalesce(cardinality(w.ids), 0) < v_limit
                        then w.ids[1] else 0 end
              from pgq._window(
                       v_dues[2], v_lane, 0, {no_bound}, v_limit, v_now, v_max, false
                   ) w
        )
--@ end

-- In v_dues, of which the oldest is the first, some are due: up to the lowest id elsewhere. If a
-- claim of one job finds none, it is made once more, of that id if that is in the ring (v_second).
--@ define from_due
v_limit := {due_limit};
        v_second := v_first;
        v_until := pgq._peek(v_first, v_lane, 0, {no_bound}, v_now, v_max, false);
        if v_dues[2] is not null then
            v_until := least(v_until, {first_of_second});
        end if;
        v_first := v_dues[1];
        v_place := (v_place & ~7::bigint) | v_first
--@ end
--@ define claim_due
with w as materialized ({due_window})
        {lease}
          from (
                   select l.ctid
                     from (
                              select o.* from w o
                               where (v_until is null or o.id < v_until) and {will_do}
                               order by o.id
                          ) o, lateral (
                              select i.ctid from pgq.job_{slot} i
                               where i.ctid = o.tid and i.lane = v_lane and i.id = o.id
                                 and i.wait is null and (i.run_at is null or i.run_at <= v_now)
                                 and {claimable}
                                 for update skip locked
                          ) l limit batch
               ) f
         {leased}
--@ end
-- There may be more behind what was looked at, with any ids, or elsewhere. (If nothing was taken,
-- the window may have been one that will not do.)
--@ define more_due
if v_count < batch then
            select count(*) + v_count >= v_limit, v_serial and bool_and(w.group_id is not null),
                   min(w.id) < v_until
              into v_more, v_do, v_lower from ({due_window}) w;
            if v_more and v_do and v_lower is not false then
                perform setval('pgq.crowded', v_us / 1000);
            end if;
            if batch > 1 or (v_more and not v_do) or v_lower then
                v_second := null;
            end if;
            v_more := v_more or v_count = 0 or v_until is not null;
        end if
--@ end
