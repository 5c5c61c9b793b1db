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
comment on type pgq.obstacle is 'A row of pgq_obstacles.';

create type pgq.open_job as (
    lane bigint,
    id bigint,
    xid xid
);
comment on type pgq.open_job is 'For pgq._open_jobs.';

create function pgq._open_jobs(p_slot smallint)
returns setof pgq.open_job
language plpgsql
stable
as $$
declare
    v_near constant bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
begin
    -- x is the only id of these 32 bits that may be at work. To ask for one that is still to come,
    -- as a lock of several looks, would be an error.
    return query execute format(
        'select j.lane, j.id, j.xmax from (select distinct o.id from pgq.lane o) l, lateral ('
        ' select i.lane, i.id, i.xmax from pgq.job_%1$s i'
        ' where i.lane = l.id and ($1 or i.pos > coalesce(('
        ' select f.base from pgq.floor_%1$s f where f.lane = l.id order by f.n desc limit 1), 0))'
        ' order by i.pos limit 10000) j, lateral ('
        ' select $2 + ((j.xmax::text::bigint - $2 + 2147483648) & 4294967295) - 2147483648'
        ' as xid) x'
        ' where j.xmax <> ''0'' and case when age(j.xmax) > 0 and x.xid > 2'
        ' then pg_xact_status(x.xid::text::xid8) = ''in progress'' end', p_slot
    ) using p_slot >= 4, v_near;
end
$$;
comment on function pgq._open_jobs(smallint) is
'Returns the jobs of a slot that an open transaction has claimed or locked.

Also those that it has ended. Of the first ten thousand of each lane, with its id or that of a
subtransaction.';

