/*
 * Public: pgq_heartbeat.
 */

create function pgq._heartbeat(
    ids bigint[], tokens bigint[], timeout interval, checkpoints jsonb[]
)
returns table (id bigint, lease_expires_at timestamptz, cancel_requested boolean)
language plpgsql
as $$
declare
    v_mine constant integer[] := case when not pgq._is_owner() then pgq._mine('consume') end;
    v_renewed pgq.renewal[]; v_slot smallint; v_lease_ms integer; v_left integer;
begin
    perform pgq._check_receipts(ids, tokens) where pgq._are_good(ids, tokens) is not true;
    perform pgq._check_lengths('checkpoints', cardinality(checkpoints), 'ids', cardinality(ids)),
            pgq._check_size('checkpoints', checkpoints)
      where checkpoints is not null;
    v_lease_ms := pgq._lease_ms(timeout);
    perform pgq._check_restricted(), pgq._want_tick(coalesce(v_lease_ms, 500));
    select array_agg(r.id), array_agg(r.token), array_agg(r.checkpoint), count(*)::integer
      into ids, tokens, checkpoints, v_left
      from (select distinct on (r.id, r.token) r.*
              from unnest(ids, tokens, checkpoints) r (id, token, checkpoint)
             order by r.id, r.token, r.checkpoint is null) r;
    foreach v_slot in array pgq._looks(tokens) loop
        exit when v_left = 0;
        -- A checkpoint would be forgotten if a locked job was passed by.
        if array_remove(checkpoints, null) <> '{}' then
            execute format(
                'select from unnest($1, $2, $3) r (id, token, checkpoint), lateral ('
                ' select from pgq.job_%s i where i.id = r.id and i.token = r.token'
                ' and pgq._is_mine(i.lane, $4) for update) i where r.checkpoint is not null', v_slot
            ) using ids, tokens, checkpoints, v_mine;
        end if;
        case v_slot
        --@ each ring
        when {slot} then
            v_renewed := array(
                select r from pgq._renew_{slot}(
                           ids, tokens, v_mine, v_lease_ms, pgq._now(), checkpoints
                       ) r
            );
        --@ end
        end case;
        continue when v_renewed = '{}';
        return query select r.id, r.lease_expires_at, r.cancel_requested from unnest(v_renewed) r;
        v_left := v_left - cardinality(v_renewed);
        select array_agg(r.id order by r.id), array_agg(r.token order by r.id),
               array_agg(r.checkpoint order by r.id)
          into ids, tokens, checkpoints
          from unnest(ids, tokens, checkpoints) r (id, token, checkpoint)
          left join unnest(v_renewed) d on d.token = r.token and d.id = r.id
         where d.id is null;
    end loop;
    if v_left > 0 then
        return query
        select j.id, j.lease_expires_at, coalesce(j.cancel_requested, false)
          from unnest(ids, tokens) r (id, token), pgq._find(r.id) j
         where j.token = r.token and pgq._is_mine(j.lane, v_mine);
    end if;
end
$$;
comment on function pgq._heartbeat(bigint[], bigint[], interval, jsonb[]) is
'See pgq_heartbeat.';

create function @extschema@.pgq_heartbeat(
    ids bigint[],
    tokens bigint[],
    timeout interval default null,
    checkpoints jsonb[] default null
)
returns table (id bigint, lease_expires_at timestamptz, cancel_requested boolean)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
    return query select h.* from pgq._heartbeat(ids, tokens, timeout, checkpoints) h;
end
$$;
revoke all on function @extschema@.pgq_heartbeat(bigint[], bigint[], interval, jsonb[]) from public;
comment on function @extschema@.pgq_heartbeat(bigint[], bigint[], interval, jsonb[]) is
'Renews leases from now on. Returns the new expiry of each, once.

The result has no receipt whose lease is lost. Without checkpoints the call waits for
no transaction that has locked a job, for example to end or cancel it. Such a lease is not
renewed: the result has its present expiry. Nobody can claim the job meanwhile.

* timeout: the new lease. Null: the timeout of each claim.
* checkpoints: one for each receipt, kept with the job for its next attempt. Null: the checkpoint
  stays as it is. The call waits for locked jobs that get a checkpoint.
* Returns cancel_requested: true if pgq_cancel was called for the job.

Errors:

* 22004: an array of ids or tokens, an id or a token is null.
* 22023: the arrays have different lengths, or the timeout is out of range.
* 40001: the snapshot of REPEATABLE READ or SERIALIZABLE is too old. Run the transaction again.
* 54000: a checkpoint is larger than 64 MB.
* PQ002: the job is of another shard.';

create function @extschema@.pgq_heartbeat(
    id bigint,
    token bigint,
    timeout interval default null,
    checkpoint jsonb default null
)
returns timestamptz
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
    perform pgq._check_not_null('id', id is null);
    perform pgq._check_not_null('token', token is null);
    return (select h.lease_expires_at
              from pgq._heartbeat(array[id], array[token], timeout, array[checkpoint]) h);
end
$$;
revoke all on function @extschema@.pgq_heartbeat(bigint, bigint, interval, jsonb) from public;
comment on function @extschema@.pgq_heartbeat(bigint, bigint, interval, jsonb) is
'Renews a lease from now on, and returns its new expiry.

An expired lease that nobody has taken back is still good.

* timeout: the new lease. Null: the timeout of the claim.
* checkpoint: how far the job has come; kept with the job for its next attempt. Null: the
  checkpoint stays as it is.
* Returns null if the lease is lost.

Errors:

* 22004: the id or the token is null.
* 22023: the timeout is out of range.
* 40001: the snapshot of REPEATABLE READ or SERIALIZABLE is too old. Run the transaction again.
* 54000: the checkpoint is larger than 64 MB.
* PQ002: the job is of another shard.';
