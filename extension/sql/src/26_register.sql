/*
 * Registers: sequences whose last_value is a number that all sessions see at once, and that a
 * rollback does not take back. Unlike a row that is updated they leave no dead versions.
 */

create sequence pgq.next_tick;
create sequence pgq.last_tick;
create sequence pgq.put_off;
create sequence pgq.xid_recent;
create sequence pgq.xid_old;
create sequence pgq.xid_shifted;
create sequence pgq.home;
create sequence pgq.admission;
create sequence pgq.admission_seen;
create sequence pgq.awaited;
create sequence pgq.crowded;
create sequence pgq.group_seed;
select pg_catalog.setval(
    'pgq.group_seed',
    ('x' || pg_catalog.substr(pg_catalog.md5(pg_catalog.gen_random_uuid()::text), 1, 15))
        ::bit(60)::bigint
);
--@ each parked
create sequence pgq.empty_{slot};
--@ end
comment on sequence pgq.next_tick is
'from when (ms since 1970) maintenance is due; a hint. Since PostgreSQL 15 it is not logged, so '
'that it is empty after a crash and on a promoted standby: see pgq._has_lost_tokens';
do $unlogged$
begin
    if current_setting('server_version_num')::integer >= 150000 then
        execute 'alter sequence pgq.next_tick set unlogged';
    end if;
end
$unlogged$;
comment on sequence pgq.last_tick is 'when (ms since 1970) maintenance ran last';
comment on sequence pgq.put_off is
'since when (ms since 1970) maintenance is put off, or 1: see pgq._wants_tick';
comment on sequence pgq.xid_recent is 'the next transaction id at the last maintenance';
comment on sequence pgq.xid_old is 'xid_recent before that, at least a second ago';
comment on sequence pgq.xid_shifted is 'when (ms since 1970) these two were set';
comment on sequence pgq.home is 'pgq._home() when tokens were skipped last';
comment on sequence pgq.admission is 'how often pgq._admit has lowered a claim position';
comment on sequence pgq.admission_seen is
'those of pgq.admission whose jobs have been found: see pgq._find_admitted';
comment on sequence pgq.awaited is
'not null: a job may be marked (is_awaited). Set before the first one is, and never reset';
comment on sequence pgq.group_seed is
'a secret number for pgq._group_ids; null in installations that are older than it';
comment on sequence pgq.crowded is
'when (ms since 1970) others had locked so many parked jobs last that a claim found too few';
--@ each parked
comment on sequence pgq.empty_{slot} is
'not null: parked slot {slot} has no rows. Ticks set it, and whoever writes the slot takes it back '
'when it is locked: see pgq._open_slot';
--@ end
