/*
 * The other half of feature/after.sql: what the end of a job does for those that wait for it.
 */

create function pgq._release_waiters(p_slot smallint, p_ids bigint[], p_completed boolean)
returns void
language plpgsql
as $$
declare
    v_waiters bigint[];
begin
    with done as (
        delete from pgq.dependency d
         where d.ctid = any (array(
                   select o.ctid from pgq.dependency o
                    where o.on_id = any (p_ids) and (p_completed or o.on_dead = 'run')
                      for update skip locked
               ))
        returning d.job_id
    )
    select array_agg(distinct d.job_id) into v_waiters from done d;
    perform pgq._note(p_slot, 'w', v_waiters, null);
    insert into pgq.hint (kind, key)
    select 'e', case when p_completed then i else -i end from unnest(p_ids) i
     where exists (
               select from pgq.dependency d
                where d.on_id = i and (p_completed or d.on_dead = 'run')
           );
end
$$;
comment on function pgq._release_waiters(smallint, bigint[], boolean) is
'Notes who waits for jobs that have completed, or died, and ends that waiting.';

create function pgq._tell_waiters(
    p_slot smallint, p_ids bigint[], p_lanes bigint[], p_completed boolean
)
returns void
language plpgsql
as $$
begin
    if not pgq._read_committed() then
        -- The snapshot may not show all who wait.
        insert into pgq.hint (kind, key)
        select 'e', case when p_completed then i else -i end from unnest(p_ids) i;
        perform pgq._wake_lane(l) from unnest(p_lanes) l;
        return;
    end if;
    perform pgq._release_waiters(p_slot, p_ids, p_completed);
    perform pgq._note(p_slot, 'w', array_agg(distinct -d.job_id), null)
       from pgq.dependency d where d.on_id = any (p_ids) and d.on_dead = 'die' and not p_completed;
end
$$;
comment on function pgq._tell_waiters(smallint, bigint[], bigint[], boolean) is
'Notes the jobs that wait for jobs of these lanes that have ended.';

create function pgq._drop_dependencies(p_job_ids bigint[])
returns void
language plpgsql
as $$
begin
    delete from pgq.dependency d
     where d.ctid = any (array(
               select o.ctid from pgq.dependency o
                where o.job_id = any (p_job_ids) for update skip locked
           ));
end
$$;
comment on function pgq._drop_dependencies(bigint[]) is 'These jobs wait for nobody any more.';

create function pgq._is_forsaken(p_job_id bigint)
returns boolean
language plpgsql
as $$
declare
    -- The dead one may have been retried since.
    v_ended constant bigint[] := array(
        select d.on_id from pgq.dependency d
         where d.job_id = p_job_id and d.on_dead = 'die' and (pgq._find(d.on_id)).id is null
    );
begin
    -- With a snapshot taken after those looks: of one that has completed it shows that nobody waits
    -- for it, or that a tick will see to that.
    return exists (
        select from pgq.dependency d
         where d.job_id = p_job_id and d.on_id = any (v_ended)
           and not exists (select from pgq.hint h where h.key = d.on_id and h.kind = 'e')
    );
end
$$;
comment on function pgq._is_forsaken(bigint) is
'Whether a job waits, and does not want to, for one that is dead.';

create function pgq._turn_waiters(p_keys bigint[])
returns void
language plpgsql
as $$
declare
    v_key bigint;
    v_job pgq.job;
begin
    -- Below zero: a job that it waits for has died.
    for v_key in select distinct k from unnest(p_keys) k order by k loop
        v_job := pgq._find(abs(v_key));
        continue when v_job.id is null or not pgq._waits_for_jobs(v_job);
        if v_key < 0 then
            continue when not pgq._is_forsaken(v_job.id);
        else
            continue when exists (select from pgq.dependency d where d.job_id = v_key);
        end if;
        if (pgq._lock(v_job.slot, v_job.id, true)).id is null then
            -- Somebody is about to cancel, replace or move it.
            insert into pgq.hint (kind, key) values ('w', v_key);
        elsif v_key < 0 then
            perform pgq._put_back(
                pgq._remove(v_job.slot, v_job.id), null, 'a job that it was to run after is dead',
                false
            );
        else
            v_job := pgq._remove(v_job.slot, v_job.id);
            perform pgq._park(v_job, coalesce(v_job.run_at, pgq._now()), v_job.run_at is not null);
        end if;
    end loop;
end
$$;
comment on function pgq._turn_waiters(bigint[]) is
'Makes waiting jobs ready, or dead, if it is time; their buckets are locked.';

create function pgq._take_end_hints()
returns void
language plpgsql
as $$
declare
    v_head constant smallint := pgq._head_slot(); v_keys bigint[];
begin
    with taken as (
        delete from pgq.hint h where h.kind = 'e' returning h.key
    )
    select array_agg(t.key) into v_keys from taken t;
    -- First: who is not waited for any more kills nobody.
    perform pgq._release_waiters(v_head, v_keys, true),
            pgq._release_waiters(v_head, array(select -k from unnest(v_keys) k), false);
    insert into pgq.hint (kind, key)
    select 'w', -d.job_id from unnest(v_keys) k join pgq.dependency d on d.on_id = -k;
end
$$;
comment on function pgq._take_end_hints() is
'For ticks: who waits for jobs that ended when that could not be looked up.';
