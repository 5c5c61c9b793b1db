-- One transfer, exactly once, in one statement: pgq_pop takes the job away and the rest makes the
-- transfer, or neither happens. One that is not possible is dropped: if it raised an error, the
-- job would be back at once, again and again, because pgq_pop counts no attempts.
with popped as (
    select id, payload ->> 'source' as source, payload ->> 'target' as target,
           (payload ->> 'cents')::bigint as cents
      from pgq_pop(1, 'transfers')
), locked as (  -- always in this order, so that two transfers cannot wait for each other
    select a.id, a.balance
      from account a join popped p on a.id in (p.source, p.target)
     order by a.id for update of a
), booked as (
    insert into transfer (job, source, target, cents)
    select p.id, s.id, t.id, p.cents
      from popped p
      join locked s on s.id = p.source and s.balance >= p.cents
      join locked t on t.id = p.target and t.id <> s.id
     where p.cents > 0
    returning *
)
update account a
   set balance = a.balance + case a.id when b.source then -b.cents else b.cents end
  from booked b
 where a.id in (b.source, b.target);
