/*
 * Which jobs wait until others have completed: see feature/after.sql.
 */

create table pgq.dependency (
    on_id bigint not null,
    job_id bigint not null,
    lane bigint not null,
    on_dead text not null,
    constraint dependency_pkey primary key (on_id, job_id),
    constraint dependency_on_dead_check check (on_dead in ('die', 'wait', 'run'))
);
create index dependency_job_id_idx on pgq.dependency (job_id, on_id);
comment on table pgq.dependency is
'The job job_id, of that lane, waits for on_id, which is live or dead.

Gone when on_id completes, with on_dead ''run'' also when it dies.';
