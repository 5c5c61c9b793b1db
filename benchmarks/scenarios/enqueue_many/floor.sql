insert into floor.job (payload)
select unnest(array_fill('{{payload}}'::jsonb, array[{{batch}}]));
