{{enqueue_many}}
