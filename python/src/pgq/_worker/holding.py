"""All jobs that a worker holds: what keeps their leases, and what writes how they end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from pgq._log import about, about_worker, log, traced
from pgq._models import Job, Token
from pgq._outcomes import Cancel, GiveUp, Outcome, Snooze
from pgq._worker.heartbeat import Heartbeat
from pgq._worker.held import Held, Reason
from pgq._worker.intake import Intake
from pgq._worker.settle import Settler
from pgq._worker.unbegun import Unkept


class Holding:
    """The jobs that a worker holds, by their tokens.

    Args:
        worker: its name.
        beats: renews the leases.
        settler: writes outcomes.
        stopping: is set when the worker stops.
        on_ended: called when a job of an intake is not held any more.

    Attributes:
        unbegun: keeps the receipts of those that have not begun.
        given_back: how many were given back since the stop.
        changed_at: when jobs last came or ended (monotonic).
    """

    def __init__(
        self,
        worker: str,
        beats: Heartbeat,
        settler: Settler,
        stopping: asyncio.Event,
        on_ended: Callable[[Intake], None],
    ) -> None:
        self._worker = worker
        self._beats = beats
        self._settler = settler
        self._stopping = stopping
        self._on_ended = on_ended
        self._held: dict[Token | None, Held] = {}  # the token of a claimed job is never None
        # Of jobs that it has begun, or may have: until when their leases may last.
        self._lost_tokens: deque[tuple[float, Token | None]] = deque()
        self.unbegun = Unkept()
        self.given_back = 0
        self.changed_at = time.monotonic()

    def __iter__(self) -> Iterator[Held]:
        return iter(list(self._held.values()))

    def __len__(self) -> int:
        return len(self._held)

    def of(self, job: Job[Any]) -> Held:
        """Return what is held of a job."""
        return self._held[job.token]

    def tokens(self) -> list[Token]:
        """Return the tokens of all leases that may be the worker's, those that it has lost too."""
        lost = (token for _, token in self._lost_tokens)
        return [token for token in (*self._held, *lost) if token is not None]

    def cancel(self, token: Token | None, reason: Reason) -> None:
        """Cancel the attempt at a job, if it is held."""
        if (held := self._held.get(token)) is not None:
            held.cancel(reason)

    def take(self, intake: Intake, jobs: list[Job[Any]], begun: float) -> None:
        """Hold the jobs of a claim, which may be leased since `begun` (monotonic)."""
        seconds = intake.consumer.timeout.total_seconds()
        self._beats.hold(jobs, seconds, begun)
        is_late = time.monotonic() - begun >= seconds
        if is_late and jobs:
            log.warning(
                "%d jobs are given back: their leases ended before the worker read its claim",
                len(jobs),
                extra=about_worker(self._worker),
            )
        intake.held += len(jobs)
        self.changed_at = time.monotonic()
        self.unbegun.add(jobs)
        for job in jobs:
            held = self._held[job.token] = Held(job, intake)
            if is_late or self._stopping.is_set():
                self.give_back(held)
            else:
                intake.backlog.append(held)

    def begin(self, held: Held) -> None:
        """Note that a job begins: whoever finds it after a kill must not give it back."""
        self.unbegun.discard(held.job.token)

    # Ends

    def give_back(self, held: Held) -> None:
        """Have a job given back, if its lease is not lost."""
        if held.reason == "lost":
            self.report_lost(held, "it was not begun")
        else:
            held.on("release")
            self._settler.release(held.job)

    def complete(self, held: Held, result: str | None) -> None:
        """Have a job completed."""
        held.on("settle")
        self._settler.complete(held.job, result)

    def end(self, held: Held, outcome: Outcome) -> None:
        """Have an attempt ended as its handler says."""
        held.outcome = outcome
        held.on("settle")
        self._settler.end(held.job, outcome)

    def fail(self, held: Held, error: BaseException) -> None:
        """Have an attempt ended with an error."""
        _log_end(held, error)
        held.on("settle")
        self._settler.end(held.job, error)

    def cancelled(self, held: Held) -> None:
        """Have a job ended that was cancelled on request."""
        held.on("settle")
        self._settler.end(held.job, Cancel("cancelled on request"))

    def settled(self, job: Job[Any], accepted: bool | None) -> None:
        """Take note of what became of an outcome; None if nobody knows."""
        held = self.of(job)
        if accepted is None:
            log.info(
                "the answer to the outcome of %s was lost, and the second call was refused: "
                "either the first call wrote the outcome, or the lease was lost before",
                held,
                extra=about(job),
            )
            self._lose(held)
            return
        if not accepted:
            self.report_lost(held, "its outcome was refused")
            return
        if held.state == "releasing" and self._stopping.is_set():
            self.given_back += 1
        if held.outcome is not None and held.failure is None:
            _log_end(held, held.outcome)
        self.forget(held)

    def report_lost(self, held: Held, consequence: str) -> None:
        """Forget a job whose lease is lost, and tell the log."""
        log.warning("lost the lease of %s: %s", held, consequence, extra=about(held.job))
        self._lose(held)

    def _lose(self, held: Held) -> None:
        """Forget a job; while its lease may last, no search for lost claims gives the job back."""
        now = time.monotonic()
        while self._lost_tokens and self._lost_tokens[0][0] <= now:
            self._lost_tokens.popleft()
        until = now + held.intake.consumer.timeout.total_seconds()
        self._lost_tokens.append((until, held.job.token))
        self.forget(held)

    def forget(self, held: Held) -> None:
        """Let a job go that has ended."""
        held.on("end")
        del self._held[held.job.token]
        self._beats.drop(held.job.token)
        self.unbegun.discard(held.job.token)
        held.intake.held -= 1
        self.changed_at = time.monotonic()
        held.intake.freed.set()
        held.intake.ended += 1
        self._on_ended(held.intake)

    def report_left(self) -> bool:
        """Tell the log what is held after the end; return whether leases may outlive the run."""
        for held in self:
            log.warning(
                "%s was not given back: its lease will run out",
                held,
                extra=about(held.job),
            )
        return bool(self._held or self._lost_tokens)


def _log_end(held: Held, error: BaseException) -> None:
    """Log an attempt that has not completed its job, and what that means for the job."""
    job = held.job
    if isinstance(error, Cancel) or held.reason == "cancel":
        fate = "cancelled"
    elif isinstance(error, Snooze):
        fate = f"given back for {error.for_}"
    elif isinstance(error, GiveUp) or job.attempt >= job.max_attempts:
        fate = "dead"
    else:
        fate = "to be tried again"
    is_outcome = isinstance(error, Outcome)
    reason = getattr(error, "reason", None) if is_outcome else None
    log.log(
        logging.INFO if is_outcome and fate != "dead" else logging.WARNING,
        "%s %s, attempt %d of %d: it is %s%s",
        held,
        f"ended with {type(error).__name__}" if is_outcome else "failed",
        job.attempt,
        job.max_attempts,
        fate,
        "" if reason is None else f": {reason}",
        exc_info=None if is_outcome else traced(error),
        extra=about(job),
    )
