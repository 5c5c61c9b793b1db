/*
 * The claim. A priority of a queue may have jobs in several slots; they are merged in id order
 * without ever locking a job that is not then given to the caller: take from the slot with the
 * lowest id all ids below the next slot's lowest, look for what is its lowest now, and again.
 * The slots of the ring are opened one after another, as far as the batch needs: whoever keeps
 * the transaction open keeps the slots that were looked at from being truncated.
 */

create function pgq._home()
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return hashtextextended(
        format(
            '%s %s', extract(epoch from pg_postmaster_start_time()), 'pgq.token'::regclass::oid
        ),
        (select d.oid::bigint from pg_database d where d.datname = current_database())
    ) & 9223372036854775806 | 1;
end
$$;
comment on function pgq._home() is
'a number that is another one in a restored or cloned database, and after each start of the server';

create function pgq._has_lost_tokens()
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return coalesce(pg_sequence_last_value('pgq.next_tick'), 0) = 0
        or pgq._home() is distinct from pg_sequence_last_value('pgq.home');
end
$$;
comment on function pgq._has_lost_tokens() is
'whether pgq.token may have fallen back behind tokens of claims that committed asynchronously, had '
'not reached this standby, or are younger than the dump that was restored. A dump of an '
'installation by script brings all sequences along, which pgq.home then tells';

create function pgq._skip_lost_tokens()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    lock table pgq.gate in share update exclusive mode;
    if pgq._has_lost_tokens() then
        perform setval(
            'pgq.token', ((coalesce(pg_sequence_last_value('pgq.token'), 0) >> 24) + 2) << 24
        );
        perform setval('pgq.home', pgq._home());
        perform setval('pgq.next_tick', 1);
    end if;
    -- Gives back the lock: the transaction may stay open, and the sequences show it at once.
    raise exception using errcode = 'PQ000';
exception
    when sqlstate 'PQ000' then
        -- Or the next crash would undo this, too.
        if current_setting('synchronous_commit') = 'off' then
            perform set_config('synchronous_commit', 'local', true);
        end if;
end
$$;
comment on function pgq._skip_lost_tokens() is
'called before the first claim where tokens may be lost: at most 32 million are passed, or an old '
'receipt could be good again';

create function pgq._catch_up()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if pgq._read_committed() then
        perform setval('pgq.put_off', 1);
        insert into pgq.chore default values;
    end if;
end
$$;
comment on function pgq._catch_up() is
'has maintenance run at the commit; it is not put off any more, for nobody';

create function pgq._wants_tick(p_lease_ms integer, p_may_put_off boolean default false)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant bigint := pgq._ms(pgq._now());
    v_next constant bigint := coalesce(pg_sequence_last_value('pgq.next_tick'), 0);
begin
    -- Not if the tick that was due failed or was rolled back, nor if the clock has been set back.
    if v_now < v_next and v_next <= v_now + 500
        and v_now - coalesce(pg_sequence_last_value('pgq.last_tick'), 0) < 2500
        and pgq._read_committed()
    then
        -- A lease that expires before is looked for when it does, the others within half a second.
        if v_now + p_lease_ms + 5 < v_next then
            perform setval('pgq.next_tick', v_now + p_lease_ms + 5);
        end if;
        return false;
    end if;
    if pgq._has_lost_tokens() then
        perform pgq._skip_lost_tokens();
    end if;
    if pgq._read_committed() then
        perform setval('pgq.next_tick', v_now + least(p_lease_ms, 500));
        -- Not after a minute without any, nor before it is due: it failed, or the clock was reset.
        if p_may_put_off and v_now - v_next between 0 and 60000
            and coalesce(pg_sequence_last_value('pgq.put_off'), 1) = 1
        then
            perform setval('pgq.put_off', v_now);
        else
            perform pgq._catch_up();
        end if;
    end if;
    return true;
end
$$;
comment on function pgq._wants_tick(integer, boolean) is
'true about twice a second for all sessions together: the call then looks for expired leases, too, '
'and maintenance runs at its commit (pgq._maintain). Under REPEATABLE READ always true, and there '
'is no maintenance. p_may_put_off: it is put off, unless it is already, and left to the next call '
'by one that returns all jobs that there are: who has waited for them waits for the commit, too. '
'If there may be more, the claim positions must be right for those that look for them';

