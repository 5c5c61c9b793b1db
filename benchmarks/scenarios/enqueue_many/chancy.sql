{{enqueue_1000}}
