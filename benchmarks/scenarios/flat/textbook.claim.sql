update textbook.job
   set status = 'active', claimed_at = now()
 where id in (
    select id
      from textbook.job
     where status = 'ready'
     order by priority desc, id
     limit 10
       for update skip locked
 )
returning id, payload;
