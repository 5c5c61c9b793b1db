"""Every SQL statement of the package; `@` stands for the schema of the pgq functions.

JSON travels as text and is cast by the server, so that the statements give the same result on
a connection with no json codec, with pgq's or with the caller's own. So do the times of jobs, as
microseconds since 1970. Arguments are named: the names are API, and defaulted arguments may
be added to a function later.
"""

from functools import lru_cache

_FACTS = """
    select id, token, queue, priority, state, attempt, max_attempts,
           group_key, dedupe_key, worker,
           (extract(epoch from enqueued_at) * 1000000)::bigint as enqueued_at,
           (extract(epoch from run_at) * 1000000)::bigint as run_at,
           (extract(epoch from claimed_at) * 1000000)::bigint as claimed_at,
           (extract(epoch from lease_expires_at) * 1000000)::bigint as lease_expires_at,
           last_error, cancel_requested,
           """
_COLUMNS = (
    _FACTS + "payload::text as payload, headers::text as headers, checkpoint::text as checkpoint"
)
_JOB = (
    _COLUMNS
    + """
      from """
)
_BLIND_JOB = (
    _FACTS
    + """null::text as payload, null::text as headers, null::text as checkpoint
      from """
)

ENQUEUE = """
    select @pgq_enqueue(
        payload => $1::text::jsonb, queue => $2::text, priority => $3::integer,
        run_at => coalesce($4::timestamptz, clock_timestamp() + $13::interval),
        dedupe_key => $5::text, group_key => $6::text,
        max_attempts => $7::integer, headers => $8::text::jsonb, on_duplicate => $9::text,
        expires_at => $10::timestamptz, after => $11::bigint[], after_on_dead => $12::text)"""

ENQUEUE_MANY = """
    select id from @pgq_enqueue_many(
        payloads => $1::text[]::jsonb[], queue => $2::text, priority => $3::integer,
        run_at => coalesce($4::timestamptz, clock_timestamp() + $13::interval),
        dedupe_keys => $5::text[], group_keys => $6::text[],
        max_attempts => $7::integer, headers => $8::text::jsonb,
        on_duplicate => $9::text, expires_at => $10::timestamptz, after => $11::bigint[],
        after_on_dead => $12::text) as id"""

_DEQUEUE = """@pgq_dequeue(
        batch => $1::integer, timeout => $2::interval, queue => $3::text, worker => $4::text)"""
DEQUEUE = _JOB + _DEQUEUE

DEQUEUE_FROM = (
    _JOB
    + """@pgq_dequeue(
        batch => $1::integer, timeout => $2::interval, queues => $3::text[], worker => $4::text)"""
)

# Its commit is not waited for. That is set before the claim is called, which reads it, and until
# the end of the transaction only; before PostgreSQL 15 it would not be safe.
_RELAXED = """
           (select set_config(
                'synchronous_commit',
                case when current_setting('server_version_num')::integer >= 150000 then 'off'
                     else current_setting('synchronous_commit') end,
                true) offset 0) as relaxed (setting),
           lateral """
DEQUEUE_RELAXED = (
    _JOB
    + _RELAXED
    + """@pgq_dequeue(
        batch => $1::integer, timeout => $2::interval, queue => $3::text,
        worker => case when setting is not null then $4::text end)"""
)
DEQUEUE_FROM_RELAXED = (
    _JOB
    + _RELAXED
    + """@pgq_dequeue(
        batch => $1::integer, timeout => $2::interval, queues => $3::text[],
        worker => case when setting is not null then $4::text end)"""
)

HEARTBEAT = """
    select @pgq_heartbeat(
        id => $1::bigint, token => $2::bigint, timeout => $3::interval,
        checkpoint => $4::text::jsonb)"""

HEARTBEAT_MANY = """
    select id, lease_expires_at, cancel_requested from @pgq_heartbeat(
        ids => $1::bigint[], tokens => $2::bigint[], timeout => $3::interval,
        checkpoints => $4::text[]::jsonb[])"""

COMPLETE = """
    select @pgq_complete(id => $1::bigint, token => $2::bigint, result => $3::text::jsonb)"""

COMPLETE_MANY = """
    select id from @pgq_complete(
        ids => $1::bigint[], tokens => $2::bigint[], results => $3::text[]::jsonb[]) as id"""

COMPLETE_AND_DEQUEUE = (
    _JOB
    + """@pgq_complete_and_dequeue(
        ids => $1::bigint[], tokens => $2::bigint[], batch => $3::integer,
        timeout => $4::interval, queue => $5::text, worker => $6::text)"""
)

FAIL = """
    select @pgq_fail(id => $1::bigint, token => $2::bigint, error => $3::text,
                     retry_in => $4::interval, retryable => $5::boolean,
                     cancel => $6::boolean)"""

RELEASE = """
    select @pgq_release(id => $1::bigint, token => $2::bigint, delay => $3::interval)"""

RELEASE_UNHELD = """
    select id from @pgq_release_unheld(
        worker => $1::text, tokens => $2::bigint[], pid => $3::integer) as id"""

