"""For the tests of applications: what was enqueued, and tasks that run as they are enqueued.

All of it happens on Django's connection, so in the transaction of a `TestCase`, which rolls back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync
from django.db import transaction

from pgq._driver import finish
from pgq._errors import JobHeld, NotClaimable, UnknownJob
from pgq._outcomes import Outcome, Settled
from pgq._queue import Queue as AsyncpgQueue
from pgq._worker.handle import returned
from pgq._worker.settle import end
from pgq.django import DjangoDriver
from pgq.django._names import TaskResult, signals, task_backends
from pgq.django.tasks import PgqBackend
from pgq.django.worker import handler_of

__all__ = ["collect", "inline", "run"]


def collect() -> AbstractContextManager[list[TaskResult]]:
    """Return a list of what backends of pgq enqueue while the block lasts."""
    return _enqueued(lambda _: None)


def inline(*, raise_errors: bool = True) -> AbstractContextManager[list[TaskResult]]:
    """Run each task of a backend of pgq before `enqueue` returns, and return a list of them.

    Tasks that it enqueues in turn run, too. What cannot be claimed does not run: a task with
    `run_after`, or one of a paused queue.

    Args:
        raise_errors: raise what a task raises in the call that enqueued it; False leaves it to the
            `errors` of its result.
    """
    return _enqueued(partial(run, raise_errors=raise_errors))


@contextmanager
def _enqueued(call: Callable[[TaskResult], object]) -> Generator[list[TaskResult]]:
    found: list[TaskResult] = []

    def note(sender: Any, task_result: TaskResult, **_: Any) -> None:
        if issubclass(sender, PgqBackend):
            found.append(task_result)
            call(task_result)

    signals.task_enqueued.connect(note)
    try:
        yield found
    finally:
        signals.task_enqueued.disconnect(note)


def run(result: TaskResult, *, raise_errors: bool = True) -> bool:
    """Run a task that was enqueued, as a worker would, and refresh its result.

    What it writes is gone if it fails: it runs within a savepoint.

    Args:
        result: what `enqueue` has returned.
        raise_errors: raise what the task raises.

    Returns:
        False if the task cannot be claimed: it is to run later, or has ended.
    """
    backend = task_backends[result.backend]
    assert isinstance(backend, PgqBackend)
    alias = backend.database
    queue = AsyncpgQueue(DjangoDriver(alias), result.task.queue_name)
    try:
        with transaction.atomic(using=alias):
            job = finish(queue.claim(int(result.id), worker="test"))
    except (JobHeld, NotClaimable, UnknownJob):
        return False
    handler = handler_of(backend, result.task.module_path, job.queue, tidy=_nothing)
    call = async_to_sync(handler.function) if handler.run_in == "loop" else handler.function
    try:
        with transaction.atomic(using=alias):
            value = call(job)
            if not isinstance(value, Settled):
                finish(queue.complete(job, returned(value)))
    except (Exception, SystemExit) as exc:
        here: Any = None  # the queue has its connection
        finish(end(queue, job, exc, connection=here))
        if raise_errors and not isinstance(exc, Outcome):
            raise
    finally:
        result.refresh()
    return True


def _nothing() -> None: ...
