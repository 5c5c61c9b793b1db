/*
 * Bounds: how many jobs may be ready in a queue, and how long a payload may be.
 */

create function pgq._count_ready(p_queue_id integer, p_limit integer)
returns integer
language plpgsql
as $$
declare
    v_count integer;
begin
    select count(*)::integer into v_count
      from (
               select
                 from (select distinct o.id from pgq.lane o where o.queue_id = p_queue_id) l,
                      unnest(pgq._ready_slots()) s, lateral (
                          select from pgq.job i
                           where i.slot = s and i.lane = l.id and i.token is null
                             and i.pos > coalesce((
                                     select f.floor from pgq.floor f
                                      where f.slot = s and f.lane = l.id order by f.n desc limit 1
                                 ), 0)
                           order by i.pos limit p_limit
                      ) j
                limit p_limit
           ) r;
    -- As in pgq._find.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return v_count;
end
$$;
comment on function pgq._count_ready(integer, integer) is
'How many ready jobs a queue has, at most p_limit; leaves no lock on a slot.';

create function pgq._check_bounds(p_queue_id integer, p_payloads jsonb[], p_number integer)
returns void
language plpgsql
as $$
declare
    v_queue pgq.queue;
    v_size integer;
begin
    select q.* into v_queue from pgq.queue q where q.id = p_queue_id;
    if v_queue.max_payload > 0 then
        select max(octet_length(p::text)) into v_size from unnest(p_payloads) p;
        if v_size > v_queue.max_payload then
            raise exception 'a payload of % bytes is too long for queue "%"', v_size, v_queue.name
                using errcode = 'program_limit_exceeded',
                      detail = format('Its max_payload is %s bytes.', v_queue.max_payload),
                      hint = 'Store the data elsewhere, and a reference in the payload.';
        end if;
    end if;
    -- To count up to a thousand takes a third of a millisecond: the larger, the less often.
    if v_queue.max_ready > 0 and p_number > 0
        and random() * v_queue.max_ready < 1000.0 * p_number
        and pgq._count_ready(p_queue_id, v_queue.max_ready) > v_queue.max_ready - p_number
    then
        raise exception 'queue "%" is full', v_queue.name
            using errcode = 'configuration_limit_exceeded',
                  detail = format('It may have %s ready jobs.', v_queue.max_ready),
                  hint = 'Try again when its workers have caught up, or raise its max_ready.';
    end if;
end
$$;
comment on function pgq._check_bounds(integer, jsonb[], integer) is
'Raises 54000 for a payload that is too long, 53400 for a full queue.

p_number more ready jobs are too many. A max_ready above a thousand is looked at for a part of
the calls, a thousandth of it apart.';
