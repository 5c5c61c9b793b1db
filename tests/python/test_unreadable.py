"""Jobs of which something cannot be read: they fail their own attempt and cost no other job."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

import asyncpg
import pgq
import pytest

from .sessions import Connection, within
from .workers import FAST

pytestmark = pytest.mark.once

Part: TypeAlias = Literal["payload", "headers", "checkpoint"]

LONG: Final = "1" * 5000  # int() takes 4300 digits
DEEP: Final = "[" * 5000 + "]" * 5000  # what reads it may recurse


async def put(connection: pgq.Executor, part: Part, text: str, attempts: int = 1) -> int:
    """Enqueue a job of which one part is the given JSON, as any client may."""
    payload, headers = (text if part == name else None for name in ("payload", "headers"))
    job_id: int = await connection.fetchval(
        "select pgq_enqueue(coalesce($1::text::jsonb, '0'), headers => $2::text::jsonb,"
        " max_attempts => $3)",
        payload,
        headers,
        attempts,
    )
    if part == "checkpoint":
        row = await connection.fetchrow("select id, token from pgq_claim($1)", job_id)
        assert row is not None
        await connection.execute(
            "select pgq_heartbeat(id => $1, token => $2, checkpoint => $3::text::jsonb)",
            *row,
            text,
        )
        await connection.execute("select pgq_release($1, $2)", *row)
    return job_id


async def states(queue: pgq.Queue, ids: list[pgq.JobId]) -> list[tuple[str, int]]:
    """Return state and attempt of jobs."""
    jobs = [await queue.get(job_id) for job_id in ids]
    return [(job.state, job.attempt) for job in jobs if job is not None]


@pytest.mark.parametrize(
    ("part", "text", "error"),
    [
        ("payload", LONG, "the payload cannot be read: Exceeds the limit"),
        ("headers", f'{{"task": {LONG}}}', "the headers cannot be read"),
        ("checkpoint", LONG, "the checkpoint cannot be read"),
    ],
)
async def test_what_cannot_be_read_fails_its_own_attempt_only(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, part: Part, text: str, error: str
) -> None:
    worker = pgq.Worker(pool, poll_interval=FAST)
    handled: list[Any] = []

    @worker.handler("default", concurrency=10)
    async def handle(job: pgq.Job) -> None:
        handled.append(job.payload)

    before = await queue.enqueue_many([1, 2], max_attempts=1)
    bad = await put(pool, part, text)
    after = await queue.enqueue_many([3, 4], max_attempts=1)
    await within(worker.run_until_idle())
    assert sorted(handled) == [1, 2, 3, 4]
    assert await states(queue, [*before, *after]) == [("completed", 1)] * 4
    job = await queue.get(bad)
    assert job is not None
    assert (job.state, job.attempt) == ("dead", 1)
    assert error in str(job.last_error)


async def test_a_payload_that_is_nested_deep_costs_no_other_job(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    """How deep Python can read differs from version to version."""
    worker = pgq.Worker(pool, poll_interval=FAST)
    handled: list[Any] = []

    @worker.handler("default", concurrency=10)
    async def handle(job: pgq.Job) -> None:
        handled.append("deep" if isinstance(job.payload, list) else job.payload)

    before = await queue.enqueue_many([1, 2], max_attempts=1)
    deep = await put(pool, "payload", DEEP)
    after = await queue.enqueue_many([3, 4], max_attempts=1)
    await within(worker.run_until_idle())
    assert {1, 2, 3, 4} <= set(handled)
    assert await states(queue, [*before, *after]) == [("completed", 1)] * 4
    job = await queue.get(deep)
    assert job is not None
    if "deep" in handled:
        assert job.state == "completed"
    else:
        assert job.state == "dead"
        assert "the payload cannot be read: " in str(job.last_error)


async def test_what_cannot_be_read_is_tried_again_as_the_queue_says(
    connection: Connection, pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    worker = pgq.Worker(pool, poll_interval=FAST)

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None: ...

    await pgq.Admin(pool).configure_queue(queue.name, backoff_base=timedelta(hours=1))
    bad = await put(connection, "payload", LONG, attempts=2)
    await within(worker.run_until_idle())
    assert await states(queue, [pgq.JobId(bad)]) == [("scheduled", 1)]


@pytest.mark.parametrize("error", [LookupError, RecursionError])
async def test_what_an_own_reader_refuses_fails_its_own_attempt_only(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, error: type[Exception]
) -> None:
    def loads(text: str) -> Any:
        if text == "2":
            raise error("two")
        return json.loads(text)

    worker = pgq.Worker(pool, poll_interval=FAST, loads=loads)

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None: ...

    ids = await queue.enqueue_many([1, 2, 3], max_attempts=1)
    await within(worker.run_until_idle())
    assert [state for state, _ in await states(queue, ids)] == ["completed", "dead", "completed"]


async def test_a_claim_gives_what_it_cannot_read_as_text(
    connection: Connection, queue: pgq.Queue
) -> None:
    await queue.enqueue(1)
    await put(connection, "payload", LONG)
    first, second = await queue.dequeue(2)
    assert first.payload == 1
    assert isinstance(second.payload, pgq.Unreadable)
    assert second.payload.text == LONG
    assert isinstance(second.payload.error, ValueError)
    assert await queue.complete(second)


async def test_a_job_that_is_run_by_itself_fails_if_it_cannot_be_read(
    connection: Connection, queue: pgq.Queue
) -> None:
    worker = pgq.Worker()

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        raise AssertionError("it was called")

    bad = await put(connection, "payload", LONG)
    with pytest.raises(pgq.InvalidPayload, match="cannot be read"):
        await worker.run_job(bad, connection=connection)
    assert await states(queue, [pgq.JobId(bad)]) == [("dead", 1)]


async def test_a_result_that_cannot_be_read_is_told(
    connection: Connection, pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    @pgq.task("default")
    async def count(_: pgq.Job) -> Any: ...

    handle = await count.enqueue(1, connection=pool)
    (job,) = await queue.dequeue()
    await connection.execute("select pgq_complete($1, $2, $3::text::jsonb)", *job.receipt, LONG)
    with pytest.raises(pgq.InvalidPayload, match="the value cannot be read"):
        await within(handle.result())
