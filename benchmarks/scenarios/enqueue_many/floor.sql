insert into floor.job (payload)
select unnest({{payloads}});
