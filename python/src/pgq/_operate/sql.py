"""The statements of command line and dashboard that no method has; see `pgq._sql.in_schema`."""

from typing import Final

QUEUES: Final = "select * from @pgq_queues order by queue"

QUEUE_SETTINGS: Final = "select * from @pgq_queue_settings where name = $1::text"

ALL_SETTINGS: Final = "select * from @pgq_queue_settings"

OBSTACLES: Final = "select * from @pgq_obstacles order by queue, cause, since, job_id"

# Who may see no more of others sees their application and user. A socket has no address.
SESSIONS: Final = """
    select a.pid, a.application_name as application, a.usename as role, a.backend_start,
           case when a.client_port = -1 then 'local' else pg_catalog.host(a.client_addr) end
               as client
      from pg_catalog.pg_stat_activity a
     where a.pid = any ($1::integer[])"""

# Where sessions begin with an isolation level in which maintenance does not run.
ISOLATION: Final = """
    select coalesce(r.rolname, 'all roles') as role,
           coalesce(d.datname, 'all databases') as database
      from pg_catalog.pg_db_role_setting s
      left join pg_catalog.pg_roles r on r.oid = s.setrole
      left join pg_catalog.pg_database d on d.oid = s.setdatabase,
           pg_catalog.unnest(s.setconfig) c
     where c ~ '^default_transaction_isolation=(repeatable read|serializable)'
       and (s.setdatabase = 0 or d.datname = pg_catalog.current_database())"""

# Who changes schedules, or fires one, in a transaction that is open.
SCHEDULE_WRITERS: Final = """
    select l.pid
      from pg_catalog.pg_locks l
      join pg_catalog.pg_class c on c.oid = l.relation
      join pg_catalog.pg_namespace n on n.oid = c.relnamespace
     where n.nspname = 'pgq' and c.relname = 'schedule' and l.mode = 'RowExclusiveLock'
       and l.pid <> pg_catalog.pg_backend_pid()"""

WORKERS: Final = "select * from @pgq_workers order by queue, worker, pid"

HEALTH: Final = "select * from @pgq_health"

LOCKS: Final = "select * from @pgq_locks order by waiting_for desc nulls last"

# The state is computed, and looked at last.
WITH_INDEXES: Final = "set local enable_seqscan = off; set local enable_bitmapscan = off"
WITHIN: Final = "; set local statement_timeout = {}"

# Both bounds: the planner holds such a range for rarer than a queue, and looks for it first.
HAS_JOB_ABOVE: Final = """
    select exists (
        select from @pgq_jobs where id > $1::bigint and id <= 9223372036854775807
    ) as found"""

# A job's time is that of its end, else of its claim, else of its enqueue.
_MATCHING: Final = """
      from (
               select m.*, m.headers ->> 'task' as task
                 from @pgq_jobs m
                where m.id > $1::bigint and m.id <= $2::bigint
                  and ($4::text is null or m.queue = $4)
                  and ($5::text[] is null or m.state = any ($5))
                  and ($6::text is null or m.headers ->> 'task' = $6)
                  and ($7::text is null or pg_catalog.strpos(
                          pg_catalog.lower(m.last_error), pg_catalog.lower($7)) > 0)
                  and ($8::text is null or pg_catalog.jsonb_contains(m.payload, $8::jsonb))
                  and ($9::text is null or m.group_key = $9)
                  and ($10::text is null or m.worker = $10)
                  and ($15::text is null or m.dedupe_key = $15)
                  and ($16::text is null or pg_catalog.strpos(
                          pg_catalog.lower(m.payload::text), pg_catalog.lower($16)) > 0)
                  and coalesce(coalesce(m.finished_at, m.claimed_at, m.enqueued_at)
                               >= coalesce($11::timestamptz, pg_catalog.now() - $12::interval),
                               true)
                  and coalesce(coalesce(m.finished_at, m.claimed_at, m.enqueued_at)
                               < coalesce($13::timestamptz, pg_catalog.now() - $14::interval),
                               true)
                order by m.id desc
                limit $3::integer
           ) j
     order by j.id desc"""

JOBS_BETWEEN: Final = (
    """
    select j.id, j.queue, j.state, j.priority, j.attempt, j.max_attempts, j.group_key,
           j.dedupe_key, j.task, j.worker, j.enqueued_at, j.run_at, j.claimed_at,
           j.lease_expires_at, j.finished_at, j.expires_at, j.cancel_requested, j.last_error,
           j.payload::text as payload, j.headers::text as headers,
           j.checkpoint::text as checkpoint, j.result::text as result"""
    + _MATCHING
)

