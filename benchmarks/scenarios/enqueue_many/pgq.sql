select count(*) from pgq_enqueue_many(array_fill('{{payload}}'::jsonb, array[{{batch}}]));
