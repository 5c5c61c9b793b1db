/*
 * Claim positions: what only ticks do to them, for all lanes of a slot. See 32_floor.sql.
 */

create function pgq._lower_bases(p_slot smallint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
set enable_sort = off
as $$
begin
    case p_slot
    --@ each parked
    when {slot} then
        insert into pgq.floor_{slot} (n, lane, floor, base, mark)
        select nextval('pgq.floor_n'), f.lane, j.due - 1, j.due - 1, j.due - 1
          from pgq.lane l,
               lateral (
                   select f.* from pgq.floor_{slot} f where f.lane = l.id order by f.n desc limit 1
               ) f,
               lateral (
                   select j.due from pgq.job_{slot} j
                    where j.lane = l.id and j.due is not null and j.due <= f.base
                    order by j.due limit 1
               ) j;
    --@ end
    end case;
end
$$;
comment on function pgq._lower_bases(smallint) is
'makes claims in a parked slot start from the first job in it';

create function pgq._find_admitted()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_number constant bigint := coalesce(pg_sequence_last_value('pgq.admission'), 0);
    v_is_open boolean;
begin
    if v_number = coalesce(pg_sequence_last_value('pgq.admission_seen'), 0) then
        return;
    end if;
    -- Before the snapshots in which the slots are looked at.
    v_is_open := exists (
        select from pg_locks l
         where l.relation = 'pgq.gate'::regclass and l.mode = 'RowExclusiveLock'
           and l.database = (select d.oid from pg_database d where d.datname = current_database())
    );
    perform pgq._lower_bases(s) from unnest(pgq._slots()) s where s >= 4;
    if not v_is_open then
        perform setval('pgq.admission_seen', v_number);
    end if;
end
$$;
comment on function pgq._find_admitted() is
'finds the jobs that were put below a claim position of a parked slot because the clock had been '
'set back; called by each tick';

create function pgq._oldest_writers()
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_near constant bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
begin
    return array(
        select w.xid
          from generate_series(0, 5) slot
          left join (
                  select t.relation, min(pgq._full_xid(x.transactionid, v_near)) as xid
                    from pg_locks t
                    join pg_locks x on x.virtualtransaction = t.virtualtransaction
                   where t.locktype = 'relation' and t.mode = 'RowExclusiveLock'
                     and t.database = (select d.oid from pg_database d
                                        where d.datname = current_database())
                     and x.locktype = 'transactionid' and x.mode = 'ExclusiveLock'
                   group by t.relation
               ) w on w.relation = format('pgq.job_%s', slot)::regclass
         order by slot
    );
end
$$;
comment on function pgq._oldest_writers() is
'per slot the id of the oldest running or prepared transaction that has written to it, or waits to '
'do so, or null';

create function pgq._raise_base(p_slot smallint, p_before bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
{nested_loops}
set enable_sort = off
as $$
begin
    case p_slot
    --@ each slot
    when {slot} then
        insert into pgq.floor_{slot} (n, lane, floor, base, mark, mark_xid)
        select nextval('pgq.floor_n'), f.lane, f.floor, b.base, f.mark,
               coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax))
          from pgq._snapshot() s,
               pgq.lane l,
               lateral (
                   select f.*, f.xmin from pgq.floor_{slot} f
                    where f.lane = l.id order by f.n desc limit 1
               ) f,
               lateral (
                   select f.mark from pgq.floor_{slot} f
                    where f.lane = l.id
                      and coalesce(f.mark_xid, pgq._full_xid(f.xmin, s.xmax)) < p_before
                    order by f.n desc limit 1
               ) o
          left join lateral (
                  select j.{key} from pgq.job_{slot} j
                   where j.lane = l.id and j.{key} > f.base order by j.{key} limit 1
               ) live (key) on true,
               lateral (select least(o.mark, f.floor, live.key - 1) as base offset 0) b
         where b.base > f.base;
    --@ end
    end case;
end
$$;
comment on function pgq._raise_base(smallint, bigint) is
'raises the bases of a slot though old transactions are running, if those that have written to it '
'are not older than p_before';

create function pgq._raise_bases()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_old constant bigint := coalesce(pg_sequence_last_value('pgq.xid_old'), 0);
    v_writers bigint[];
begin
    if pg_snapshot_xmin(pg_current_snapshot())::text::bigint < v_old then
        -- Before the snapshots in which the slots are looked at.
        v_writers := pgq._oldest_writers();
        perform pgq._raise_base(s, least(v_old, v_writers[s + 1])) from unnest(pgq._slots()) s;
    end if;
end
$$;
comment on function pgq._raise_bases() is
'called by each tick: claims cannot raise the bases while an old transaction is running anywhere';
