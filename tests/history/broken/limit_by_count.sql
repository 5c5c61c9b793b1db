/*
 * A limit by counting what is active: claims that are not committed yet are not counted.
 */
create or replace function pgq_dequeue(batch integer, timeout interval, queue text, worker text)
returns setof job
language sql
as $$
    with chosen as materialized (
        select id from job j
         where j.queue = $3 and j.state = 'ready'
         order by priority desc, id
         limit (
             select least($1, q.max_active - (
                        select count(*) from job o where o.queue = q.name and o.state = 'active'
                    ))
               from queue q
              where q.name = $3
         )
           for update skip locked
    )
    update job j
       set state = 'active', token = nextval('token'), attempt = attempt + 1,
           worker = $4, lease_expires_at = clock_timestamp() + $2
      from chosen
     where j.id = chosen.id
    returning j.*
$$;
