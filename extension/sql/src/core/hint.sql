/*
 * What a tick does for commits that could not decide: see core/commit.sql, and pgq.hint.
 */

create function pgq._some_hints(p_kind "char", p_skips text[])
returns bigint[]
language plpgsql
as $$
declare
    -- Any: what is locked or fails again must not stand before the others for ever. Of more than
    -- 10,000 those from some page on.
    v_from constant tid
        := format('(%s,0)', floor(random() * pg_relation_size('pgq.hint') / 8192))::tid;
begin
    return array(
        select distinct a.key
          from (
                   select h.key
                     from (
                              select u.key
                                from (
                                         select o.* from pgq.hint o where o.ctid >= v_from
                                          union all
                                         select o.* from pgq.hint o where o.ctid < v_from
                                     ) u
                               where u.kind = p_kind
                                 -- Of waiting jobs a key may be minus the id.
                                 and case p_kind when 'g' then u.key else abs(u.key) end
                                     <> all (p_skips::bigint[])
                               limit 10000
                          ) h
                    order by random() limit 1000
               ) a
    );
end
$$;
comment on function pgq._some_hints("char", text[]) is
'The keys of up to 1000 hints of a kind, without what is skipped.';

create function pgq._take_group_hints(p_groups bigint[])
returns void
language plpgsql
as $$
declare
    v_turn record;
begin
    with taken as (
        delete from pgq.hint h where h.key = any (p_groups) and h.kind = 'g' returning h.*
    )
    select array_agg(g.key) as groups, array_agg(bigint '0') as ended, array_agg(g.place) as added
      into v_turn
      from (select t.key, min(t.place) as place from taken t group by t.key) g;
    perform pgq._turn_groups(v_turn.groups, v_turn.ended, v_turn.added);
end
$$;
comment on function pgq._take_group_hints(bigint[]) is
'Has groups go on of which hints tell; their buckets are locked.

A hint does not say where something has ended: so the look begins where the line does (0).';

create function pgq._take_hints()
returns void
language plpgsql
as $$
begin
    if not exists (select from pgq.hint) then
        return;
    end if;
    -- Twice: whoever commits now may still know the old group_concurrency.
    insert into pgq.hint (kind, key)
    select distinct "char" 'g', j.group_id
      from pgq.hint h, pgq.job j
     where h.kind = 'q' and j.slot in (4, 5) and pgq._is_of(j.lane, h.key)
       and j.place is not null;
    delete from pgq.hint h where h.kind = 'q' and h.place = 0;
    update pgq.hint h set place = 0 where h.kind = 'q';
    perform pgq._take_lease_hints(pgq._now()), pgq._take_end_hints();
    perform pgq._hint(pgq._notes());
    perform pgq._do_each(
                'group', pgq._try_buckets(pgq._some_hints('g', pgq._skips('group')))::text[]
            ), pgq._do_each(
                'waiter', pgq._try_buckets(pgq._some_hints('w', pgq._skips('job')))::text[]
            );
end
$$;
comment on function pgq._take_hints() is 'Decides what could not be decided at a commit.';

create function pgq._take_lease_hints(p_now timestamptz)
returns void
language plpgsql
as $$
declare
    v_ids constant bigint[] := pgq._some_hints('l', '{}');
begin
    perform pgq._reclaim(l.slot, l.ids, p_now)
       from (
                select j.slot, array_agg(j.id) as ids
                  from pgq.job j
                 where j.id = any (v_ids) and j.slot in (0, 1, 2, 3)
                 group by j.slot
            ) l;
    -- Not of what is locked or fails: that is tried again.
    delete from pgq.hint h
     where h.kind = 'l' and h.key = any (v_ids) and not exists (
               select from pgq.job j
                where j.id = h.key and j.slot in (0, 1, 2, 3) and j.token is not null
           );
end
$$;
comment on function pgq._take_lease_hints(timestamptz) is
'Takes back what pgq_claim has leased, which may lie far above the floor.';

create function pgq._empty_hints()
returns void
language plpgsql
as $$
declare
    v_hints pgq.hint[];
begin
    if pg_relation_size('pgq.hint') > 1048576 then
        lock table pgq.hint in access exclusive mode nowait;
        v_hints := array(select h from pgq.hint h limit 10000);
        if cardinality(v_hints) < 10000 then
            truncate pgq.hint;
            insert into pgq.hint select h.* from unnest(v_hints) h;
        end if;
    end if;
exception
    when lock_not_available or object_in_use then
        return;
end
$$;
comment on function pgq._empty_hints() is
'Removes dead versions of hints while few are left, under any xmin horizon.';
