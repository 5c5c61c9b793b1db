/*
 * The public functions: names, argument names, their order, types and defaults are API.
 */
begin;
set local intervalstyle = 'postgres';
select plan(56);
\ir support/member.psql

create temp table expected (declaration text, returns text);
insert into expected values
('pgq_enqueue(payload jsonb, queue text DEFAULT ''default''::text, priority integer DEFAULT 0, '
 'run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, '
 'dedupe_key text DEFAULT NULL::text, group_key text DEFAULT NULL::text, '
 'max_attempts integer DEFAULT NULL::integer, headers jsonb DEFAULT NULL::jsonb, '
 'on_duplicate text DEFAULT ''keep''::text, '
 'expires_at timestamp with time zone DEFAULT NULL::timestamp with time zone, '
 'after bigint[] DEFAULT NULL::bigint[], after_on_dead text DEFAULT ''die''::text)', 'bigint'),
('pgq_enqueue_many(payloads jsonb[], queue text DEFAULT ''default''::text, '
 'priority integer DEFAULT 0, '
 'run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, '
 'dedupe_keys text[] DEFAULT NULL::text[], group_keys text[] DEFAULT NULL::text[], '
 'max_attempts integer DEFAULT NULL::integer, headers jsonb DEFAULT NULL::jsonb, '
 'on_duplicate text DEFAULT ''keep''::text, '
 'expires_at timestamp with time zone DEFAULT NULL::timestamp with time zone, '
 'after bigint[] DEFAULT NULL::bigint[], after_on_dead text DEFAULT ''die''::text)',
 'SETOF bigint'),
('pgq_dequeue(batch integer DEFAULT 1, timeout interval DEFAULT ''00:00:30''::interval, '
 'queue text DEFAULT ''default''::text, worker text DEFAULT NULL::text)', 'SETOF pgq_job'),
('pgq_dequeue(batch integer, timeout interval, queues text[], worker text DEFAULT NULL::text)',
 'SETOF pgq_job'),
('pgq_heartbeat(id bigint, token bigint, timeout interval DEFAULT NULL::interval, '
 'checkpoint jsonb DEFAULT NULL::jsonb)',
 'timestamp with time zone'),
('pgq_heartbeat(ids bigint[], tokens bigint[], timeout interval DEFAULT NULL::interval, '
 'checkpoints jsonb[] DEFAULT NULL::jsonb[])',
 'TABLE(id bigint, lease_expires_at timestamp with time zone, cancel_requested boolean)'),
('pgq_complete(id bigint, token bigint, result jsonb DEFAULT NULL::jsonb)', 'boolean'),
('pgq_complete(ids bigint[], tokens bigint[], results jsonb[] DEFAULT NULL::jsonb[])',
 'SETOF bigint'),
('pgq_complete_and_dequeue(ids bigint[], tokens bigint[], batch integer DEFAULT 1, timeout interval'
 ' DEFAULT ''00:00:30''::interval, queue text DEFAULT ''default''::text, worker text'
 ' DEFAULT NULL::text)', 'SETOF pgq_job'),
('pgq_fail(id bigint, token bigint, error text DEFAULT NULL::text, '
 'retry_in interval DEFAULT NULL::interval, retryable boolean DEFAULT true, '
 'cancel boolean DEFAULT false)', 'text'),
('pgq_release(id bigint, token bigint, delay interval DEFAULT ''00:00:00''::interval)', 'boolean'),
('pgq_release_unheld(worker text, tokens bigint[], pid integer DEFAULT NULL::integer)',
 'SETOF bigint'),
('pgq_outcome(id bigint, token bigint)', 'text'),
('pgq_reclaim(queue text DEFAULT NULL::text, max integer DEFAULT 1000)', 'SETOF bigint'),
('pgq_pop(batch integer DEFAULT 1, queue text DEFAULT ''default''::text)', 'SETOF pgq_job'),
('pgq_claim(id bigint, timeout interval DEFAULT ''00:00:30''::interval, '
 'worker text DEFAULT NULL::text)', 'pgq_job'),
