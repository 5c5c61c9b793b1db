/*
 * What happens to waiting jobs when one that they wait for has ended: see 38_after.sql.
 *
 * Nobody waits for an open transaction: rows of pgq.dependency that others have locked are left
 * alone. If the other one completes the job that was waited for, it deletes the row. If it cancels
 * the job that waits, the row is looked at again by the ticks, until it is gone.
 */

create function pgq._release_waiters(p_ids bigint[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
declare
    v_waiters bigint[]; v_lanes integer[];
begin
    with done as (
        delete from pgq.dependency d
         where d.ctid = any (array(
                   select o.ctid from pgq.dependency o
                    where o.on_id = any (p_ids) for update skip locked
               ))
        returning d.job_id, d.lane
    )
    select array_agg(d.job_id), array_agg(d.lane) into v_waiters, v_lanes
      from (select distinct d.job_id, d.lane from done d) d;
    perform pgq._note_waiters(v_waiters, v_lanes);
    insert into pgq.waiter_hint (job_id, lane)
    select i, 0 from unnest(p_ids) i
     where exists (select from pgq.dependency d where d.on_id = i);
end
$$;
comment on function pgq._release_waiters(bigint[]) is
'notes those who wait for jobs that have completed, and that they wait for those no more';

create function pgq._forsake_waiters(p_ids bigint[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
{index_scans}
as $$
begin
    perform pgq._note_waiters(array_agg(-d.job_id), array_agg(d.lane))
       from (select distinct d.job_id, d.lane from pgq.dependency d
              where d.on_id = any (p_ids) and d.on_dead = 'die') d;
end
$$;
comment on function pgq._forsake_waiters(bigint[]) is
'notes those who do not want to wait for jobs that are dead';

create function pgq._drop_dependencies(p_job_ids bigint[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
{index_scans}
as $$
begin
    delete from pgq.dependency d
     where d.ctid = any (array(
               select o.ctid from pgq.dependency o
                where o.job_id = any (p_job_ids) for update skip locked
           ));
end
$$;
comment on function pgq._drop_dependencies(bigint[]) is 'these jobs wait for nobody any more';

create function pgq._tell_waiters(p_ids bigint[], p_lanes integer[], p_completed boolean)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if not pgq._read_committed() then
        -- The snapshot may not show all who wait.
        insert into pgq.waiter_hint (job_id, lane)
        select case when p_completed then i else -i end, 0 from unnest(p_ids) i;
        perform pgq._wake_lane(l) from unnest(p_lanes) l;
    elsif p_completed then
        perform pgq._release_waiters(p_ids);
    else
        perform pgq._forsake_waiters(p_ids);
    end if;
end
$$;
comment on function pgq._tell_waiters(bigint[], integer[], boolean) is
'called with jobs of these lanes that have ended and for which others wait: those are noted';

create function pgq._note_awaited(p_jobs pgq.job[], p_completed boolean)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_awaited constant bigint[] := array(select j.id from unnest(p_jobs) j where j.is_awaited);
begin
    perform pgq._drop_dependencies(array(
        select j.id from unnest(p_jobs) j where j.wait is not null and j.group_id is null
    ));
    perform pgq._tell_waiters(
                v_awaited, array(select distinct j.lane from unnest(p_jobs) j), p_completed
            )
      where v_awaited <> '{}';
end
$$;
comment on function pgq._note_awaited(pgq.job[], boolean) is
'called with jobs that have ended: whoever waited for one is noted, and they wait for nobody';

create function pgq._kill_waiter(p_job_id bigint, p_lane integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
{index_scans}
as $$
declare
    v_job pgq.job := pgq._find(p_job_id);
    v_ended bigint[];
begin
    if v_job.wait is null or v_job.group_id is not null then
        perform pgq._drop_dependencies(array[p_job_id]);
        return;
    end if;
    -- The dead one may have been retried since, those that have completed left to the next tick.
    v_ended := array(
        select d.on_id from pgq.dependency d
         where d.job_id = p_job_id and d.on_dead = 'die' and (pgq._find(d.on_id)).id is null
    );
    -- With a snapshot taken after those looks, which shows of one that has completed that nobody
    -- waits for it, or that this is left to the next tick.
    if v_job.lane <> p_lane or not exists (
        select from pgq.dependency d
         where d.job_id = p_job_id and d.on_dead = 'die' and d.on_id = any (v_ended)
           and not exists (
                   select from pgq.waiter_hint h where h.job_id = d.on_id and h.lane = 0
               )
    ) then
        return;
    end if;
    v_job := pgq._lock(v_job.slot, p_lane, p_job_id, true);
    if v_job.id is null then
        insert into pgq.waiter_hint (job_id, lane) values (-p_job_id, p_lane);
        return;
    end if;
    perform pgq._remove(v_job.slot, p_lane, p_job_id);
    perform pgq._put_back(v_job, null, 'a job that it was to run after is dead', false);
end
$$;
comment on function pgq._kill_waiter(bigint, integer) is
'makes a waiting job dead, now or (somebody has it locked) at the next tick';

create function pgq._kill_waiters(p_job_ids bigint[], p_lanes integer[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_skips text[] := pgq._skips('job');
    v_waiter record;
begin
    for v_try in {tries} loop
        begin
            v_waiter := null;
            for v_waiter in
                select distinct w.* from unnest(p_job_ids, p_lanes) w (id, lane)
                 where w.id::text <> all (v_skips)
            loop
                perform pgq._kill_waiter(v_waiter.id, v_waiter.lane);
            end loop;
            exit;
        exception
            when {fault_of_one} then
                if v_waiter is null then
                    raise;
                end if;
                v_skips := v_skips
                    || pgq._skip('job', v_waiter.id::text, v_waiter.lane, sqlstate, sqlerrm);
        end;
    end loop;
    insert into pgq.waiter_hint (job_id, lane)
    select -w.id, w.lane from unnest(p_job_ids, p_lanes) w (id, lane)
     where w.id::text = any (v_skips);
end
$$;
comment on function pgq._kill_waiters(bigint[], integer[]) is
'pgq._kill_waiter for many; those with which it fails are left to later ticks';

create function pgq._turn_waiters(p_job_ids bigint[], p_lanes integer[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
as $$
declare
    v_ids bigint[]; v_lanes integer[];
    v_us bigint;
    v_ready record;
begin
    perform pgq._kill_waiters(array_agg(-w.id), array_agg(w.lane))
       from unnest(p_job_ids, p_lanes) w (id, lane) where w.id < 0 having count(*) > 0;
    select array_agg(w.id), array_agg(w.lane)
      into v_ids, v_lanes
      from (select distinct w.* from unnest(p_job_ids, p_lanes) w (id, lane)) w
     where w.id > 0 and not exists (select from pgq.dependency d where d.job_id = w.id);
    --@ each parked
    v_us := pgq._us(pgq._open_slot({slot}::smallint));
    for v_ready in with ready as (
        update pgq.job_{slot} j
           set wait = null, due = greatest(pgq._us(j.run_at), v_us) + j.id {spread}
         where j.ctid = any (array(
                   select i.ctid from unnest(v_ids, v_lanes) w (id, lane), lateral (
                       select o.ctid from pgq.job_{slot} o
                        where o.lane = w.lane and o.id = w.id and o.wait is not null
                          and o.group_id is null
                          for update skip locked
                   ) i
               ))
        returning j.lane, j.due
    )
    select r.lane, min(r.due) as due from ready r group by r.lane
    loop
        perform pgq._admit({slot}::smallint, v_ready.lane, v_ready.due);
        perform pgq._wake_lane(v_ready.lane);
    end loop;
    --@ end
    -- Somebody is about to cancel, replace or move them.
    insert into pgq.waiter_hint (job_id, lane)
    select w.id, w.lane
      from unnest(v_ids, v_lanes) w (id, lane), lateral (
               --@ each parked
               select j.id from pgq.job_{slot} j
                where j.lane = w.lane and j.id = w.id and j.wait is not null
                  and j.group_id is null
               union all
               --@ end
               select null where false
           ) j;
end
$$;
comment on function pgq._turn_waiters(bigint[], integer[]) is
'makes those of these waiting jobs ready, or dead, of which it is time; their buckets are locked';

create function pgq._take_waiter_hints()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_locked bigint[];
    v_ids bigint[]; v_lanes integer[];
begin
    v_locked := array(
        select l from pgq._lock_groups(
            array(
                select distinct abs(h.job_id) from pgq.waiter_hint h
                 where abs(h.job_id)::text <> all ((select pgq._skips('job'))::text[])
                 limit 1000
            ), true
        ) l
    );
    if v_locked = '{}' then
        return;
    end if;
    with taken as (
        delete from pgq.waiter_hint h where abs(h.job_id) = any (v_locked) returning h.*
    )
    select array_agg(t.job_id), array_agg(t.lane) into v_ids, v_lanes from taken t;
    -- First: who is not waited for any more kills nobody.
    perform pgq._release_waiters(array(
        select w.id from unnest(v_ids, v_lanes) w (id, lane) where w.lane = 0 and w.id > 0
    ));
    perform pgq._turn_waiters(
        array_agg(w.id) filter (where w.lane <> 0), array_agg(w.lane) filter (where w.lane <> 0)
    ) from unnest(v_ids, v_lanes) w (id, lane);
    perform pgq._forsake_waiters(array(
        select -w.id from unnest(v_ids, v_lanes) w (id, lane) where w.lane = 0 and w.id < 0
    ));
end
$$;
comment on function pgq._take_waiter_hints() is
'for ticks: waiting jobs that could not be looked at when a transaction committed';
