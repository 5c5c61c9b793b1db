insert into textbook.job (payload)
select unnest(array_fill('{{payload}}'::jsonb, array[{{batch}}]));
