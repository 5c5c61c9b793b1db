-- Two moderators side by side, after schema.sql. A claim belongs to who has its receipt, not to a
-- session: here one session speaks for both, and says who it is in worker.

-- The next posts: each one gets others, and neither waits, as with FOR UPDATE SKIP LOCKED.
create temporary table adas as select * from pgq_dequeue(2, '10 minutes', 'moderation', 'ada');
create temporary table bobs as select * from pgq_dequeue(2, '10 minutes', 'moderation', 'bob');
select a.worker as moderator, p.id as post, p.body
  from (table adas union all table bobs) a join post p on p.job = a.id;

-- One given post: the second one is refused at once, as with FOR UPDATE NOWAIT ...
select job from post where body = 'First!' \gset
insert into adas select * from pgq_claim(:job, '10 minutes', 'ada');
insert into bobs select * from pgq_claim(:job, '10 minutes', 'bob');  -- 55P03

-- ... and may ask who has it.
select worker as moderator, lease_expires_at > now() as still from pgq_get(:job);

-- A verdict, in the transaction that completes the job. Ada was too slow if that is false.
begin;
update post set verdict = 'removed', moderator = 'ada' where job = :job;
select pgq_complete(id, token) as in_time from adas where id = :job;
commit;
