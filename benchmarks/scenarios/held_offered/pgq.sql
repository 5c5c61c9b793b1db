select coalesce(array_agg(id), '{}') as ids, coalesce(array_agg(token), '{}') as tokens,
       count(*) as claimed,
       coalesce(array_agg(extract(epoch from clock_timestamp() - enqueued_at) * 1000), '{}')
           as waits
  from pgq_dequeue(10) \gset
\if :claimed > 0
select count(*) from pgq_complete(:ids::bigint[], :tokens::bigint[]);
\set dice random(1, 20)
\if :dice = 1
insert into bench_wait (waits) values (:waits::float8[]);
\endif
\else
\sleep 5 ms
\endif
