"""Handlers and middleware that misbehave: no job is lost, no slot leaks, nothing goes on alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import asyncpg
import asyncpg.transaction
import pgq
import pytest

from .sessions import within
from .workers import FAST

HOUR: Final = timedelta(hours=1)
SHORT: Final = timedelta(milliseconds=300)


@pytest.fixture
def worker(pool: asyncpg.Pool[Any]) -> pgq.Worker:
    return pgq.Worker(pool, poll_interval=FAST)


async def seen(queue: pgq.Queue, job_id: int) -> pgq.JobSnapshot:
    job = await queue.get(job_id)
    assert job is not None
    return job


@pytest.mark.parametrize("outcome", [pgq.Retry, pgq.Cancel])
async def test_a_reason_may_be_an_exception(
    queue: pgq.Queue, worker: pgq.Worker, outcome: Callable[..., Exception]
) -> None:
    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        raise outcome(LookupError("no such address"))

    job_id = await queue.enqueue(1, max_attempts=1)
    await within(worker.run_until_idle())
    assert (await seen(queue, job_id)).last_error == "no such address"


def again_in(time: Any) -> pgq.Retry:
    return pgq.Retry(in_=time)


@pytest.mark.parametrize("seconds", [5, timedelta(seconds=-1), timedelta.max], ids=str)
@pytest.mark.parametrize("outcome", [again_in, pgq.Snooze])
async def test_an_outcome_that_is_not_possible_fails_the_job(
    queue: pgq.Queue, worker: pgq.Worker, outcome: Callable[[Any], Exception], seconds: Any
) -> None:
    @worker.handler("default")
    async def handle(_: pgq.Job) -> Any:
        return outcome(seconds)

    job_id = await queue.enqueue(1, max_attempts=1)
    await within(worker.run_until_idle())
    job = await seen(queue, job_id)
    assert job.state == "dead"
    assert "InvalidArgument" in str(job.last_error)
