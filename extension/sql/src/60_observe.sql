/*
 * What the views show of queues and workers, counted without waiting for anybody: tables that are
 * small are read as a whole, of others the first thousand jobs of each lane and a sample of pages.
 *
 * The functions run with the rights of the owner, for the views below, and show what the caller may
 * observe. No lock on a slot outlives them. A slot that somebody has locked against readers is left
 * out: maintenance does so for the moment in which it empties one.
 */

create function pgq._try_read(p_relation regclass)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('lock table %s in access share mode nowait', p_relation);
    return true;
exception
    when lock_not_available then
        return false;
end
$$;
comment on function pgq._try_read(regclass) is
'locks a table for reading; false if it would have to wait';

create function pgq._readable_slots()
returns smallint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        -- The parked ones in any case, as in pgq._held_permits.
        select distinct s from unnest(pgq._slots() || '{4,5}'::smallint[]) s
         where pgq._try_read(format('pgq.job_%s', s)::regclass)
           and pgq._try_read(format('pgq.floor_%s', s)::regclass)
    );
end
$$;
comment on function pgq._readable_slots() is
'locks the slots that may hold jobs for reading and returns them; of those, which can be had at '
'once';

create function pgq._size_of(p_relation regclass)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_size bigint;
begin
    if pgq._try_read(p_relation) then
        v_size := case when pg_relation_size(p_relation) > 0
                       then pg_total_relation_size(p_relation) else 0 end;
    end if;
    -- As in pgq._live_keys.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return v_size;
end
$$;
comment on function pgq._size_of(regclass) is
'bytes of a table with its indexes, 0 if it has no rows; null if somebody has locked it against '
'readers';

create function pgq._may_observe(p_queue_id integer)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    {check_restricted};
    return {is_owner} or pgq._may(p_queue_id, 'observe');
end
$$;
comment on function pgq._may_observe(integer) is
'whether the caller may see a queue, or (null) all of them';

--@ define state
case when j.token is not null then 'active'
                             when j.wait is not null or j.lease_expires_at = 'infinity'
                             then 'waiting'
                             when j.run_at > p_now then 'scheduled'
                             else 'ready' end
--@ end

create type pgq.tally as (
    lane integer,
    state text,
    jobs bigint,
    estimated boolean
);
comment on type pgq.tally is 'how many jobs of a lane are in a state';

create function pgq._tally_all(p_slot smallint, p_now timestamptz, p_percent real)
returns setof pgq.tally
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    case p_slot
    --@ each slot
    when {slot} then
        return query
        select j.lane, {state} as state, (count(*) * 100 / p_percent)::bigint, p_percent < 100
          from pgq.job_{slot} j tablesample system (p_percent) repeatable (1)
         group by 1, 2;
    --@ end
    end case;
end
$$;
comment on function pgq._tally_all(smallint, timestamptz, real) is
'the jobs of a slot, from a share of its pages';

create function pgq._tally_first(p_slot smallint, p_now timestamptz)
returns setof pgq.tally
language plpgsql
stable
set search_path = pg_catalog, pg_temp
{index_scans}
as $$
begin
    case p_slot
    --@ each slot
    when {slot} then
        return query
        select l.id, f.state, count(*), false
          from pgq.lane l,
               lateral (
                   select {state} as state
                     from pgq.job_{slot} j
                    where j.lane = l.id and j.{key} > {base}
                    order by j.{key}
                    limit 1000
               ) f
         group by l.id, f.state;
    --@ end
    end case;
end
$$;
comment on function pgq._tally_first(smallint, timestamptz) is
'the first thousand jobs of each lane in a slot; waiting ones in parked slots are not among them';

create function pgq._tally_few(p_slot smallint, p_now timestamptz)
returns setof pgq.tally
language plpgsql
stable
set search_path = pg_catalog, pg_temp
{index_scans}
as $$
begin
    case p_slot
    --@ each parked
    when {slot} then
        return query
        select t.lane, t.state, t.jobs, false
          from (
                   select l.id as lane, f.state, count(*) as jobs,
                          sum(count(*)) over (partition by l.id) as all_jobs
                     from pgq.lane l,
                          lateral (
                              select {state} as state
                                from pgq.job_{slot} j where j.lane = l.id order by j.id limit 1000
                          ) f
                    group by l.id, f.state
               ) t
         where t.all_jobs < 1000;
    --@ end
    else
    end case;
