/*
 * What a tick does in a slot of the ring: leases that have expired are taken back, jobs that have
 * not started in time die, positions are set. See core/tick.sql.
 */

create function pgq._loss(p_job pgq.job)
returns text
language sql
stable
begin atomic
    select format('lease expired at %s (attempt %s, worker %s)', p_job.lease_expires_at,
                  p_job.attempt, coalesce(left(p_job.worker, 200), 'unnamed'));
end;
comment on function pgq._loss(pgq.job) is 'The last_error of a job whose lease has expired.';

create function pgq._end_leases(p_slot smallint, p_ids bigint[])
returns void
language plpgsql
as $$
declare
    v_lane bigint; v_jobs integer; v_pos bigint; v_id bigint;
    v_job pgq.job;
begin
    -- The first lease in a row: ready again, where it is.
    for v_lane, v_jobs, v_pos in execute format(
        'with freed as ('
        ' update pgq.job_%s j'
        ' set token = null, lease_expires_at = null, worker = null, lost = 1,'
        ' last_error = pgq._loss(j), history = pgq._remember(j, pgq._loss(j))'
        ' from pgq.queue q'
        ' where j.id = any ($1) and q.id = pgq._queue_of(j.lane)'
        ' and j.lost = 0 and j.cancel_requested is null'
        ' and j.attempt < coalesce(j.max_attempts, q.max_attempts)'
        ' returning j.lane, j.pos)'
        ' select f.lane, count(*), min(f.pos) from freed f group by f.lane',
        p_slot
    ) using p_ids
    loop
        perform pgq._count_ends(v_lane, 0, v_jobs), pgq._lower_floor(p_slot, v_lane, v_pos),
                pgq._wake_lane(v_lane);
    end loop;
    -- The others are tried again after the backoff, or they are dead or cancelled.
    for v_id in execute format(
        'select j.id from pgq.job_%s j where j.id = any ($1) and j.token is not null', p_slot
    ) using p_ids
    loop
        v_job := pgq._remove(p_slot, v_id);
        v_job.lost := (v_job.lost + 1)::smallint;
        perform pgq._put_back(v_job, null, pgq._loss(v_job), true);
    end loop;
end
$$;
comment on function pgq._end_leases(smallint, bigint[]) is
'Ends the leases of locked jobs, which have expired.';

create function pgq._try_line(p_id bigint, p_group_id bigint)
returns boolean
language plpgsql
as $$
begin
    if p_group_id is null then
        return true;
    end if;
    perform from pgq.job j where j.slot in (4, 5) and j.id = p_id for update skip locked;
    return found;
end
$$;
comment on function pgq._try_line(bigint, bigint) is
'Locks the row in the line of a job that is to end, without waiting; for ticks.

True for a job of no group.';

create function pgq._reclaim(p_slot smallint, p_ids bigint[], p_now timestamptz)
returns bigint[]
language plpgsql
as $$
declare
    v_ids bigint[];
begin
    execute format(
        'select array(select i.id from unnest($1) e (id), lateral ('
        ' select i.id, i.group_id from pgq.job_%s i where i.id = e.id and i.lease_expires_at <= $2'
        ' for update skip locked) i where e.id <> all ($3) and pgq._try_line(i.id, i.group_id))',
        p_slot
    ) into v_ids using p_ids, p_now, pgq._skips('job')::bigint[];
    return pgq._do_each('reclaim', v_ids::text[], p_slot)::bigint[];
end
$$;
comment on function pgq._reclaim(smallint, bigint[], timestamptz) is
'Takes back those of these leases that have expired; returns the ids of the jobs.';

create function pgq._bury(p_slot smallint, p_ids bigint[], p_now timestamptz)
returns void
language plpgsql
as $$
begin
    perform pgq._do_each('bury', array(
        select i.id::text
          from unnest(p_ids) e (id), lateral (
                   select i.id, i.group_id from pgq.job i
                    where i.slot = p_slot and i.id = e.id and i.token is null
                      and i.start_by <= p_now and i.attempt = 0
                      for update skip locked
               ) i
         where e.id <> all ((select pgq._skips('job'))::bigint[])
           and pgq._try_line(i.id, i.group_id)
    ), p_slot);
end
$$;
comment on function pgq._bury(smallint, bigint[], timestamptz) is
'Makes jobs dead that have not started in time.';

create function pgq._sweep(p_slot smallint, p_now timestamptz, p_writer bigint)
returns void
language plpgsql
as $$
declare
    v_spans constant pgq.span[] := array(select s from pgq._spans(p_slot, p_now) s);
    -- At random: what others have locked, or is skipped, must not stand before the rest for ever.
    v_expired constant bigint[] := array(
        select e from unnest(v_spans) s, unnest(s.expired) e order by random() limit 1000
    );
    v_overdue constant bigint[] := array(
        select o from unnest(v_spans) s, unnest(s.overdue) o order by random() limit 1000
    );
begin
    perform pgq._reclaim(p_slot, v_expired, p_now), pgq._bury(p_slot, v_overdue, p_now),
            pgq._set_positions(p_slot, v_spans, p_writer);
end
$$;
comment on function pgq._sweep(smallint, timestamptz, bigint) is
'Does what is due in a slot of the ring, and sets its positions.';
