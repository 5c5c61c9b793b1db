select count(*)
  from pgq_enqueue_many(
           {{payloads}},
           group_keys => array(
               select 'g' || ceil(:groups * random()) from generate_series(1, :batch)
           )
       );