('pgq_create_queue(name text, max_attempts integer DEFAULT 20, '
 'backoff_base interval DEFAULT ''00:00:01''::interval, '
 'backoff_factor double precision DEFAULT 2, '
 'backoff_max interval DEFAULT ''01:00:00''::interval, '
 'keep_completed interval DEFAULT ''1 day''::interval, '
 'keep_dead interval DEFAULT ''30 days''::interval, max_active integer DEFAULT 0, '
 'dedupe_for interval DEFAULT ''00:00:00''::interval, group_concurrency integer DEFAULT 1, '
 'group_on_dead text DEFAULT ''continue''::text, rate_limit integer DEFAULT 0, '
 'rate_interval interval DEFAULT ''00:00:01''::interval, rate_burst integer DEFAULT 0, '
 'priority_ageing interval DEFAULT ''00:00:00''::interval, max_ready integer DEFAULT 0, '
 'max_payload integer DEFAULT 0, if_not_exists boolean DEFAULT false, '
 'description text DEFAULT NULL::text)', 'boolean'),
('pgq_configure_queue(name text, max_attempts integer DEFAULT NULL::integer, '
 'backoff_base interval DEFAULT NULL::interval, '
 'backoff_factor double precision DEFAULT NULL::double precision, '
 'backoff_max interval DEFAULT NULL::interval, keep_completed interval DEFAULT NULL::interval, '
 'keep_dead interval DEFAULT NULL::interval, max_active integer DEFAULT NULL::integer, '
 'dedupe_for interval DEFAULT NULL::interval, '
 'group_concurrency integer DEFAULT NULL::integer, group_on_dead text DEFAULT NULL::text, '
 'rate_limit integer DEFAULT NULL::integer, '
 'rate_interval interval DEFAULT NULL::interval, rate_burst integer DEFAULT NULL::integer, '
 'priority_ageing interval DEFAULT NULL::interval, max_ready integer DEFAULT NULL::integer, '
 'max_payload integer DEFAULT NULL::integer, description text DEFAULT NULL::text)', 'void'),
('pgq_drop_queue(name text, force boolean DEFAULT false)', 'void'),
('pgq_pause(queue text)', 'void'),
('pgq_resume(queue text)', 'void'),
('pgq_unblock(queue text, group_key text)', 'boolean'),
('pgq_purge(queue text, states text[] DEFAULT ''{ready,scheduled,waiting}''::text[], max integer DEFAULT NULL::integer)', 'bigint'),
('pgq_get(id bigint)', 'SETOF pgq_jobs'),
('pgq_cancel(id bigint, force boolean DEFAULT false)', 'boolean'),
('pgq_cancel_key(queue text, dedupe_key text, force boolean DEFAULT false)', 'boolean'),
('pgq_cancel_all(queue text, force boolean DEFAULT false, max integer DEFAULT NULL::integer)', 'bigint'),
('pgq_move(id bigint, queue text DEFAULT NULL::text, priority integer DEFAULT NULL::integer, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone)', 'boolean'),
('pgq_retry(id bigint)', 'boolean'),
('pgq_retry_dead(queue text, max integer DEFAULT 1000)', 'SETOF bigint'),
('pgq_schedule(name text, cron text, payload jsonb DEFAULT ''{}''::jsonb, '
 'queue text DEFAULT ''default''::text, timezone text DEFAULT ''UTC''::text, '
 'priority integer DEFAULT 0, max_attempts integer DEFAULT NULL::integer, '
 'headers jsonb DEFAULT NULL::jsonb, missed text DEFAULT ''once''::text)',
 'timestamp with time zone'),
