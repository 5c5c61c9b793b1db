/*
 * Public: pgq_obstacles, what jobs of a queue wait for.
 *
 * Like the other views it waits for nobody and leaves no lock on a slot. It looks at the first
 * thousands only, so that it costs the same however many jobs there are.
 */

create type pgq.obstacle as (
    queue_id integer,
    cause text,
    jobs bigint,
    group_key text,
    job_id bigint,
    state text,
    worker text,
    pid integer,
    transaction text,
    since timestamptz,
    until timestamptz
);
comment on type pgq.obstacle is 'a row of pgq_obstacles';

create function pgq._exhausted(p_now timestamptz)
returns setof pgq.obstacle
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return query
    select q.id, 'rate_limit', null::bigint, null, null::bigint, null, null, null::integer, null,
           null::timestamptz,
           to_timestamp((
               (m.last + 1) * extract(epoch from q.rate_interval) / q.rate_limit
           )::double precision)
      from pgq.queue q, lateral (select pgq._moment(q, p_now) as last, pgq._burst(q) as burst) m
     where q.rate_limit > 0
       and m.burst <= (
               select count(distinct s.moment) from pgq.start s
                where s.queue_id = q.id and s.moment > m.last - m.burst and s.moment <= m.last
           );
end
$$;
comment on function pgq._exhausted(timestamptz) is
'the queues whose rate limit lets nothing start now, and until when';

create function pgq._open_jobs(p_slot smallint)
returns table (lane integer, id bigint, xid xid)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
{index_scans}
as $$
declare
    v_near constant bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
begin
    case p_slot
    --@ each slot
    when {slot} then
        return query
        select j.lane, j.id, j.xmax
          from pgq.lane l,
               lateral (
                   select j.lane, j.id, j.xmax from pgq.job_{slot} j
                    where j.lane = l.id and j.{key} > {base}
                    order by j.{key}
                    limit 10000
               ) j,
               lateral (
                   -- The only one of these 32 bits that may be at work.
                   select v_near + ((j.xmax::text::bigint - v_near + 2147483648) & 4294967295)
                          - 2147483648 as xid
               ) x
         where j.xmax <> '0'
           -- Of one that is still to come, as a lock of several looks, it would be an error to ask.
           and case when age(j.xmax) > 0 and x.xid > 2
                    then pg_xact_status(x.xid::text::xid8) = 'in progress' end;
    --@ end
    end case;
end
$$;
comment on function pgq._open_jobs(smallint) is
'the jobs among the first ten thousand of each lane in a slot that an open transaction has '
'claimed, ended or locked, and its id or that of a subtransaction';

create function pgq._holders()
returns setof pgq.obstacle
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return query
    with writer as materialized (
        -- Who writes to which slot, by all ids: also those of subtransactions that go on.
        select s, w.virtualtransaction as vxid, w.pid, x.transactionid
          from unnest(pgq._readable_slots()) s
          join pg_locks w on w.relation = format('pgq.job_%s', s)::regclass
                         and w.mode = 'RowExclusiveLock'
          join pg_locks x on x.virtualtransaction = w.virtualtransaction
                         and x.locktype = 'transactionid' and x.mode = 'ExclusiveLock'
         where w.database = (select d.oid from pg_database d where d.datname = current_database())
    ), open as (
        select l.queue_id, o.id, h.vxid, h.pid
          from (select distinct w.s from writer w) t, pgq._open_jobs(t.s) o
          join pgq.lane l on l.id = o.lane
          left join lateral (
                   -- Of a subtransaction that has ended only its job is left. It is of whoever
                   -- writes there, if that is one.
                   select min(w.vxid) as vxid, min(w.pid) as pid
                     from writer w
                    where w.s = t.s
                      and (w.transactionid = o.xid or not exists (
                              select from writer i where i.transactionid = o.xid
                          ))
                   having count(distinct w.vxid) = 1
               ) h on true
    )
    select o.queue_id, 'transaction', count(*), null, min(o.id), null, null, o.pid, p.gid,
           coalesce(a.xact_start, p.prepared), null::timestamptz
      from open o
      left join pg_stat_activity a on a.pid = o.pid
      left join pg_prepared_xacts p on o.pid is null and p.transaction in (
                    select w.transactionid from writer w where w.vxid = o.vxid
                )
     group by o.queue_id, o.pid, a.xact_start, p.gid, p.prepared;
end
$$;
comment on function pgq._holders() is
'the open and prepared transactions that have claimed, ended or locked jobs';

