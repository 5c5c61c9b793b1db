"""Writes what became of jobs, as often as it takes."""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from pgq._heartbeat import STUCK
from pgq._link import Call, Link, backoff, is_transient
from pgq._log import about, log, trouble
from pgq._models import Job, JobId
from pgq._outcomes import Cancel, Retry, Snooze
from pgq._queue import Queue

T = TypeVar("T")

_ERROR_CHARACTERS: Final = 20_000
_STUCK_SECONDS: Final = 1.0  # until an outcome is tried again for which a locked row is in the way


class Settler:
    """Writes outcomes as they come: completions together, between them the others one by one.

    Args:
        queue: any queue: outcomes name the job only.
        link: the connection that it writes on.
        on_settled: called with the job, and whether the server has accepted the outcome.
    """

    def __init__(
        self, queue: Queue, link: Link, on_settled: Callable[[Job[Any], bool], None]
    ) -> None:
        self._queue = queue
        self._link = link
        self._on_settled = on_settled
        self._completed: list[tuple[Job[Any], Any]] = []
        self._others: deque[tuple[Job[Any], Call[object]]] = deque()
        self._added = asyncio.Event()
        self._drained = False

    def complete(self, job: Job[Any], result: Any) -> None:
        """Have a job completed; a result that the server refuses fails it."""
        self._completed.append((job, result))
        self._added.set()

    def release(self, job: Job[Any]) -> None:
        """Have a job given back."""
        self._add(job, partial(self._queue.release, job))

    def end(self, job: Job[Any], error: BaseException) -> None:
        """Have an attempt ended as an error or another outcome than a result says."""
        self._add_or_fail(job, ending(self._queue, job, error))

    def _add(self, job: Job[Any], call: Call[object]) -> None:
        self._others.append((job, call))
        self._added.set()

    def _add_or_fail(self, job: Job[Any], call: Call[object]) -> None:
        self._add(job, partial(self._or_fail, job, call))

    async def run(self) -> None:
        """Write outcomes until `drain` was called and all are written; may be run again."""
        while True:
            if self._completed:
                completed = self._completed.copy()
                await self._write_together(completed)
                del self._completed[: len(completed)]
            if self._others:
                await self._write_one(*self._others[0])
                self._others.popleft()
            elif not self._completed:
                if self._drained:
                    return
                self._added.clear()
                await self._added.wait()

    def drain(self) -> None:
        """Let `run` return when all is written: nothing will be added any more."""
        self._drained = True
        self._added.set()

    async def _write_together(self, completed: list[tuple[Job[Any], Any]]) -> None:
        jobs = [job for job, _ in completed]
        results = [result for _, result in completed]
        try:
            kept = await self._persist(partial(self._complete_together, jobs, results))
        except STUCK:
            kept = None
        if kept is None:
            # One of them is in the way of the others.
            for job, result in completed:
                self._add_or_fail(job, partial(self._queue.complete, job, result))
            return
        accepted = set(kept)
        for job in jobs:
            self._on_settled(job, job.id in accepted)

    async def _write_one(self, job: Job[Any], call: Call[object]) -> None:
        try:
            accepted = bool(await self._persist(call))
        except STUCK as exc:
            log.warning(
                "the outcome of job %d waits for a lock on it: %r", job.id, exc, extra=about(job)
            )
            await asyncio.sleep(_STUCK_SECONDS)
            self._add(job, call)
        else:
            self._on_settled(job, accepted)

    async def _complete_together(
        self, jobs: list[Job[Any]], results: list[Any], *, connection: Any
    ) -> list[JobId] | None:
        """Complete with results; None if one of them cannot be stored, whichever it is."""
        kept = results if any(result is not None for result in results) else None
        try:
            return await self._queue.complete_many(jobs, kept, connection=connection)
        except Exception as exc:
            if is_transient(exc):
                raise
            return None

    async def _or_fail(self, job: Job[Any], call: Call[object], *, connection: Any) -> object:
        """Run a call, and fail the job if it is refused."""
        try:
            return await call(connection=connection)
        except Exception as exc:
            if is_transient(exc):
                raise
            log.warning(
                "the outcome of job %d cannot be stored", job.id, exc_info=True, extra=about(job)
            )
            return await ending(self._queue, job, exc)(connection=connection)

    async def _persist(self, call: Call[T]) -> T | None:
        """Run a call until the server has answered it; None if it never will.

        Raises one of `STUCK` if a locked row may be in its way.
        """
        for pause in backoff():
            try:
                return await self._link.run(call)
            except STUCK:
                raise
            except Exception as exc:
                if not self._link.may_recover(exc, pause):
                    log.exception(
                        "an outcome could not be written; its lease will run out",
                        extra=trouble(exc),
                    )
                    return None
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")


def ending(queue: Queue, job: Job[Any], error: BaseException) -> Call[object]:
    """Return the call that ends an attempt as an error or another outcome than a result says."""
    if isinstance(error, Snooze):
        return partial(queue.release, job, error.for_)
    if isinstance(error, Retry):
        return partial(queue.fail, job, _storable(error.reason), retry_in=error.in_)
    if isinstance(error, Cancel):
        return partial(queue.fail, job, _storable(error.reason), cancel=True)
    return partial(queue.fail, job, _text(error))


def _text(error: BaseException) -> str:
    """Return the end of the traceback, which begins where the worker calls what is not its own."""
    begin = error.__traceback__
    while begin is not None and begin.tb_frame.f_globals.get("__package__") == __package__:
        begin = begin.tb_next
    lines = traceback.format_exception(type(error), error, begin or error.__traceback__)
    return _storable("".join(lines)[-_ERROR_CHARACTERS:]) or ""


def _storable(text: object) -> str | None:
    """Return text in characters that the server can store."""
    if text is None:
        return None
    return str(text).replace("\0", "\\0").encode(errors="backslashreplace").decode()
