with claimed as (
    delete from floor.job
     where id = (
        select id from floor.job order by id limit 1 for update skip locked
     )
    returning id, payload
)
select id from claimed \gset
select 1;
