/*
 * Receipts. A receipt is looked up in the slot that its token names. If it is not there it is
 * stale, or a tick has moved the job to another slot of the ring, perhaps this very moment. So two
 * looks into all four slots follow. Each is a statement with a new snapshot: a job that moves
 * during one look is found by the next.
 */

create function pgq._settle(p_id bigint, p_token bigint, out job pgq.job)
language plpgsql
as $$
declare
    v_slot integer;
    v_mine integer[];
begin
    perform pgq._check_not_null('id', p_id is null), pgq._check_not_null('token', p_token is null),
            pgq._check_restricted();
    v_mine := case when not pgq._is_owner() then pgq._mine('consume') end;
    -- A forged token may name a parked slot.
    foreach v_slot in array array[pgq._slot_of(p_token) % 4, 0, 1, 2, 3, 0, 1, 2, 3] loop
        case v_slot
        --@ each ring
        when {slot} then
            delete from pgq.job_{slot} j
             where j.id = p_id and j.token = p_token and pgq._is_mine(j.lane, v_mine)
            returning j.* into job;
        --@ end
        end case;
        exit when job.id is not null;
    end loop;
    perform pgq._check_snapshot(), pgq._check_shard(p_id) where job.id is null;
end
$$;
comment on function pgq._settle(bigint, bigint) is
'Deletes and returns the job of a receipt, or null.

Null if the receipt is stale, or of a queue that the caller may not consume from. Waits while
another session settles the same receipt.';

create function pgq._finish(p_job pgq.job, p_result jsonb)
returns void
language plpgsql
as $$
declare
    v_queue record;
begin
    if pgq._is_kept(p_job.token) then
        -- As it is when the job is locked, which may have taken a while.
        select q.name, q.sample, q.keep_completed,
               case when p_job.dedupe_key is null then q.keep_completed
                    else greatest(q.keep_completed, q.dedupe_for) end as keep
          into v_queue from pgq.queue q where q.id = pgq._queue_of(p_job.lane);
        if v_queue.keep > '0' then
            insert into pgq.archive
            select a.*
              from pgq._archived(
                       p_job, v_queue.name, 'completed', pgq._now(), v_queue.keep, p_result
                   ) a;
        end if;
        perform pgq._count_ends(p_job.lane, v_queue.sample, 0)
          where v_queue.keep_completed > '0' and random() * v_queue.sample < 1;
    end if;
    perform pgq._note_ended(array[p_job], 'completed')
      where p_job.group_id is not null or p_job.is_awaited;
end
$$;
comment on function pgq._finish(pgq.job, jsonb) is
'Called with a job that has just been deleted because it has completed.';

create function pgq._looks(p_tokens bigint[])
returns smallint[]
language plpgsql
immutable
as $$
begin
    return array(
        select distinct pgq._slot_of(t) from unnest(p_tokens) t where pgq._slot_of(t) < 4 order by 1
    ) || '{0,1,2,3,0,1,2,3}'::smallint[];
end
$$;
comment on function pgq._looks(bigint[]) is
'The slots in which to look for receipts, in this order.';

--@ each ring
create function pgq._complete_{slot}(
    p_ids bigint[], p_tokens bigint[], p_results jsonb[], p_mine integer[]
)
returns setof bigint
language plpgsql
as $$
declare
    v_done record;
