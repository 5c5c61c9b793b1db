/*
 * What has failed in maintenance is left out for ten minutes, and nothing else is.
 */
begin;
select plan(14);
\ir support/clock.psql
\ir support/commit.psql
\ir support/read.psql

create function pg_temp.job(p_label text) returns pgq_jobs language sql as $$
    select j from pgq_jobs j where j.payload = to_jsonb(p_label)
$$;
create function pg_temp.states() returns table (skipped text, other text) language sql as $$
    select string_agg(l || ' ' || (pg_temp.job(l || ' 1')).state, ', ' order by l),
           string_agg(l || ' ' || (pg_temp.job(l || ' 2')).state, ', ' order by l)
      from unnest('{lease,due,group,after,old}'::text[]) l
$$;
create function pg_temp.skip(p_kind text, p_key text) returns void language sql as $$
    insert into pgq.skipped (kind, key, at, error) values (p_kind, p_key, pgq._now(), 'it fails')
$$;

-- Two of each kind, of which maintenance has failed with the first one.
select pg_temp.add(l || i), pg_temp.add('before' || i)
  from unnest('{"lease "}'::text[]) l, generate_series(1, 2) i \g /dev/null
select pg_temp.take(4, p_timeout => '1 s') \g /dev/null
select pgq_complete(j.id, j.token) from pgq.job j where j.payload in ('"before1"', '"before2"')
    \g /dev/null
select pg_temp.add('due ' || i, p_delay => '1 s'),
       pgq_enqueue(to_jsonb('old ' || i), expires_at => pgq._now() + '1 s'),
       pgq_enqueue(to_jsonb('group ' || i), group_key => 'g' || i),
       pgq_schedule('s' || i, '* * * * *')
  from generate_series(1, 2) i \g /dev/null
select pgq_enqueue('"first"', priority => 9) as first \gset
select pgq_enqueue(to_jsonb('after ' || i), after => array[:first]) from generate_series(1, 2) i
    \g /dev/null
select pgq_complete(d.id, d.token) from pgq_dequeue() d \g /dev/null
select pg_temp.defer() \g /dev/null
select pg_temp.skip('job', (pg_temp.job(l || ' 1')).id::text)
  from unnest('{lease,due,after,old}'::text[]) l \g /dev/null
select pg_temp.skip('group', j.group_id::text) from pgq.job j where j.payload = '"group 1"' \g /dev/null
select pg_temp.skip('schedule', 's1') \g /dev/null
select pg_temp.wait('9 minutes') \g /dev/null
select results_eq(
    'select * from pg_temp.states()',
    $$ values ('after waiting, due scheduled, group waiting, lease active, old ready',
               'after ready, due ready, group ready, lease ready, old dead') $$,
    'maintenance leaves out what has failed, and nothing else');
select results_eq(
    $$ select distinct j.headers ->> 'pgq_schedule' from pgq.job j
        where j.headers ? 'pgq_schedule' $$, array['s2'], 'schedules, too');
select is(
    pg_sequence_last_value('pgq.next_tick'), pgq._ms(pgq._now()) + 500,
    'and does not hurry for it');
select is(
    (select count(*) from pgq_health h where h.subject = 'skipped' and h.status = 'warning'),
    6::bigint, 'which health tells');

-- It is not moved from slot to slot either.
create function pg_temp.moved(p_from integer, p_to integer, p_last_first boolean default false)
returns boolean language plpgsql as $$
declare
    v_moved constant integer := pgq._move(p_from::smallint, p_to::smallint, 1000, p_last_first);
begin
    return v_moved > 0 and not exists (
        select from pgq.job j where j.slot = p_from and j.place is null and (
            select count(*) = 0 from pgq.skipped s where s.kind = 'job' and s.key = j.id::text
        )
    ) and exists (select from pgq.job j where j.slot = p_from);
end
$$;
savepoint before;
select is(pg_temp.moved(0, 1), true, 'from a slot of the ring all others are moved');
rollback to before;
select is(pg_temp.moved(0, 1, true), true, 'also the last ones first');
rollback to before;
select pg_temp.add('far', p_delay => '1 day') \g /dev/null
select is(pg_temp.moved(4, 5), true, 'and from a parked slot');
rollback to before;

-- How it fails: two of some jobs, of which one does with what is nobody's fault.
create function pg_temp.break() returns trigger language plpgsql as $$
begin
    if new.payload #>> '{}' in ('XX000', '53200') then
        raise exception 'it fails' using errcode = new.payload #>> '{}';
    end if;
    return new;
end
$$;
create trigger break before insert on pgq.job_0 for each row execute function pg_temp.break();
select pg_temp.add(l, p_delay => '1 s')
  from unnest('{XX000,plain,53200,other}'::text[]) l \g /dev/null
create temp view came as
select j.payload #>> '{}' from pgq.job j
 where j.slot < 4 and j.payload #>> '{}' in ('XX000', 'plain', '53200', 'other');
select lives_ok('select pg_temp.tick()', 'maintenance goes on when some of many jobs fail');
select set_eq('select * from came', '{plain,other}'::text[], 'and does the others');
drop trigger break on pgq.job_0;
select pg_temp.tick() \g /dev/null
select set_eq(
    'select * from came', '{plain,other,53200}'::text[],
    'where memory had run out the next one does what is left');
rollback to before;

-- Of which queue a group is, among many other jobs.
select pgq_enqueue_many(array_fill(jsonb '1', array[1000]), run_at => r)
  from unnest(array[null, pgq._now() + '1 day']) r \g /dev/null
select pgq_enqueue('1', group_key => 'last') as last \gset
select j.group_id as group from pgq.job j where j.id = :last \gset
set local enable_seqscan = off;
select pg_temp.read() as before \gset
select pgq._skip('group', :'group', 'XX000', 'it fails') \g /dev/null
select cmp_ok(pg_temp.read() - :before, '<', 100::bigint, 'few jobs are read to tell it');
rollback to before;

-- After ten minutes it is tried again, or when the clock was set back.
select pg_temp.wait('1 minute 1 ms') \g /dev/null
select is((select count(*) from pgq.skipped), 0::bigint, 'after ten minutes it is tried again');
select results_eq(
    'select s.skipped from pg_temp.states() s',
    $$ values ('after ready, due ready, group ready, lease ready, old dead') $$, 'with success');
rollback to before;
select pg_temp.now_is(pgq._now() - interval '9 minutes 1 s'), pgq._tick() \g /dev/null
select is((select count(*) from pgq.skipped), 0::bigint,
          'as it is when the clock was set back behind its failure');

select * from finish();
rollback;
