/*
 * Which slots are free, are cleaned, and are looked into, and how large they are.
 */
begin;
select plan(15);
\ir support/clock.psql

create temp view ring as select r.* from pgq.ring r order by r.gen desc limit 1;
create function pg_temp.turn(p_slot_size integer default 1) returns smallint[]
language plpgsql as $$
begin
    perform set_config('pgq.slot_size', p_slot_size::text, true), pg_temp.tick(),
            set_config('pgq.slot_size', '', true);
    return (select r.live from ring r);
end
$$;
create function pg_temp.fill(p_number integer) returns void language sql as $$
    select pgq_enqueue_many(array_fill(jsonb '1', array[p_number]))
$$;
create function pg_temp.end_of(p_slot integer) returns void language sql as $$
    select pgq_cancel(j.id, true) from pgq.job j where j.slot = p_slot
$$;
savepoint clean;

-- A slot without jobs.
select pg_temp.fill(3), pg_temp.end_of(0) \g /dev/null
select is(pg_temp.turn(), '{0,1}', 'a slot without jobs is left');
select is((select r.ready from ring r), '{1}', 'claims do not look into it any more');
rollback to clean;
select pg_temp.fill(3), pg_temp.turn(), pg_temp.fill(3), pg_temp.turn(), pg_temp.fill(3) \g /dev/null
select pg_temp.tick(3), pg_temp.end_of(0) \g /dev/null
select is(pg_temp.turn(), '{0,1,2}', 'of three slots the first has no jobs any more');
select is(
    (select r.filling from ring r), null, 'it is not cleaned together with the second one');
select is(pg_temp.turn(), '{1,2,0}', 'as it is free a moment later');
rollback to clean;

-- The head has no pages at first, and so has a slot that is to be filled.
select pg_temp.fill(2500), pg_temp.turn(), pg_temp.tick(2) \g /dev/null
select is(pg_temp.turn(20000), '{0,2,1}', 'a slot is cleaned while the head is empty');
select pg_temp.fill(100) \g /dev/null
select is(pg_temp.turn(), '{0,2,1}', 'a head that is full does not turn to the slot that is to be filled');
rollback to clean;

-- Nor is a slot free that somebody has used and rolled back, and still uses.
insert into pgq.job (id, pos, enqueued_at, lane, slot, payload) values (0, 0, now(), 0, 1, '1');
rollback to clean;
declare used cursor for select from pgq.job_1;
select pg_temp.fill(2500) \g /dev/null
select is(pg_temp.turn(), '{0,2}', 'another one is written next');
select pg_temp.tick(2) \g /dev/null
select is(pg_temp.turn(20000), '{0,3,2}', 'and another one is filled');
rollback to clean;

-- What is left of a slot that is cleaned is locked, here by being skipped.
select pg_temp.fill(1500) \g /dev/null
insert into pgq.skipped (kind, key, at, error)
select 'job', j.id, pgq._now(), 'e' from pgq.job j order by j.id limit 9;
select pg_temp.turn(), pg_temp.fill(3), pg_temp.turn(), pg_temp.fill(3), pg_temp.tick(3) \g /dev/null
select is(pg_temp.turn(40000), '{0,3,1,2}', 'one of four slots is to be filled from the first');
select pg_temp.tick(2) \g /dev/null
select is(
    (select count(*) from pgq.job j where j.slot = 0), 9::bigint, 'some of whose jobs are locked');
-- The second one has jobs, of the first one nothing is known.
create or replace function pgq._pages(p_slot smallint, p_is_fresh boolean) returns bigint
language sql as $$
    select case when p_is_fresh then (p_slot = 1)::integer
                else pg_relation_size(format('pgq.job_%s', p_slot)::regclass) / 8192 end
$$;
select pg_temp.turn() \g /dev/null
select is(
    (select r.cleaned from ring r), '{0,1}',
    'when the head is full, and no slot is free, another one is moved to the same slot');
select pg_temp.tick(3) \g /dev/null
select is((select r.live from ring r), '{0,3,2}', 'so that one is free');
rollback to clean;

-- Neighbours that are full of jobs are not worth a move: each has a page, and no garbage.
create or replace function pgq._pages(p_slot smallint, p_is_fresh boolean) returns bigint
language sql as $$
    select pg_relation_size(format('pgq.job_%s', p_slot)::regclass) / 8192
$$;
select pg_temp.fill(3), pg_temp.turn(), pg_temp.fill(3), pg_temp.turn(), pg_temp.fill(3),
       pg_temp.tick(3) \g /dev/null
select is(pg_temp.turn(), '{0,1,2}', 'jobs are not moved where that frees no more than it takes');
rollback to clean;

-- How large slots become: what is set for the database counts, and nothing else that is set there.
select format('alter database %I set pgq.slot_size = 12345', current_database()) \gexec
select format('alter database %I set work_mem = %L', current_database(), '5MB') \gexec
select format('alter role %I in database %I set pgq.slot_size = 9', current_user, current_database())
    \gexec
select is(pgq._slot_size(), 12345::bigint, 'the size of slots is a setting of the database');

select * from finish();
rollback;
