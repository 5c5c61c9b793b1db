/*
 * Recurring jobs: see feature/schedule.sql.
 */

create table pgq.schedule (
    name text not null,
    queue_id integer not null,
    cron text not null,
    timezone text not null,
    payload jsonb not null,
    priority smallint not null,
    max_attempts integer,
    headers jsonb,
    missed text not null,
    paused boolean not null default false,
    next_at timestamptz not null,
    last_at timestamptz,
    constraint schedule_pkey primary key (name),
    constraint schedule_missed_check check (missed in ('skip', 'once', 'all'))
);
create index schedule_queue_id_idx on pgq.schedule (queue_id);
comment on table pgq.schedule is 'What adds a job at times that a cron expression names.';
