/*
 * What pg_dump carries along: jobs, settings, and the sequences that number them. Not the rest:
 * positions, transaction ids and times of ticks mean nothing in another cluster. pgq.next_tick is
 * empty in a restored database: the first claim then skips tokens that were drawn after the dump.
 * install/restore.sql has what a dump meets where it is restored.
 */

select pg_catalog.pg_extension_config_dump('pgq.queue', '');
select pg_catalog.pg_extension_config_dump('pgq.queue_id_seq', '');
select pg_catalog.pg_extension_config_dump('pgq.lane', '');
select pg_catalog.pg_extension_config_dump('pgq.dropped', '');
select pg_catalog.pg_extension_config_dump('pgq.number', '');
select pg_catalog.pg_extension_config_dump('pgq.token', '');
do $dump$
declare
    v_partition oid;
begin
    -- One statement each: every call updates the same row.
    for v_partition in
        select p.inhrelid from pg_catalog.pg_inherits p
         where p.inhparent = any ('{pgq.job,pgq.hold,pgq.archive}'::pg_catalog.regclass[])
    loop
        perform pg_catalog.pg_extension_config_dump(v_partition, '');
    end loop;
end
$dump$;
-- The installation makes the first one.
select pg_catalog.pg_extension_config_dump('pgq.ring', 'where gen > 1');
select pg_catalog.pg_extension_config_dump('pgq.group_seed', '');
select pg_catalog.pg_extension_config_dump('pgq.hint', '');
select pg_catalog.pg_extension_config_dump('pgq.dependency', '');
select pg_catalog.pg_extension_config_dump('pgq.permit', '');
select pg_catalog.pg_extension_config_dump('pgq.start', '');
select pg_catalog.pg_extension_config_dump('pgq.schedule', '');
-- Those of dropped roles are numbers, which may be other roles elsewhere.
select pg_catalog.pg_extension_config_dump(
    'pgq.privilege',
    'where role = 0::oid or role::oid in (select r.oid from pg_catalog.pg_roles r)'
);
