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
'Locks a table for reading; false if it would have to wait.';

create function pgq._readable_slots()
returns smallint[]
language plpgsql
as $$
begin
    return array(
        select s::smallint from generate_series(0, 5) s
         where pgq._try_read(pgq._slot_table(s))
           and pgq._try_read(format('pgq.floor_%s', s)::regclass)
    );
end
$$;
comment on function pgq._readable_slots() is
'Locks for reading those slots that can be had at once, and returns them.';

create function pgq._size_of(p_relation regclass)
returns bigint
language plpgsql
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
'Returns the bytes of a table with its indexes, 0 if it has no rows.

Null if somebody has locked it against readers.';

create type pgq.tally as (
    lane bigint,
    state text,
    jobs bigint,
    estimated boolean
);
comment on type pgq.tally is 'How many jobs of a lane are in a state.';

create function pgq._tally_pages(p_slot smallint, p_now timestamptz, p_percent real)
returns setof pgq.tally
language plpgsql
stable
as $$
begin
    return query execute format(
        'select j.lane, pgq._state_of(j, $1), (count(*) * 100 / $2)::bigint, $2 < 100'
        ' from pgq.job_%s j tablesample system ($2) repeatable (1) group by 1, 2', p_slot
    ) using p_now, p_percent;
end
$$;
comment on function pgq._tally_pages(smallint, timestamptz, real) is
'The jobs of a slot, from a share of its pages.';

create function pgq._tally_first(p_slot smallint, p_now timestamptz)
returns setof pgq.tally
language plpgsql
stable
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    -- On the slot itself: a plan over pgq.job would lock all, and wait.
    return query execute format(
        'select l.id, f.state, f.jobs, sum(f.jobs) over (partition by l.id) = 1000'
        ' from (select distinct o.id from pgq.lane o) l, lateral ('
        ' select i.state, count(*) as jobs from ('
        ' select pgq._state_of(j, $1) as state from pgq.job_%1$s j'
        ' where j.lane = l.id%s limit 1000) i'
        ' group by i.state) f', p_slot,
        case when p_slot >= 4 then ' order by j.id'
             else format(
                      ' and j.pos > coalesce((select o.base from pgq.floor_%s o'
                      ' where o.lane = l.id order by o.n desc limit 1), 0) order by j.pos', p_slot
                  ) end
    ) using p_now;
end
$$;
comment on function pgq._tally_first(smallint, timestamptz) is
'The first thousand jobs of each lane in a slot. estimated: there may be more.';

create function pgq._tally_slot(p_slot smallint, p_now timestamptz)
returns setof pgq.tally
language plpgsql
stable
as $$
declare
    v_pages constant bigint := pg_relation_size(pgq._slot_table(p_slot)) / 8192;
begin
    if v_pages <= 512 then
        return query select t.* from pgq._tally_pages(p_slot, p_now, 100) t;
    else
        return query
        with first as materialized (
            select t.* from pgq._tally_first(p_slot, p_now) t
        ), many as (
            select t.* from pgq._tally_pages(p_slot, p_now, (100.0 * 256 / v_pages)::real) t
             where exists (select from first f where f.lane = t.lane and f.estimated)
        )
        select coalesce(f.lane, m.lane), coalesce(f.state, m.state), greatest(f.jobs, m.jobs),
               coalesce(f.estimated, true)
          from first f full join many m on m.lane = f.lane and m.state = f.state;
    end if;
end
$$;
comment on function pgq._tally_slot(smallint, timestamptz) is
'Counts the jobs of a slot where it is small, or a lane has less than a thousand.

In the snapshot of the statement that calls it, in which a job that is moved is in one place.';

create function pgq._tally(p_now timestamptz)
returns setof pgq.tally
language plpgsql
as $$
declare
    v_slots smallint[];
    v_tallies pgq.tally[];
begin
    v_slots := pgq._readable_slots();
    v_tallies := array(
        select t from unnest(v_slots) s, pgq._tally_slot(s, p_now) t where t.state <> 'copied'
         union all
        select row(l.id, 'ready', 0, true)::pgq.tally from pgq.lane l
         where not (
                   select array_remove(r.live || r.parked || r.filling, null) <@ v_slots
                     from pgq.ring r order by r.gen desc limit 1
               )
    );
    -- As in pgq._find.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return query select t.* from unnest(v_tallies) t;
end
$$;
comment on function pgq._tally(timestamptz) is 'All live jobs by lane and state.';

create function pgq._first_due(p_slot smallint)
returns table (lane bigint, run_at timestamptz)
language plpgsql
stable
as $$
begin
    case p_slot
    --@ each parked
    when {slot} then
        return query
        select j.lane, j.run_at from pgq.job_{slot} j
         where j.due is not null order by j.due limit 10000;
    --@ end
    end case;
end
$$;
comment on function pgq._first_due(smallint) is
'The jobs of a parked slot that fall due next.';

create function pgq._times(p_now timestamptz)
returns table (queue_id integer, since timestamptz, next_due timestamptz)
language plpgsql
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_slots smallint[];
    v_times jsonb;
begin
    v_slots := pgq._readable_slots();
    v_times := (
        select jsonb_agg(jsonb_build_array(t.queue_id, t.since, t.next_due))
          from (
                   select pgq._queue_of(u.lane) as queue_id, min(u.since) as since,
                          min(u.next_due) as next_due
                     from (
                              select l.id as lane, pgq._oldest(s, l.id) as since,
                                     null::timestamptz as next_due
                                from (select distinct o.id from pgq.lane o) l, unnest(v_slots) s
                               where s < 4 and pg_relation_size(pgq._slot_table(s)) > 0
                               union all
                              select d.lane, case when d.run_at <= p_now then d.run_at end,
                                     case when d.run_at > p_now then d.run_at end
                                from unnest(v_slots) s, pgq._first_due(s) d
                               where s >= 4
                          ) u
                    group by 1
               ) t
    );
    -- As in pgq._find.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return query
        select (t ->> 0)::integer, (t ->> 1)::timestamptz, (t ->> 2)::timestamptz
          from jsonb_array_elements(v_times) t;
end
$$;
comment on function pgq._times(timestamptz) is
'Returns per queue since when its oldest ready job is ready, and the next due.

Of the ten thousand scheduled jobs that fall due next in each slot.';

create function pgq._leased(p_slot smallint)
returns setof pgq.job
language plpgsql
stable
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    return query execute format(
        'select j.* from (select distinct o.id from pgq.lane o) l, lateral ('
        ' select i.* from pgq.job_%1$s i'
        ' where i.lane = l.id and i.pos > coalesce(('
        ' select f.base from pgq.floor_%1$s f where f.lane = l.id order by f.n desc limit 1), 0)'
        ' order by i.pos limit 10000) j'
        ' where j.token is not null', p_slot
    );
end
$$;
comment on function pgq._leased(smallint) is
'The active jobs among the first ten thousand of each lane in a slot of the ring.';
