select * from pgq_dequeue(10, '1 hour', worker => 'bench');
