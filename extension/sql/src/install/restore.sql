/*
 * What a dump meets where it is restored. The extension is created first, and with it the queue
 * "default" and its lane, which the dump holds as well, with other settings maybe and under other
 * numbers. Tables are filled in any order, and two at a time: who comes removes only what is its
 * own. What was in use stays, and the restored row fails.
 */

-- Fires for pgq_create_queue, too, which therefore looks first whether there is the queue.
create function pgq._replace_queue()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if pg_sequence_last_value('pgq.last_tick') is null then
        delete from pgq.lane l
         using pgq.queue q
         where l.queue_id = q.id and q.name = new.name and q.id <> new.id;
        delete from pgq.queue q where q.name = new.name;
    end if;
    return new;
end
$$;
comment on function pgq._replace_queue() is
'Lets a restored queue take the place of the one that the installation made.';

create function pgq._replace_lane()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if pg_sequence_last_value('pgq.last_tick') is null then
        delete from pgq.lane l where l.id = new.id;
    end if;
    return new;
end
$$;
comment on function pgq._replace_lane() is
'Lets a restored lane take the place of the one that the installation made.';

create trigger queue_replace before insert on pgq.queue
    for each row when (new.name = 'default')
    execute function pgq._replace_queue();
create trigger lane_replace before insert on pgq.lane
    for each row when (new.queue = 'default' and new.priority = 0)
    execute function pgq._replace_lane();
