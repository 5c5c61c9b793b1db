/*
 * Truncation. Claims stop looking into a slot of the ring (it leaves ring.ready) when it seems to
 * hold no job. A later tick locks it in ACCESS EXCLUSIVE mode; no transaction that added a job can
 * be open then. A look in a snapshot taken after the lock decides: no row, then TRUNCATE. Nothing
 * else may tell that a slot is empty: no counter, flag or age.
 *
 * While pg_dump is at work nothing is truncated.
 */

create function pgq._slot_table(p_slot integer)
returns regclass
language sql
stable
begin atomic
    select format('pgq.job_%s', p_slot)::regclass;
end;
comment on function pgq._slot_table(integer) is 'The table of a slot.';

create function pgq._has_jobs(p_slot smallint, p_are_ready boolean default false)
returns boolean
language plpgsql
as $$
begin
    if p_slot >= 4 then
        -- The statistics only spare a look.
        return pg_stat_get_live_tuples(pgq._slot_table(p_slot)) > 100
            or exists (select from pgq.job j where j.slot = p_slot);
    end if;
    return exists (
        select
          from pgq.lane l, lateral (
                   select from pgq.job j
                    where j.slot = p_slot and j.lane = l.id and (j.token is null or not p_are_ready)
                      and j.pos > coalesce((
                              select case when p_are_ready then f.floor else f.base end
                                from pgq.floor f
                               where f.slot = p_slot and f.lane = l.id order by f.n desc limit 1
                          ), 0)
                    order by j.pos limit 1
               ) j
    );
end
$$;
comment on function pgq._has_jobs(smallint, boolean) is
'Says whether a slot seems to hold jobs.

In the ring from the bases on, or with p_are_ready any that nobody leases, from the floors on.';

create function pgq._truncate(p_slot smallint)
returns boolean
language plpgsql
as $$
declare
    v_found boolean;
begin
    -- Before the lock, too, which would make a parallel dump fail.
    if pgq._is_dumped() then
        return false;
    end if;
    execute format(
        'lock table pgq.job_%1$s, pgq.floor_%1$s, pgq.note_%1$s, pgq.hold_%1$s'
        ' in access exclusive mode nowait', p_slot
    );
    execute format('select exists (select from pgq.job_%s)', p_slot) into v_found;
    if v_found then
        -- It has come just now, or a position was wrong: claims and ticks look at all of it again.
        insert into pgq.floor (slot, n, lane, floor, base, mark)
        select p_slot, nextval('pgq.floor_n'), f.lane, 0, 0, 0
          from (select distinct o.lane from pgq.floor o where o.slot = p_slot) f;
        return false;
    end if;
    if pgq._is_dumped() then
        return false;
    end if;
    execute format(
        'truncate pgq.job_%1$s, pgq.floor_%1$s, pgq.note_%1$s, pgq.hold_%1$s', p_slot
    );
    return true;
exception
    -- Somebody has used the table and is not done, or this session has a cursor open on it.
    when lock_not_available or object_in_use then
        return false;
end
$$;
comment on function pgq._truncate(smallint) is
'Empties a slot that holds no job. False: it does, or somebody uses it.';

create function pgq._has_only_short_users(p_slot smallint, p_now timestamptz)
returns boolean
language plpgsql
as $$
begin
    return not exists (
        select
          from pg_locks l left join pg_stat_activity a on a.pid = l.pid
         where l.relation = any (array[
                   pgq._slot_table(p_slot), format('pgq.note_%s', p_slot)::regclass
               ])
           and l.database = (select d.oid from pg_database d where d.datname = current_database())
           and l.pid is distinct from pg_backend_pid()
           and (a.xact_start > p_now - interval '100 ms') is not true
    );
end
$$;
comment on function pgq._has_only_short_users(smallint, timestamptz) is
'Whether all who have locks on a slot have begun a moment ago.';

create function pgq._truncate_parked(p_slot smallint, p_now timestamptz)
returns boolean
language plpgsql
set lock_timeout = '10ms'
as $$
begin
    -- Under load there is always a commit that looks at the lines of groups: one waits for those.
    if pgq._is_dumped() or not pgq._has_only_short_users(p_slot, p_now) then
        return false;
    end if;
    execute format('lock table pgq.job_%1$s, pgq.note_%1$s in access exclusive mode', p_slot);
    return pgq._truncate(p_slot);
exception
    when lock_not_available or deadlock_detected then
        return false;
end
$$;
comment on function pgq._truncate_parked(smallint, timestamptz) is
'Truncates a parked slot as pgq._truncate does.

It waits for 10 ms where only short transactions use the slot.';
