/*
 * What a tick does in a slot of the ring: leases that have expired are taken back, jobs that have
 * not started in time die, positions are set. See core/tick.sql.
 */

create function pgq._take_back(p_slot smallint, p_id bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_job pgq.job := pgq._remove(p_slot, p_id);
begin
    v_job.lost := least(v_job.lost + 1, 32767)::smallint;
    perform pgq._put_back(
        v_job, case when v_job.lost = 1 then interval '0' end, pgq._loss(v_job), true
    );
end
$$;
comment on function pgq._take_back(smallint, bigint) is
'Ends the expired lease of a locked job: the job is tried again after the backoff, or it is dead '
'or cancelled.';

create function pgq._loss(p_job pgq.job)
returns text
language sql
stable
begin atomic
    select format('lease expired at %s (attempt %s, worker %s)', p_job.lease_expires_at,
                  p_job.attempt, coalesce(left(p_job.worker, 200), 'unnamed'));
end;
comment on function pgq._loss(pgq.job) is 'The last_error of a job whose lease has expired.';

create function pgq._free(p_slot smallint, p_ids bigint[], p_now timestamptz)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ids bigint[]; v_lane bigint; v_freed bigint[]; v_pos bigint;
begin
    for v_lane, v_freed, v_pos in execute format(
        'with freed as ('
        ' update pgq.job_%1$s j'
        ' set token = null, lease_expires_at = null, worker = null, lost = 1,'
        ' last_error = pgq._loss(j)'
        ' where j.id = any (array('
        ' select i.id from unnest($1) e (id), lateral ('
        ' select i.id from pgq.job_%1$s i join pgq.queue q on q.id = pgq._queue_of(i.lane)'
        ' where i.id = e.id and i.lease_expires_at <= $2'
        ' and i.lost = 0 and i.cancel_requested is null'
        ' and i.attempt < coalesce(i.max_attempts, q.max_attempts)'
        ' for update of i skip locked) i))'
        ' returning j.lane, j.id, j.pos)'
        ' select f.lane, array_agg(f.id), min(f.pos) from freed f group by f.lane',
        p_slot
    ) using p_ids, p_now
    loop
        v_ids := v_ids || v_freed;
        perform pgq._count_ends(v_lane, 0, cardinality(v_freed)),
                pgq._lower(p_slot, v_lane, v_pos), pgq._wake_lane(v_lane);
    end loop;
    return v_ids;
end
$$;
comment on function pgq._free(smallint, bigint[], timestamptz) is
'Makes jobs ready again, where they are, whose first lease in a row has expired. Returns the ids.';

create function pgq._reclaim(p_slot smallint, p_ids bigint[], p_now timestamptz)
returns setof bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_skips text[] := pgq._skips('job');
    v_job record;
begin
    for v_try in 1..10 loop
        begin
            v_job := null;
            return query select unnest(pgq._free(p_slot, p_ids, p_now));
            for v_job in
                select l.id, l.lane
                  from unnest(p_ids) e (id), pgq._lock(p_slot, e.id, true) l
                 where l.lease_expires_at <= p_now and l.id::text <> all (v_skips)
            loop
                perform pgq._take_back(p_slot, v_job.id);
                return next v_job.id;
            end loop;
            return;
        exception
            when internal_error or program_limit_exceeded or insufficient_resources
                or data_exception or integrity_constraint_violation
            then
                if v_job is null then
                    raise;
                end if;
                v_skips := v_skips
                    || pgq._skip('job', v_job.id::text, v_job.lane, sqlstate, sqlerrm);
        end;
    end loop;
end
$$;
comment on function pgq._reclaim(smallint, bigint[], timestamptz) is
'Takes back those of these leases that have expired, and returns the ids of their jobs.';

create function pgq._bury(p_slot smallint, p_ids bigint[], p_now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_skips text[] := pgq._skips('job');
    v_job record;
begin
    for v_try in 1..10 loop
        begin
            v_job := null;
            for v_job in
                select i.id, i.lane
                  from unnest(p_ids) e (id), lateral (
                           select i.id, i.lane from pgq.job i
                            where i.slot = p_slot and i.id = e.id and i.token is null
                              and i.start_by <= p_now and i.attempt = 0
                              for update skip locked
                       ) i
                 where i.id::text <> all (v_skips)
            loop
                perform pgq._put_back(pgq._remove(p_slot, v_job.id), null, 'expired', false);
            end loop;
            return;
        exception
            when internal_error or program_limit_exceeded or insufficient_resources
                or data_exception or integrity_constraint_violation
            then
                if v_job is null then
                    raise;
                end if;
                v_skips := v_skips
                    || pgq._skip('job', v_job.id::text, v_job.lane, sqlstate, sqlerrm);
        end;
    end loop;
end
$$;
comment on function pgq._bury(smallint, bigint[], timestamptz) is
'Makes jobs dead that have not started in time.';

create function pgq._sweep(p_slot smallint, p_now timestamptz, p_writer bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_spans constant pgq.span[] := array(select s from pgq._spans(p_slot, p_now) s);
    v_expired constant bigint[] := array(
        select e from unnest(v_spans) s, unnest(s.expired) e limit 1000
    );
    v_overdue constant bigint[] := array(
        select o from unnest(v_spans) s, unnest(s.overdue) o limit 1000
    );
begin
    perform from pgq._reclaim(p_slot, v_expired, p_now) where v_expired <> '{}';
    perform pgq._bury(p_slot, v_overdue, p_now) where v_overdue <> '{}';
    perform pgq._set_positions(p_slot, v_spans, p_writer);
end
$$;
comment on function pgq._sweep(smallint, timestamptz, bigint) is
'Does what is due in a slot of the ring, and sets its positions.';
