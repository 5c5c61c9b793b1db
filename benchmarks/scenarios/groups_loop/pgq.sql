{{draw}}
select count(*) from pgq_enqueue_many({{payloads}}, group_keys => {{keys}});
select coalesce(array_agg(id), '{}') as ids, coalesce(array_agg(token), '{}') as tokens
  from pgq_dequeue({{batch}}) \gset
select count(*) from pgq_complete(:ids::bigint[], :tokens::bigint[]);
