/*
 * What a claim does before it looks for jobs: tokens, the time, and whether maintenance is due.
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
        --@ each parked
        perform setval('pgq.empty_{slot}', 1, false);
        --@ end
        -- Those of a dump from before there was this register may be marked.
        perform setval('pgq.awaited', 1) where exists (select from pgq.dependency);
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
        -- A little later than a lease that is granted now expires: or it is found at the tick after
        -- that.
        perform setval('pgq.next_tick', v_now + least(p_lease_ms + 5, 500));
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
'is no maintenance. p_may_put_off: it is put off, unless it is already, and left to the next call, '
'or to pgq_wait, by one that returns all jobs that there are: who has waited for them waits for '
'the commit, too. '
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
