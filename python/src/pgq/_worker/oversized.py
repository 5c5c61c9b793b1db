"""What a worker does when the jobs of a claim are too large to be read together.

It claims half as many, and so on. Where even one cannot be read, it finds out which one, and fails
that one alone.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any, Final

import asyncpg

from pgq import _sql
from pgq._calls import Connection
from pgq._errors import JobHeld, NotClaimable, PayloadTooLong, UnknownJob
from pgq._log import about, log
from pgq._models import Job
from pgq._queue import Queue
from pgq._worker.link import Call, Link, answered, backoff

# A text of more than 1 GB, as different parts of the server say it; no memory for one.
_NO_MEMORY: Final = "53200"
_SQLSTATES: Final = frozenset({"XX000", _NO_MEMORY})
_ROLLBACK_SECONDS: Final = 10.0  # for the server to answer


def is_oversized(exc: BaseException) -> bool:
    """Tell whether a claim of fewer jobs may succeed."""
    if isinstance(exc, asyncpg.PostgresError):
        return exc.sqlstate in _SQLSTATES
    return isinstance(exc, (TimeoutError, PayloadTooLong))


def _may_be_read_later(exc: Exception) -> bool:
    """Tell whether it was the server's load or the network that kept a job from being read."""
    return isinstance(exc, TimeoutError) or getattr(exc, "sqlstate", None) == _NO_MEMORY


class Blind(Queue):
    """A queue whose jobs come without payload, headers and checkpoint."""

    _instead = _sql.BLIND


async def claim_one(
    link: Link, queue: Queue, blind: Blind, timeout: timedelta, worker: str
) -> tuple[float, list[Job[Any]]]:
    """Claim the next job that can be read, and fail those before it that cannot.

    Args:
        link: the connection.
        queue: the queue.
        blind: the same queue.
        timeout: the lease, and how long the server may take to answer.
        worker: the name of the worker.

    Returns:
        Since when the job may be leased, and the job.
    """
    pauses = backoff()
    while (job_id := await link.run(partial(_peek, blind, timeout))) is not None:
        claim = partial(queue.claim, job_id, timeout, worker=worker)
        claim_blindly = partial(blind.claim, job_id, timeout, worker=worker)
        begun = time.monotonic()
        try:
            return begun, [await link.run(claim, timeout.total_seconds())]
        except (JobHeld, NotClaimable, UnknownJob):  # somebody else was quicker
            await asyncio.sleep(next(pauses))
            continue
        except Exception as exc:
            if not is_oversized(exc):
                raise
            error = exc

        reason = f"the job cannot be read: {error or 'the server did not answer in time'}"
        try:
            may_retry = _may_be_read_later(error)
            job = await _fail(link, queue, claim_blindly, reason, may_retry=may_retry)
        except (JobHeld, NotClaimable, UnknownJob):  # another worker has failed it
            continue
        log.warning(
            "job %d of queue %r has failed: the worker cannot read it: %r",
            job.id,
            queue.name,
            error,
            extra=about(job),
        )
    return time.monotonic(), []


async def _peek(blind: Blind, timeout: timedelta, *, connection: Connection) -> int | None:
    """Return the id of the job that a claim would get."""
    opened = connection.transaction()
    await opened.start()
    try:
        jobs = await blind.dequeue(1, timeout, connection=connection)
    finally:
        with suppress(Exception):  # the server does it as the connection ends
            await answered(connection, opened.rollback(), _ROLLBACK_SECONDS)
    return jobs[0].id if jobs else None


async def _fail(
    link: Link, queue: Queue, claim: Call[Job[Any]], reason: str, *, may_retry: bool
) -> Job[Any]:
    # In one call: nobody takes the job for that of a lost claim meanwhile.
    async def claim_and_fail(*, connection: Connection) -> Job[Any]:
        job = await claim(connection=connection)
        await queue.fail(job, reason, retryable=may_retry, connection=connection)
        return job

    # The call that was not answered may hold the job until the server has noticed its end.
    for pause in islice(backoff(), 8):
        try:
            return await link.run(claim_and_fail)
        except JobHeld:
            await asyncio.sleep(pause)
    return await link.run(claim_and_fail)
