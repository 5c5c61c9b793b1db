/*
 * Consumers remember the highest id that they have come to, as readers of a log do: a job with a
 * lower id that is committed later is never found.
 */
create table position (id bigint not null);
insert into position values (0);

create or replace function pgq_dequeue(batch integer, timeout interval, queue text, worker text)
returns setof job
language sql
as $$
    with chosen as materialized (
        select id from job j
         where j.queue = $3 and j.state = 'ready' and j.id > (select id from position)
         order by id
         limit $1
           for update skip locked
    ),
    moved as (
        update position set id = (select max(id) from chosen) where exists (select from chosen)
    )
    update job j
       set state = 'active', token = nextval('token'), attempt = attempt + 1,
           worker = $4, lease_expires_at = clock_timestamp() + $2
      from chosen
     where j.id = chosen.id
    returning j.*
$$;
