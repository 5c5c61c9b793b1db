/*
 * Limits of a queue: how many of its jobs are active, and how many start in a time.
 *
 * Both are rows of pgq.permit, which a claim locks, with SKIP LOCKED: who has the lock may use the
 * permit, and nobody waits. The row is never changed. That a permit is in use once the claim has
 * committed is told by a row that the claim appends, and is looked for in a snapshot taken after
 * the lock: so none is used twice, and a claim that is rolled back has used none.
 *
 * A permit to be active is in use while the job that took it lives with the token of that claim. It
 * comes back with the job when that completes, fails, is released or cancelled, or when a tick
 * takes its expired lease back.
 *
 * Permits to start are the rate limit as a token bucket. The time is divided into moments of
 * rate_interval / rate_limit each; every moment that begins gives one start, which is good until
 * the bucket of rate_burst starts is full without it: for rate_burst moments.
 */

create function pgq._held_permits(p_queue_id integer, p_permits integer[])
returns integer[]
language plpgsql
as $$
declare
    v_held integer[];
begin
    v_held := array(
        select p from unnest(p_permits) p
         where false
            --@ each ring
            or exists (
                   select
                     from (
                              select h.id, h.token from pgq.hold_{slot} h
                               where h.queue_id = p_queue_id and h.permit = p
                               order by h.token desc limit 1
                          ) h
                     join pgq.job_{slot} j on j.id = h.id and j.token = h.token
               )
            --@ end
    );
    -- As in pgq._find.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        return v_held;
end
$$;
comment on function pgq._held_permits(integer, integer[]) is
'Those of these permits that are in use by jobs.';

create function pgq._take_permits(p_queue pgq.queue, p_number integer)
returns integer[]
language plpgsql
set enable_mergejoin = off
as $$
declare
    v_max integer := p_queue.max_active;
    v_first constant integer := floor(random() * v_max)::integer;
    v_number constant integer := least(p_number, v_max);
    v_looked integer := 0;
    v_window integer := 2 * v_number + 8;
    v_held integer[];
    v_free integer[] := array[]::integer[];
    v_locked integer[];
    v_taken integer[] := array[]::integer[];
begin
    -- After max_active was lowered permits above it may be in use. Then fewer of the others are
    -- used, so that all together are not more than max_active.
    if exists (
        select from pgq.permit p
         where p.queue_id = p_queue.id and p.kind = 'a' and p.n > v_max
    ) then
        v_held := pgq._held_permits(p_queue.id, array(
            select p.n from pgq.permit p where p.queue_id = p_queue.id and p.kind = 'a'
        ));
        select coalesce(max(k), 0) into v_max
          from generate_series(0, v_max) k
         where k + (select count(*) from unnest(v_held) h where h > k) <= v_max;
    end if;
    while cardinality(v_taken) < v_number loop
        -- The next permits, from a random one on, four times as many as before. While most permits
        -- are free, the first few are enough.
        if v_free = '{}' then
            exit when v_looked >= v_max;
            v_free := array(
                select (v_first + i) % v_max + 1
                  from generate_series(v_looked, least(v_looked + v_window, v_max) - 1) i
            );
            v_looked := v_looked + v_window;
            v_window := 4 * v_window;
            v_free := array(
                select f from unnest(v_free) f
                except
                select h from unnest(pgq._held_permits(p_queue.id, v_free)) h
                 order by 1
            );
            continue when v_free = '{}';
        end if;
        v_locked := array(
            select f
              from unnest(v_free) f, lateral (
                  select from pgq.permit p
                   where p.queue_id = p_queue.id and p.kind = 'a' and p.n = f
                     for update skip locked
              ) p
             limit v_number - cardinality(v_taken)
        );
        -- With a snapshot taken after the locks.
        v_taken := v_taken || array(
            select l from unnest(v_locked) l
            except
            select h from unnest(pgq._held_permits(p_queue.id, v_locked)) h
             order by 1
        );
        v_free := array(
            select f from unnest(v_free) f where f > v_locked[cardinality(v_locked)] order by f
        );
    end loop;
    return v_taken;
end
$$;
comment on function pgq._take_permits(pgq.queue, integer) is
'Locks up to that many permits to be active which are not in use.';

create function pgq._moment(p_queue pgq.queue, p_at timestamptz)
returns bigint
language plpgsql
immutable
as $$
begin
    return div(
        extract(epoch from p_at) * p_queue.rate_limit, extract(epoch from p_queue.rate_interval)
    )::bigint;
end
$$;
comment on function pgq._moment(pgq.queue, timestamptz) is
'The number of that moment of a rate limit, counted from 1970.';

create function pgq._burst(p_queue pgq.queue)
returns integer
language plpgsql
immutable
as $$
begin
    return coalesce(nullif(p_queue.rate_burst, 0), p_queue.rate_limit);
end
$$;
comment on function pgq._burst(pgq.queue) is 'How many starts the bucket of a queue holds.';

