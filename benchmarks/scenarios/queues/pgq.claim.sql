\set number random(1, :queues)
select * from pgq_dequeue(10, '1 hour', 'q' || :number, worker => 'bench');
