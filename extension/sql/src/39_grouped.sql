/*
 * Enqueue with group keys and nothing else.
 */

create function pgq._are_busy(p_at pgq.target, p_group_ids bigint[])
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
declare
    v_are_busy boolean;
begin
    case p_at.parked
    --@ each parked
    when {other} then
        v_are_busy := (
            select count(*) filter (where {is_busy_here}) * 2 > count(*)
              from unnest(p_group_ids) g (id)
        );
    --@ end
    end case;
    -- Rolls back to here, so that no lock on that slot remains.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return v_are_busy;
end
$$;
comment on function pgq._are_busy(pgq.target, bigint[]) is
'whether there are jobs of most of these groups in the parked slot that is not written: after the '
'two have turned, before there are in the other one';

create function pgq._enqueue_grouped(p_at pgq.target, p_payloads jsonb[], p_group_keys text[])
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_group_ids bigint[];
    v_ids bigint[];
    v_is_simple boolean;
    v_are_busy boolean;
begin
    -- Where most of the jobs are of groups in which there are some already, as far as the parked
    -- slots tell: all wait, and the commit finds those that need not.
    case p_at.parked
    --@ each parked
    when {slot} then
        select array_agg(g.id),
               bool_and(coalesce(length(g.key), 0) between 1 and 250)
               and count(*) = cardinality(p_payloads) and array_ndims(p_group_keys) = 1,
               count(*) filter (where {is_busy_here}) * 2 > count(*)
          into v_group_ids, v_is_simple, v_are_busy
          from (
                   select k, hashtextextended(k collate "C", p_at.queue_id # {group_seed})
                     from unnest(p_group_keys) k offset 0
               ) g (key, id);
        if v_is_simple and (
               v_are_busy or (
                   pg_relation_size('pgq.job_{other}') > 0 and pgq._are_busy(p_at, v_group_ids)
               )
           )
        then
            with added as (
                insert into pgq.job_{slot} as j (
                    id, enqueued_at, lane, slot, payload, group_key, group_id, wait
                )
                select n.id, pgq._now(), p_at.lane, {slot}, n.payload, n.key, n.group_id, n.id
                  from (
                           select nextval('pgq.job_id'), u.*
                             from unnest(p_payloads, p_group_keys, v_group_ids) u
                       ) n (id, payload, key, group_id)
                returning j.id
            )
            select array_agg(a.id) into v_ids from added a;
            {not_empty};
        end if;
    --@ end
    end case;
    if v_ids is not null then
        perform pgq._note_alike(-2::smallint, p_at.lane, v_group_ids, v_ids);
        if p_at.is_awaited then
            perform pgq._wake_lane(p_at.lane);
        end if;
        return v_ids;
    end if;
    v_ids := pgq._draw_ids(p_at, cardinality(p_payloads), true);
    perform pgq._check_keys('group_keys', p_group_keys, p_payloads);
    perform pgq._add_keyed(p_at, v_ids, p_payloads, null, p_group_keys, null, null, null, false);
    return v_ids;
end
$$;
comment on function pgq._enqueue_grouped(pgq.target, jsonb[], text[]) is
'enqueues jobs that have group keys and are plain otherwise, and returns their ids';
