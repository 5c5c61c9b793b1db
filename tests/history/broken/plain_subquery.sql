/*
 * UPDATE with a plain subquery. The second consumer waits for the row, and then takes it as
 * well: its id still is the one that the subquery found.
 */
create or replace function pgq_dequeue(batch integer, timeout interval, queue text, worker text)
returns setof job
language sql
as $$
    update job
       set state = 'active', token = nextval('token'), attempt = attempt + 1,
           worker = $4, lease_expires_at = clock_timestamp() + $2
     where id = (
               select id from job j
                where j.queue = $3 and j.state = 'ready'
                order by priority desc, id
                limit 1
           )
    returning *
$$;
