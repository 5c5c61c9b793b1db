"""One job, claimed and run to its end on one connection, in a transaction that may roll back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import asyncpg

from pgq._calls import Executor
from pgq._driver import SessionDriver
from pgq._errors import JobHeld, LeaseLost, NotClaimable, NotSupported, UnknownJob
from pgq._log import log, trouble
from pgq._models import Job
from pgq._outcomes import Outcome, Settled
from pgq._queue import Queue
from pgq._worker.call import InThread, Threads
from pgq._worker.config import Consumer, Consumers, Settings, consumer_of
from pgq._worker.handle import (
    DEADLINE_PASSED,
    RolledBack,
    call_and_complete,
    deadline_of,
    decoded,
    endpoint,
    instrumented,
    returned,
    tell,
    text_of,
)
from pgq._worker.link import Call
from pgq._worker.processes import Processes
from pgq._worker.settle import end

T = TypeVar("T")


class Single:
    """Runs single jobs as a `Run` would, but for what it does to keep leases.

    Args:
        settings: of the worker.
        queue: any queue.
        executor: a connection or a driver, whose open transaction everything joins, or a pool.
        consumers: by the names of their queues.
    """

    def __init__(
        self,
        settings: Settings,
        queue: Queue,
        executor: Executor | SessionDriver,
        consumers: Consumers,
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._executor = executor
        self._consumers = consumers

    async def run(self, job_id: int) -> bool:
        """Run a job; return False if it cannot be claimed, and raise what its handler raised."""
        try:
            job = await self._call(partial(self._queue.claim, job_id, worker=self._settings.name))
        except (JobHeld, NotClaimable, UnknownJob) as exc:
            log.info("a job is not run now: %s", exc, extra=trouble(exc))
            return False
        try:
            kept = await instrumented(self._handle, job)
        except Settled:
            return True
        except Exception as exc:
            kept = await self._call(partial(end, self._queue, job, exc))
            if not isinstance(exc, Outcome):
                raise
        if not kept:
            raise LeaseLost(f"the lease of job {job.id} was lost while its handler ran")
        return True

    async def _handle(self, job: Job[Any]) -> object:
        committed = False

        async def in_transaction(job: Job[Any]) -> Any:
            nonlocal committed
            async with self._transaction() as connection:
                complete = partial(self._queue.complete, job, connection=connection)
                argument = self._argument(connection)
                result = await call_and_complete(self._settings, task, job, argument, complete)
            committed = True
            return result

        thread: InThread | None = None
        async with AsyncExitStack() as stack:
            try:
                consumer = consumer_of(self._consumers, job.queue) or Consumer()
                task = consumer.task_of(job)
                if task.run_in == "thread":
                    thread = self._thread(stack, job)
                job = decoded(task, job)
                processes = await stack.enter_async_context(Processes())
                call = endpoint(self._settings, task, in_transaction, processes, thread)
                result = returned(await _in_time(call(job), deadline_of(task, job)))
                if committed:
                    return True
                kept = text_of(self._settings, task, result)
                return await self._call(partial(self._queue.complete, job, kept))
            except (Outcome, RolledBack):
                raise
            except Exception as exc:
                if not committed:
                    await tell(self._settings, job, exc, thread)
                raise

    def _thread(self, stack: AsyncExitStack, job: Job[Any]) -> InThread:
        threads = Threads()
        stack.callback(threads.close)
        thread = threads.attempt(f"pgq job {job.id}", is_over=bool)
        stack.callback(threads.end, thread)
        return thread

    async def _call(self, call: Call[T]) -> T:
        async with self._transaction() as connection:
            return await call(connection=connection)

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[Any]:
        """Begin a transaction, or a savepoint in the one that is open."""
        if isinstance(self._executor, asyncpg.Pool):
            async with self._executor.acquire() as connection, connection.transaction():
                yield connection
        elif isinstance(self._executor, SessionDriver):
            async with self._executor.savepoint():
                yield self._executor
        else:
            async with self._executor.transaction():
                yield self._executor

    def _argument(self, connection: Any) -> Any:
        """Return what a handler with `transaction` gets, as of a `Run`."""
        is_session = isinstance(connection, SessionDriver)
        if is_session != (self._settings.sessions is not None):
            raise NotSupported(
                "a worker with sessions runs handlers with a transaction in a session,"
                " others on a connection of asyncpg"
            )
        return connection.session if is_session else connection


async def _in_time(call: Awaitable[T], seconds: float | None) -> T:
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        return await asyncio.wait_for(call, seconds)
    except TimeoutError as exc:
        if seconds is None or loop.time() - began < seconds:  # the handler's own
            raise
        raise type(exc)(DEADLINE_PASSED) from exc
