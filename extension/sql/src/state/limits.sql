/*
 * What the limits of a queue need beside the jobs: see feature/limits.sql.
 */

create table pgq.permit (
    queue_id integer not null,
    kind "char" not null,
    n integer not null,
    constraint permit_pkey primary key (queue_id, kind, n),
    constraint permit_kind_check check (kind in ('a', 'r'))
);
comment on table pgq.permit is
'Rows to lock, never changed: what a job needs to be active, or to start.

To be active (a), from 1 to max_active; to start (r), from 0 to rate_burst - 1.';

create table pgq.hold (
    slot smallint not null,
    queue_id integer not null,
    permit integer not null,
    token bigint not null,
    id bigint not null
) partition by list (slot);
comment on table pgq.hold is
'Which claim took a permit.

Of each permit the row with the highest token counts, for as long as its job lives with that
token.';

--@ each slot
create table pgq.hold_{slot} partition of pgq.hold for values in ({slot})
with (vacuum_truncate = off);
create unique index hold_{slot}_permit_idx on pgq.hold_{slot} (queue_id, permit, token);
alter table pgq.hold_{slot} replica identity using index hold_{slot}_permit_idx;
--@ end

create table pgq.start (
    queue_id integer not null,
    moment bigint not null,
    token bigint not null,
    constraint start_pkey primary key (queue_id, moment, token)
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
comment on table pgq.start is
'Moments of rate limits of which the start is used up, and by which claim.

See pgq._take_starts. One moment twice only if settings changed between the claims.';
