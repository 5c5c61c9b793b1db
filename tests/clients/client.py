"""pgq from synchronous Python, with psycopg 3: one TAP line for each step in the life of jobs.

PGHOST and so on lead to the database. PGQ_PREPARE=off and PGQ_LISTEN=off are for poolers.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import Any, Final, LiteralString, TypeAlias

import psycopg
from psycopg import sql
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import Jsonb

Connection: TypeAlias = "psycopg.Connection[DictRow]"

QUEUE: Final = "client-python"
HEARTBEAT: Final = "SELECT pgq_heartbeat(%s::bigint, %s::bigint, '1 minute')"
COMPLETE: Final = "SELECT pgq_complete(%s::bigint, %s::bigint, %s)"
FAIL: Final = "SELECT pgq_fail(%s::bigint, %s::bigint, %s, retry_in => '0')"
POP: Final = "SELECT id FROM pgq_pop(1, %s)"
WAIT: Final = "SELECT extract(epoch FROM pgq_wait(ARRAY[%s]))::float8"
JOB: Final = "SELECT * FROM pgq_jobs WHERE id = %s"

numbers = itertools.count(1)


def connect() -> Connection:
    threshold = None if os.environ.get("PGQ_PREPARE") == "off" else 0
    return psycopg.Connection[DictRow].connect(
        autocommit=True, prepare_threshold=threshold, row_factory=dict_row
    )


def value(connection: Connection, query: LiteralString, *parameters: object) -> Any:
    """Return the only column of the only row."""
    [row] = connection.execute(query, parameters).fetchall()
    [answer] = row.values()
    return answer


def sign_up(connection: Connection, email: str) -> int:
    """Add a row and its job, in the caller's transaction: both commit, or neither does."""
    connection.execute("INSERT INTO signup VALUES (%s)", [email])
    query = "SELECT pgq_enqueue(%s::jsonb, %s, priority => 5)"
    return int(value(connection, query, Jsonb({"to": [email]}), QUEUE))


def enqueue(connection: Connection, *to: str) -> int:
    query = "SELECT pgq_enqueue(%s::jsonb, %s, max_attempts => 2)"
    return int(value(connection, query, Jsonb({"to": to}), QUEUE))


def dequeue(connection: Connection, batch: int = 1, lease: str = "30 seconds") -> list[DictRow]:
    query = "SELECT * FROM pgq_dequeue(%s, %s::interval, %s)"
    return connection.execute(query, [batch, lease, QUEUE]).fetchall()


def deliver(connection: Connection, job: DictRow) -> object:
    """Do a job in parts, and renew its lease before each."""
    for address in job["payload"]["to"]:
        if value(connection, HEARTBEAT, job["id"], job["token"]) is None:
            raise RuntimeError("the lease is lost: another worker has the job")
        if "@" not in address:
            raise ValueError(f"not an address: {address}")
    return {"sent": len(job["payload"]["to"])}


def consume(connection: Connection) -> None:
    """Claim and settle jobs until there are none."""
    while jobs := dequeue(connection):
        [job] = jobs
        try:
            result = deliver(connection, job)
        except Exception as error:
            value(connection, FAIL, job["id"], job["token"], str(error))
        else:
            value(connection, COMPLETE, job["id"], job["token"], Jsonb(result))


def sqlstate(connection: Connection, query: LiteralString, *parameters: object) -> str | None:
    """Return the SQLSTATE with which a statement fails."""
    try:
        connection.execute(query, parameters)
    except psycopg.Error as error:
        return error.sqlstate
    return None


def ok(name: str, passed: bool) -> None:
    if not passed:
        raise SystemExit(f"not ok {next(numbers)} - {name}")
    print(f"ok {next(numbers)} - {name}", flush=True)