('pgq_unschedule(name text)', 'boolean'),
('pgq_pause_schedule(name text)', 'boolean'),
('pgq_resume_schedule(name text)', 'boolean'),
('pgq_run_schedule(name text)', 'bigint'),
('pgq_channel(queue text)', 'text'),
('pgq_wait(queues text[], max_wait interval DEFAULT ''00:00:30''::interval)', 'interval'),
('pgq_wake()', 'void'),
('pgq_watch(relation regclass, queue text DEFAULT ''default''::text, '
 'condition text DEFAULT NULL::text, events text[] DEFAULT ''{insert}''::text[], '
 'dedupe boolean DEFAULT false)', 'void'),
('pgq_unwatch(relation regclass, queue text DEFAULT ''default''::text)', 'boolean'),
('pgq_check_watch(relation regclass, queue text)', 'text'),
('pgq_enqueue_row()', 'trigger'),
('pgq_grant(queue text, role name, privileges text[])', 'void'),
('pgq_revoke(queue text, role name, '
 'privileges text[] DEFAULT ''{enqueue,consume,observe,manage}''::text[])', 'void'),
('pgq_maintain()', 'void'),
('pgq_set_shard(shard integer)', 'void'),
('pgq_version()', 'text');

create temp table actual as
select format('%s(%s)', p.proname, pg_get_function_arguments(p.oid)) as declaration,
       pg_get_function_result(p.oid) as returns
  from member m
  join pg_proc p on p.oid = m.objid
 where m.classid = 'pg_proc'::regclass and p.pronamespace <> 'pgq'::regnamespace;

select is(a.returns, e.returns,
           format('%s has the arguments and the result of the reference',
                  regexp_replace(e.declaration, '\s(integer|text|jsonb|bigint)\M.*', ' ...')))
  from expected e
  left join actual a using (declaration);
select is_empty(
    'select a.declaration from actual a left join expected e using (declaration) where e is null',
    'there is no other public function');

select columns_are('pgq_job', array[
    'id', 'token', 'queue', 'priority', 'state', 'attempt', 'max_attempts', 'payload', 'headers',
    'group_key', 'dedupe_key', 'worker', 'enqueued_at', 'run_at', 'claimed_at',
    'lease_expires_at', 'last_error', 'cancel_requested', 'checkpoint'
], 'a job has the columns of the reference');
select results_eq(
    $$ select a.atttypid::regtype::text,
              string_agg(a.attname, ' ' order by a.attnum) collate "default"
         from pg_attribute a
        where a.attrelid = 'pgq_job'::regclass
        group by 1
        order by min(a.attnum) $$,
    $$ values ('bigint', 'id token'),
              ('text', 'queue state group_key dedupe_key worker last_error'),
              ('integer', 'priority attempt max_attempts'),
              ('jsonb', 'payload headers checkpoint'),
              ('timestamp with time zone', 'enqueued_at run_at claimed_at lease_expires_at'),
              ('boolean', 'cancel_requested') $$,
    'of these types');

select is(
    pgq_version(), (select a.default_version from pg_available_extensions a where a.name = 'pgq'),
    'pgq_version is the version of the files');
select is_empty(
    $$ select from pg_extension e
        where e.extname = 'pgq' and (e.extrelocatable or e.extversion <> pgq_version()) $$,
    'and of the installed extension, which is not relocatable');
select results_eq(
    $$ select v.superuser, v.trusted, v.requires::text, v.schema::text collate "default"
         from pg_available_extension_versions v
        where v.name = 'pgq' and v.version = pgq_version() $$,
    $$ values (false, false, null::text, null::text) $$,
    'needs no superuser, no other extension but plpgsql, and any schema will do');
select lives_ok($$ select * from pgq_dequeue(10, '30 seconds') $$,
    'the short form of pgq_dequeue is not ambiguous');
select lives_ok($$ select * from pgq_dequeue(10, '30 seconds', 'default') $$,
    'nor is a queue given by position');
select lives_ok($$ select * from pgq_dequeue(10, '30 seconds', array['default']) $$,
    'nor a list of queues');

select * from finish();
rollback;
