/*
 * Registers: sequences whose last_value all sessions see at once. A rollback does not take it back,
 * so it serves as a hint only. Unlike a row that is updated it leaves no dead versions.
 */

create sequence pgq.next_tick;
create sequence pgq.last_tick;
create sequence pgq.xid_recent;
create sequence pgq.xid_old;
create sequence pgq.xid_shifted;
create sequence pgq.home;
create sequence pgq.group_seed;
select pg_catalog.setval(
    'pgq.group_seed',
    ('x' || pg_catalog.substr(pg_catalog.md5(pg_catalog.gen_random_uuid()::text), 1, 15))
        ::bit(60)::bigint
);
comment on sequence pgq.next_tick is
'From when (ms since 1970) a tick is due.

Since PostgreSQL 15 it is not logged, so that it is empty after a crash and on a promoted
standby: see pgq._has_lost_tokens.';
do $unlogged$
begin
    if current_setting('server_version_num')::integer >= 150000 then
        execute 'alter sequence pgq.next_tick set unlogged';
    end if;
end
$unlogged$;
comment on sequence pgq.last_tick is 'When (ms since 1970) the last tick ran.';
comment on sequence pgq.xid_recent is 'The next transaction id at a tick, once a second.';
comment on sequence pgq.xid_old is 'The xid_recent before that, at least a second ago.';
comment on sequence pgq.xid_shifted is 'When (ms since 1970) these two were set.';
comment on sequence pgq.home is 'What pgq._home() was when tokens were skipped last.';
comment on sequence pgq.group_seed is 'A secret number for pgq._group_ids.';
