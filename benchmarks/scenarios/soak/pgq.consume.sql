select coalesce(array_agg(id), '{}') as ids, coalesce(array_agg(token), '{}') as tokens,
       count(*) as claimed, coalesce(min(id), 0) as id,
       coalesce((array_agg(token order by id))[1], 0) as token,
       coalesce(
           array_agg(1000 * extract(epoch from clock_timestamp() - coalesce(run_at, enqueued_at))),
           '{}'
       ) as waits
  from pgq_dequeue(10) \gset
\if :claimed > 0
\set dice random(1, 200)
\if :dice <= 10
select count(*) from pgq_heartbeat(:ids::bigint[], :tokens::bigint[]);
insert into bench_wait (waits) values (:waits::float8[]);
\endif
\if :dice > 190
select pgq_fail(:id, :token, 'failed', '5 seconds');
select count(*)
  from (select array_agg(id) as ids, array_agg(token) as tokens
          from unnest(:ids::bigint[], :tokens::bigint[]) as claimed (id, token)
         where id <> :id) rest,
       lateral pgq_complete(coalesce(rest.ids, '{}'), coalesce(rest.tokens, '{}'));
\else
select count(*) from pgq_complete(:ids::bigint[], :tokens::bigint[]);
\endif
\else
\sleep 5 ms
\endif
