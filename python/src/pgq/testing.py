"""For the tests of applications: jobs that run as they are enqueued, and jobs made by hand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Any, TypeVar

import asyncpg

from pgq._driver import SessionDriver, Statement
from pgq._models import Job, JobId, JobState, Token
from pgq._queue import DEFAULT_TIMEOUT, on_enqueued
from pgq._worker.config import consumer_of
from pgq._worker.worker import Worker

__all__ = ["inline", "job"]

P = TypeVar("P")


@contextmanager
def inline(worker: Worker, *, raise_errors: bool = True) -> Generator[list[Exception], None, None]:
    """Let `enqueue` and `enqueue_many` run their jobs before they return.

    While the block lasts, in the task that entered it and those that it starts, each job that is
    enqueued for a queue of the worker is claimed, handled and completed, failed or given back, as
    by the worker, on the connection or in the session that it was enqueued with. So all of it is in
    the transaction that is open there, and gone if that rolls back. Handlers with `transaction` get
    this connection or session. Jobs that handlers enqueue run when those have ended.

    A job runs once, and not at all where it cannot be claimed: it is scheduled, waits for others,
    its queue is paused or at a limit. What is decided at COMMIT is not yet decided in an open
    transaction: there a job of a group does not run, nor one that waited for others. The logger
    "pgq" tells of each at level INFO.

    A fixture may hold the block, too: a plain one, as tests do not always run in the context of
    asynchronous ones.

    Args:
        worker: whose handlers, middleware and hooks they are; it needs no pool and does not run.
        raise_errors: raise what a handler raises in the call that enqueued its job (the attempt
            has failed, and the jobs behind it have not run); False only lists it.

    Returns:
        What handlers have raised, in the order of their ends.

    Raises:
        LeaseLost: from a call that enqueues: a handler has ended its job itself.
    """
    errors: list[Exception] = []
    entered = copy_context()
    claimed: set[tuple[str, JobId]] = set()  # with their database: each test may have its own

    consumers = worker._consumers  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    async def run(queue: str, executor: Any, ids: Sequence[JobId]) -> None:
        pending: deque[tuple[JobId, Any]] = deque()
        first = executor
        database = await _database(first)

        async def add(queue: str, executor: Any, ids: Sequence[JobId]) -> None:
            if consumer_of(consumers, queue) is not None:
                pending.extend((job_id, executor) for job_id in ids)

        await add(queue, executor, ids)
        while pending:
            job_id, executor = pending.popleft()
            if _is_released(executor):  # that of a handler, which has ended
                executor = first
            if (database, job_id) in claimed:
                continue
            claimed.add((database, job_id))
            # As with a worker: not in the context of whoever enqueues.
            context = entered.copy()
            context.run(on_enqueued.set, add)
            where = (
                {"session": executor.session}
                if isinstance(executor, SessionDriver)
                else {"connection": executor}
            )
            job = worker.run_job(job_id, **where)
            try:
                if not await context.run(asyncio.create_task, job):
                    claimed.remove((database, job_id))
            except Exception as exc:
                errors.append(exc)
                if raise_errors:
                    raise

    reset = on_enqueued.set(run)
    try:
        yield errors
    finally:
        on_enqueued.reset(reset)


async def _database(executor: Any) -> str:
    call = "select current_database() as name"
    if isinstance(executor, SessionDriver):
        [row] = await executor.fetch(Statement.of(call, ()))
    else:
        row = await executor.fetchrow(call)
    name: str = row["name"]
    return name


def _is_released(executor: Any) -> bool:
    if isinstance(executor, (asyncpg.Pool, SessionDriver)):
        return False
    try:
        executor.is_in_transaction()
    except asyncpg.InterfaceError:
        return True
    return False


def job(
    payload: P,
    *,
    id: int = 1,  # noqa: A002 the field's own name
    token: int | None = 1,
    queue: str = "default",
    priority: int = 0,
    state: JobState = "active",
    attempt: int = 1,
    max_attempts: int = 20,
    headers: dict[str, Any] | None = None,
    group_key: str | None = None,
    dedupe_key: str | None = None,
    worker: str | None = None,
    enqueued_at: datetime | None = None,
    run_at: datetime | None = None,
    claimed_at: datetime | None = None,
    lease_expires_at: datetime | None = None,
    last_error: str | None = None,
    cancel_requested: bool = False,
    checkpoint: Any = None,
) -> Job[P]:
    """Make a job by hand, to call a handler with: `await send_email(job(payload))`.

    Args:
        payload: what the handler finds in `job.payload`, as it is.

    The others are the fields of `Job`. By default it has just been claimed, for its first attempt
    and 30 seconds.
    """
    now = datetime.now(UTC)
    return Job(
        id=JobId(id),
        token=None if token is None else Token(token),
        queue=queue,
        priority=priority,
        state=state,
        attempt=attempt,
        max_attempts=max_attempts,
        payload=payload,
        headers=headers,
        group_key=group_key,
        dedupe_key=dedupe_key,
        worker=worker,
        enqueued_at=enqueued_at or now,
        run_at=run_at or now,
        claimed_at=claimed_at or now,
        lease_expires_at=lease_expires_at or now + DEFAULT_TIMEOUT,
        last_error=last_error,
        cancel_requested=cancel_requested,
        checkpoint=checkpoint,
    )
