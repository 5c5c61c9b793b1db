/*
 * What a transaction leaves for ticks, so that it locks nothing which other queues need: see
 * operate/drop.sql and operate/errand.sql.
 */

create table pgq.dropped (
    queue_id integer not null,
    name text not null,
    is_forced boolean not null,
    keep_for interval not null,
    xid xid8 not null default pg_catalog.pg_current_xact_id(),
    holders text[],
    constraint dropped_pkey primary key (queue_id)
);
comment on table pgq.dropped is
'Dropped queues whose lanes are still there.

Transactions that were open at the drop may add jobs to them.';
comment on column pgq.dropped.keep_for is 'How long the archive keeps such jobs, as cancelled.';
comment on column pgq.dropped.xid is 'The transaction that dropped it.';
comment on column pgq.dropped.holders is
'Transactions that may know the lanes, see pgq._lane_holders; null: not looked up yet.';

create table pgq.errand (
    role oid
);
alter table pgq.errand replica identity full;
comment on table pgq.errand is
'What a commit or a tick does in the catalogs; empty most of the time.

See pgq._run_errands.';
comment on column pgq.errand.role is
'Whose rights on functions and views are to be set, 0: public; null: pg_cron is to be told.';
