select pgq_configure_queue('default', keep_completed => '1 day');
do $$
begin
    for i in 1..100 loop
        perform count(*) from pgq_enqueue_many(array_fill('{{payload}}'::jsonb, array[1000]));
        commit;
        perform count(*) from pgq_pop(1000);
        commit;
    end loop;
end
$$;