create function pgq._take_starts(p_queue pgq.queue, p_number integer)
returns bigint[]
language plpgsql
as $$
declare
    v_burst constant integer := pgq._burst(p_queue);
    v_locked integer[];
    v_tried integer[] := array[]::integer[];
    v_taken bigint[] := array[]::bigint[];
begin
    -- With a snapshot first and the time after that, each looked at once: so no moment is free only
    -- because a tick has forgotten its start meanwhile, see pgq._forget_starts.
    -- "offset 0" makes it one look at the index for each: a plan made while the table was empty
    -- would compare all with all. Tries: another one may use what is free until it is locked.
    for v_try in 1..3 loop
        v_locked := array(
            with t as materialized (select pgq._moment(p_queue, pgq._now()) as last)
            select p.n
              from (
                       select ((n + v_burst) % v_burst)::integer as permit
                         from t, generate_series(t.last - v_burst + 1, t.last) n
                        where not exists (
                                  select from pgq.start s
                                   where s.queue_id = p_queue.id and s.moment = n offset 0
                              )
                       offset 0
                   ) g,
                   lateral (
                       select p.n from pgq.permit p
                        where p.queue_id = p_queue.id and p.kind = 'r' and p.n = g.permit
                          and g.permit <> all (v_tried)
                          for update skip locked
                   ) p
             limit p_number - cardinality(v_taken)
        );
        -- Of those moments for which a permit stands one is in the bucket now: another one than
        -- before, if it took long to get here. So those of former tries are looked at again.
        v_tried := v_tried || v_locked;
        v_taken := array(
            with t as materialized (select pgq._moment(p_queue, pgq._now()) as last)
            select l.moment
              from (
                       select t.last - (t.last - p + v_burst) % v_burst as moment
                         from t, unnest(v_tried) p
                       offset 0
                   ) l
             where not exists (
                       select from pgq.start s
                        where s.queue_id = p_queue.id and s.moment = l.moment
                   )
             limit p_number
        );
        exit when v_locked = '{}' or cardinality(v_taken) = p_number;
    end loop;
    return v_taken;
end
$$;
comment on function pgq._take_starts(pgq.queue, integer) is
'Locks up to that many starts that the rate limit of a queue allows now.';

create function pgq._lease_limited(
    p_queue pgq.queue, p_lanes bigint[], p_batch integer, p_lease_ms integer, p_worker text,
    p_slot smallint default null, p_pos bigint default null
)
returns setof @extschema@.pgq_job
language plpgsql
as $$
declare
    v_number integer := p_batch;
    v_permits integer[]; v_starts bigint[];
    v_jobs @extschema@.pgq_job[];
begin
    if not pgq._read_committed() then
        raise exception 'queue "%" has limits and needs the isolation level READ COMMITTED',
                p_queue.name
            using errcode = 'active_sql_transaction',
                  detail = 'An older snapshot does not show all of its active jobs.';
    end if;
    while v_number > 0 loop
        begin
            if p_queue.max_active > 0 then
                v_permits := pgq._take_permits(p_queue, v_number);
                v_number := cardinality(v_permits);
            end if;
            if p_queue.rate_limit > 0 then
                v_starts := pgq._take_starts(p_queue, v_number);
                v_number := cardinality(v_starts);
            end if;
            if v_number = 0 and p_pos is not null then
                raise exception 'the job cannot start now: queue "%" is at its limit', p_queue.name
                    using errcode = 'object_not_in_prerequisite_state',
                          hint = 'Try again later, or when another job of the queue has ended.';
            end if;
            v_jobs := array(
                select l
                  from pgq._lease(
                           p_queue, p_lanes,
                           case when p_slot is null then pgq._ready_slots() else array[p_slot] end,
                           coalesce(p_pos - 1, 0), coalesce(p_pos + 1, 9223372036854775807),
                           v_number, p_lease_ms, p_worker
                       ) l
                 where v_number > 0
            );
            v_number := cardinality(v_jobs);
            if greatest(cardinality(v_permits), cardinality(v_starts)) = v_number then
                -- Which permits the jobs use.
                insert into pgq.hold (slot, queue_id, permit, token, id)
                select pgq._slot_of(j.token), p_queue.id, v_permits[j.ordinality::integer],
                       j.token, j.id
                  from unnest(v_jobs) with ordinality j
                 where v_permits is not null;
                insert into pgq.start (queue_id, moment, token)
                select p_queue.id, v_starts[j.ordinality::integer], j.token
                  from unnest(v_jobs) with ordinality j
                 where v_starts is not null;
                return query select j.* from unnest(v_jobs) j;
                return;
            end if;
            -- The rest of the permits would stay locked while the transaction is open. Without
            -- this block they are not; and again, with as many as are used.
            raise exception using errcode = 'PQ000';
        exception
            when sqlstate 'PQ000' then
                null;
        end;
    end loop;
end
$$;
comment on function
    pgq._lease_limited(pgq.queue, bigint[], integer, integer, text, smallint, bigint) is
'Claims as pgq._lease does, in a queue with limits.

As many jobs as permits can be had. Raises 25001; 55000 if one job is meant (p_slot, p_pos), and
no permit can be had.';
