"""What enqueues pass through: middleware of the application, and what instruments the process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from pgq._models import JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJobs:
    """What one enqueue adds: a job for each of `payloads`, all with the same headers.

    Attributes:
        queue: the name of the queue.
        payloads: what the queue's `dumps` gets: for a task, JSON values.
        headers: what goes beside the payloads; "task" names the task, if there is one.
    """

    queue: str
    payloads: Sequence[Any]
    headers: Mapping[str, Any]


Enqueue: TypeAlias = Callable[[NewJobs], Awaitable[Sequence[JobId]]]
EnqueueMiddleware: TypeAlias = Callable[[NewJobs, Enqueue], Awaitable[Sequence[JobId]]]
EnqueueMiddlewareT = TypeVar("EnqueueMiddlewareT", bound=EnqueueMiddleware)

# Around each enqueue of the process, the outermost one first.
middleware: Final[list[EnqueueMiddleware]] = []


def enqueue_middleware(call: EnqueueMiddlewareT) -> EnqueueMiddlewareT:
    """Have the decorated `call(new, call_next)` around each enqueue of this process.

    It awaits `call_next(new)`, which sends the jobs, and returns the ids that this returned. It may
    give it other headers, payloads (as many) or another queue; what it raises refuses the enqueue.
    The first one that was added is the outermost. All methods that enqueue pass through it, on each
    driver. In synchronous code it may await nothing but `call_next`. A `Task.statement` passes
    through it when it is made, with the id 0.
    """
    middleware.append(call)
    return call


def sent(send: Enqueue, new: NewJobs) -> Awaitable[Sequence[JobId]]:
    """Send new jobs, with the middleware around it."""
    for call in reversed(middleware):
        send = partial(_call_around, call, send)
    return send(new)


async def _call_around(
    call: EnqueueMiddleware, call_next: Enqueue, new: NewJobs
) -> Sequence[JobId]:
    return await call(new, call_next)