create function pgq._has_spent_slots()
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select r.ready <> r.live from pgq.ring r order by r.gen desc limit 1);
end
$$;
comment on function pgq._has_spent_slots() is
'whether there are slots of the ring into which only ticks look: see pgq._ready_slots';

create function pgq._parked_sources(
    p_lanes integer[], p_slots smallint[], p_after bigint, p_until bigint, p_batch integer,
    p_now timestamptz, p_max integer, p_tick boolean
)
returns pgq.source[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_source pgq.source;
    v_sources pgq.source[] := array[]::pgq.source[];
    v_lane integer;
    v_slot smallint;
    v_ids bigint[];
begin
    foreach v_lane in array p_lanes loop
        foreach v_slot in array p_slots loop
            if p_until = p_after + 2 then
                v_ids := array[p_after + 1];
            else
                v_ids := pgq._window(
                    v_slot, v_lane, p_after, p_until, greatest(p_batch, 1000), p_now, p_max, p_tick
                );
            end if;
            if cardinality(v_ids) > 0 then
                v_source := (v_slot, v_lane, v_ids[1], v_ids);
                v_sources := v_sources || v_source;
            end if;
        end loop;
    end loop;
    if cardinality(v_sources) > 1 then
        v_sources := array(select s from unnest(v_sources) s order by s.head);
    end if;
    return v_sources;
end
$$;
comment on function
    pgq._parked_sources(
        integer[], smallint[], bigint, bigint, integer, timestamptz, integer, boolean
    ) is
'where in these lanes and parked slots there are claimable jobs; locks no row';

create function pgq._gather(
    p_lanes integer[], p_live smallint[], p_parked smallint[], p_firsts bigint[], p_after bigint,
    p_until bigint, p_batch integer, p_now timestamptz, p_max integer, p_tick boolean,
    p_lease_ms integer, p_worker text, p_keep boolean
)
returns setof pgq.job
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_sources pgq.source[] := pgq._parked_sources(
        p_lanes, p_parked, p_after, p_until, p_batch, p_now, p_max, p_tick
    );
    v_source pgq.source;
    v_next integer := 1;
    v_first bigint;
    v_until bigint;
    v_left integer := p_batch;
    v_count integer;
begin
    loop
        -- Null when all slots are open. Any job in this slot and the next ones has a higher id.
        v_first := p_firsts[p_live[v_next] + 1];
        if v_next <= cardinality(p_live)
            and (cardinality(v_sources) = 0 or v_first < (v_sources[1]).head)
        then
            v_sources := array(
                select row(p_live[v_next], l, p_after + 1, null)::pgq.source from unnest(p_lanes) l
            ) || v_sources;
            v_next := v_next + 1;
            continue;
        end if;
        exit when cardinality(v_sources) = 0;
        v_source := v_sources[1];
        v_sources := v_sources[2:];
        -- Two heads can be equal: a bound, not an id, or a job moved between the two looks.
        v_until := greatest(least((v_sources[1]).head, v_first + 1, p_until), v_source.head + 1);
        return query
        select c.*
          from pgq._claim(
                   v_source.slot, v_source.lane, v_source.head - 1, v_until, v_left, p_now, p_max,
                   p_tick, p_lease_ms, p_worker, p_keep, v_source.ids
               ) c;
        get diagnostics v_count = row_count;
        v_left := v_left - v_count;
        exit when v_left = 0 or (cardinality(v_sources) = 0 and v_next > cardinality(p_live));
        -- What this source still has below v_until is locked by others.
        if v_source.ids is null then
            v_source.head := pgq._peek(
                v_source.slot, v_source.lane, v_until - 1, p_until, p_now, p_max, p_tick
            );
        else
            v_source.head := (select min(i) from unnest(v_source.ids) i where i >= v_until);
        end if;
        if v_source.head is not null then
            v_sources := array(select s from unnest(v_sources || v_source) s order by s.head);
        end if;
    end loop;
end
$$;
comment on function
    pgq._gather(
        integer[], smallint[], smallint[], bigint[], bigint, bigint, integer, timestamptz, integer,
        boolean, integer, text, boolean
    ) is
'leases up to p_batch jobs of one priority of a queue with p_after < id < p_until, in id order';
