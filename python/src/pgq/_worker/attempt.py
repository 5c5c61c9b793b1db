"""Attempts at jobs: each a task, from the job's start to what it has ended with."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from functools import partial
from typing import Any, Final, TypeAlias

import asyncpg

from pgq._log import about, log, traced
from pgq._models import Job
from pgq._outcomes import Outcome, Settled
from pgq._queue import Queue
from pgq._task import Task
from pgq._worker.call import InThread, Threads
from pgq._worker.config import Endpoint, Settings
from pgq._worker.handle import (
    DEADLINE_PASSED,
    NotBegun,
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
from pgq._worker.heartbeat import Heartbeat
from pgq._worker.held import Held
from pgq._worker.holding import Holding
from pgq._worker.intake import Intake
from pgq._worker.link import Link, answered, is_silent, pause, transaction
from pgq._worker.processes import Processes

_RELEASE_SECONDS: Final = 1.0  # until a job is given back whose transaction could not begin
_NO_ALARM: Final = nullcontext()

NewTask: TypeAlias = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]


class Attempts:
    """Starts what is held as far as there is room for, and decides what each attempt means.

    Args:
        settings: of the worker.
        pool: where transactions get their connections.
        queue: any queue: outcomes name the job only.
        link: tells whether a transaction that could not begin may begin later.
        beats: renews the leases.
        holding: the jobs.
        stopping: is set when nothing is to be started any more.
        new_task: makes a task that begins later, in a context of its own.
    """

    def __init__(
        self,
        settings: Settings,
        pool: asyncpg.Pool[Any],
        *,
        queue: Queue,
        link: Link,
        beats: Heartbeat,
        holding: Holding,
        stopping: asyncio.Event,
        new_task: NewTask,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._queue = queue
        self._link = link
        self._beats = beats
        self._holding = holding
        self._stopping = stopping
        self._new_task = new_task
        self._telling: set[asyncio.Task[None]] = set()
        self._is_over = False  # nobody waits for handlers any more
        self._processes = Processes()
        self._threads = Threads()

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None, None]:
        """End the processes and idle threads of handlers after the block."""
        try:
            async with self._processes:
                yield
        finally:
            self._threads.close()

    def start_next(self, intake: Intake) -> None:
        """Start what is in the backlog of a queue, as far as its concurrency allows that."""
        while intake.backlog and intake.running < intake.consumer.concurrency:
            held = intake.backlog.popleft()
            intake.running += 1
            held.task = self._new_task(self._execute(held), f"pgq job {held.job.id}")

    def refused(self, held: Held, exc: Exception) -> None:
        """Tell the hooks of an outcome that the server has refused, for which the job fails."""
        if held.failure is None:
            held.failure = exc
            task = self._new_task(self._tell(held, exc), f"pgq hooks of job {held.job.id}")
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    def telling(self) -> list[asyncio.Task[None]]:
        """Return the tasks that call such hooks."""
        return list(self._telling)

    def abandon(self) -> None:
        """Wait for handlers no more, and write nothing of what they do."""
        self._is_over = True

    async def _execute(self, held: Held) -> None:
        held.on("start")
        try:
            if self._stopping.is_set() or held.reason is not None:
                self._holding.give_back(held)
                return
            self._holding.begin(held)
            if log.isEnabledFor(logging.DEBUG):
                await self._handle_timed(held)
            else:
                await self._handle(held)
        finally:
            held.intake.running -= 1
            self.start_next(held.intake)
            held.intake.freed.set()

    async def _handle_timed(self, held: Held) -> None:
        job = held.job
        begun = time.monotonic()
        try:
            await self._handle(held)
        finally:
            log.debug(
                "%s, attempt %d of %d, took %.3f s",
                held,
                job.attempt,
                job.max_attempts,
                time.monotonic() - begun,
                extra=about(job),
            )

    async def _handle(self, held: Held) -> None:
        try:
            kept = await instrumented(partial(self._attempt, held), held.job)
        except BaseException as exc:
            if isinstance(exc, NotBegun) and held.state == "running":
                with suppress(asyncio.CancelledError):
                    await pause(self._stopping, _RELEASE_SECONDS)
            self._settle_failed(held, exc)
            if isinstance(exc, KeyboardInterrupt):
                raise
        else:
            if held.state == "completed":
                self._holding.forget(held)
            else:
                self._holding.complete(held, kept)

    async def _attempt(self, held: Held, job: Job[Any]) -> Any:
        thread: InThread | None = None
        try:
            task = held.intake.consumer.task_of(job)
            held.handler = task
            thread = self._thread(held)
            job = decoded(task, job)
            call = self._endpoint(held, task, thread)
            seconds = deadline_of(task, job)
            with _NO_ALARM if seconds is None else self._alarm(held, seconds):
                result = returned(await call(job))
            return None if held.state == "completed" else text_of(self._settings, task, result)
        except (Outcome, RolledBack, NotBegun):
            raise
        except BaseException as exc:  # noqa: BLE001 it is raised, or what it means
            raise await self._failed(held, job, exc, thread)  # noqa: B904 it has its own cause
        finally:
            self._threads.end(thread)

    def _thread(self, held: Held) -> InThread | None:
        """Return where the plain functions of an attempt run, unless that is the loop."""
        if held.handler is None or held.handler.run_in != "thread":
            return None
        return self._threads.attempt(f"pgq job {held.job.id}", is_over=lambda: self._is_over)

    def _endpoint(self, held: Held, task: Task[Any, Any], thread: InThread | None) -> Endpoint:
        settings = self._settings
        around = settings.before or settings.after or settings.middleware
        if task.run_in == "loop" and not (task.transaction or around):  # in less time
            return task.function
        in_transaction = partial(self._call_in_transaction, held, task)
        return endpoint(settings, task, in_transaction, self._processes, thread)

    @contextmanager
    def _alarm(self, held: Held, seconds: float) -> Generator[None, None, None]:
        alarm = asyncio.get_running_loop().call_later(seconds, held.cancel, "deadline")
        try:
            yield
        finally:
            alarm.cancel()

    async def _failed(
        self, held: Held, job: Job[Any], exc: BaseException, thread: InThread | None
    ) -> BaseException:
        """Return what an attempt ended with, and tell the hooks if that is a failure."""
        is_cancelled = isinstance(exc, asyncio.CancelledError)
        if held.deferred is not None or (is_cancelled and held.reason is None):
            # Whoever cancels all tasks cancels the run, too. And what was deferred cancels this
            # task, which is no reason to break off the hooks.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        if (
            self._is_over
            or held.state == "completed"
            or (held.state == "completing" and is_silent(exc))
        ):
            return exc
        if held.reason == "deadline":
            late = TimeoutError(DEADLINE_PASSED)
            late.__cause__ = None if is_cancelled else exc
            exc = late.with_traceback(exc.__traceback__) if is_cancelled else late
        elif held.reason is not None:
            if is_cancelled:
                return exc
            log.warning(
                "%s failed as it was cancelled", held, exc_info=traced(exc), extra=about(job)
            )
            return asyncio.CancelledError(held.reason)
        held.failure = exc
        with suppress(asyncio.CancelledError):  # it has failed, whatever happens meanwhile
            await tell(self._settings, job, exc, thread)
        return exc

    async def _call_in_transaction(self, held: Held, task: Task[Any, Any], job: Job[Any]) -> Any:
        try:
            result = await self._complete_in_transaction(held, task, job)
        except Exception as exc:
            if held.state == "completing" and not (isinstance(exc, RolledBack) or is_silent(exc)):
                # It was not completed: middleware may call the handler again.
                held.on("roll back")
                timeout = held.intake.consumer.timeout.total_seconds()
                self._beats.hold([held.job], timeout, time.monotonic())
                if held.deferred is not None:
                    held.cancel(held.deferred)
            raise
        held.on("commit")
        return result

    async def _complete_in_transaction(
        self, held: Held, task: Task[Any, Any], job: Job[Any]
    ) -> Any:
        seconds = self._settings.call_seconds
        async with AsyncExitStack() as stack:
            try:
                connection = await stack.enter_async_context(self._transaction())
            except Exception as exc:
                if self._link.may_recover(exc, _RELEASE_SECONDS) or self._pool.is_closing():
                    raise NotBegun from exc
                raise
            if held.reason is not None:  # what waits for a connection may swallow a cancellation
                raise asyncio.CancelledError(held.reason)

            async def complete(result: str | None) -> bool:
                # From here the transaction itself keeps the job from others: a heartbeat would
                # only wait for it.
                held.on("complete")
                self._beats.drop(held.job.token)
                call = self._queue.complete(job, result, connection=connection)
                return await answered(connection, call, seconds)

            argument = connection if self._settings.sessions is None else connection.session
            return await call_and_complete(self._settings, task, job, argument, complete)

    def _transaction(self) -> AbstractAsyncContextManager[Any]:
        """Return a transaction on a connection of the pool, or in a session."""
        settings = self._settings
        if settings.sessions is None:
            return transaction(self._pool, settings.call_seconds)
        from pgq._worker import session  # noqa: PLC0415 it needs an extra

        return session.transaction(settings.sessions, settings.call_seconds)

    def _settle_failed(self, held: Held, exc: BaseException) -> None:
        job = held.job
        has_failed = held.failure is not None
        if held.state == "completed":
            log.warning("%s was completed, but then", held, exc_info=traced(exc), extra=about(job))
            self._holding.forget(held)
        elif isinstance(exc, RolledBack):
            self._holding.report_lost(held, "what the handler wrote was rolled back")
        elif isinstance(exc, NotBegun):
            self._holding.give_back(held)
        elif isinstance(exc, Settled):
            self._holding.forget(held)
        elif isinstance(exc, Outcome):
            self._holding.end(held, exc)
        elif held.reason == "lost":
            self._holding.report_lost(held, "the handler was cancelled")
        elif not has_failed and held.state == "completing" and is_silent(exc):
            # The server may still have the transaction, and whoever touches the job waits.
            self._holding.report_lost(held, f"nobody knows whether it was completed: {exc!r}")
        elif not has_failed and held.reason == "abort":
            if not self._is_over:  # else nobody writes that any more
                log.info("%s is given back: its handler was cancelled", held, extra=about(job))
            self._holding.give_back(held)
        elif not has_failed and held.reason == "cancel":
            log.info("%s was cancelled on request", held, extra=about(job))
            self._holding.cancelled(held)
        else:
            self._holding.fail(held, exc if held.failure is None else held.failure)

    async def _tell(self, held: Held, exc: Exception) -> None:
        thread = self._thread(held)
        try:
            await tell(self._settings, held.job, exc, thread)
        finally:
            self._threads.end(thread)