def claims(db: Connection, other: Connection) -> None:
    with db.transaction():
        job_id = sign_up(db, "ada@python.example")
    with db.transaction():
        sign_up(db, "bob@python.example")
        raise psycopg.Rollback
    emails = db.execute("SELECT * FROM signup WHERE email LIKE '%@python.example'").fetchall()
    jobs = dequeue(db, 10)
    value(db, COMPLETE, jobs[0]["id"], jobs[0]["token"], None)
    seen = [(job["id"], job["priority"], job["payload"]) for job in jobs]
    kept = seen == [(job_id, 5, {"to": ["ada@python.example"]})]
    ok("enqueue commits with its transaction", kept and len(emails) == 1)

    enqueued = [enqueue(db, f"{number}@python.example") for number in range(10)]
    with db.transaction(), other.transaction():
        db.execute("SET LOCAL lock_timeout = '1s'")
        other.execute("SET LOCAL lock_timeout = '1s'")
        mine, theirs = dequeue(db, 3), dequeue(other, 3)
        mine += dequeue(db, 10)
    ids, tokens = ([job[name] for job in mine + theirs] for name in ("id", "token"))
    db.execute("SELECT pgq_complete(%s::bigint[], %s::bigint[])", [ids, tokens])
    shared = (len(mine), len(theirs)) == (7, 3) and sorted(ids) == enqueued
    ok("two consumers claim side by side", shared and dequeue(db) == [])

    enqueue(db, "ada@python.example")
    [job] = dequeue(db)
    expiry = value(db, HEARTBEAT, job["id"], job["token"])
    value(db, COMPLETE, job["id"], job["token"], None)
    ok("a heartbeat renews the lease", expiry > job["lease_expires_at"])

    enqueue(db, "ada@python.example")
    [old] = dequeue(db, lease="1 millisecond")
    deadline = time.monotonic() + 10
    while not (again := dequeue(other)):
        assert time.monotonic() < deadline, "the job was not claimed again"
    stale = [old["id"], old["token"]]
    answers = [value(db, HEARTBEAT, *stale), value(db, COMPLETE, *stale, None)]
    answers += [value(db, FAIL, *stale, "too late")]
    answers += [value(other, COMPLETE, again[0]["id"], again[0]["token"], None)]
    ok("a stale receipt changes nothing", answers == [None, False, None, True])


def outcomes(db: Connection, other: Connection) -> None:
    job_id = enqueue(db, "ada@python.example", "bob@python.example")
    consume(db)
    [job] = other.execute(JOB, [job_id]).fetchall()
    ok("complete keeps the result", (job["state"], job["result"]) == ("completed", {"sent": 2}))

    job_id = enqueue(db, "nobody")
    consume(db)
    [job] = other.execute(JOB, [job_id]).fetchall()
    dead = (job["state"], job["attempt"], job["last_error"])
    value(other, "SELECT pgq_retry(%s)", job_id)
    [job] = dequeue(db)
    back = job["id"] == job_id and value(db, COMPLETE, job_id, job["token"], None)
    ok("fail ends dead, retry brings back", back and dead == ("dead", 2, "not an address: nobody"))

    job_id = enqueue(db, "ada@python.example")
    with db.transaction():
        tried = value(db, POP, QUEUE)
        raise psycopg.Rollback
    with db.transaction():
        done = value(db, POP, QUEUE)
    ok("pop ends with its transaction", tried == done == job_id and dequeue(other) == [])

    job_id = enqueue(db, "ada@python.example")
    [job] = db.execute("SELECT * FROM pgq_claim(%s)", [job_id]).fetchall()
    held = sqlstate(other, "SELECT * FROM pgq_claim(%s)", job_id)
    value(db, COMPLETE, job["id"], job["token"], None)
    ok("a held job is refused with 55P03", held == "55P03")
    unknown = sqlstate(db, "SELECT pgq_enqueue('{}', 'no such queue')")
    ok("an unknown queue is refused with 42704", unknown == "42704")


def waking(db: Connection, other: Connection) -> None:
    channel = value(db, "SELECT pgq_channel(%s)", QUEUE)
    db.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
    woken = False
    while not woken and (seconds := value(db, WAIT, QUEUE)) > 0:
        if seconds > 1:
            enqueue(other, "eve@python.example")  # somebody does, while this session sleeps
        woken = any(db.notifies(timeout=seconds, stop_after=1))
    db.execute("SELECT pgq_wake()")
    ok("a sleeping consumer is woken", woken and len(dequeue(db)) == 1)


with connect() as db, connect() as other:
    db.execute("CREATE TABLE IF NOT EXISTS signup (email text)")
    db.execute("SELECT pgq_create_queue(%s)", [QUEUE])
    claims(db, other)
    outcomes(db, other)
    if os.environ.get("PGQ_LISTEN") != "off":
        waking(db, other)
    print(f"1..{next(numbers) - 1}")
