insert into textbook.job (payload)
select unnest({{payloads}});
