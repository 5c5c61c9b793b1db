/*
 * What pgq_grant gives: named one by one, so that nothing else which is in the same schema and is
 * called alike goes with it.
 */

create view pgq.grantable as
select v.verb, null::oid as view,
       pg_catalog.to_regprocedure(pg_catalog.concat('@extschema@.', f.name))::oid as function
  from (values
           ('enqueue', array[
               'pgq_enqueue(jsonb, text, integer, timestamptz, text, text, integer, jsonb, text,'
               ' timestamptz, bigint[], text)',
               'pgq_enqueue_many(jsonb[], text, integer, timestamptz, text[], text[], integer,'
               ' jsonb, text, timestamptz, bigint[], text)',
               'pgq_check_watch(regclass, text)',
               'pgq_watch(regclass, text, text, text[], boolean)',
               'pgq_unwatch(regclass, text)',
               'pgq_enqueue_row()'
           ]),
           ('consume', array[
               'pgq_dequeue(integer, interval, text, text)',
               'pgq_dequeue(integer, interval, text[], text)',
               'pgq_pop(integer, text)',
               'pgq_claim(bigint, interval, text)',
               'pgq_heartbeat(bigint, bigint, interval, jsonb)',
               'pgq_heartbeat(bigint[], bigint[], interval, jsonb[])',
               'pgq_complete(bigint, bigint, jsonb)',
               'pgq_complete(bigint[], bigint[], jsonb[])',
               'pgq_complete_and_dequeue(bigint[], bigint[], integer, interval, text, text)',
               'pgq_fail(bigint, bigint, text, interval, boolean, boolean)',
               'pgq_release(bigint, bigint, interval)',
               'pgq_release_unheld(text, bigint[], integer)',
               'pgq_outcome(bigint, bigint)',
               'pgq_reclaim(text, integer)',
               'pgq_channel(text)',
               'pgq_wait(text[], interval)',
               'pgq_wake()'
           ]),
           ('observe', array['pgq_get(bigint)']),
           ('manage', array[
               'pgq_create_queue(text, integer, interval, double precision, interval, interval,'
               ' interval, integer, interval, integer, text, integer, interval, integer, interval,'
               ' integer, integer, boolean, text)',
               'pgq_configure_queue(text, integer, interval, double precision, interval, interval,'
               ' interval, integer, interval, integer, text, integer, interval, integer, interval,'
               ' integer, integer, text)',
               'pgq_drop_queue(text, boolean)',
               'pgq_pause(text)',
               'pgq_resume(text)',
               'pgq_unblock(text, text)',
               'pgq_cancel(bigint, boolean)',
               'pgq_cancel_key(text, text, boolean)',
               'pgq_cancel_all(text, boolean, integer)',
               'pgq_move(bigint, text, integer, timestamptz)',
               'pgq_retry(bigint)',
               'pgq_retry_dead(text, integer)',
               'pgq_purge(text, text[], integer)',
               'pgq_schedule(text, text, jsonb, text, text, integer, integer, jsonb, text)',
               'pgq_pause_schedule(text)',
               'pgq_resume_schedule(text)',
               'pgq_run_schedule(text)',
               'pgq_unschedule(text)',
               'pgq_grant(text, name, text[])',
               'pgq_revoke(text, name, text[])',
               'pgq_maintain()',
               'pgq_set_shard(integer)'
           ]),
           ('any', array['pgq_version()'])
       ) v (verb, names),
       pg_catalog.unnest(v.names) f (name)
 union all
select 'observe', null, pg_catalog.to_regprocedure(f.name)
  from (values
           ('pgq._queues()'), ('pgq._workers()'), ('pgq._health()'), ('pgq._locks()'),
           ('pgq._obstacles()')
       ) f (name)
 union all
select 'observe', pg_catalog.to_regclass(pg_catalog.concat('@extschema@.', c.name)), null
  from (values
           ('pgq_queues'), ('pgq_queue_settings'), ('pgq_privileges'), ('pgq_jobs'),
           ('pgq_schedules'), ('pgq_workers'), ('pgq_health'), ('pgq_locks'),
           ('pgq_obstacles')
       ) c (name);
comment on view pgq.grantable is
'The functions and views that roles may use, and the privilege for each.

any: whichever.';
