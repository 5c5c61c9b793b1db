"""What a worker was made with: queues, tasks, hooks and settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

from pgq._calls import Dumps
from pgq._driver import AnyAsyncSession
from pgq._errors import UnknownTask
from pgq._models import Job, Unreadable, readable
from pgq._queue import DEFAULT_TIMEOUT
from pgq._task import TASK_HEADER, Task

Endpoint: TypeAlias = Callable[[Job[Any]], Awaitable[Any]]
Middleware: TypeAlias = Callable[[Job[Any], Endpoint], Awaitable[Any]]
BeforeHook: TypeAlias = Callable[[Job[Any]], Any]
AfterHook: TypeAlias = Callable[[Job[Any], Any], Any]
ErrorHook: TypeAlias = Callable[[Job[Any], Exception], Any]
Sessions: TypeAlias = Callable[[], AnyAsyncSession]


@dataclass(frozen=True, slots=True)
class Prefix:
    """All queues whose names begin with a text, for `Worker.handler`, `add` and `configure`.

    Args:
        text: what the names begin with; an empty text stands for all queues.
    """

    text: str

    def __str__(self) -> str:
        return f"{self.text}*"


@dataclass(slots=True, kw_only=True)
class Consumer:
    """How a worker works off one queue, and with which tasks."""

    concurrency: int = 10
    timeout: timedelta = DEFAULT_TIMEOUT
    batch: int | None = None
    prefetch: int = 0
    tasks: dict[str, Task[Any, Any]] = field(default_factory=dict[str, Task[Any, Any]])
    handler: Task[Any, Any] | None = None  # of the jobs of no task

    def all_tasks(self) -> list[Task[Any, Any]]:
        """Return the tasks and the handler."""
        return [*self.tasks.values(), *([self.handler] if self.handler is not None else [])]

    def task_of(self, job: Job[Any]) -> Task[Any, Any]:
        """Return the task that handles a job; raises `UnknownTask` and `InvalidPayload`."""
        headers = job.headers
        if Unreadable in (type(job.payload), type(headers), type(job.checkpoint)):
            for part in ("payload", "headers", "checkpoint"):
                readable(part, getattr(job, part))
        name = headers.get(TASK_HEADER) if isinstance(headers, dict) else None
        if isinstance(name, str) and name in self.tasks:
            return self.tasks[name]
        if self.handler is not None:
            return self.handler
        if name is None and len(self.tasks) == 1:
            return next(iter(self.tasks.values()))
        raise UnknownTask(
            f"the worker has no task {name!r} for queue {job.queue!r}"
            if name is not None
            else f'a job of queue {job.queue!r} has no header "{TASK_HEADER}"',
            hint=f"Its tasks are: {', '.join(sorted(self.tasks))}. In SQL, name one of them in the"
            f' headers, as in \'{{"{TASK_HEADER}": "{min(self.tasks, default="name")}"}}\'.',
        )


Consumers: TypeAlias = Mapping[str | Prefix, Consumer]


def consumer_of(consumers: Consumers, queue: str) -> Consumer | None:
    """Return how a worker works off a queue: by its own name, else by its longest prefix."""
    prefixes = [each for each in consumers if isinstance(each, Prefix)]
    fitting = [each for each in prefixes if queue.startswith(each.text)]
    longest = max(fitting, key=lambda prefix: len(prefix.text), default=queue)
    return consumers.get(queue) or consumers.get(longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a worker was made with, for its run."""

    name: str
    poll_seconds: float
    call_seconds: float
    grace_seconds: float
    listens: bool
    durable_claims: bool
    sessions: Sessions | None
    dumps: Dumps
    middleware: Sequence[Middleware]
    before: Sequence[BeforeHook]
    after: Sequence[AfterHook]
    error: Sequence[ErrorHook]
