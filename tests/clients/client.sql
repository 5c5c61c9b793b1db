/*
 * pgq from psql: one TAP line for each step in the life of jobs. PGHOST and so on lead to the
 * database. The other consumer is a psql that is started from here.
 *
 *     psql -X -q -A -t -f client.sql
 */

\set ON_ERROR_STOP on
\setenv PGOPTIONS '-c lock_timeout=1s'
\connect

CREATE TEMPORARY SEQUENCE number;
CREATE FUNCTION pg_temp.ok(name text, passed boolean) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF passed IS NOT TRUE THEN
        RAISE EXCEPTION 'not ok % - %', nextval('number'), name;
    END IF;
    RETURN format('ok %s - %s', nextval('number'), name);
END
$$;

CREATE TABLE IF NOT EXISTS signup (email text);
CREATE TABLE claimed_by_psql (id bigint, token bigint);
\set queue client-psql
SELECT pgq_create_queue(:'queue') \gset

-- What the other consumer does.
\set claim 'INSERT INTO claimed_by_psql SELECT id, token FROM pgq_dequeue'
\set claim :claim '(3, queue => ''client-psql'')'
\setenv CLAIM :claim

-- A row and its job: both commit, or neither does.
\set email ada@psql.example
BEGIN;
INSERT INTO signup VALUES (:'email');
SELECT pgq_enqueue(jsonb_build_object('to', :'email'), :'queue', priority => 5) AS enqueued \gset
COMMIT;
BEGIN;
INSERT INTO signup VALUES ('bob@psql.example');
SELECT pgq_enqueue('{"to": "bob@psql.example"}', :'queue') \gset
ROLLBACK;
SELECT count(*) AS emails FROM signup WHERE email LIKE '%@psql.example' \gset
SELECT id, token, priority, payload, count(*) OVER () AS jobs
  FROM pgq_dequeue(10, '30 seconds', :'queue') \gset
SELECT pgq_complete(:id, :token) \gset
SELECT pg_temp.ok('enqueue commits with its transaction',
                  :emails = 1 AND :jobs = 1 AND :id = :enqueued AND :priority = 5
                  AND :'payload'::jsonb ->> 'to' = :'email');

-- The other one claims while this one's transaction is open.
SELECT count(*) FROM pgq_enqueue_many(array_fill('{}'::jsonb, '{10}'), :'queue') \gset
BEGIN;
INSERT INTO claimed_by_psql SELECT id, token FROM pgq_dequeue(3, '30 seconds', :'queue');
\! psql -Xqc "$CLAIM"
INSERT INTO claimed_by_psql SELECT id, token FROM pgq_dequeue(10, '30 seconds', :'queue');
\set rest :ROW_COUNT
COMMIT;
SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM claimed_by_psql \gset
SELECT count(*) AS completed FROM pgq_complete(:'ids'::bigint[], :'tokens'::bigint[]) \gset
SELECT pg_temp.ok('two consumers claim side by side', :rest = 4 AND :completed = 10);

SELECT pgq_enqueue('{"to": "ada@psql.example"}', :'queue') \gset
SELECT id, token, lease_expires_at FROM pgq_dequeue(1, '30 seconds', :'queue') \gset
SELECT pgq_heartbeat(:id, :token, '1 minute') AS expiry \gset
SELECT pgq_complete(:id, :token) \gset
SELECT pg_temp.ok('a heartbeat renews the lease',
                  :'expiry'::timestamptz > :'lease_expires_at'::timestamptz);

-- A lease of a millisecond: the other one gets the job.
DELETE FROM claimed_by_psql;
SELECT pgq_enqueue('{"to": "ada@psql.example"}', :'queue') \gset
SELECT id, token FROM pgq_dequeue(1, '1 millisecond', :'queue') \gset
\! for try in $(seq 100); do psql -Xc "$CLAIM" | grep -q 'INSERT 0 1' && break; done
SELECT token AS new_token FROM claimed_by_psql \gset
SELECT pgq_heartbeat(:id, :token) IS NULL AND NOT pgq_complete(:id, :token) AS refused \gset
SELECT pgq_fail(:id, :token, 'too late') IS NULL AS ignored \gset
SELECT pgq_complete(:id, :new_token) AS completed \gset
SELECT pg_temp.ok('a stale receipt changes nothing', :'refused' AND :'ignored' AND :'completed');

