/*
 * What a tick does for commits that could not decide: see core/commit.sql, and pgq.hint.
 */

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
