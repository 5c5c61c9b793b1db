/*
 * Parked slots that are known to be empty: most queues have nothing there, and claims look neither
 * into them nor at their size, which the system would have to be asked for.
 */

create function pgq._note_empty(p_slot smallint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    case p_slot
    --@ each parked
    when {slot} then
        if pg_relation_size('pgq.job_{slot}') > 0 then
            -- Written by somebody who does not know of the register, such as a subscription.
            {not_empty};
        elsif pg_sequence_last_value('pgq.empty_{slot}') is null then
            lock table pgq.job_{slot} in share mode nowait;
            if pg_relation_size('pgq.job_{slot}') = 0 then
                perform setval('pgq.empty_{slot}', 1);
            end if;
            -- Gives back the lock.
            raise exception using errcode = 'PQ000';
        end if;
    --@ end
    end case;
exception
    when sqlstate 'PQ000' or lock_not_available then
        return;
end
$$;
comment on function pgq._note_empty(smallint) is
'notes whether a parked slot has no rows, so that claims need not look; not while it is written';
