select count(*) from pgq_enqueue_many(array_fill('{{payload}}'::jsonb, array[10000]));
do $$
begin
    for i in 1..10 loop
        perform count(*) from pgq_dequeue(1000, '1 day');
        commit;
    end loop;
end
$$;
