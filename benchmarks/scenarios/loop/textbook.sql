insert into textbook.job (payload)
select unnest({{payloads}});
with claimed as (
    update textbook.job
       set status = 'active', claimed_at = now()
     where id in (
        select id
          from textbook.job
         where status = 'ready'
         order by priority desc, id
         limit {{batch}}
           for update skip locked
     )
    returning id, payload
)
select coalesce(array_agg(id), '{}') as ids from claimed \gset
delete from textbook.job where id = any(:ids::bigint[]);
