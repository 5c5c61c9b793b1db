/*
 * Lanes. Enqueue adds a row to pgq.lane when a priority is used first. No unique index guards it: a
 * second session would wait for the transaction of the first one. Both rows have the same id.
 */

-- Of the queue that is there from the start.
insert into pgq.lane (id, queue_id, priority, queue)
select pgq._lane_of(q.id, 0), q.id, 0, q.name from pgq.queue q;

create function pgq._check_lanes()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    -- So that two sessions cannot both add the last one: the second one waits for the commit of the
    -- first one, or fails with 40001. A prepared transaction would keep it waiting.
    insert into pgq.lane_gate (queue_id)
    select new.queue_id where not pgq._is_preparing()
        on conflict on constraint lane_gate_pkey do update set queue_id = excluded.queue_id;
    if (select count(distinct l.id) > 1000 from pgq.lane l where l.queue_id = new.queue_id) then
        raise exception 'queue "%" has 1000 priorities already', new.queue
            using errcode = 'program_limit_exceeded',
                  detail = 'A priority that was used once counts until the queue is dropped.',
                  hint = 'Use a few priorities, and group_key to tell customers apart.';
    end if;
    return null;
end
$$;
comment on function pgq._check_lanes() is
'Raises 54000 at the commit that would give a queue its 1001st priority.';
create constraint trigger lane_at_commit after insert on pgq.lane
    deferrable initially deferred
    for each row execute function pgq._check_lanes();

create function pgq._add_lane(p_queue_id integer, p_priority smallint)
returns bigint
language plpgsql
as $$
begin
    if (select count(distinct l.id) >= 1000 from pgq.lane l where l.queue_id = p_queue_id) then
        raise exception 'queue "%" has 1000 priorities already',
                (select q.name from pgq.queue q where q.id = p_queue_id)
            using errcode = 'program_limit_exceeded',
                  detail = 'A priority that was used once counts until the queue is dropped.',
                  hint = 'Use a few priorities, and group_key to tell customers apart.';
    end if;
    insert into pgq.lane (id, queue_id, priority, queue, is_bounded, awaited_until)
    select pgq._lane_of(q.id, p_priority), q.id, p_priority, q.name, q.is_bounded,
           (select max(l.awaited_until) from pgq.lane l where l.queue_id = q.id)
      from pgq.queue q where q.id = p_queue_id;
    return pgq._lane_of(p_queue_id, p_priority);
end
$$;
comment on function pgq._add_lane(integer, smallint) is
'Gives a queue a lane for a priority. Raises 54000 if it has 1000 already.';

create function pgq._merge_lanes()
returns void
language plpgsql
as $$
begin
    delete from pgq.lane l
     where l.ctid = any (array(
               select o.ctid from pgq.lane o
                where exists (select from pgq.lane e where e.id = o.id and e.ctid < o.ctid)
                  for update skip locked
           ));
    update pgq.lane l set is_bounded = not l.is_bounded
     where l.ctid = any (array(
               select o.ctid
                 from pgq.lane o join pgq.queue q on q.id = o.queue_id
                where o.is_bounded <> q.is_bounded
                  for no key update of o skip locked
           ));
end
$$;
comment on function pgq._merge_lanes() is
'Removes lanes that two sessions have added; for ticks.

Mends those that were added while the bounds of their queue were being set.';
