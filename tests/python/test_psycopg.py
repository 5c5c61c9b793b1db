"""Queues on connections of psycopg do what those of asyncpg do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import Any

import pgq
import pgq.psycopg
import psycopg
import pytest
from pgq import testing
from pgq._driver import finish
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from .sessions import Connection, within

pytestmark = pytest.mark.once

NEVER = datetime(2999, 1, 1, tzinfo=UTC)
Dsn = dict[str, Any]


def where(dsn: Dsn) -> Dsn:
    return {name: dsn[name] for name in ("host", "port", "user")} | {"dbname": dsn["database"]}


@pytest.fixture
def own(dsn: Dsn) -> Generator[psycopg.Connection[Any]]:
    with psycopg.connect(**where(dsn)) as own:
        own.row_factory = dict_row  # pyright: ignore[reportAttributeAccessIssue]
        yield own


@pytest.fixture
def emails(own: psycopg.Connection[Any]) -> pgq.psycopg.Queue:
    own.autocommit = True
    return pgq.psycopg.Queue(own)


@pytest.fixture
async def aown(dsn: Dsn) -> AsyncGenerator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(**where(dsn)) as own:
        yield own


def test_a_job_commits_with_the_transaction(
    own: psycopg.Connection[Any], emails: pgq.psycopg.Queue
) -> None:
    own.autocommit = False
    emails.enqueue("rolled back")
    own.rollback()
    emails.enqueue("committed")
    own.commit()
    own.autocommit = True
    assert [job.payload for job in emails.dequeue(10)] == ["committed"]


async def test_a_job_is_the_same_as_on_asyncpg(emails: pgq.psycopg.Queue, queue: pgq.Queue) -> None:
    first = emails.enqueue({"n": 2**53, "text": "é\n%s"}, headers={"k": [1]}, priority=2)
    [job] = emails.dequeue(5, timedelta(minutes=5), worker="w")
    assert (job.id, job.payload, job.headers) == (first, {"n": 2**53, "text": "é\n%s"}, {"k": [1]})
    assert emails.get(first) == await queue.get(first)


def test_every_way_of_a_job(emails: pgq.psycopg.Queue) -> None:
    ids = emails.enqueue_many(
        range(8),
        dedupe_keys=["a", *[None] * 7],
        group_keys=[*[None] * 7, "g"],
        expires_at=NEVER,
    )
    jobs = emails.dequeue(6, queues=("default",))
    assert [job.id for job in jobs] == ids[:6]
    assert emails.heartbeat(jobs[0], checkpoint={"at": 1}) is not None
    [lease, _] = emails.heartbeat_many(jobs[:2], timedelta(hours=1))
    assert lease.lease_expires_at > datetime.now(UTC) + timedelta(minutes=50)
    assert emails.complete(jobs[0], {"sent": True})
    assert emails.complete_many(jobs[1:3], ["r", None]) == [ids[1], ids[2]]
    assert emails.fail(jobs[3], "no answer", retryable=False) == "dead"
    assert emails.fail(jobs[4], retry_in=timedelta(hours=1)) == "scheduled"
    assert emails.release(jobs[5])
    assert emails.outcome(jobs[0]) == "completed"
    assert not emails.complete(jobs[0])
    done = emails.get(ids[0])
    assert done is not None
    assert (done.state, done.result, done.checkpoint) == ("completed", {"sent": True}, {"at": 1})
    assert emails.retry(ids[3])
    assert emails.claim(ids[3]).id == ids[3]
    assert [job.id for job in emails.pop(2)] == [ids[5], ids[6]]
    assert emails.cancel(ids[7])
    moved = emails.enqueue(1, dedupe_key="k", delay=timedelta(hours=1))
    assert emails.move(moved, priority=7, run_at=datetime.now(UTC))
    snapshot = emails.get(moved)
    assert snapshot is not None
    assert (snapshot.priority, snapshot.state) == (7, "ready")
    assert emails.cancel_key("k")
    first, second = emails.enqueue_many([2, 3])
    [job] = emails.complete_and_dequeue([emails.claim(first)], worker="w")
    assert (job.id, job.worker) == (second, "w")
    assert emails.complete_and_dequeue([job]) == []
    with pytest.raises(pgq.LeaseLost):
        emails.complete_and_dequeue([job])
    after = emails.enqueue(1, after=(ids[4],), delay=timedelta(0), after_on_dead="wait")
    waiting = emails.get(after)
    assert waiting is not None
    assert waiting.state == "waiting"


def test_a_consumer_sleeps_until_a_job_comes(
    own: psycopg.Connection[Any], emails: pgq.psycopg.Queue, dsn: Dsn
) -> None:
    own.execute(SQL("listen {}").format(Identifier(emails.channel())))
    is_woken = False
    with psycopg.connect(**where(dsn), autocommit=True) as other:
        while not is_woken and (nap := emails.wait(max_wait=timedelta(minutes=1))):
            if nap > timedelta(seconds=1):  # it has looked often enough to sleep
                pgq.psycopg.Queue(other).enqueue("wake up")
            is_woken = any(own.notifies(timeout=nap.total_seconds(), stop_after=1))
    assert is_woken
    emails.wake()
    assert [job.payload for job in emails.dequeue(10)] == ["wake up"]


async def test_an_asynchronous_consumer_sleeps_on_its_connection(
    aown: psycopg.AsyncConnection[Any], queue: pgq.Queue
) -> None:
    await aown.set_autocommit(True)
    emails = pgq.psycopg.AsyncQueue(aown)
    await aown.execute(SQL("listen {}").format(Identifier(await emails.channel())))
    is_woken = False
    while not is_woken and (nap := await emails.wait()):
        if nap > timedelta(seconds=1):
            await queue.enqueue("wake up")
        async for _ in aown.notifies(timeout=nap.total_seconds(), stop_after=1):
            is_woken = True
    assert is_woken
    await emails.wake()
    for call in (queue.wait, queue.wake):
        with pytest.raises(ValueError, match="a pool does not listen"):
            await call()


ERRORS: dict[str, tuple[type[pgq.Error], str | None, Callable[[pgq.psycopg.Queue], object]]] = {
    "server": (pgq.UnknownJob, "P0002", lambda queue: queue.claim(1)),
    "value": (pgq.InvalidArgument, "22023", lambda queue: queue.dequeue(0)),
    "number": (pgq.InvalidArgument, "22003", lambda queue: queue.enqueue(1, priority=10**30)),
    "zero byte": (pgq.InvalidArgument, None, lambda queue: queue.enqueue(1, dedupe_key="\0")),
    "type": (pgq.InvalidArgument, None, lambda queue: queue.enqueue(1, after=[object()])),  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    "client": (
        pgq.InvalidArgument,
        None,
        lambda queue: queue.enqueue(1, run_at=datetime(2030, 1, 1)),  # noqa: DTZ001 it is the fault
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_pgq(emails: pgq.psycopg.Queue, name: str) -> None:
    kind, sqlstate, call = ERRORS[name]
    with pytest.raises(kind) as caught:
        call(emails)
    assert type(caught.value) is kind
    assert caught.value.sqlstate == sqlstate
    assert isinstance(caught.value.__cause__, psycopg.Error) is (name != "client")


def test_a_duplicate_has_its_detail(emails: pgq.psycopg.Queue, dsn: Dsn) -> None:
    emails.enqueue(1, dedupe_key="k")
    with pytest.raises(pgq.DuplicateKey) as caught:
        emails.enqueue(1, dedupe_key="k", on_duplicate="error")
    assert caught.value.detail
    with psycopg.connect(**where(dsn)) as own, pytest.raises(pgq.NotInstalled) as missing:
        pgq.psycopg.Queue(own, schema="elsewhere").enqueue(1)
    assert "CREATE EXTENSION" in str(missing.value.hint)


async def test_a_connection_that_the_server_ends_is_lost(
    own: psycopg.Connection[Any], emails: pgq.psycopg.Queue, connection: Connection
) -> None:
    await connection.execute("select pg_terminate_backend($1, 10000)", own.info.backend_pid)
    for _ in range(2):  # as the session ends, and after that
        with pytest.raises(pgq.ConnectionLost):
            emails.enqueue(1)


def test_errors_that_are_not_pgq_s_pass(emails: pgq.psycopg.Queue) -> None:
    with pytest.raises(TypeError, match=r"^Object of type object is not JSON"):
        emails.enqueue(object())
    other: Any = object()
    for queue in (pgq.psycopg.Queue, pgq.psycopg.AsyncQueue):
        with pytest.raises(TypeError, match=r"^connection must be (Async)?Connection, not object$"):
            queue(other)


async def test_an_asynchronous_connection_has_the_methods_of_the_queue(
    aown: psycopg.AsyncConnection[Any], connection: Connection
) -> None:
    emails = pgq.psycopg.AsyncQueue(aown, dumps=json.dumps)
    with pytest.raises(ValueError, match="durable=False"):
        await emails.dequeue(durable=False)
    async with aown.transaction():
        await emails.enqueue("rolled back")
        raise psycopg.Rollback
    ids = await emails.enqueue_many(["a", "b"])
    assert await connection.fetchval("select count(*) from pgq_jobs") == 0
    await aown.commit()
    await aown.set_autocommit(True)
    jobs = await within(emails.dequeue(5, durable=False))
    assert [job.id for job in jobs] == ids
    assert await emails.complete_and_dequeue(jobs) == []
    with pytest.raises(pgq.LeaseLost) as caught:
        await emails.complete_and_dequeue(jobs)
    assert isinstance(caught.value.__cause__, psycopg.Error)


def test_a_call_that_would_wait_is_a_fault_of_pgq() -> None:
    with pytest.raises(RuntimeError, match="has waited"):
        finish(asyncio.sleep(0))


@pgq.task("default")
async def note(_: pgq.Job[int]) -> None: ...


def test_only_jobs_that_are_enqueued_on_asyncpg_run_inline(
    own: psycopg.Connection[Any], emails: pgq.psycopg.Queue
) -> None:
    with testing.inline(pgq.Worker(tasks=[note])):
        note.enqueue_sync(1, connection=own)
        note.statement(2)
    assert [job.payload for job in emails.dequeue(10)] == [1]
