select count(*)
  from generate_series(1, 100) hour,
       lateral pgq_enqueue_many(
           array_fill('{{payload}}'::jsonb, array[1000]),
           run_at => now() + make_interval(hours => hour)
       );
