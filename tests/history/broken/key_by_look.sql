/*
 * A look for the key, then the insert, and no unique index: two sessions that look at the same
 * time both insert.
 */
drop index job_key;

create or replace function pgq_enqueue_many(
    payloads jsonb[],
    queue text,
    priority integer,
    run_at timestamptz,
    dedupe_keys text[],
    group_keys text[]
)
returns setof bigint
language plpgsql
as $$
declare
    v_id bigint;
begin
    for i in 1 .. cardinality(payloads) loop
        select id into v_id
          from job j
         where j.queue = pgq_enqueue_many.queue
           and j.dedupe_key = dedupe_keys[i]
           and j.state in ('ready', 'active');
        if not found then
            insert into job (queue, priority, payload, run_at, dedupe_key)
            values (
                pgq_enqueue_many.queue,
                pgq_enqueue_many.priority,
                payloads[i],
                clock_timestamp(),
                dedupe_keys[i]
            )
            returning id into v_id;
        end if;
        return next v_id;
    end loop;
end
$$;