# As much of them as a line of a list shows: a payload may have 64 MB.
LINES_BETWEEN: Final = (
    """
    select j.id, j.queue, j.state, j.priority, j.attempt, j.max_attempts, j.group_key,
           j.dedupe_key, j.task, j.worker, j.enqueued_at, j.run_at, j.claimed_at,
           j.lease_expires_at, j.finished_at, j.cancel_requested,
           pg_catalog.right(j.last_error, 1000) as last_error,
           pg_catalog."left"(j.payload::text, 300) as payload"""
    + _MATCHING
)

# How long jobs waited and ran, in seconds.
TIMES_BETWEEN: Final = (
    """
    select j.id, j.finished_at,
           greatest(extract(epoch from j.claimed_at - j.run_at), 0)::float8 as waited,
           extract(epoch from j.finished_at - j.claimed_at)::float8 as ran"""
    + _MATCHING
)

# What a page shows of one job; of JSON the first 100,000 characters.
JOB: Final = """
    select j.id, j.queue, j.state, j.priority, j.attempt, j.max_attempts, j.group_key,
           j.dedupe_key, j.headers ->> 'task' as task, j.worker, j.enqueued_at, j.run_at,
           j.claimed_at, j.lease_expires_at, j.finished_at, j.expires_at, j.cancel_requested,
           j.last_error,
           pg_catalog."left"(pg_catalog.jsonb_pretty(j.payload), 100000) as payload,
           pg_catalog."left"(pg_catalog.jsonb_pretty(j.headers), 100000) as headers,
           pg_catalog."left"(pg_catalog.jsonb_pretty(j.checkpoint), 100000) as checkpoint,
           pg_catalog."left"(pg_catalog.jsonb_pretty(j.result), 100000) as result,
           j.history::text as history, j.after, j.before
      from @pgq_get($1::bigint) j"""

# What the current role may do with which queues; '*' is for all.
PERMITTED: Final = """
    select p.queue, p.privileges
      from @pgq_privileges p
     where case when p.role = 'public' then true
                else pg_catalog.pg_has_role(p.role::name, 'usage') end
     union all
    select '*', '{consume,enqueue,manage,observe}'::text[]
      from pg_catalog.pg_namespace n
     where n.nspname = 'pgq' and pg_catalog.pg_has_role(n.nspowner, 'usage')"""

IDS_BETWEEN: Final = (
    """
    select j.id, j.queue, j.state, j.group_key, j.task, j.finished_at,
           pg_catalog.right(j.last_error, 1000) as last_error"""
    + _MATCHING
)

IDS_OF: Final = """
    select j.id, j.queue, j.state, j.group_key, j.headers ->> 'task' as task,
           pg_catalog.right(j.last_error, 1000) as last_error
      from pg_catalog.unnest($1::bigint[]) i (id), @pgq_get(i.id) j"""

OTHERS_THAT_BLOCK: Final = """
    select o.job_id from @pgq_obstacles o
     where o.cause = 'group' and o.state = 'dead' and o.queue = $1 and o.group_key = $2
       and o.job_id <> $3"""

RETRY_MANY: Final = """
    select i.id, @pgq_retry(id => i.id) as done
      from pg_catalog.unnest($1::bigint[]) i (id)"""

# A job of a group has its place in a line, and stays there.
RUN_MANY: Final = """
    select g.id, @pgq_move(id => g.id, run_at => pg_catalog.now()) as done
      from pg_catalog.unnest($1::bigint[]) i (id), @pgq_get(i.id) g
     where g.state = 'scheduled' and g.group_key is null"""

MOVE_MANY: Final = """
    select i.id, @pgq_move(id => i.id, queue => $2::text, priority => $3::integer) as done
      from pg_catalog.unnest($1::bigint[]) i (id)"""

CANCEL_MANY: Final = """
    select i.id, @pgq_cancel(id => i.id, force => $2::boolean) as done
      from pg_catalog.unnest($1::bigint[]) i (id)"""

SCHEDULES: Final = """
    select s.name, s.cron, s.timezone, s.queue, s.paused, s.next_at, s.last_at, s.missed,
           s.priority, s.max_attempts, s.payload::text as payload, s.headers::text as headers
      from @pgq_schedules s
     order by s.name"""


SERVER: Final = """
    select pg_catalog.current_setting('server_version') as version,
           pg_catalog.current_setting('server_version_num')::integer as version_num,
           pg_catalog.current_database() as database, current_user as role,
           pg_catalog.pg_is_in_recovery() as in_recovery,
           pg_catalog.clock_timestamp() as now"""

