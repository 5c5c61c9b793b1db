/*
 * The short way to complete many jobs of a queue that keeps none of them.
 */

-- Their queue keeps none. Before PostgreSQL 17 a plan for id = any (ids) may look for the lane
-- alone.
--@ define simple
tokens[1] & 524288 = 0
        and current_setting('server_version_num')::integer >= 170000
--@ end
-- Those of one lane of one slot, for none of which another job waits: with those pgq._complete
-- locks all in the order of their ids.
--@ define together
(select bool_and(t & 1048575 = tokens[1] & 1048575) from unnest(tokens) t)
               and not exists (
                   select from pgq.job_{slot} a
                    where a.lane = (tokens[1] >> 3) & 65535 and a.id = any (ids) and a.is_awaited
               )
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
