select count(pgq_create_queue('q' || number, keep_completed => '0')::text)
  from generate_series(1, {{queues}}) number;
select count(*)
  from generate_series(1, 10) turn,
       generate_series(1, {{queues}}) number,
       lateral pgq_enqueue_many(
           array_fill('{{payload}}'::jsonb, array[{{jobs}}]),
           queue => 'q' || number
       );
