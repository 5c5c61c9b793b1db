"""The life of a claimed job in its worker: its states, and what leads from one to another."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pgq._models import Job
from pgq._outcomes import Outcome
from pgq._task import Task

if TYPE_CHECKING:
    from pgq._worker.intake import Intake

State: TypeAlias = Literal[
    "claimed",  # in the backlog, or its task has not begun
    "running",  # an attempt is made
    "completing",  # the handler's transaction completes it, with what answer nobody knows
    "completed",  # with that transaction
    "settling",  # the settler writes its outcome
    "releasing",  # the settler gives it back
    "ended",  # it is not held any more
]
Event: TypeAlias = Literal["start", "complete", "commit", "roll back", "settle", "release", "end"]
Reason: TypeAlias = Literal["lost", "cancel", "deadline", "abort"]

# Middleware may call the handler once more, after a transaction that has failed or committed.
TRANSITIONS: Final[dict[State, dict[Event, State]]] = {
    "claimed": {"start": "running", "release": "releasing", "end": "ended"},
    "running": {
        "complete": "completing",
        "settle": "settling",
        "release": "releasing",
        "end": "ended",
    },
    "completing": {
        "complete": "completing",
        "commit": "completed",
        "roll back": "running",
        "settle": "settling",
        "release": "releasing",
        "end": "ended",
    },
    "completed": {"complete": "completed", "commit": "completed", "end": "ended"},
    "settling": {"end": "ended"},
    "releasing": {"end": "ended"},
    "ended": {},
}


@dataclass(slots=True, eq=False)
class Held:
    """A claimed job, from the claim until its outcome is written or its lease is lost."""

    job: Job[Any]
    intake: Intake
    state: State = "claimed"
    task: asyncio.Task[None] | None = None  # in which the attempt is made
    handler: Task[Any, Any] | None = None
    reason: Reason | None = None  # why it was cancelled
    deferred: Reason | None = None  # why it is to be, if its transaction cannot be committed
    failure: BaseException | None = None  # of which the hooks for errors are told
    outcome: Outcome | None = None  # with which its handler has ended

    def __str__(self) -> str:
        task = "" if self.handler is None else f" ({self.handler.name})"
        return f"job {self.job.id}{task} of queue {self.job.queue!r}"

    def on(self, event: Event) -> None:
        """Change the state; raises AssertionError if the event is not possible in this one."""
        state = TRANSITIONS[self.state].get(event)
        if state is None:
            raise AssertionError(f"{self} is {self.state}: it cannot {event}")
        self.state = state

    def cancel(self, reason: Reason) -> None:
        """Cancel the attempt, now or before its first step; not while it is being completed."""
        if self.reason == "lost":
            return
        if self.state not in ("claimed", "running"):
            self.deferred = self.deferred or reason
            return
        if self.reason is None or reason == "lost":
            self.reason = reason
        # A task that is cancelled before its first step would never run its own clean-up.
        if self.state == "running" and self.task is not None:
            self.task.cancel(self.reason)  # the message is for instrumentation
