/*
 * Completing jobs that are kept, or that others wait for: in one statement where the receipts are
 * of one lane of one slot, as those of one claim nearly always are.
 */

create function pgq._note_completed(
    p_lane integer, p_heads bigint[], p_group_ids bigint[], p_are_distinct boolean,
    p_awaited bigint[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_are_distinct then
        perform pgq._note_alike(-3::smallint, p_lane, p_group_ids, p_heads);
    elsif p_heads is not null then
        perform pgq._note_groups(
                    array_agg(g.id), array_agg(g.head), array_agg(smallint '-1'), array_agg(p_lane)
                )
           from (select g.id, min(g.head) as head
                   from unnest(p_group_ids, p_heads) g (id, head) group by g.id) g;
    end if;
    if p_awaited is not null then
        perform pgq._tell_waiters(p_awaited, array[p_lane], true);
    end if;
end
$$;
comment on function
    pgq._note_completed(integer, bigint[], bigint[], boolean, bigint[]) is
'pgq._note_ended for jobs of one lane that have completed: those that were heads of groups, their '
'groups, and those for which others wait; each may be null';

-- In the lock order. Of a receipt that is given twice the first result that is not null.
--@ define receipts
(
                       select distinct on (u.id, u.token) u.id, u.token, u.result
                         from unnest(p_ids, p_tokens, p_results)
                              with ordinality u (id, token, result, n)
                        order by u.id, u.token, u.result is null, u.n
                   )
--@ end
--@ define kept
d.id, d.enqueued_at, q.now,
                   case when d.dedupe_key is null then q.expires else q.expires_key end, d.run_at,
                   d.claimed_at, d.token,
                   case when d.dedupe_key is null then q.bucket else q.bucket_key end, q.priority,
                   d.attempt, d.max_attempts, 'completed', q.name, d.worker, d.payload, d.headers,
                   d.last_error, d.dedupe_key, d.group_key, d.checkpoint, d.result
--@ end

create function pgq._retention(
    p_lane integer, out now timestamptz, out name text, out priority smallint, out sample integer,
    out keep interval, out expires timestamptz, out bucket smallint, out keep_key interval,
    out expires_key timestamptz, out bucket_key smallint
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    now := pgq._now();
    select q.name, l.priority, q.sample, q.keep_completed, greatest(q.keep_completed, q.dedupe_for)
      into name, priority, sample, keep, keep_key
      from pgq.lane l join pgq.queue q on q.id = l.queue_id where l.id = p_lane;
    expires := now + keep;
    expires_key := now + keep_key;
    bucket := pgq._archive_bucket(expires, expires - now);
    bucket_key := bucket;
    if keep_key > keep then
        bucket_key := pgq._archive_bucket(expires_key, expires_key - now);
    end if;
end
$$;
comment on function pgq._retention(integer) is
'for how long the queue of a lane keeps jobs that complete now, and those with a dedupe key';

create function pgq._complete_together(
    p_slot smallint, p_lane integer, p_ids bigint[], p_tokens bigint[], p_results jsonb[]
)
returns setof bigint
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
declare
    v_done record;
begin
    case p_slot
    --@ each slot
    when {slot} then
        with done as (
            -- As in pgq._finish.
            delete from pgq.job_{slot} j
             using {receipts} r, lateral (
                       {found} offset 0
                   ) i
             where j.ctid = i.ctid and j.token = r.token
            returning j.*, r.result, j.token & 524288 <> 0 as was_kept
        ), queue as materialized (
            -- As it is when all are locked, which may have taken a while.
            select q.* from (select max(d.lane) as lane from done d) d, pgq._retention(d.lane) q
        ), kept as (
            insert into {archive}
            select {kept} from queue q, done d
             where d.was_kept
               and case when d.dedupe_key is null then q.keep else q.keep_key end > '0'
        )
        select array_agg(d.id) as ids, count(*) filter (where d.was_kept) as counted,
               array_agg(d.id) filter (where d.group_id is not null) as heads,
               array_agg(d.group_id) filter (where d.group_id is not null) as groups,
               count(distinct d.group_id) = nullif(count(d.group_id), 0) as are_distinct,
               array_agg(d.id) filter (where d.is_awaited) as awaited,
               (select q.sample from queue q where q.keep_key > '0') as sample
          into v_done from done d;
    --@ end
    else
        return;
    end case;
    if v_done.heads is not null or v_done.awaited is not null then
        perform pgq._note_completed(
            p_lane, v_done.heads, v_done.groups, v_done.are_distinct, v_done.awaited
        );
    end if;
    if v_done.counted > 0 and random() * v_done.sample < 1 then
        perform pgq._count_ends(p_lane, v_done.counted * v_done.sample, 0);
    end if;
    return query select i from unnest(v_done.ids) i;
end
$$;
comment on function
    pgq._complete_together(smallint, integer, bigint[], bigint[], jsonb[]) is
'completes what it finds of these receipts in a lane of a slot, and returns the ids; p_results: '
'one for each receipt, or null';
