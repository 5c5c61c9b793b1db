{{enqueue_grouped}}
