/*
 * The short ways to complete many jobs of a queue that keeps none of them.
 */

-- Before PostgreSQL 17 a plan for id = any (ids) may look for the lane alone. The text compares
-- like the number.
--@ define finds_ids
current_setting('server_version_num') >= '170000'
--@ end
--@ define few
cardinality(ids) <= 100 and {finds_ids}
--@ end
-- Those of one lane of one slot.
--@ define alike
(select bool_and(t & 1048575 = tokens[1] & 1048575) from unnest(tokens) t)
--@ end
-- And no other job waits for one of them: with those pgq._complete locks all in the order of their
-- ids.
--@ define together
{alike}
               and (pg_sequence_last_value('pgq.awaited') is null or not exists (
                   select from pgq.job_{slot} a
                    where a.lane = (tokens[1] >> 3) & 65535 and a.id = any (ids) and a.is_awaited
               ))
--@ end

create function pgq._discard(ids bigint[], tokens bigint[])
returns setof bigint
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
begin
    case tokens[1] & 7
    --@ each slot
    when {slot} then
        return query
        delete from pgq.job_{slot} j
         where j.lane = (tokens[1] >> 3) & 65535 and j.id = any (ids) and j.is_awaited is null
           -- "is true" keeps it from becoming a join: it is hashed, and null has no hash.
           and j.token is not null and ((j.id, j.token) in (
                   select r.id, r.token from unnest(ids, tokens) r (id, token)
               )) is true
           and {together}
        returning j.id;
    --@ end
    else
    end case;
end
$$;
comment on function pgq._discard(bigint[], bigint[]) is
'deletes the jobs of many receipts if these are of one lane of a slot and no other job waits for '
'one of them, and returns the ids';

-- Of a queue that is not serial some may be of one group.
--@ define is_plain
(
                   select q.keep_completed = '0' and q.dedupe_for = '0' and q.is_serial
                     from pgq.lane l join pgq.queue q on q.id = l.queue_id where l.id = v_lane
               )
--@ end

create function pgq._complete_heads(ids bigint[], tokens bigint[])
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_lane constant bigint := (tokens[1] >> 3) & 65535;
    v_are_many constant boolean := cardinality(ids) > 100;
    v_ids bigint[] := array[]::bigint[];
    v_groups bigint[];
begin
    -- Then each finds its token by bisection; of a queue that is not plain there are none.
    if v_are_many then
        select array_agg(r.id), array_agg(r.token) into ids, tokens
          from (
                   select u.* from unnest(ids, tokens) u (id, token) where {is_plain} order by u.id
               ) r;
    end if;
    case tokens[1] & 7
    --@ each slot
    when {slot} then
        with done as (
            delete from pgq.job_{slot} j
             where j.lane = v_lane and j.id = any (ids)
               and j.token = tokens[case when v_are_many then width_bucket(j.id, ids)
                                         else array_position(ids, j.id) end]
               and j.group_id is not null and j.is_awaited is null
               and {together} and {is_plain}
            returning j.id, j.group_id
        )
        select coalesce(array_agg(d.id), v_ids), array_agg(d.group_id)
          into v_ids, v_groups from done d;
    --@ end
    else
    end case;
    if v_groups is not null then
        perform pgq._note_alike(-3::smallint, v_lane::integer, v_groups, v_ids);
    end if;
    return v_ids;
end
$$;
comment on function pgq._complete_heads(bigint[], bigint[]) is
'deletes the jobs of groups of receipts that are of one lane of a slot, if no other job waits for '
'one of them and their queue keeps none, and returns the ids';
