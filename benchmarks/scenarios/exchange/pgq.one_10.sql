select coalesce(array_agg(id), '{}') as ids, coalesce(array_agg(token), '{}') as tokens
  from pgq_complete_and_dequeue(:ids::bigint[], :tokens::bigint[], {{batch}}) \gset
