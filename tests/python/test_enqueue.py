"""Middleware around enqueues: it sees each of them, changes what is sent, and refuses it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import asyncpg
import pgq
import pgq.psycopg
import psycopg
import pytest
from pgq import _enqueue, testing

pytestmark = pytest.mark.once

Dsn = dict[str, Any]
Way = Callable[[Dsn], Awaitable[object]]

tenant: ContextVar[str] = ContextVar("tenant", default="none")


@pgq.task("default")
async def note(_: pgq.Job[int]) -> None: ...


@pytest.fixture(autouse=True)
def middleware() -> Iterator[list[_enqueue.EnqueueMiddleware]]:
    """Take back what a test adds for the whole process."""
    before = list(_enqueue.middleware)
    yield _enqueue.middleware
    _enqueue.middleware[:] = before


def add_tenant() -> None:
    @pgq.enqueue_middleware
    async def add(new: pgq.NewJobs, call_next: pgq.Enqueue) -> Sequence[pgq.JobId]:
        return await call_next(replace(new, headers={**new.headers, "tenant": tenant.get()}))


def where(dsn: Dsn) -> Dsn:
    return {name: dsn[name] for name in ("host", "port", "user")} | {"dbname": dsn["database"]}


async def by_a_queue(dsn: Dsn) -> None:
    async with asyncpg.create_pool(**dsn) as pool:
        await pgq.Queue(pool).enqueue(1)
        await pgq.Queue(pool).enqueue_many(iter([2, 3]), headers={"own": True})


async def by_a_task(dsn: Dsn) -> None:
    async with asyncpg.create_pool(**dsn) as pool:
        await note.enqueue(1, connection=pool)
        await note.enqueue_many([2, 3], connection=pool)


async def by_a_statement(dsn: Dsn) -> None:
    async with asyncpg.create_pool(**dsn) as pool:
        for number in (1, 2, 3):
            statement = note.statement(number)
            await pool.execute(statement.sql, *statement.parameters)


async def by_psycopg(dsn: Dsn) -> None:
    with psycopg.connect(**where(dsn)) as own:
        note.enqueue_sync(1, connection=own)
        note.enqueue_many_sync([2, 3], connection=own)


async def by_asynchronous_psycopg(dsn: Dsn) -> None:
    async with await psycopg.AsyncConnection.connect(**where(dsn)) as own:
        await pgq.psycopg.AsyncQueue(own).enqueue(1)
        await pgq.psycopg.AsyncQueue(own).enqueue_many([2, 3])


WAYS: list[Way] = [
    by_a_queue,
    by_a_task,
    by_a_statement,
    by_psycopg,
    by_asynchronous_psycopg,
]


@pytest.mark.parametrize("enqueue", WAYS)
async def test_each_way_to_enqueue_passes_through_it(
    dsn: Dsn, queue: pgq.Queue, enqueue: Way
) -> None:
    add_tenant()
    token = tenant.set("acme")
    await enqueue(dsn)
    tenant.reset(token)
    jobs = await queue.dequeue(10)
    assert [job.payload for job in jobs] == [1, 2, 3]
    assert {(job.headers or {})["tenant"] for job in jobs} == {"acme"}


@pytest.mark.parametrize("enqueue", WAYS)
async def test_what_it_raises_refuses_the_enqueue(dsn: Dsn, queue: pgq.Queue, enqueue: Way) -> None:
    @pgq.enqueue_middleware
    async def refuse(new: pgq.NewJobs, call_next: pgq.Enqueue) -> Sequence[pgq.JobId]:
        raise PermissionError("read-only")

    with pytest.raises(PermissionError, match="read-only"):
        await enqueue(dsn)
    assert await queue.dequeue(10) == []


async def test_it_sees_what_is_sent_and_the_ids(pool: asyncpg.Pool[Any]) -> None:
    seen: list[tuple[pgq.NewJobs, Sequence[pgq.JobId]]] = []

    @pgq.enqueue_middleware
    async def see(new: pgq.NewJobs, call_next: pgq.Enqueue) -> Sequence[pgq.JobId]:
        ids = await call_next(new)
        seen.append((new, ids))
        return ids

    handles = await note.enqueue_many([2, 3], connection=pool)
    [(new, ids)] = seen
    assert new == pgq.NewJobs(queue="default", payloads=[2, 3], headers={"task": "note"})
    assert ids == [handle.id for handle in handles]


async def test_the_first_one_is_the_outermost_and_may_send_something_else(
    admin: pgq.Admin, pool: asyncpg.Pool[Any]
) -> None:
    await admin.create_queue("other")

    @pgq.enqueue_middleware
    async def first(new: pgq.NewJobs, call_next: pgq.Enqueue) -> Sequence[pgq.JobId]:
        return await call_next(replace(new, queue="other", payloads=[f"{new.payloads[0]} first"]))

    @pgq.enqueue_middleware
    async def second(new: pgq.NewJobs, call_next: pgq.Enqueue) -> Sequence[pgq.JobId]:
        assert new.queue == "other"
        return await call_next(replace(new, payloads=[f"{new.payloads[0]} second"]))

    job_id = await pgq.Queue(pool).enqueue("job")
    [job] = await pgq.Queue(pool, "other").dequeue(10)
    assert (job.id, job.payload, job.headers) == (job_id, "job first second", None)


async def test_in_synchronous_code_it_may_not_wait(dsn: Dsn, queue: pgq.Queue) -> None:
    @pgq.enqueue_middleware
    async def wait(new: pgq.NewJobs, call_next: pgq.Enqueue) -> Sequence[pgq.JobId]:
        await asyncio.sleep(0)
        return await call_next(new)

    with psycopg.connect(**where(dsn)) as own, pytest.raises(RuntimeError, match="has waited"):
        note.enqueue_sync(1, connection=own)
    assert await queue.dequeue() == []
    await queue.enqueue(2)
    assert [job.payload for job in await queue.dequeue()] == [2]


async def test_jobs_that_run_inline_are_not_within_it(pool: asyncpg.Pool[Any]) -> None:
    order: list[str] = []

    @pgq.task("default")
    async def add(_: pgq.Job[None]) -> None:
        order.append("job")

    @pgq.enqueue_middleware
    async def see(new: pgq.NewJobs, call_next: pgq.Enqueue) -> Sequence[pgq.JobId]:
        ids = await call_next(new)
        order.append("sent")
        return ids

    with testing.inline(pgq.Worker(tasks=[add])):
        await add.enqueue(None, connection=pool)
    assert order == ["sent", "job"]
