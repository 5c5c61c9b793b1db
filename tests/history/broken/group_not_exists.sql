/*
 * A group is free if no job of it is active: a claim that is not committed yet is not seen.
 */
create or replace function pgq_dequeue(batch integer, timeout interval, queue text, worker text)
returns setof job
language sql
as $$
    with chosen as materialized (
        select id from job j
         where j.queue = $3 and j.state = 'ready'
           and not exists (
                   select from job o
                    where o.queue = j.queue and o.group_key = j.group_key and o.state = 'active'
               )
         order by priority desc, id
         limit $1
           for update skip locked
    )
    update job j
       set state = 'active', token = nextval('token'), attempt = attempt + 1,
           worker = $4, lease_expires_at = clock_timestamp() + $2
      from chosen
     where j.id = chosen.id
    returning j.*
$$;
