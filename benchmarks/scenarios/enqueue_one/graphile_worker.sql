{{enqueue_one}}