create function pgq._waits_in_groups(p_now timestamptz)
returns setof pgq.obstacle
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
begin
    return query
    select l.queue_id, 'group', w.jobs, w.group_key, j.id, s.state, j.worker, j.pid, null,
           coalesce(j.claimed_at, j.enqueued_at),
           case s.state when 'active' then j.lease_expires_at else j.run_at end
      from (
               select f.group_id, count(*) as jobs, min(f.group_key) as group_key,
                      min(f.lane) as lane
                 from (
                          select j.group_id, j.group_key::text, j.lane from pgq.job j
                           where j.wait is not null and j.group_id is not null limit 10000
                      ) f
                group by f.group_id
           ) w
      join pgq.lane l on l.id = w.lane,
           lateral (
               select j.* from pgq.job j where j.group_id = w.group_id and j.wait is null offset 0
           ) j,
           lateral (select {state} as state) s
     where s.state in ('active', 'scheduled');
    return query
    select b.queue_id, 'group', w.jobs, w.group_key, b.job_id, 'dead', a.worker, null::integer,
           null, a.finished_at, null::timestamptz
      from (select b.* from pgq.group_block b limit 1000) b
      left join pgq.archive a on a.id = b.job_id and a.state = 'dead',
           lateral (
               select count(*) as jobs, min(f.group_key) as group_key
                 from (
                          select j.group_key::text from pgq.job j
                           where j.group_id = b.group_id and j.wait is not null limit 1000
                      ) f
           ) w
     where w.jobs > 0;
end
$$;
comment on function pgq._waits_in_groups(timestamptz) is
'the jobs for which others of their group wait';

create function pgq._waits_after(p_now timestamptz)
returns setof pgq.obstacle
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
begin
    return query
    select d.queue_id, 'after', d.jobs, null, d.on_id, s.state, case when s.may then j.worker end,
           case when s.may then j.pid end, null, case when s.may then s.since end,
           case when s.may then s.until end
      from (
               select w.on_id, l.queue_id, count(*) as jobs
                 from (select d.on_id, d.lane from pgq.dependency d limit 1000) w
                 join pgq.lane l on l.id = w.lane
                group by w.on_id, l.queue_id
           ) d
     cross join lateral pgq._find_at_once(d.on_id) j
      left join pgq.archive a on a.id = d.on_id and a.state <> 'completed'
     cross join lateral (
               select coalesce(a.state, {state}) as state,
                      coalesce(a.finished_at, j.claimed_at, j.enqueued_at) as since,
                      case when j.token is null then j.run_at else j.lease_expires_at end as until,
                      pgq._may_observe(coalesce(
                          (select l.queue_id from pgq.lane l where l.id = j.lane),
                          (select q.id from pgq.queue q where {its_queue})
                      )) as may
           ) s
     where s.since is not null and s.state in ('active', 'scheduled', 'dead', 'cancelled');
end
$$;
comment on function pgq._waits_after(timestamptz) is
'the jobs that have to complete before others';

create function pgq._obstacles()
returns setof pgq.obstacle
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pgq._now();
    v_found pgq.obstacle[];
begin
    v_found := array(select h from pgq._holders() h);
    if pgq._try_read('pgq.job') then
        v_found := v_found || array(select w from pgq._waits_in_groups(v_now) w)
            || array(select w from pgq._waits_after(v_now) w);
    end if;
    -- As in pgq._live_keys.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return query
        select o.*
          from (
                   select e.* from pgq._exhausted(v_now) e
                    union all
                   select f.* from unnest(v_found) f
               ) o
         where pgq._may_observe(o.queue_id);
end
$$;
comment on function pgq._obstacles() is 'for the view pgq_obstacles';

create view @extschema@.pgq_obstacles as
select q.name as queue, o.cause, o.jobs, o.group_key, o.job_id, o.state, o.worker, o.pid,
       o.transaction, o.since, o.until
  from pgq._obstacles() o
  join pgq.queue q on q.id = o.queue_id;
comment on view @extschema@.pgq_obstacles is
'What jobs of the queues that the caller may observe wait for, beside what pgq_queues shows (a '
'pause, max_active). One row for each cause and job or transaction; jobs: how many wait. cause: '
'rate_limit: nothing starts until then; group: job_id of the same group is active, scheduled or '
'(with group_on_dead => block) dead; after: job_id has to complete first, and is active, '
'scheduled, dead or cancelled; transaction: one that is open (pid) or prepared (transaction) has '
'claimed, ended or locked jobs, job_id the first of them; without either it is not known which '
'one. since: when the job was claimed, else enqueued, or has ended, or the transaction began. '
'until: when its lease expires, or it is due. Of many, the first: 10000 jobs that wait in a group, '
'1000 that come after others, 10000 of each priority in each slot.';
