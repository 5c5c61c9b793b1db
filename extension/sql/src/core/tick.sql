/*
 * Ticks: expired leases, what falls due, rotation, retention. A tick runs about twice a second for
 * all sessions together, and when the next job is due: an ordinary call queues it for its commit,
 * see core/commit.sql. So none of its locks outlives the commit.
 *
 * A tick waits for nothing: rows are locked with SKIP LOCKED, tables with NOWAIT, and what fails is
 * tried again by the next tick. It runs under READ COMMITTED only: each statement needs a snapshot
 * of its own.
 */

create function pgq._want_tick(p_lease_ms integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant bigint := pgq._ms(pgq._now());
    v_next constant bigint := coalesce(pg_sequence_last_value('pgq.next_tick'), 0);
begin
    if pgq._has_lost_tokens() then
        perform pgq._skip_lost_tokens();
    elsif v_now < v_next and v_next <= v_now + 1000 then
        -- A short lease that is granted now is looked for when it expires.
        perform setval('pgq.next_tick', v_now + p_lease_ms + 1)
          where v_now + p_lease_ms + 1 < v_next;
        return;
    end if;
    if pgq._read_committed() then
        -- At once, so that not everybody queues one; a rollback does not take that back.
        perform setval('pgq.next_tick', v_now + least(p_lease_ms + 1, 500));
        insert into pgq.chore default values;
    end if;
end
$$;
comment on function pgq._want_tick(integer) is
'Queues a tick for the commit if one is due.';

create function pgq._expect(p_at timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform setval('pgq.next_tick', greatest(pgq._ms(p_at), 1))
      where pgq._ms(p_at) < pg_sequence_last_value('pgq.next_tick');
end
$$;
comment on function pgq._expect(timestamptz) is 'Has the next tick come when a job falls due.';

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
    v_ids bigint[];
    v_lane record;
begin
    for v_lane in with freed as (
        update pgq.job j
           set token = null, lease_expires_at = null, worker = null, lost = 1,
               last_error = pgq._loss(j)
         where j.slot = p_slot and j.id = any (array(
                   select i.id
                     from unnest(p_ids) e (id), lateral (
                              select i.id
                                from pgq.job i join pgq.queue q on q.id = pgq._queue_of(i.lane)
                               where i.slot = p_slot and i.id = e.id and i.lease_expires_at <= p_now
                                 and i.lost = 0 and i.cancel_requested is null
                                 and i.attempt < coalesce(i.max_attempts, q.max_attempts)
                                 for update of i skip locked
                          ) i
               ))
        returning j.lane, j.id, j.pos
    )
    select f.lane, array_agg(f.id) as ids, min(f.pos) as pos from freed f group by f.lane
    loop
        v_ids := v_ids || v_lane.ids;
        perform pgq._count_ends(v_lane.lane, 0, cardinality(v_lane.ids)),
                pgq._lower(p_slot, v_lane.lane, v_lane.pos), pgq._wake_lane(v_lane.lane);
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
                select i.id, i.lane
                  from unnest(p_ids) e (id), lateral (
                           select i.id, i.lane from pgq.job i
                            where i.slot = p_slot and i.id = e.id and i.lease_expires_at <= p_now
                              for update skip locked
                       ) i
                 where i.id::text <> all (v_skips)
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
        p_job.dedupe_queue_id, p_job.group_key, p_job.checkpoint
    )::pgq.job;
end;
comment on function pgq._relocated(pgq.job, smallint, bigint, bigint) is
'A job as it is stored in another slot.';

create function pgq._promote_jobs(p_slot smallint, p_ids bigint[], p_head smallint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_row pgq.job;
    v_lane bigint;
begin
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
         where j.slot = p_slot and j.id = any (p_ids) and j.place is not null order by j.due, j.id
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
set search_path = pg_catalog, pg_temp
as $$
declare
    v_skipped constant bigint[] := array(
        select s.key::bigint from pgq.skipped s where s.kind = 'job'
    );
    v_ids constant bigint[] := array(
        select i.id from pgq.job i
         where i.slot = p_slot and i.due <= pgq._us(p_now) and i.id <> all (v_skipped)
           and i.due > coalesce((
                   select f.base from pgq.floor f
                    where f.slot = p_slot and f.lane = 0 order by f.n desc limit 1
               ), 0)
         order by i.due limit 1000 for update skip locked
    );
    v_id bigint;
begin
    begin
        perform pgq._promote_jobs(p_slot, v_ids, p_head) where v_ids <> '{}';
        return cardinality(v_ids);
    exception
        when internal_error or program_limit_exceeded or insufficient_resources
            or data_exception or integrity_constraint_violation
        then
            null;  -- one by one, to find which one it is
    end;
    foreach v_id in array v_ids loop
        begin
            perform pgq._promote_jobs(p_slot, array[v_id], p_head);
        exception
            when internal_error or program_limit_exceeded or insufficient_resources
                or data_exception or integrity_constraint_violation
            then
                perform pgq._skip(
                    'job', v_id::text,
                    (select j.lane from pgq.job j where j.slot = p_slot and j.id = v_id),
                    sqlstate, sqlerrm
                );
        end;
    end loop;
    return cardinality(v_ids);
end
$$;
comment on function pgq._promote(smallint, timestamptz, smallint) is
'Moves up to 1000 jobs of a parked slot that are due to the head of the ring; returns their '
'number.';

create function pgq._set_parked_base(p_slot smallint, p_now timestamptz, p_writer bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgq.floor (slot, n, lane, floor, base, mark)
    select p_slot, nextval('pgq.floor_n'), 0, 0, n.base, pgq._us(p_now)
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
               select coalesce(greatest(f.base, least(live.due - 1, f.mark)), 0) as base
           ) n
     where f.n is null or (coalesce(p_writer >= f.xid, true) and f.mark < pgq._us(p_now));
exception
    -- The block is for its subtransaction, as in pgq._raise_0.
    when lock_not_available then
        return;
end
$$;
comment on function pgq._set_parked_base(smallint, timestamptz, bigint) is
'Raises the base of a parked slot: the mark is the clock, as no job is parked to be due before it.';

create function pgq._next_due(p_slot smallint)
returns timestamptz
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select timestamptz 'epoch' + j.due * interval '1 microsecond'
          from pgq.job j
         where j.slot = p_slot and j.due > coalesce((
                   select f.base from pgq.floor f
                    where f.slot = p_slot and f.lane = 0 order by f.n desc limit 1
               ), 0)
         order by j.due limit 1
    );
end
$$;
comment on function pgq._next_due(smallint) is
'When the next job of a parked slot is due, or null.';

create function pgq._tick_slots(p_now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_writers constant bigint[] := pgq._oldest_writers();
    v_head constant smallint := pgq._head();
    v_slot smallint;
    v_next timestamptz := p_now + interval '500 ms';
begin
    perform pgq._open(v_head);
    foreach v_slot in array '{4,5,0,1,2,3}'::smallint[] loop
        continue when pg_relation_size(format('pgq.job_%s', v_slot)::regclass) = 0;
        if v_slot < 4 then
            perform pgq._sweep(v_slot, p_now, v_writers[v_slot + 1]);
            continue;
        end if;
        if pgq._promote(v_slot, p_now, v_head) = 1000 then
            v_next := p_now + interval '20 ms';
        end if;
        perform pgq._set_parked_base(v_slot, p_now, v_writers[v_slot + 1]);
        v_next := least(v_next, greatest(pgq._next_due(v_slot), p_now + interval '20 ms'));
    end loop;
    perform setval('pgq.next_tick', pgq._ms(v_next));
end
$$;
comment on function pgq._tick_slots(timestamptz) is
'Moves what is due, sweeps the slots, and says when the next tick is due.';

create function pgq._take_hints()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_skips text[] := pgq._skips('job') || pgq._skips('group');
    v_keys bigint[];
    v_hint record;
begin
    if not exists (select from pgq.hint) then
        return;
    end if;
    -- Twice: whoever commits now may still know the old group_concurrency.
    insert into pgq.hint (kind, key)
    select distinct "char" 'g', j.group_id
      from pgq.hint h, pgq.job j
     where h.kind = 'q' and j.slot in (4, 5) and pgq._queue_of(j.lane) = h.key
       and j.place is not null;
    delete from pgq.hint h where h.kind = 'q' and h.place = 0;
    update pgq.hint h set place = 0 where h.kind = 'q';
    perform pgq._take_end_hints();
    perform pgq._hint(pgq._notes());
    for v_try in 1..10 loop
        v_keys := pgq._try_buckets(array(
            select distinct h.key from pgq.hint h
             where h.kind in ('g', 'w')
               and h.key::text <> all (v_skips) limit 1000
        ));
        exit when v_keys = '{}';
        begin
            v_hint := null;
            -- With a snapshot taken after the locks.
            for v_hint in
                with taken as (
                    delete from pgq.hint h
                     where h.key = any (v_keys) and h.kind in ('g', 'w') returning h.*
                )
                select t.kind, t.key, min(t.place) as place from taken t group by 1, 2
                 order by 3, abs(t.key)
            loop
                if v_hint.kind = 'g' then
                    perform pgq._turn_groups(
                        array[v_hint.key], array[bigint '0'], array[v_hint.place], array[1000]
                    );
                else
                    perform pgq._turn_waiters(array[v_hint.key]);
                end if;
            end loop;
            return;
        exception
            when internal_error or program_limit_exceeded or insufficient_resources
                or data_exception or integrity_constraint_violation
            then
                if v_hint is null then
                    raise;
                end if;
                v_skips := v_skips || pgq._skip(
                    case v_hint.kind when 'g' then 'group' else 'job' end, v_hint.key::text, null,
                    sqlstate, sqlerrm
                );
        end;
    end loop;
end
$$;
comment on function pgq._take_hints() is 'Decides what could not be decided at a commit.';

create function pgq._take_lease_hints(p_now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_lease record;
begin
    for v_lease in
        select h.key, j.slot, coalesce(j.lease_expires_at <= p_now, true) as is_over
          from pgq.hint h left join pgq.job j on j.id = h.key and j.slot in (0, 1, 2, 3)
         where h.kind = 'l'
    loop
        continue when not v_lease.is_over;
        perform from pgq._reclaim(v_lease.slot, array[v_lease.key], p_now)
          where v_lease.slot is not null;
        delete from pgq.hint h where h.kind = 'l' and h.key = v_lease.key;
    end loop;
end
$$;
comment on function pgq._take_lease_hints(timestamptz) is
'Takes back what pgq_claim has leased, which may lie far above the floor.';

create function pgq._empty_hints()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if pg_relation_size('pgq.hint') > 1048576 and not exists (select from pgq.hint) then
        lock table pgq.hint in access exclusive mode nowait;
        if not exists (select from pgq.hint) then
            truncate pgq.hint;
        end if;
    end if;
exception
    when lock_not_available or object_in_use then
        return;
end
$$;
comment on function pgq._empty_hints() is 'Truncates pgq.hint when it holds dead versions only.';

create function pgq._tick()
returns void
language plpgsql
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
begin
    perform from pgq.gate g for update skip locked;
    if not found then
        return;
    end if;
    -- What it notes itself becomes hints: it must not wait for a bucket.
    perform set_config('pgq.decided', pg_current_xact_id()::text, true);
    delete from pgq.chore c
     where c.ctid = any (array(select o.ctid from pgq.chore o for update skip locked));
    perform pgq._follow_clock(v_now), pgq._shift_xids(v_now), pgq._forget_skipped(v_now);
    perform pgq._fire_schedules(v_now), pgq._forget_dropped();
    perform pgq._tick_slots(v_now), pgq._take_lease_hints(v_now);
    perform pgq._drop_permits(), pgq._forget_starts(v_now);
    perform pgq._hint(pgq._notes()), pgq._take_hints(), pgq._hint(pgq._notes()),
            pgq._empty_hints();
    perform pgq._rotate(v_now);
    perform pgq._expire_archive(v_now), pgq._merge_lanes(), pgq._fit_samples(), pgq._sum_up(v_now);
end
$$;
comment on function pgq._tick() is 'One tick, unless another session is at it.';
