select pgq_create_queue('emails', max_attempts => 5, backoff_base => '10 seconds');

create table signup (
    id uuid primary key default gen_random_uuid(),
    email text not null unique,
    job bigint not null
);
