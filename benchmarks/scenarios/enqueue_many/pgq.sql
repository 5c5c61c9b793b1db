select count(*) from pgq_enqueue_many({{payloads}});
