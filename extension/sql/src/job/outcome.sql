/*
 * Public: pgq_outcome, for whoever does not know whether a call with a receipt was done.
 */

create function @extschema@.pgq_outcome(
    id bigint,
    token bigint
)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    v_job pgq.job;
begin
    perform pgq._check_not_null('id', id is null);
    perform pgq._check_not_null('token', token is null);
    v_job := pgq._find_mine(id, 'consume');
    if v_job.id is not null then
        return case when v_job.token = pgq_outcome.token then 'active' else 'lost' end;
    end if;
    return (
        select case when a.token = pgq_outcome.token then a.state else 'lost' end
          from pgq.archive a join pgq.queue q on a.queue = q.name and a.id > q.first_job
         where a.id = pgq_outcome.id and pgq._may(q.id, 'consume')
    );
end
$$;
revoke all on function @extschema@.pgq_outcome(bigint, bigint) from public;
comment on function @extschema@.pgq_outcome(bigint, bigint) is
'Says what became of a receipt, after the answer to a call was lost.

* Returns ''completed'', ''dead'' or ''cancelled'' if the job ended so with this receipt, or when
  its last lease was lost.
* Returns ''active'' if the receipt is good.
* Returns ''lost'' if the job goes on, or has ended, without this receipt. Perhaps the receipt
  released or failed it.
* Returns null if nothing is kept of the job.

Errors:

* 22004: the id or the token is null.
* 40001: the snapshot of REPEATABLE READ or SERIALIZABLE is too old. Run the transaction again.
* PQ002: the job is of another shard.';
