select pgq.insert_event('bench', 'job', '{{payload}}');
