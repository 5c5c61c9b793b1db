/*
 * What a dump meets where it is restored. The extension is created first, and with it the queue
 * "default", which the dump holds as well, with other settings maybe and under another id. The
 * trigger fires for pgq_create_queue, too, which therefore looks first whether there is the queue.
 */

create function pgq._make_way()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A queue that was in use stays, and the row fails.
    delete from pgq.queue q
     where q.name = new.name and pg_sequence_last_value('pgq.last_tick') is null;
    return new;
end
$$;
comment on function pgq._make_way() is
'lets a restored queue take the place of the one that the installation made';

create trigger queue_make_way before insert on pgq.queue
    for each row when (new.name = 'default')
    execute function pgq._make_way();