end
$$;
comment on function pgq._tally_few(smallint, timestamptz) is
'all jobs of each lane in a parked slot that has less than a thousand there';

create function pgq._tally_slot(p_slot smallint, p_now timestamptz)
returns setof pgq.tally
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_pages constant bigint := pg_relation_size(format('pgq.job_%s', p_slot)::regclass) / 8192;
begin
    if v_pages <= 512 then
        return query select t.* from pgq._tally_all(p_slot, p_now, 100) t;
        return;
    end if;
    -- Who has less than a thousand jobs is counted. Active ones come first.
    return query
    with few as materialized (
        select t.* from pgq._tally_few(p_slot, p_now) t
    ), sampled as (
        select t.* from pgq._tally_all(p_slot, p_now, (100.0 * 256 / v_pages)::real) t
         where not exists (select from few o where o.lane = t.lane)
    ), first as (
        select t.*, o.all_jobs >= 1000 and (t.state <> 'active' or t.jobs = o.all_jobs) as more,
               o.all_jobs >= 1000 as cut
          from (
                   select f.*, sum(f.jobs) over (partition by f.lane) as all_jobs
                     from pgq._tally_first(p_slot, p_now) f
                    where not exists (select from few o where o.lane = f.lane)
               ) o, lateral (select o.lane, o.state, o.jobs) t
    )
    select t.* from few t
     union all
    select coalesce(f.lane, s.lane), coalesce(f.state, s.state),
           case when f.more then greatest(f.jobs, s.jobs) else coalesce(f.jobs, s.jobs) end,
           coalesce(f.more, true)
      from first f
      full join sampled s on s.lane = f.lane and s.state = f.state
     where f.lane is not null or s.state = 'waiting'
        or exists (select from first o where o.lane = s.lane and o.cut and s.state <> 'active');
end
$$;
comment on function pgq._tally_slot(smallint, timestamptz) is 'the jobs of a slot';

create function pgq._tally(p_now timestamptz)
returns setof pgq.tally
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slots smallint[];
    v_tallies pgq.tally[];
begin
    v_slots := pgq._readable_slots();
    v_tallies := array(
        select t from unnest(v_slots) s, pgq._tally_slot(s, p_now) t
         union all
        select row(l.id, 'ready', 0, true)::pgq.tally from pgq.lane l
         where not pgq._slots() <@ v_slots
    );
    -- As in pgq._live_keys.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return query select t.* from unnest(v_tallies) t;
end
$$;
comment on function pgq._tally(timestamptz) is 'all live jobs by lane and state';

create function pgq._times(
    p_queue_id integer, p_now timestamptz, out since timestamptz, out next_due timestamptz
)
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
set enable_sort = off
as $$
declare
    v_us constant bigint := pgq._us(p_now);
    v_slots smallint[];
    v_max integer;
    v_slot smallint;
begin
    v_slots := pgq._readable_slots();
    select q.max_attempts into v_max from pgq.queue q where q.id = p_queue_id;
    select min(pgq._oldest(s, l.id, p_now, v_max, false)) into since
      from pgq.lane l, unnest(v_slots) s where l.queue_id = p_queue_id;
    foreach v_slot in array v_slots loop
        case v_slot
        --@ each parked
        when {slot} then
            next_due := least(next_due, (
                select min(d.run_at)
                  from pgq.lane l,
                       lateral (
                           select j.run_at from pgq.job_{slot} j
                            where j.lane = l.id and j.due > v_us and j.run_at > p_now
                              and j.lease_expires_at is null
                            order by j.due limit 1
                       ) d
                 where l.queue_id = p_queue_id
            ));
        --@ end
        else
        end case;
    end loop;
    -- As in pgq._live_keys.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return;
end
$$;
comment on function pgq._times(integer, timestamptz) is
'since when the oldest ready job of a queue has been ready, and when the next scheduled one is due';
