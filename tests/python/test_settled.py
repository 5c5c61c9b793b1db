"""A handler that has settled its job itself says so with `Settled`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pgq
import pytest

from .sessions import within
from .workers import FAST

pytestmark = pytest.mark.once

WAYS: dict[str, tuple[Callable[[pgq.Queue, pgq.Job], Awaitable[object]], str]] = {
    "completed": (lambda queue, job: queue.complete(job, "by hand"), "completed"),
    "failed": (lambda queue, job: queue.fail(job, "by hand", retryable=False), "dead"),
    "cancelled": (lambda queue, job: queue.fail(job, "by hand", cancel=True), "cancelled"),
}


@pytest.fixture
def worker(pool: asyncpg.Pool[Any]) -> pgq.Worker:
    return pgq.Worker(pool, poll_interval=FAST)


async def state(queue: pgq.Queue, job_id: int) -> str:
    job = await queue.get(job_id)
    assert job is not None
    return job.state


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("raised", [False, True])
async def test_a_job_that_its_handler_settled_is_no_lost_lease(
    queue: pgq.Queue,
    worker: pgq.Worker,
    caplog: pytest.LogCaptureFixture,
    way: str,
    *,
    raised: bool,
) -> None:
    settle, expected = WAYS[way]

    @worker.handler("default")
    async def handle(job: pgq.Job) -> pgq.Settled:
        assert await settle(queue, job)
        if raised:
            raise pgq.Settled
        return pgq.Settled()

    job_id = await queue.enqueue(1)
    await within(worker.run_until_idle())
    assert await state(queue, job_id) == expected
    assert not caplog.records


async def test_a_plain_handler_may_settle_its_job(
    queue: pgq.Queue, worker: pgq.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    @worker.handler("default")
    def handle(job: pgq.Job) -> Any:
        async def settle() -> pgq.Settled:
            assert await queue.complete(job)
            return pgq.Settled()

        return settle()

    job_id = await queue.enqueue(1)
    await within(worker.run_until_idle())
    assert await state(queue, job_id) == "completed"
    assert not caplog.records


async def test_run_job_takes_the_word_of_a_handler_that_settled(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, worker: pgq.Worker
) -> None:
    @worker.handler("default")
    async def handle(job: pgq.Job) -> pgq.Settled:
        assert await queue.complete(job)
        return pgq.Settled()

    job_id = await queue.enqueue(1)
    assert await worker.run_job(job_id, connection=pool)
    assert await state(queue, job_id) == "completed"


async def test_a_handler_in_the_transaction_of_its_job_cannot_say_so(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    @worker.handler("default", transaction=True)
    async def handle(_: pgq.Job, __: pgq.Connection) -> pgq.Settled:
        return pgq.Settled()

    job_id = await queue.enqueue(1, max_attempts=1)
    await within(worker.run_until_idle())
    job = await queue.get(job_id)
    assert job is not None
    assert job.state == "dead"
    assert "the worker completes the job of a handler with transaction=True" in str(job.last_error)
