{{enqueue_notified}}
