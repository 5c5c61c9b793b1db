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
as $$
declare
    v_job pgq.job;
begin
    perform pgq._check_not_null('id', id is null);
    perform pgq._check_not_null('token', token is null);
    perform pgq._check_restricted();
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
'What became of a receipt, for whoever has lost the answer to a call with it. ''completed'', '
'''dead'' or ''cancelled'': the job ended so, with this receipt, or as its last lease was lost. '
'''active'': the receipt is good. ''lost'': the job goes on, or has ended, without it; perhaps it '
'was given back or failed with it. null: nothing is kept of the job. Errors: 22004 null receipt; '
'PQ002 the job is of another shard; 40001.';
