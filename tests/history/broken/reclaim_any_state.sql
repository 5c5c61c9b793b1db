/*
 * Whatever has an expired lease is claimed again, also what was completed since.
 */
create or replace function pgq_dequeue(batch integer, timeout interval, queue text, worker text)
returns setof job
language sql
as $$
    with chosen as materialized (
        select id from job j
         where j.queue = $3
           and (j.state = 'ready' or j.lease_expires_at <= clock_timestamp())
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