create function pgq._holders()
returns setof pgq.obstacle
language plpgsql
as $$
begin
    return query
    with writer as materialized (
        -- Who writes to which slot or locks jobs there, by all ids: also those of subtransactions
        -- that go on.
        select s, w.virtualtransaction as vxid, w.pid, x.transactionid
          from unnest(pgq._readable_slots()) s
          join pg_locks w on w.relation = format('pgq.job_%s', s)::regclass
                         and w.mode in ('RowShareLock', 'RowExclusiveLock')
          join pg_locks x on x.virtualtransaction = w.virtualtransaction
                         and x.locktype = 'transactionid' and x.mode = 'ExclusiveLock'
         where w.database = (select d.oid from pg_database d where d.datname = current_database())
    ), open as (
        select pgq._queue_of(o.lane) as queue_id, o.id, h.vxid, h.pid
          from (select distinct w.s from writer w) t, pgq._open_jobs(t.s) o
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
    -- A head that has ended is deleted in the ring and in its line.
    select o.queue_id, 'transaction', count(distinct o.id), null, min(o.id), null, null, o.pid,
           p.gid, coalesce(a.xact_start, p.prepared), null::timestamptz
      from open o
      left join pg_stat_activity a on a.pid = o.pid
      left join pg_prepared_xacts p on p.transaction in (
                    select w.transactionid from writer w where w.vxid = o.vxid
                )
     group by o.queue_id, o.pid, a.xact_start, p.gid, p.prepared;
end
$$;
comment on function pgq._holders() is
'The open and prepared transactions that have claimed, ended or locked jobs.';

create function pgq._waits_in_groups(p_now timestamptz)
returns setof pgq.obstacle
language plpgsql
as $$
begin
    return query
    select pgq._queue_of(w.lane), 'group', w.jobs, w.group_key, h.id,
           coalesce(a.state, s.state), coalesce(a.worker, j.worker), j.pid, null,
           coalesce(a.finished_at, j.claimed_at, h.enqueued_at),
           case s.state when 'active' then j.lease_expires_at when 'scheduled' then h.run_at end
      from (
               select f.group_id, count(*) as jobs, min(f.group_key) as group_key,
                      min(f.lane) as lane
                 from (
                          select i.group_id, i.group_key::text, i.lane from pgq.job i
                           where i.slot in (4, 5) and i.place is not null and i.is_head is null
                           limit 10000
                      ) f
                group by f.group_id
           ) w,
           lateral (
               select i.* from pgq.job i
                where i.slot in (4, 5) and i.group_id = w.group_id and i.is_head
           ) h
      left join pgq.job j on j.id = h.id and j.slot in (0, 1, 2, 3)
      left join pgq.archive a on a.id = h.id,
           lateral (
               select case when h.is_blocked then 'dead'
                           when j.id is not null then pgq._state_of(j, p_now)
                           else pgq._state_of(h, p_now) end as state
           ) s
     where s.state in ('active', 'scheduled', 'dead');
end
$$;
comment on function pgq._waits_in_groups(timestamptz) is
'The jobs for which others of their group wait.';

create function pgq._waits_after(p_now timestamptz)
returns setof pgq.obstacle
language plpgsql
as $$
begin
    return query
    select d.queue_id, 'after', d.jobs, null, d.on_id, s.state, case when s.may then j.worker end,
           case when s.may then j.pid end, null, case when s.may then s.since end,
           case when s.may then s.until end
      from (
               select w.on_id, pgq._queue_of(w.lane) as queue_id, count(*) as jobs
                 from (select d.on_id, d.lane from pgq.dependency d limit 1000) w
                group by 1, 2
           ) d
     cross join lateral pgq._find(d.on_id) j
      left join pgq.archive a on a.id = d.on_id
     cross join lateral (
               select coalesce(a.state, pgq._state_of(j, p_now)) as state,
                      coalesce(a.finished_at, j.claimed_at, j.enqueued_at) as since,
                      case when j.token is null then j.run_at else j.lease_expires_at end as until,
                      pgq._may(coalesce(
                          pgq._queue_of(j.lane),
                          (select q.id from pgq.queue q
                            where a.queue = q.name and a.id > q.first_job)
                      ), 'observe') as may
           ) s
     where s.state in ('active', 'scheduled', 'dead', 'cancelled');
end
$$;
comment on function pgq._waits_after(timestamptz) is
'The jobs that have to complete before others.';

create function pgq._obstacles()
returns setof pgq.obstacle
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
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
    -- As in pgq._find.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return query
        select o.*
          from (
                   select q.id as queue_id, 'rate_limit', null::bigint, null, null::bigint, null,
                          null, null::integer, null, null::timestamptz,
                          to_timestamp((
                              (m.last + 1) * extract(epoch from q.rate_interval) / q.rate_limit
                          )::double precision)
                     from pgq.queue q, lateral (
                              select pgq._moment(q, v_now) as last, pgq._burst(q) as burst
                          ) m
                    where q.rate_limit > 0 and m.burst <= (
                              select count(distinct s.moment) from pgq.start s
                               where s.queue_id = q.id and s.moment > m.last - m.burst
                                 and s.moment <= m.last
                          )
                    union all
                   select f.* from unnest(v_found) f
               ) o
         where pgq._may(o.queue_id, 'observe');
end
$$;
comment on function pgq._obstacles() is 'For the view pgq_obstacles.';

create view @extschema@.pgq_obstacles as
select q.name as queue, o.cause, o.jobs, o.group_key, o.job_id, o.state, o.worker, o.pid,
       o.transaction, o.since, o.until
  from pgq._obstacles() o
  join pgq.queue q on q.id = o.queue_id;
comment on view @extschema@.pgq_obstacles is
'What the jobs of a queue wait for, beside what pgq_queues shows.

pgq_queues shows a pause and max_active. This view has one row for each other cause, and for each
job or transaction that is in the way. It shows the queues that the caller may observe. It looks
at the first 10,000 jobs that wait in groups, the first 1,000 that come after others, and the
first 10,000 of each priority in each slot.

* cause rate_limit: nothing starts before until.
* cause group: job_id is of the same group, and active, scheduled or (with group_on_dead =>
  block) dead.
* cause after: job_id has to complete first, and is active, scheduled, dead or cancelled.
* cause transaction: an open transaction (pid) or a prepared one (transaction) has claimed, ended
  or locked jobs; job_id is the first of them. Without either it is not known which transaction.
* jobs: how many jobs wait.
* since: when the job was claimed, else enqueued, or has ended; or when the transaction began.
* until: when the lease of the job expires, or the job is due.';
