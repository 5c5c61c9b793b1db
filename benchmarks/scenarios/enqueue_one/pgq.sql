select pgq_enqueue('{{payload}}');
