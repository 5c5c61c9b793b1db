select count(*) from pgq_enqueue_many(array_fill('{{payload}}'::jsonb, array[1]), group_keys => '{one}');
select count(*) from pgq_dequeue(1, '1 day');
do $$
begin
    for i in 1..10 loop
        perform count(*)
           from pgq_enqueue_many(
                    array_fill('{{payload}}'::jsonb, array[10000]),
                    group_keys => array_fill('one'::text, array[10000])
                );
        commit;
    end loop;
end
$$;
