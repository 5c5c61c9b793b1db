/*
 * Fencing on every path: completing depends on the kind of queue, on how many receipts there are
 * and on whether they are of one group. A stale receipt among good ones never counts.
 */
begin;
select plan(301);
\ir support/clock.psql

select pgq_create_queue('kept'), pgq_create_queue('gone', keep_completed => '0'),
       pgq_create_queue('limited', keep_completed => '0', max_active => 1000),
       pgq_create_queue('keyed', keep_completed => '0', dedupe_for => '1 minute'),
       pgq_create_queue('wide', keep_completed => '0', group_concurrency => 2) \g /dev/null

create temp table receipt (n bigint, id bigint, stale bigint, token bigint);

-- What happens at COMMIT, of which groups are a part; see 38_group.sql.
create function pg_temp.commit() returns void language plpgsql as $$
begin
    perform set_config('pgq.grouped', '', true);
    set constraints all immediate;
    set constraints all deferred;
    perform pgq._take_hints();
end
$$;

-- Jobs that were claimed, lost or given back, and claimed again: the receipts of both claims.
create function pg_temp.claim_twice(
    p_queue text, p_jobs integer, p_grouped boolean, p_lost boolean
) returns void language plpgsql as $$
declare
    v_keys constant text[] := array(select i::text from generate_series(1, p_jobs) i);
begin
    delete from receipt;
    perform pgq_enqueue_many(array_fill(jsonb '1', array[p_jobs]), p_queue,
                             group_keys => case when p_grouped then v_keys end),
            pg_temp.commit();
    insert into receipt (n, id, stale)
    select row_number() over (order by d.id), d.id, d.token
      from pgq_dequeue(p_jobs, '1 minute', p_queue) d;
    if p_lost then
        perform pg_temp.wait('1 minute');
    else
        perform pgq_release(r.id, r.stale) from receipt r;
        perform pg_temp.commit();
    end if;
    update receipt r set token = d.token
      from pgq_dequeue(p_jobs, '1 minute', p_queue) d where d.id = r.id;
end
$$;

create function pg_temp.fences(p_queue text, p_jobs integer, p_grouped boolean)
returns setof text language plpgsql as $$
declare
    v_where constant text := format(
        ' (%s, %s jobs%s)', p_queue, p_jobs, case when p_grouped then ' of groups' else '' end);
    v_odd receipt;
begin
    perform pg_temp.claim_twice(p_queue, p_jobs, p_grouped, true);
    select r.* into strict v_odd from receipt r where r.n = (p_jobs + 1) / 2;
    return next is(
        pg_temp.code(format('pgq_complete_and_dequeue(array[%s], array[%s])', v_odd.id, v_odd.stale)),
        'PQ001', 'a stale receipt completes nothing before the next batch' || v_where);
    return next is(
        pg_temp.code(format(
            'pgq_complete_and_dequeue(%L::bigint[], %L::bigint[])', array_agg(r.id),
            array_agg(case when r.n = v_odd.n then r.stale else r.token end))),
        'PQ001', 'also among good ones' || v_where) from receipt r;
    return next is(
        array(select pgq_complete(array_agg(r.id), array_agg(
                  case when r.n = v_odd.n then r.stale else r.token end
              )) from receipt r order by 1),
        array(select r.id from receipt r where r.n <> v_odd.n order by 1),
        'nor where others are completed' || v_where);
    return next ok(
        not pgq_complete(v_odd.id, v_odd.stale), 'nor alone' || v_where);
    return next ok(
        not pgq_complete(v_odd.id, v_odd.stale, '1'), 'nor with a result' || v_where);
    return next is(
        array(select pgq_complete(array[v_odd.id, v_odd.id], array[v_odd.stale, v_odd.token])),
        array[v_odd.id], 'with both receipts of a job, the good one counts' || v_where);

    perform pg_temp.claim_twice(p_queue, p_jobs, p_grouped, false);
    select r.* into strict v_odd from receipt r where r.n = (p_jobs + 1) / 2;
    return next is(
        array(select h.id from receipt r, pgq_heartbeat(
                  array[r.id, v_odd.id], array[r.token, v_odd.stale], '1 hour') h
               where r.n = 1 and r.n <> v_odd.n),
        array(select r.id from receipt r where r.n = 1 and r.n <> v_odd.n),
        'nor does it renew a lease' || v_where);
    return next is(
        pgq_fail(v_odd.id, v_odd.stale, retryable => false), null,
        'nor does it end a job' || v_where);
    return next ok(not pgq_release(v_odd.id, v_odd.stale), 'nor give one back' || v_where);
    return next is(
        array(select pgq_complete(array_agg(r.id), array_agg(r.token)) from receipt r order by 1),
        array(select r.id from receipt r order by 1), 'the good ones complete all' || v_where);
end
$$;

select pg_temp.fences(q, n, g)
  from unnest(array['kept', 'gone', 'limited', 'keyed', 'wide']) q, unnest(array[1, 3, 120]) n,
       unnest(array[false, true]) g;

select pg_temp.claim_twice('kept', 1, false, true) \g /dev/null
select pgq_complete(array[r.id, r.id, r.id], array[r.stale, r.token, r.token + 1048576],
                    array[jsonb '"old"', '"new"', '"none"'])
  from receipt r \g /dev/null
select results_eq(
    'select j.result from pgq_jobs j join receipt r on r.id = j.id', array[jsonb '"new"'],
    'the result that comes with the good receipt is kept');

select * from finish();
rollback;
