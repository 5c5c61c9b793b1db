do $$
begin
    for i in 1..10 loop
        perform count(*)
           from pgq_enqueue_many(
                    array_fill('{{payload}}'::jsonb, array[10000]),
                    group_keys => array(select gen_random_uuid()::text from generate_series(1, 10000))
                );
        commit;
    end loop;
end
$$;
