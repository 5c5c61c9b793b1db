/*
 * No fencing: who has lost its lease completes the job that another one works on.
 */
create or replace function pgq_complete(ids bigint[], tokens bigint[])
returns setof bigint
language sql
as $$
    update job j set state = 'completed'
     where j.id = any (ids) and j.state = 'active'
    returning j.id
$$;
