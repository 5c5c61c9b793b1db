/*
 * Which jobs wait until others have completed: see 38_after.sql.
 */

create table pgq.dependency (
    on_id bigint not null,
    job_id bigint not null,
    lane integer not null,
    on_dead text not null,
    constraint dependency_pkey primary key (on_id, job_id),
    constraint dependency_on_dead_check check (on_dead in ('die', 'wait'))
);
create index dependency_job_id_idx on pgq.dependency (job_id, on_id);
comment on table pgq.dependency is
'job_id, of that lane, waits for on_id, which is live or dead; gone when on_id completes';

create table pgq.waiter_hint (
    job_id bigint not null,
    lane integer not null
);
alter table pgq.waiter_hint replica identity full;
comment on table pgq.waiter_hint is
'waiting jobs that the next tick looks at, see pgq._turn_waiters; below zero: one of those that it '
'waits for has died. lane 0: not those, but a job that has completed or, below zero, died';
