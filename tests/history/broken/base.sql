/*
 * The textbook queue behind the names of pgq: one table, FOR UPDATE SKIP LOCKED, a lease, a
 * fencing token. It is right as far as it goes (no groups, no limits, and its table grows
 * under a held horizon). The other files here each replace one part by a naive pattern.
 */
create table queue (
    name text primary key,
    max_active integer not null default 0
);
create table job (
    id bigint generated always as identity primary key,
    token bigint,
    queue text not null references queue,
    priority integer not null,
    state text not null default 'ready',
    attempt integer not null default 0,
    payload jsonb not null,
    group_key text,
    dedupe_key text,
    worker text,
    run_at timestamptz not null,
    lease_expires_at timestamptz
);
create unique index job_key on job (queue, dedupe_key) where state in ('ready', 'active');
create index job_ready on job (queue, priority desc, id) where state in ('ready', 'active');
create sequence token;
create view pgq_jobs as select * from job;

create function pgq_create_queue(
    name text,
    max_active integer default 0,
    backoff_base interval default null,
    backoff_max interval default null
)
returns void
language sql
begin atomic
    insert into queue values (name, max_active);
end;

create function pgq_enqueue_many(
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
        loop
            insert into job (queue, priority, payload, run_at, dedupe_key, group_key)
            values (
                pgq_enqueue_many.queue,
                pgq_enqueue_many.priority,
                payloads[i],
                coalesce(pgq_enqueue_many.run_at, clock_timestamp()),
                dedupe_keys[i],
                group_keys[i]
            )
            on conflict do nothing
            returning id into v_id;
            exit when found;
            select id into v_id
              from job j
             where j.queue = pgq_enqueue_many.queue
               and j.dedupe_key = dedupe_keys[i]
               and j.state in ('ready', 'active');
            exit when found;
        end loop;
        return next v_id;
    end loop;
end
$$;

create function pgq_dequeue(
    batch integer,
    timeout interval,
    queue text,
    worker text
)
returns setof job
language sql
as $$
    with chosen as materialized (
        select id
          from job j
         where j.queue = $3
           and (
               j.state = 'ready' and j.run_at <= clock_timestamp()
               or j.state = 'active' and j.lease_expires_at <= clock_timestamp()
           )
         order by priority desc, id
         limit $1
           for update skip locked
    ),
    claimed as (
        update job j
           set state = 'active', token = nextval('token'), attempt = attempt + 1,
               worker = $4, lease_expires_at = clock_timestamp() + $2
          from chosen
         where j.id = chosen.id
        returning j.*
    )
    select * from claimed order by priority desc, id
$$;

create function pgq_pop(batch integer, queue text)
returns setof job
language sql
as $$
    with chosen as materialized (
        select id
          from job j
         where j.queue = $2 and j.state = 'ready' and j.run_at <= clock_timestamp()
         order by priority desc, id
         limit $1
           for update skip locked
    ),
    popped as (
        update job j set state = 'completed', token = null, lease_expires_at = null
          from chosen
         where j.id = chosen.id
        returning j.*
    )
    select * from popped order by priority desc, id
$$;

create function pgq_complete(ids bigint[], tokens bigint[])
returns setof bigint
language sql
as $$
    update job j set state = 'completed'
      from unnest(ids, tokens) as r (id, token)
     where j.id = r.id and j.token = r.token and j.state = 'active'
    returning j.id
$$;

create function pgq_heartbeat(ids bigint[], tokens bigint[], timeout interval)
returns table (id bigint, lease_expires_at timestamptz)
language sql
as $$
    update job j set lease_expires_at = clock_timestamp() + timeout
      from unnest(ids, tokens) as r (id, token)
     where j.id = r.id and j.token = r.token and j.state = 'active'
    returning j.id, j.lease_expires_at
$$;

create function pgq_fail(
    id bigint,
    token bigint,
    error text,
    retry_in interval,
    retryable boolean
)
returns text
language sql
as $$
    update job j
       set state = case when retryable then 'ready' else 'dead' end,
           run_at = clock_timestamp() + retry_in
     where j.id = $1 and j.token = $2 and j.state = 'active'
    returning case when retryable then 'scheduled' else 'dead' end
$$;

create function pgq_release(id bigint, token bigint, delay interval)
returns boolean
language sql
as $$
    with released as (
        update job j
           set state = 'ready', attempt = attempt - 1, run_at = clock_timestamp() + delay
         where j.id = $1 and j.token = $2 and j.state = 'active'
        returning 1
    )
    select exists (select from released)
$$;

create function pgq_cancel(id bigint, force boolean)
returns boolean
language sql
as $$
    with cancelled as (
        update job j set state = 'cancelled'
         where j.id = $1 and (j.state = 'ready' or force and j.state = 'active')
        returning 1
    )
    select exists (select from cancelled)
$$;