-- Claim a job, keep its lease, complete it with a result.
SELECT pgq_enqueue('{"to": "ada@psql.example"}', :'queue') \gset
SELECT id, token, payload FROM pgq_dequeue(1, '30 seconds', :'queue') \gset
SELECT pgq_heartbeat(:id, :token) \gset
SELECT pgq_complete(:id, :token, '{"sent": 1}') \gset
SELECT pg_temp.ok('complete keeps the result', state = 'completed' AND result = '{"sent": 1}')
  FROM pgq_jobs WHERE id = :id;

-- Fail until there is no attempt left.
SELECT pgq_enqueue('{"to": "nobody"}', :'queue', max_attempts => 2) AS enqueued \gset
SELECT id, token FROM pgq_dequeue(1, '30 seconds', :'queue') \gset
SELECT pgq_fail(:id, :token, 'not an address', retry_in => '0') AS first \gset
SELECT id, token FROM pgq_dequeue(1, '30 seconds', :'queue') \gset
SELECT pgq_fail(:id, :token, 'not an address', retry_in => '0') AS second \gset
SELECT state, last_error FROM pgq_jobs WHERE id = :enqueued \gset
SELECT pgq_retry(:enqueued) \gset
SELECT id, token FROM pgq_dequeue(1, '30 seconds', :'queue') \gset
SELECT pgq_complete(:id, :token) AS completed \gset
SELECT pg_temp.ok('fail ends dead, retry brings back',
                  :'first' = 'scheduled' AND :'second' = 'dead' AND :'state' = 'dead'
                  AND :'last_error' = 'not an address' AND :id = :enqueued AND :'completed');

SELECT pgq_enqueue('{"to": "ada@psql.example"}', :'queue') AS enqueued \gset
BEGIN;
SELECT id AS tried FROM pgq_pop(1, :'queue') \gset
ROLLBACK;
BEGIN;
SELECT id AS popped FROM pgq_pop(1, :'queue') \gset
COMMIT;
SELECT count(*) AS left FROM pgq_dequeue(1, '30 seconds', :'queue') \gset
SELECT pg_temp.ok('pop ends with its transaction',
                  :tried = :enqueued AND :popped = :enqueued AND :left = 0);

-- The code of the last error is in SQLSTATE; with this verbosity nothing else is printed.
\set VERBOSITY sqlstate
SELECT pgq_enqueue('{"to": "ada@psql.example"}', :'queue') AS id \gset
SELECT token FROM pgq_claim(:id) \gset
\set ON_ERROR_STOP off
SELECT token FROM pgq_claim(:id);
\set held :SQLSTATE
SELECT pgq_enqueue('{}', 'no such queue');
\set unknown :SQLSTATE
\set ON_ERROR_STOP on
SELECT pgq_complete(:id, :token) \gset
SELECT pg_temp.ok('a held job is refused with 55P03', :'held' = '55P03');
SELECT pg_temp.ok('an unknown queue is refused with 42704', :'unknown' = '42704');

-- psql prints notifications after the answer to a query; here they go to a file.
SELECT pgq_channel(:'queue') AS channel \gset
LISTEN :"channel";
SELECT pgq_wait(ARRAY[:'queue']) > '0' AS sleeps \gset
\! psql -XAtc "SELECT pgq_enqueue('{\"to\": \"eve@psql.example\"}', 'client-psql')" > /dev/null
\set log `mktemp`
\setenv LOG :log
\o :log
SELECT pgq_wake();
\o
\set notifications `grep -c 'Asynchronous notification' "$LOG"; rm "$LOG"`
SELECT count(*) AS claimed FROM pgq_dequeue(1, '30 seconds', :'queue') \gset
SELECT pg_temp.ok('a sleeping consumer is woken',
                  :'sleeps' AND :notifications = 1 AND :claimed = 1);

SELECT format('1..%s', currval('number'));
