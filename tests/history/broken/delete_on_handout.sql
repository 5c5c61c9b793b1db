/*
 * DELETE ... RETURNING in a transaction of its own: a consumer that dies takes its jobs along.
 */
create or replace function pgq_dequeue(batch integer, timeout interval, queue text, worker text)
returns setof job
language sql
as $$
    with chosen as materialized (
        select id from job j
         where j.queue = $3
         order by priority desc, id
         limit $1
           for update skip locked
    )
    delete from job j using chosen where j.id = chosen.id returning j.*
$$;
