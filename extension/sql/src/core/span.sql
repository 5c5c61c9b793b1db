/*
 * What ticks read of a slot of the ring, and the positions that follow: see core/position.sql.
 */

create type pgq.span as (
    lane bigint,
    floor bigint,
    base bigint,
    mark bigint,
    xid bigint,
    swept bigint,
    live bigint,
    free bigint,
    swept_next bigint,
    expired bigint[],
    overdue bigint[]
);
comment on type pgq.span is
'The position of a lane, and what its jobs show; for ticks.

live: the first job above its base, or above swept. free: the first one below the floor that can
be claimed. Then where the next tick goes on, the jobs of expired leases, and those that have not
started in time.';

create function pgq._spans(p_slot smallint, p_now timestamptz)
returns setof pgq.span
language plpgsql
as $$
begin
    return query
    select l.id, f.floor, f.base, f.mark, f.xid, f.swept, w.live, w.free,
           -- On, while there may be leases: what has an xmax may be about to be claimed.
           case when w.jobs = f.size and w.are_leased then w.last end, w.expired, w.overdue
      from (select distinct o.id from pgq.lane o) l
      left join lateral (
              select o.*, coalesce(o.mark_xid, pgq._full_xid(
                         o.xmin, pg_snapshot_xmax(pg_current_snapshot())::text::bigint
                     )) as xid, case when o.swept is null then 1000 else 10000 end as size
                from pgq.floor o
               where o.slot = p_slot and o.lane = l.id order by o.n desc limit 1
           ) f on true,
           lateral (
               select count(*) as jobs, min(j.pos) as live, max(j.pos) as last,
                      bool_or(j.token is not null or j.is_touched) as are_leased,
                      min(j.pos) filter (
                          where j.pos <= f.floor
                            and (j.token is null or j.lease_expires_at <= p_now)
                      ) as free,
                      array_agg(j.id) filter (where j.lease_expires_at <= p_now) as expired,
                      array_agg(j.id) filter (
                          where j.start_by <= p_now and j.token is null and j.attempt = 0
                      ) as overdue
                 from (
                          select i.id, i.pos, i.token, i.lease_expires_at, i.start_by, i.attempt,
                                 i.xmax <> '0' as is_touched
                            from pgq.job i
                           where i.slot = p_slot and i.lane = l.id
                             and i.pos > coalesce(f.swept, f.base, 0)
                           order by i.pos limit coalesce(f.size, 1000)
                      ) j
           ) w
     where f.n is not null or w.jobs > 0;
end
$$;
comment on function pgq._spans(smallint, timestamptz) is
'For ticks: the lanes of a slot of the ring that have a position or jobs.';

create function pgq._set_positions(p_slot smallint, p_spans pgq.span[], p_writer bigint)
returns void
language plpgsql
as $$
declare
    v_mark constant bigint := coalesce(pg_sequence_last_value('pgq.number'), 0);
    v_old constant bigint := coalesce(pg_sequence_last_value('pgq.xid_old'), 0);
begin
    if pgq._is_filling(p_slot) or p_spans = '{}' then
        return;
    end if;
    insert into pgq.floor (slot, n, lane, floor, base, mark, mark_xid, swept)
    select p_slot, nextval('pgq.floor_n'), s.lane, n.floor, n.base, n.mark, n.xid, s.swept_next
      from unnest(p_spans) s
      left join lateral (
              select j.pos from pgq.job j
               where j.slot = p_slot and j.lane = s.lane and j.pos > s.floor and j.token is null
               order by j.pos limit 1
           ) ready on true,
           lateral (
               -- No writer is left: decided, if there is a position.
               select pgq._is_decided(s.xid, pg_current_snapshot(), v_old) as for_floor,
                      coalesce(p_writer >= s.xid, s.xid is not null) as for_base
           ) d,
           lateral (
               select case when d.for_base and s.swept is null
                           then least(s.live - 1, s.mark) else s.base end as base
           ) b,
           lateral (
               select coalesce(least(s.free - 1, greatest(b.base, case
                          when d.for_floor then least(s.mark, ready.pos - 1)
                          else s.floor end)), 0) as floor,
                      coalesce(b.base, 0) as base,
                      case when s.xid is null or (d.for_floor and d.for_base)
                           then v_mark else s.mark end as mark,
                      case when s.xid is null or (d.for_floor and d.for_base)
                           then null else s.xid end as xid
           ) n
     where s.xid is null
        or (n.floor, n.base, s.swept_next) is distinct from (s.floor, s.base, s.swept)
        -- Else positions stand still at a mark below jobs that nobody claims.
        or (s.live > s.mark and n.mark > s.mark);
exception
    -- The block is for its subtransaction, as in pgq._raise_floor_0.
    when lock_not_available then
        return;
end
$$;
comment on function pgq._set_positions(smallint, pgq.span[], bigint) is
'Raises the positions of a slot, or lowers floors; for ticks.

p_writer was read before the spans.';
