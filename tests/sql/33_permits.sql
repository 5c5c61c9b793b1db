/*
 * Permits: which ones a claim locks and ticks drop, where a queue has both kinds of limits.
 */
begin;
select plan(23);
\ir support/clock.psql

create function pg_temp.fill(p_queue text, p_number integer) returns void language sql as $$
    select pgq_enqueue_many(array_fill(jsonb '1', array[p_number]), p_queue)
$$;
create function pg_temp.taken(p_queue text, p_batch integer default 99) returns bigint
language plpgsql as $$
begin
    return (select count(*) from pgq_dequeue(p_batch, '1 hour', p_queue));
end
$$;
create function pg_temp.end_of(p_queue text, p_number integer) returns bigint language sql as $$
    select count(*)
      from (select j.id, j.token from pgq_jobs j where j.queue = p_queue and j.state = 'active'
             order by j.id limit p_number) j, pgq_complete(j.id, j.token) c
$$;
-- The permits of a kind that this transaction has locked.
create function pg_temp.locked(p_queue text, p_kind "char") returns bigint language sql as $$
    select count(*) from pgq.permit p join pgq.queue q on q.id = p.queue_id
     where q.name = p_queue and p.kind = p_kind and p.xmax::text <> '0'
$$;
create function pg_temp.permits(p_queue text, p_kind "char") returns integer[] language sql as $$
    select array(
        select p.n from pgq.permit p join pgq.queue q on q.id = p.queue_id
         where q.name = p_queue and p.kind = p_kind order by p.n
    )
$$;

-- A claim locks the permits that it uses.
select pgq_create_queue('both', max_active => 5, rate_limit => 8), pg_temp.fill('both', 3),
       pg_temp.pass('500 ms') \g /dev/null  -- the starts have other numbers than the permits
select is(pg_temp.taken('both', 3), 3::bigint, 'three jobs are claimed');
select is(
    array[pg_temp.locked('both', 'a'), pg_temp.locked('both', 'r')], '{3,3}',
    'with three permits to be active and three to start, and no more');
select pg_temp.fill('both', 9), pg_temp.taken('both'), pg_temp.pass('1 minute') \g /dev/null
select is(pg_temp.end_of('both', 4), 4::bigint, 'of five that are active four end');
select pgq_configure_queue('both', max_active => 2) \g /dev/null
select is(
    pg_temp.taken('both'), 1::bigint,
    'with a lower max_active another one starts beside the fifth');
select is(pg_temp.taken('both'), 0::bigint, 'and no more, though starts are left');

-- A claim that finds no permit looks at no jobs.
\ir support/calls_of.psql
select pg_temp.taken('both') \g /dev/null
select is(pg_temp.calls('_take_permits'), 1::bigint, 'it looks for permits');
select is(pg_temp.calls('_lease'), 0::bigint, 'but without any for no job');

-- What ticks drop.
create function pg_temp.lock_of(p_queue text) returns text language sql as $$
    select q.xmax::text from pgq.queue q where q.name = p_queue
$$;
select pgq_create_queue('plain', max_active => 2, rate_limit => 8) \g /dev/null
select pg_temp.lock_of('plain') as before \gset
savepoint s;
select pgq._drop_permits() \g /dev/null
select is(
    pg_temp.lock_of('plain'), :'before',
    'a queue that has no permits above its max_active is not locked');
select is(
    pg_temp.permits('both', 'a'), '{1,2,5}',
    'above a lower max_active a permit stays while it is in use');
select is(
    pg_temp.permits('both', 'r'), '{0,1,2,3,4,5,6,7}', 'and so do all permits to start');
select pg_temp.end_of('both', 2), pgq_configure_queue('plain', max_active => 1),
       pgq._drop_permits() \g /dev/null
select is(pg_temp.permits('both', 'a'), '{1,2}', 'it goes when it has come back');
select is(pg_temp.permits('plain', 'a'), '{1}', 'or was not in use');
select is(
    array[pg_temp.locked('plain', 'a'), pg_temp.locked('plain', 'r')], '{0,0}',
    'permits that may be used, and permits to start, are not locked for that');

-- A first max_active.
select pgq_create_queue('first'), pg_temp.fill('first', 9), pg_temp.taken('first', 5) \g /dev/null
select pgq_configure_queue('first', max_active => 2), pg_temp.end_of('first', 2) \g /dev/null
select is(
    pg_temp.taken('first'), 0::bigint,
    'those that ran before a first max_active count, whichever end');
select pg_temp.end_of('first', 2) \g /dev/null
select is(pg_temp.taken('first'), 1::bigint, 'until there are fewer');

-- Other settings do not give back starts that were used; another rate counts them anew.
select pgq_create_queue('rate', rate_limit => 2, rate_interval => '1 hour') \g /dev/null
select pg_temp.fill('rate', 9) \g /dev/null
select is(pg_temp.taken('rate'), 2::bigint, 'a rate limit lets two start');
select pgq_configure_queue('rate', max_active => 100), pgq_configure_queue('rate', rate_burst => 2)
    \g /dev/null
select is(pg_temp.taken('rate'), 0::bigint, 'other settings do not change that');
select pgq_configure_queue('rate', rate_interval => '1 minute') \g /dev/null
select is(pg_temp.taken('rate'), 2::bigint, 'another interval does');

-- What ticks spare.
select pgq_drop_queue(q, true) from unnest('{both,plain,first,rate}'::text[]) q \g /dev/null
select pgq_create_queue('none') \g /dev/null
select pg_stat_get_xact_numscans('pgq.permit_pkey'::regclass) as before,
       pg_temp.calls('_burst') as calls \gset
select pgq._drop_permits(), pgq._forget_starts(pgq._now()) \g /dev/null
select is(
    pg_stat_get_xact_numscans('pgq.permit_pkey'::regclass), :before::bigint,
    'ticks look for no permits of queues without limits');
select is(pg_temp.calls('_burst'), :calls::bigint, 'and for no starts');

-- Starts that are used up, of late and of long ago.
create function pg_temp.seed(p_is_rare boolean) returns void language plpgsql as $$
begin
    for v_seed in 1..100000 loop
        perform setseed(v_seed / 100000.0);
        if (random() >= 0.99) = p_is_rare then
            perform setseed(v_seed / 100000.0);
            return;
        end if;
    end loop;
end
$$;
select pgq_create_queue('rate', rate_limit => 1, rate_interval => '1 second') \g /dev/null
insert into pgq.start (queue_id, moment, token)
select q.id, pgq._moment(q, pgq._now() - a), 1
  from pgq.queue q, unnest('{0 s,5 s,1 hour}'::interval[]) a where q.name = 'rate';
create function pg_temp.starts() returns bigint language sql as $$
    select count(*) from pgq.start s join pgq.queue q on q.id = s.queue_id where q.name = 'rate'
$$;
select pg_temp.seed(false), pgq._forget_starts(pgq._now()) \g /dev/null
select is(pg_temp.starts(), 2::bigint, 'a tick forgets what was used up of late');
select pg_temp.seed(true), pgq._forget_starts(pgq._now()) \g /dev/null
select is(pg_temp.starts(), 1::bigint, 'and now and then what was long ago');
select is(
    (select pgq._moment(q, pgq._now()) - s.moment
       from pgq.start s join pgq.queue q on q.id = s.queue_id where q.name = 'rate'),
    0::bigint, 'but never what counts still');

select * from finish();
rollback;
