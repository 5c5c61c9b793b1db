select count(pgq.insert_event('bench', 'job', '{{payload}}')) from generate_series(1, {{batch}});