begin
    with done as (
        delete from pgq.job_{slot} j
         using (
                   -- Of a receipt that is given twice the first result that is not null. Jobs are
                   -- locked in the order of their ids.
                   select distinct on (u.id, u.token) u.id, u.token, u.result
                     from unnest(p_ids, p_tokens, p_results)
                          with ordinality u (id, token, result, n)
                    order by u.id, u.token, u.result is null, u.n
               ) r, lateral (
                   -- Not a join, whose plan could read the index to its end. A job that is renewed
                   -- meanwhile may be left out: the next look finds it.
                   select i.ctid from pgq.job_{slot} i where i.id = r.id offset 0
               ) i
         where j.ctid = i.ctid and j.token = r.token and pgq._is_mine(j.lane, p_mine)
        returning j.*, r.result
    ), queue as materialized (
        -- As it is when all are locked, which may have taken a while.
        select d.id as queue_id, q.*
          from (select distinct pgq._queue_of(o.lane) as id from done o) d, pgq._retention(d.id) q
    ), kept as (
        insert into pgq.archive (
            id, enqueued_at, finished_at, expires_at, run_at, claimed_at, token, bucket, priority,
            attempt, max_attempts, state, queue, worker, payload, headers, last_error, dedupe_key,
            group_key, checkpoint, result, history
        )
        select d.id, d.enqueued_at, q.now,
               case when d.dedupe_key is null then q.expires else q.expires_key end, d.run_at,
               d.claimed_at, d.token,
               case when d.dedupe_key is null then q.bucket else q.bucket_key end,
               pgq._priority_of(d.lane), d.attempt, d.max_attempts, 'completed', q.name, d.worker,
               d.payload, d.headers, d.last_error, d.dedupe_key, d.group_key, d.checkpoint,
               d.result, d.history
          from done d join queue q on q.queue_id = pgq._queue_of(d.lane)
         where pgq._is_kept(d.token)
           and case when d.dedupe_key is null then q.keep else q.keep_key end > '0'
    )
    select array_agg(d.id) as ids,
           array_agg(d.lane) filter (where pgq._is_kept(d.token) and q.keep > '0') as counted,
           max(q.sample) as sample,
           array_agg(d.id) filter (where d.group_id is not null) as heads,
           array_agg(d.group_id) filter (where d.group_id is not null) as groups,
           array_agg(d.head_place) filter (where d.group_id is not null) as places,
           array_agg(d.id) filter (where d.is_awaited) as awaited,
           array_agg(d.lane) filter (where d.is_awaited) as awaited_lanes
      into v_done
      from done d left join queue q on q.queue_id = pgq._queue_of(d.lane);
    if v_done.heads is not null then
        perform pgq._leave_lines(v_done.heads, false),
                pgq._note({slot}::smallint, 'g', v_done.groups, v_done.places);
    end if;
    if v_done.awaited is not null then
        perform pgq._tell_waiters({slot}::smallint, v_done.awaited, v_done.awaited_lanes, true);
    end if;
    if v_done.counted is not null and random() * v_done.sample < 1 then
        perform pgq._count_ends(c.lane, c.jobs * v_done.sample, 0)
           from (select l as lane, count(*) as jobs from unnest(v_done.counted) l group by l) c;
    end if;
    return query select i from unnest(v_done.ids) i;
end
$$;
comment on function pgq._complete_{slot}(bigint[], bigint[], jsonb[], integer[]) is
'Completes what it finds of these receipts in slot {slot}, and returns the ids.';
--@ end

create function pgq._complete_rest(
    p_ids bigint[], p_tokens bigint[], p_results jsonb[], p_mine integer[], p_done integer
)
returns setof bigint
language plpgsql
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_slot smallint;
    v_count integer;
    v_left integer := (
        select count(distinct (r.id, r.token))::integer from unnest(p_ids, p_tokens) r (id, token)
    ) - p_done;
begin
    foreach v_slot in array pgq._looks(p_tokens) loop
        exit when v_left = 0;
        case v_slot
        --@ each ring
        when {slot} then
            return query select * from pgq._complete_{slot}(p_ids, p_tokens, p_results, p_mine);
        --@ end
        end case;
        get diagnostics v_count = row_count;
        v_left := v_left - v_count;
    end loop;
    perform pgq._check_snapshot(), pgq._check_shard(i) from unnest(p_ids) i where v_left > 0;
end
$$;
comment on function pgq._complete_rest(bigint[], bigint[], jsonb[], integer[], integer) is
'Completes the jobs of good receipts and returns the ids.

p_results: one for each receipt, or null. p_done: how many of them have been completed already.';
