/*
 * What a tick does in a parked slot: jobs that are due go to the head of the ring. The base of a
 * parked slot is a time: all jobs that were due until then have gone.
 */

create function pgq._relocated(p_job pgq.job, p_slot smallint, p_pos bigint, p_due bigint)
returns pgq.job
language sql
immutable
begin atomic
    select row(
        p_job.id, p_pos, p_job.enqueued_at, p_job.lane, p_slot, p_job.attempt, p_job.lost,
        p_job.max_attempts, p_job.run_at, p_job.start_by, p_due, p_job.token, p_job.claimed_at,
        p_job.lease_expires_at, p_job.lease_ms, p_job.pid, p_job.worker, p_job.is_awaited,
        p_job.cancel_requested, p_job.group_id, p_job.place, p_job.is_head, p_job.is_blocked,
        p_job.head_place, p_job.payload, p_job.headers, p_job.last_error, p_job.dedupe_key,
        p_job.dedupe_queue_id, p_job.group_key, p_job.checkpoint, p_job.history
    )::pgq.job;
end;
comment on function pgq._relocated(pgq.job, smallint, bigint, bigint) is
'A job as it is stored in another slot.';

create function pgq._promote_jobs(p_slot smallint, p_ids bigint[], p_head smallint)
returns void
language plpgsql
as $$
declare
    v_row pgq.job;
    v_lane bigint;
begin
    perform pgq._open(p_head);
    for v_lane in with gone as (
        delete from pgq.job j
         where j.slot = p_slot and j.id = any (p_ids) and j.place is null returning j.*
    ), moved as (
        insert into pgq.job
        select (m.job).*
          from (
                   select pgq._relocated(g::pgq.job, p_head, nextval('pgq.number'), null) as job
                     from (select o.* from gone o order by o.due, o.id) g offset 0
               ) m
        returning lane
    )
    select distinct m.lane from moved m
    loop
        perform pgq._wake_lane(v_lane);
    end loop;
    -- Heads of groups stay in their lines.
    for v_row in
        select j.* from pgq.job j
         where j.slot = p_slot and j.id = any (p_ids) order by j.due, j.id
    loop
        perform pgq._promote_head(v_row);
    end loop;
end
$$;
comment on function pgq._promote_jobs(smallint, bigint[], smallint) is
'Moves jobs that are due, and locked, to the head of the ring.';

create function pgq._promote(p_slot smallint, p_now timestamptz, p_head smallint)
returns integer
language plpgsql
as $$
declare
    v_ids constant text[] := array(
        select i.id::text from pgq.job i
         where i.slot = p_slot and i.due <= pgq._us(p_now)
           and i.id <> all ((select pgq._skips('job'))::bigint[])
           and i.due > coalesce((
                   select f.base from pgq.floor f
                    where f.slot = p_slot and f.lane = 0 order by f.n desc limit 1
               ), 0)
         order by i.due limit 1000 for update skip locked
    );
begin
    perform pgq._do_each('promote', v_ids, p_slot, p_head);
    return cardinality(v_ids);
end
$$;
comment on function pgq._promote(smallint, timestamptz, smallint) is
'Moves up to 1000 due jobs of a parked slot to the head of the ring.

Returns their number.';

create function pgq._set_parked_base(p_slot smallint, p_now timestamptz, p_writer bigint)
returns void
language plpgsql
as $$
declare
    v_n bigint;
begin
    insert into pgq.floor (slot, n, lane, floor, base, mark)
    select p_slot, nextval('pgq.floor_n'), 0, 0, n.base,
           least(pgq._us(p_now), pg_sequence_last_value('pgq.last_tick') * 1000)
      from (select pg_current_snapshot() as snapshot) s
      left join lateral (
              select o.*, pgq._full_xid(
                         o.xmin, pg_snapshot_xmax(s.snapshot)::text::bigint
                     ) as xid
                from pgq.floor o
               where o.slot = p_slot and o.lane = 0 order by o.n desc limit 1
           ) f on true
      left join lateral (
              select j.due from pgq.job j
               where j.slot = p_slot and j.due > f.base order by j.due limit 1
           ) live on true,
           lateral (
               select coalesce(case when f.mark <= pgq._us(p_now)
                                    then least(live.due - 1, f.mark) end, 0)
                          as base
           ) n
     where f.n is null or f.mark > pgq._us(p_now) or coalesce(p_writer >= f.xid, true)
    returning n into v_n;
    -- A parked slot may stay for long. The one before, without a look at all dead ones.
    delete from pgq.floor f
     where f.slot = p_slot and f.lane = 0
       and f.n = (
               select o.n from pgq.floor o
                where o.slot = p_slot and o.lane = 0 and o.n < v_n order by o.n desc limit 1
           );
exception
    -- The block is for its subtransaction, as in pgq._raise_floor_0.
    when lock_not_available then
        return;
end
$$;
comment on function pgq._set_parked_base(smallint, timestamptz, bigint) is
'Raises the base of a parked slot.

The mark is the earlier one of the clock and the last tick: a job parked from now on is due after
that. It begins anew if the clock has been set back.';
