/*
 * Tokens after a crash. With synchronous_commit = off a crash can lose a claim together with the
 * step of pgq.token; a standby can have missed it, and a dump is older. The token would be drawn
 * again, and the receipt of the lost claim would be good for another one's lease. pgq.next_tick is
 * not logged: it is empty after a crash and on a former standby. The first claim that finds it so
 * skips more tokens than can have been lost.
 */

create function pgq._home()
returns bigint
language plpgsql
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
'Returns a number of this database and this start of the server.

It is another one in a restored or cloned database, and after each start.';

create function pgq._has_lost_tokens()
returns boolean
language plpgsql
as $$
begin
    return coalesce(pg_sequence_last_value('pgq.next_tick'), 0) = 0
        or pgq._home() is distinct from pg_sequence_last_value('pgq.home');
end
$$;
comment on function pgq._has_lost_tokens() is
'Says whether pgq.token may have fallen back behind tokens of claims.

Those may have committed asynchronously, not have reached this standby, or be younger than the
dump that was restored. A dump of an installation by script brings all sequences along, which
pgq.home then tells.';

create function pgq._skip_lost_tokens()
returns void
language plpgsql
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
'Passes tokens that may be lost, before the first claim.

At most 32 million are passed, or an old receipt could be good again.';
