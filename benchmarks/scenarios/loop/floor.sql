insert into floor.job (payload)
select unnest({{payloads}});
with claimed as (
    delete from floor.job
     where id in (
        select id from floor.job order by id limit {{batch}} for update skip locked
     )
    returning id, payload
)
select coalesce(array_agg(id), '{}') as ids from claimed \gset
select 1;
