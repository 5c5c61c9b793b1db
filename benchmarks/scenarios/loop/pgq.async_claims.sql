select count(*) from pgq_enqueue_many({{payloads}});
select coalesce(array_agg(id), '{}') as ids, coalesce(array_agg(token), '{}') as tokens
  from set_config('synchronous_commit', 'off', true), pgq_dequeue({{batch}}) \gset
select count(*) from pgq_complete(:ids::bigint[], :tokens::bigint[]);
