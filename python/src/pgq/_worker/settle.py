"""Writes what became of jobs, as often as it takes."""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from pgq import _sql
from pgq._calls import Connection
from pgq._log import about, log, traced, trouble
from pgq._models import Job
from pgq._outcomes import Cancel, GiveUp, Retry, Snooze
from pgq._queue import Queue
from pgq._worker.heartbeat import STUCK
from pgq._worker.link import Call, Link, backoff, is_transient

T = TypeVar("T")

_ERROR_CHARACTERS: Final = 20_000
_STUCK_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Other:
    """An outcome that is written by itself."""

    job: Job[Any]
    call: Call[object]
    is_last: bool = False  # nothing is left to be tried if it is refused
    completes: bool = False
    is_unsure: bool = False  # an earlier call may have written it


class Impatient(Queue):
    """A queue whose outcomes fail where they would wait long for a lock.

    Somebody may have a job locked for hours: an outcome waits for that only as long as the others
    can wait for it, and is tried again later.
    """

    _instead = _sql.IMPATIENT


class Settler:
    """Writes outcomes as they come: completions together, between them the others one by one.

    Args:
        queue: any queue: outcomes name the job only.
        link: the connection that it writes on.
        on_settled: called with the job, and whether the server has accepted the outcome; None if
            nobody knows: an answer was lost, and what is kept of the job does not tell.
        on_refused: called with the job and the error if an outcome is not possible, for which the
            job is failed.
    """

    def __init__(
        self,
        queue: Queue,
        link: Link,
        on_settled: Callable[[Job[Any], bool | None], None],
        on_refused: Callable[[Job[Any], Exception], None],
    ) -> None:
        self._queue = queue
        self._link = link
        self._on_settled = on_settled
        self._on_refused = on_refused
        self._completed: list[tuple[Job[Any], Any]] = []
        self._others: deque[_Other] = deque()
        self._stuck = 0  # those that are to be tried again later
        self._added = asyncio.Event()
        self._drained = False

    def complete(self, job: Job[Any], result: Any) -> None:
        """Have a job completed; a result that the server refuses fails it."""
        self._completed.append((job, result))
        self._added.set()

    def release(self, job: Job[Any]) -> None:
        """Have a job given back."""
        self._add(_Other(job, partial(self._queue.release, job), is_last=True))

    def end(self, job: Job[Any], error: BaseException) -> None:
        """Have an attempt ended as an error or another outcome than a result says."""
        self._add(_Other(job, partial(end, self._queue, job, error)))

    def _add(self, other: _Other) -> None:
        self._others.append(other)
        self._added.set()

    async def run(self) -> None:
        """Write outcomes until `drain` was called and all are written; may be run again."""
        while True:
            if self._completed:
                completed = self._completed.copy()
                await self._write_together(completed)
                del self._completed[: len(completed)]
            if self._others:
                await self._write_one(self._others[0])
                self._others.popleft()
            elif not self._completed:
                if self._drained and self._stuck == 0:
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
        kept = results if any(result is not None for result in results) else None
        try:
            ids, is_unsure = await self._persist(partial(self._queue.complete_many, jobs, kept))
        except Exception:  # noqa: BLE001 one of them is in the way of the others
            for job, result in completed:
                complete = partial(self._queue.complete, job, result)
                self._add(_Other(job, complete, completes=True, is_unsure=True))
            return
        accepted = set(ids)
        for job in jobs:
            is_known = job.id in accepted or not is_unsure
            self._on_settled(
                job, job.id in accepted if is_known else await self._found(job, completes=True)
            )

    async def _write_one(self, other: _Other) -> None:
        job = other.job
        try:
            answer, is_unsure = await self._persist(other.call)
        except STUCK as exc:
            log.warning(
                "the outcome of job %d is not written, trying again in %.1f s; perhaps somebody has"
                " locked the job: %r",
                job.id,
                _STUCK_SECONDS,
                exc,
                extra=about(job),
            )
            self._stuck += 1
            again = replace(other, is_unsure=True)
            asyncio.get_running_loop().call_later(_STUCK_SECONDS, self._try_again, again)
        except Exception as exc:
            if other.is_last or is_transient(exc):
                log.exception(
                    "the outcome of job %d could not be written: its lease will run out",
                    job.id,
                    extra=trouble(exc),
                )
                self._on_settled(job, False)
            else:
                log.warning(
                    "the outcome of job %d cannot be stored", job.id, exc_info=exc, extra=about(job)
                )
                self._on_refused(job, exc)
                self._add(_Other(job, partial(end, self._queue, job, exc), is_last=True))
        else:
            is_known = bool(answer) or not (is_unsure or other.is_unsure)
            self._on_settled(
                job, bool(answer) if is_known else await self._found(job, completes=other.completes)
            )

    async def _found(self, job: Job[Any], *, completes: bool) -> bool | None:
        """Tell whether an earlier call, whose answer was lost, has ended a job."""
        try:
            state, _ = await self._persist(partial(self._queue.outcome, job))
        except Exception:  # noqa: BLE001 an older extension, or not permitted
            return None
        if state is None or (state == "lost" and not completes):
            return None
        return state == "completed" if completes else state != "active"

    def _try_again(self, other: _Other) -> None:
        self._stuck -= 1
        self._add(other)

    async def _persist(self, call: Call[T]) -> tuple[T, bool]:
        """Run a call until the server has answered it, and return or raise what it answers.

        Returns, too, whether it may have been done by a call before, of which no answer came.
        Raises one of `STUCK` if a locked row may be in its way.
        """
        is_unsure = False
        for pause in backoff():
            try:
                return await self._link.run(call), is_unsure
            except STUCK:
                raise
            except Exception as exc:
                rest = max(pause, self._link.shut_for())
                if not self._link.may_recover(exc, rest):
                    raise
                is_unsure = True
            await asyncio.sleep(rest)
        raise AssertionError("unreachable")


async def end(
    queue: Queue, job: Job[Any], error: BaseException, *, connection: Connection
) -> object:
    """End an attempt as an error or another outcome than a result says."""
    if isinstance(error, Snooze):
        return await queue.release(job, error.for_, connection=connection)
    fail = partial(queue.fail, job, connection=connection)
    if isinstance(error, Retry):
        return await fail(_storable(error.reason), retry_in=error.in_)
    if isinstance(error, GiveUp):
        return await fail(_storable(error.reason) or "GiveUp", retryable=False)
    if isinstance(error, Cancel):
        return await fail(_storable(error.reason), cancel=True)
    return await fail(_text(error))


def _text(error: BaseException) -> str:
    """Return the end of the traceback."""
    lines = traceback.format_exception(*traced(error))
    return _storable("".join(lines)[-_ERROR_CHARACTERS:]) or ""


def _storable(text: object) -> str | None:
    """Return the start of a text, in characters that the server can store."""
    if text is None:
        return None
    start = str(text)[:_ERROR_CHARACTERS]
    return start.replace("\0", "\\0").encode(errors="backslashreplace").decode()