# What 00_find.sql of the extension finds, and what else the server has. The version of what is no
# extension is in the function that tells it, which not everybody may call.
EXTENSION: Final = """
    select case
               when s.is_skytools then 'skytools'
               when s.version is not null then 'extension'
               when s.is_own and v.version is not null then 'script'
               when s.is_own then 'tables'
               when s.oid is not null then 'foreign'
               when v.version is not null then 'functions'
               when a.comment like 'Generic queue%' then 'skytools'
               else 'nothing'
           end as found,
           coalesce(s.version, v.version) as version,
           coalesce(s.home, v.home) as schema,
           a.default_version as files,
           exists (select from pg_catalog.pg_extension t where t.extname = 'pg_tle') as has_tle
      from (values ('pgq')) one (name)
      left join pg_catalog.pg_available_extensions a on a.name = one.name
      left join (
               select n.oid, n.nspowner, e.extversion as version, h.nspname as home,
                      exists (
                          select
                            from pg_catalog.pg_class c
                           where c.relnamespace = n.oid and c.relname in ('tick', 'subscription')
                      ) as is_skytools,
                      pg_catalog.obj_description(n.oid, 'pg_namespace') like '%extension pgq%'
                      or exists (
                             select
                               from pg_catalog.pg_class c
                              where c.relnamespace = n.oid and c.relname = 'job_0'
                         ) as is_own
                 from pg_catalog.pg_namespace n
                 left join pg_catalog.pg_depend d
                   on d.classid = 'pg_catalog.pg_namespace'::regclass and d.objid = n.oid
                  and d.deptype = 'e'
                 left join pg_catalog.pg_extension e on e.oid = d.refobjid and e.extname = 'pgq'
                 left join pg_catalog.pg_namespace h on h.oid = e.extnamespace
                where n.nspname = 'pgq'
           ) s on true
      left join lateral (
               select f.nspname as home, pg_catalog.substring(p.prosrc, '''(.+)''') as version
                 from pg_catalog.pg_proc p
                 join pg_catalog.pg_namespace f on f.oid = p.pronamespace
                where p.proname = 'pgq_version' and p.pronargs = 0
                  and case
                          when s.oid is null then pg_catalog.pg_has_role(p.proowner, 'usage')
                          else p.proowner = s.nspowner
                      end
                order by p.oid
                limit 1
           ) v on true"""

CHOOSE_SCHEMA: Final = """
    select pg_catalog.set_config(
               'pgq.schema', coalesce($1::text, pg_catalog.current_schema()::text), false
           )"""

CREATE_EXTENSION: Final = "create extension pgq"
CREATE_EXTENSION_IN: Final = "create extension pgq schema {}"
UPDATE_EXTENSION: Final = "alter extension pgq update"

SEARCH_PATH: Final = """
    select pg_catalog.current_setting('search_path') as search_path,
           $1::text = any (pg_catalog.current_schemas(false)) as is_in_it"""

# A role may be lent a function by a privilege on any queue.
PRIVILEGES: Final = """
    select v.privilege
      from (
               values ('enqueue', 'pgq_enqueue'), ('consume', 'pgq_dequeue'),
                      ('manage', 'pgq_pause')
           ) v (privilege, function)
     where (
               select pg_catalog.bool_or(pg_catalog.has_function_privilege(p.oid, 'execute'))
                 from pg_catalog.pg_proc p
                 join pg_catalog.pg_namespace n on n.oid = p.pronamespace
                where n.nspname = $1::text and p.proname = v.function
           )
     union all
    select 'observe'
      from pg_catalog.pg_class c
      join pg_catalog.pg_namespace n on n.oid = c.relnamespace
     where n.nspname = $1::text and c.relname = 'pgq_queues'
       and pg_catalog.has_table_privilege(c.oid, 'select')"""

SETTINGS: Final = """
    select s.name, s.setting
      from pg_catalog.pg_settings s
     where s.name in (
               'autovacuum', 'default_transaction_isolation', 'default_transaction_read_only',
               'fsync', 'synchronous_commit', 'track_counts'
           )"""

CONNECTIONS: Final = """
    select (select sum(d.numbackends)::integer from pg_catalog.pg_stat_database d) as used,
           pg_catalog.current_setting('max_connections')::integer as most"""

# pg_total_relation_size would wait for who empties a table.
SIZES: Final = """
    select case when c.relname ~ '^job_' then 'jobs' else 'archive' end as part,
           sum(pg_catalog.pg_total_relation_size(c.oid))::bigint as bytes
      from pg_catalog.pg_class c
      join pg_catalog.pg_namespace n on n.oid = c.relnamespace
     where n.nspname = 'pgq' and c.relkind = 'r' and c.relname ~ '^(job|archive)_[0-9]+$'
       and not exists (
               select
                 from pg_catalog.pg_locks l
                where l.relation = c.oid and l.mode = 'AccessExclusiveLock'
           )
     group by 1"""


HAS_FRONT_SERVER: Final = (
    "select exists (select from pg_catalog.pg_foreign_server s where s.srvname = 'pgq')"
)

FRONT_SHARDS: Final = "select pg_catalog.count(*) from pgq_proxy._shards()"

DRAIN: Final = "call pgq_proxy.drain({})"


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'
