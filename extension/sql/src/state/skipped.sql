/*
 * What maintenance leaves out for a while: see core/skip.sql.
 */

create table pgq.skipped (
    kind text not null,
    key text not null,
    lane bigint,
    at timestamptz not null,
    error text not null,
    constraint skipped_kind_check check (kind in ('job', 'group', 'schedule'))
);
alter table pgq.skipped replica identity full;
comment on table pgq.skipped is
'What has failed in a tick, which would have failed as a whole; for ten minutes.

key: the id of a job or group, or the name of a schedule.';