OUTCOME = """
    select @pgq_outcome(id => $1::bigint, token => $2::bigint)"""

RECLAIM = """
    select id from @pgq_reclaim(queue => $1::text, max => $2::integer) as id"""

POP = _JOB + """@pgq_pop(batch => $1::integer, queue => $2::text)"""

_CLAIM = """@pgq_claim(
        id => $1::bigint, timeout => $2::interval, worker => $3::text)"""
CLAIM = _JOB + _CLAIM

CREATE_QUEUE = """
    select @pgq_create_queue(
        name => $1::text, max_attempts => $2::integer, backoff_base => $3::interval,
        backoff_factor => $4::double precision, backoff_max => $5::interval,
        keep_completed => $6::interval, keep_dead => $7::interval, max_active => $8::integer,
        dedupe_for => $9::interval, group_concurrency => $10::integer,
        group_on_dead => $11::text, rate_limit => $12::integer, rate_interval => $13::interval,
        rate_burst => $14::integer, priority_ageing => $15::interval, max_ready => $16::integer,
        max_payload => $17::integer, if_not_exists => $18::boolean)"""

# Extensions below 0.2 have no descriptions.
CREATE_DESCRIBED_QUEUE = CREATE_QUEUE[:-1] + ", description => $19::text)"

CONFIGURE_QUEUE = """
    select @pgq_configure_queue(
        name => $1::text, max_attempts => $2::integer, backoff_base => $3::interval,
        backoff_factor => $4::double precision, backoff_max => $5::interval,
        keep_completed => $6::interval, keep_dead => $7::interval, max_active => $8::integer,
        dedupe_for => $9::interval, group_concurrency => $10::integer,
        group_on_dead => $11::text, rate_limit => $12::integer, rate_interval => $13::interval,
        rate_burst => $14::integer, priority_ageing => $15::interval, max_ready => $16::integer,
        max_payload => $17::integer)"""

CONFIGURE_DESCRIBED_QUEUE = CONFIGURE_QUEUE[:-1] + ", description => $18::text)"

DROP_QUEUE = "select @pgq_drop_queue(name => $1::text, force => $2::boolean)"
PAUSE = "select @pgq_pause(queue => $1::text)"
RESUME = "select @pgq_resume(queue => $1::text)"
UNBLOCK = "select @pgq_unblock(queue => $1::text, group_key => $2::text)"
PURGE = "select @pgq_purge(queue => $1::text, states => $2::text[])"
PURGE_SOME = "select @pgq_purge(queue => $1::text, states => $2::text[], max => $3::integer)"
CANCEL = "select @pgq_cancel(id => $1::bigint, force => $2::boolean)"
CANCEL_KEY = """
    select @pgq_cancel_key(queue => $1::text, dedupe_key => $2::text, force => $3::boolean)"""
CANCEL_ALL = "select @pgq_cancel_all(queue => $1::text, force => $2::boolean)"
CANCEL_SOME = "select @pgq_cancel_all(queue => $1::text, force => $2::boolean, max => $3::integer)"
# Extensions below 0.2 have none of these: there the names mean the columns of "none".
_SNAPSHOT = (
    _COLUMNS
    + """,
           (extract(epoch from expires_at) * 1000000)::bigint as expires_at,
           (extract(epoch from finished_at) * 1000000)::bigint as finished_at,
           result::text as result,
           (select history::text from (select job.*) own) as history,
           (select after from (select job.*) own) as after,
           (select before from (select job.*) own) as before
      from (select null::jsonb as history, null::bigint[] as after, null::bigint[] as before) none,
           """
)
GET = _SNAPSHOT + "lateral @pgq_get(id => $1::bigint) job"
GET_MANY = (
    _SNAPSHOT
    + """unnest($1::bigint[]) with ordinality as wanted (job_id, n),
           lateral @pgq_get(id => wanted.job_id) job order by n"""
)
COUNT_STATES = """
    select state, count(*)::integer as jobs
      from unnest($1::bigint[]) wanted, lateral @pgq_get(id => wanted) group by state"""
MOVE = """
    select @pgq_move(
        id => $1::bigint, queue => $2::text, priority => $3::integer, run_at => $4::timestamptz
    )"""
RETRY = "select @pgq_retry(id => $1::bigint)"
RETRY_DEAD = "select id from @pgq_retry_dead(queue => $1::text, max => $2::integer) as id"
SCHEDULE = """
    select @pgq_schedule(
        name => $1::text, cron => $2::text, payload => $3::text::jsonb, queue => $4::text,
        timezone => $5::text, priority => $6::integer, max_attempts => $7::integer,
        headers => $8::text::jsonb, missed => $9::text)"""
UNSCHEDULE = "select @pgq_unschedule(name => $1::text)"
PAUSE_SCHEDULE = "select @pgq_pause_schedule(name => $1::text)"
RESUME_SCHEDULE = "select @pgq_resume_schedule(name => $1::text)"
RUN_SCHEDULE = "select @pgq_run_schedule(name => $1::text)"
GRANT = "select @pgq_grant(queue => $1::text, role => $2::name, privileges => $3::text[])"
REVOKE = "select @pgq_revoke(queue => $1::text, role => $2::name, privileges => $3::text[])"
WATCH = """
    select @pgq_watch(
        relation => $1::text::regclass, queue => $2::text, condition => $3::text,
        events => $4::text[], dedupe => $5::boolean)"""
