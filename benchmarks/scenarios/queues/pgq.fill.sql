select count(pgq_create_queue('q' || number, keep_completed => '0')::text)
  from generate_series(1, {{queues}}) number;
do $$
begin
    for turn in 1..10 loop
        perform count(*)
           from generate_series(1, {{queues}}) number,
                lateral pgq_enqueue_many(
                    array_fill('{{payload}}'::jsonb, array[{{jobs}}]),
                    queue => 'q' || number
                );
        commit;
    end loop;
end
$$;
