select count(*)
  from (select array_agg(id) as ids, array_agg(token) as tokens
          from pgq.job
         where worker = 'bench') claimed,
       lateral pgq_complete(claimed.ids, claimed.tokens);
