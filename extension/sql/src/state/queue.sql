/*
 * Queues, and the lanes of their jobs. A lane is one priority of one queue, as one number: see
 * pgq._lane_of.
 */

create table pgq.queue (
    id integer generated always as identity,
    name text not null,
    max_attempts integer not null default 20,
    backoff_base interval not null default '1 second',
    backoff_factor double precision not null default 2,
    backoff_max interval not null default '1 hour',
    keep_completed interval not null default '1 day',
    keep_dead interval not null default '30 days',
    dedupe_for interval not null default '0',
    group_concurrency integer not null default 1,
    group_on_dead text not null default 'continue',
    max_active integer not null default 0,
    rate_limit integer not null default 0,
    rate_interval interval not null default '1 second',
    rate_burst integer not null default 0,
    priority_ageing interval not null default '0',
    max_ready integer not null default 0,
    max_payload integer not null default 0,
    paused boolean not null default false,
    created_at timestamptz not null default pg_catalog.now(),
    sample integer not null default 1,
    is_bounded boolean not null generated always as (max_ready > 0 or max_payload > 0) stored,
    is_special boolean not null generated always as (
        paused or max_active > 0 or rate_limit > 0 or priority_ageing > '0'
    ) stored,
    description text,
    first_job bigint not null default 0,
    constraint queue_pkey primary key (id),
    constraint queue_name_key unique (name),
    constraint queue_name_check check (pg_catalog.length(name) between 1 and 200),
    constraint queue_max_attempts_check check (max_attempts >= 1),
    constraint queue_backoff_check check (
        backoff_base >= '0' and backoff_max >= backoff_base and backoff_factor between 1 and 1000
    ),
    constraint queue_keep_check check (
        keep_completed >= '0' and keep_dead >= '0' and dedupe_for >= '0'
    ),
    constraint queue_group_check check (
        group_concurrency >= 1 and group_on_dead in ('continue', 'block')
    ),
    constraint queue_limit_check check (
        max_active >= 0 and rate_limit >= 0 and rate_interval > '0' and rate_burst >= 0
        and priority_ageing >= '0' and max_ready >= 0 and max_payload >= 0
    )
);
comment on table pgq.queue is 'Queues and their settings.';
comment on column pgq.queue.sample is 'Of how many calls that end jobs one is counted.';
comment on column pgq.queue.is_bounded is 'Enqueue goes through pgq._check_bounds.';
comment on column pgq.queue.is_special is 'Claims look at more than lanes and slots.';
comment on column pgq.queue.description is 'What the queue is for, for people.';
comment on column pgq.queue.first_job is
'Archived jobs up to this id belong to a dropped queue of the same name.';

create table pgq.lane (
    id bigint not null,
    queue_id integer not null,
    priority smallint not null,
    queue text not null,
    is_bounded boolean not null default false,
    awaited_until timestamptz
);
alter table pgq.lane replica identity full;
create index lane_queue_id_idx on pgq.lane (queue_id, priority desc);
create index lane_plain_idx on pgq.lane (queue, priority) where not is_bounded;
comment on table pgq.lane is
'The priorities in use in a queue.

Two sessions that use a priority first at the same time both add it: the rows have the same id,
and ticks remove one.';
comment on column pgq.lane.queue is 'The name of the queue: enqueue reads no other table of it.';
comment on column pgq.lane.awaited_until is 'Until then a session may sleep: see pgq._wake.';

create table pgq.lane_gate (
    queue_id integer not null,
    constraint lane_gate_pkey primary key (queue_id)
);
comment on table pgq.lane_gate is
'A row to lock for each queue that has got priorities, while one is committed.';

insert into pgq.queue (name) values ('default');
