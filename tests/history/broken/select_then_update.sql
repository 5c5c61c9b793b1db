/*
 * SELECT, then UPDATE, in two statements: both consumers have selected the same job before
 * either updates it.
 */
create or replace function pgq_dequeue(batch integer, timeout interval, queue text, worker text)
returns setof job
language plpgsql
as $$
declare
    v_id bigint;
begin
    select id into v_id
      from job j
     where j.queue = pgq_dequeue.queue and j.state = 'ready'
     order by priority desc, id
     limit 1;
    return query
    update job j
       set state = 'active', token = nextval('token'), attempt = attempt + 1,
           worker = pgq_dequeue.worker, lease_expires_at = clock_timestamp() + timeout
     where j.id = v_id
    returning j.*;
end
$$;
