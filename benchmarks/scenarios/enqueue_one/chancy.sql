{{enqueue_1}}