UNWATCH = "select @pgq_unwatch(relation => $1::text::regclass, queue => $2::text)"
CHANNEL = "select @pgq_channel(queue => $1::text)"
QUEUES_OF_PREFIXES = """
    select name from @pgq_queue_settings
     where exists (select from unnest($1::text[]) p (prefix) where starts_with(name, p.prefix))"""
WAIT = "select @pgq_wait(queues => $1::text[], max_wait => $2::interval)"
WAKE = "select @pgq_wake()"
PREPARES = "select current_setting('max_prepared_transactions') <> '0'"
WHOSE = """
    select format('%s-%s-%s', c.system_identifier, d.oid, r.oid)
    from pg_control_system() c, pg_database d, pg_roles r
    where d.datname = current_database() and r.rolname = session_user"""
NOTIFY = "select pg_notify($1::text, '')"
MAINTAIN = "select @pgq_maintain()"
SET_SHARD = "select @pgq_set_shard(shard => $1::int)"
QUEUES = """
    select current_database() as database, queue, ready, scheduled, waiting, active, dead,
           coalesce(extract(epoch from oldest_ready_age), 0)::float8 as oldest_ready_seconds
      from @pgq_queues"""
VERSION = "select @pgq_version()"

# What commits with the caller's own writes, if it is in the caller's transaction.
JOINING = frozenset(
    {ENQUEUE, ENQUEUE_MANY, COMPLETE, COMPLETE_MANY, COMPLETE_AND_DEQUEUE, FAIL, RELEASE, POP}
)

# The same, without what may be too large to be read.
BLIND = {DEQUEUE: _BLIND_JOB + _DEQUEUE, CLAIM: _BLIND_JOB + _CLAIM}

# The same, but a call fails if it waits for half a second for a lock (55P03), as its commit does.
# That is set before the function is called, and until the end of the transaction only: what else
# the session does is left alone, also by a pooler.
IMPATIENT = {
    COMPLETE: """
    select answer
      from (select set_config('lock_timeout', '500', true) offset 0) as patience (setting),
           lateral @pgq_complete(
               id => case when setting is not null then $1::bigint end, token => $2::bigint,
               result => $3::text::jsonb) as answer""",
    COMPLETE_MANY: """
    select id
      from (select set_config('lock_timeout', '500', true) offset 0) as patience (setting),
           lateral @pgq_complete(
               ids => case when setting is not null then $1::bigint[] end, tokens => $2::bigint[],
               results => $3::text[]::jsonb[]) as id""",
    FAIL: """
    select answer
      from (select set_config('lock_timeout', '500', true) offset 0) as patience (setting),
           lateral @pgq_fail(
               id => case when setting is not null then $1::bigint end, token => $2::bigint,
               error => $3::text, retry_in => $4::interval, retryable => $5::boolean,
               cancel => $6::boolean) as answer""",
    RELEASE: """
    select answer
      from (select set_config('lock_timeout', '500', true) offset 0) as patience (setting),
           lateral @pgq_release(
               id => case when setting is not null then $1::bigint end, token => $2::bigint,
               delay => $3::interval) as answer""",
    OUTCOME: """
    select answer
      from (select set_config('lock_timeout', '500', true) offset 0) as patience (setting),
           lateral @pgq_outcome(
               id => case when setting is not null then $1::bigint end,
               token => $2::bigint) as answer""",
}

# What migrations do. A script may have installed pgq where no extension can be.
FOUND = """
    select e.installed_version, e.default_version, to_regproc('@pgq_version') is not null
      from (values ('pgq')) one (name)
      left join pg_available_extensions e using (name)"""
CREATE_EXTENSION = "create extension if not exists pgq"
UPDATE_EXTENSION = "alter extension pgq update"

# Databases for tests. Those of a run have its name, and so has the session that makes them.
CREATE_DATABASE = "create database {name}"
COPY_DATABASE = "create database {name} template {template}"
DROP_DATABASE = "drop database if exists {name} with (force)"
LEFT_OVER_DATABASES = """
    select datname
      from pg_database d
     where datname ~ '^pgq_test_[0-9a-f]{8}_' and pg_has_role(datdba, 'member')
       and not exists (
               select from pg_stat_activity a
                where a.application_name = left(d.datname, length('pgq_test_') + 8)
           )"""


@lru_cache(maxsize=256)
def in_schema(statement: str, schema: str | None) -> str:
    """Return `statement` with its functions qualified, or left to search_path for None."""
    prefix = "" if schema is None else f"{quoted(schema)}."
    return statement.replace("@", prefix)


def quoted(name: str) -> str:
    """Return a name as SQL has it, whatever characters are in it."""
    return '"' + name.replace('"', '""') + '"'
