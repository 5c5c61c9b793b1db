/*
 * What a dump meets where it is restored. The extension is created first, and with it the queue
 * "default" and its lane, which the dump holds as well, with other settings maybe and under other
 * numbers. Tables are filled in any order, and two at a time: who comes removes only what is its
 * own. The trigger fires for pgq_create_queue, too, which therefore looks first whether there is
 * the queue.
 */

create function pgq._make_way()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- What was in use stays, and the row fails.
    if pg_sequence_last_value('pgq.last_tick') is not null then
        return new;
    end if;
    if tg_relid = 'pgq.lane'::regclass then
        delete from pgq.lane l where l.id = new.id;
        return new;
    end if;
    delete from pgq.lane l
     using pgq.queue q
     where l.queue_id = q.id and q.name = new.name and q.id <> new.id;
    delete from pgq.queue q where q.name = new.name;
    return new;
end
$$;
comment on function pgq._make_way() is
'lets a restored queue or lane take the place of the one that the installation made';

create trigger queue_make_way before insert on pgq.queue
    for each row when (new.name = 'default')
    execute function pgq._make_way();
create trigger lane_make_way before insert on pgq.lane
    for each row when (new.id = 1)
    execute function pgq._make_way();
