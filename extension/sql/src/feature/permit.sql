/*
 * What keeps the permits of feature/limits.sql in order: at ticks, and when settings change.
 */

create function pgq._save_permits(p_old pgq.queue, p_new pgq.queue)
returns void
language plpgsql
as $$
declare
    v_active integer := 0;
begin
    -- A first max_active: its active jobs get permits, at most 10000 of them. Newer rows about jobs
    -- that have ended would count instead.
    if p_old.max_active = 0 and p_new.max_active > 0 then
        delete from pgq.hold h where h.queue_id = p_new.id;
        insert into pgq.hold (slot, queue_id, permit, token, id)
        select j.slot, p_new.id, row_number() over (order by j.id), j.token, j.id
          from pgq.job j
         where pgq._is_of(j.lane, p_new.id) and j.token is not null
         order by j.id
         limit 10000;
        get diagnostics v_active = row_count;
    end if;
    insert into pgq.permit (queue_id, kind, n)
    select p_new.id, 'a', n from generate_series(1, greatest(p_new.max_active, v_active)) n
     union all
    select p_new.id, 'r', n
      from generate_series(0, pgq._burst(p_new) - 1) n
     where p_new.rate_limit > 0
    on conflict on constraint permit_pkey do nothing;
    -- Their moments have other numbers.
    delete from pgq.start s
     where s.queue_id = p_new.id
       and (p_new.rate_limit, p_new.rate_interval) <> (p_old.rate_limit, p_old.rate_interval);
end
$$;
comment on function pgq._save_permits(pgq.queue, pgq.queue) is
'Makes the permits that new settings of a queue need; its row is locked.';

create function pgq._forget_starts(p_now timestamptz)
returns void
language plpgsql
as $$
declare
    -- Nearly always only those of late: under a held horizon the entries of older ones pile up.
    v_since constant timestamptz := case
        when random() < 0.99 then p_now - interval '10 seconds' else 'epoch' end;
begin
    delete from pgq.start s
     where s.ctid = any (array(
               select o.ctid
                 from pgq.queue q,
                      lateral (select pgq._burst(q) as burst offset 0) b,
                      lateral (
                          select s.ctid from pgq.start s
                           where s.queue_id = q.id
                             and s.moment > pgq._moment(q, v_since) - b.burst
                             and s.moment <= pgq._moment(q, p_now) - b.burst
                             for update skip locked
                      ) o
                where q.rate_limit > 0
           ));
end
$$;
comment on function pgq._forget_starts(timestamptz) is
'For ticks: deletes starts that no claim looks at any more.';

create function pgq._drop_permits()
returns void
language plpgsql
as $$
declare
    v_queue pgq.queue;
    v_free integer[];
begin
    -- The lock keeps max_active as it is.
    for v_queue in
        select q.* from pgq.queue q
         where q.max_active > 0 and exists (
                   select from pgq.permit p
                    where p.queue_id = q.id and p.kind = 'a' and p.n > q.max_active
               )
           for no key update skip locked
    loop
        v_free := array(
            select p.n from pgq.permit p
             where p.queue_id = v_queue.id and p.kind = 'a' and p.n > v_queue.max_active
             order by p.n desc limit 1000 for update skip locked
        );
        v_free := array(
            select f from unnest(v_free) f
            except
            select h from unnest(pgq._held_permits(v_queue.id, v_free)) h
        );
        delete from pgq.permit p
         where p.queue_id = v_queue.id and p.kind = 'a' and p.n = any (v_free);
    end loop;
end
$$;
comment on function pgq._drop_permits() is
'Drops permits above a lowered max_active that have come back; for ticks.

While there are any, each claim looks at all permits.';
