with claimed as (
    update textbook.job
       set status = 'active', claimed_at = now()
     where id in (
        select id
          from textbook.job
         where status = 'ready'
         order by priority desc, id
         limit 10
           for update skip locked
     )
    returning id, payload, created_at
)
select coalesce(array_agg(id), '{}') as ids,
       count(*) as claimed,
       coalesce(array_agg(extract(epoch from clock_timestamp() - created_at) * 1000), '{}')
           as waits
  from claimed \gset
\if :claimed > 0
delete from textbook.job where id = any(:ids::bigint[]);
\set dice random(1, 20)
\if :dice = 1
insert into bench_wait (waits) values (:waits::float8[]);
\endif
\else
\sleep 5 ms
\endif
