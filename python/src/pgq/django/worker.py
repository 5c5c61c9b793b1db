"""A worker whose tasks are Django's, each found by its name when the first of its jobs comes."""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from traceback import format_exception
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections, reset_queries, transaction
from django.utils import timezone

from pgq._errors import LeaseLost
from pgq._models import Job
from pgq._outcomes import Cancel, GiveUp, Outcome, Settled
from pgq._task import TASK_HEADER
from pgq._task import Task as PgqTask
from pgq._worker.config import Consumer, Prefix
from pgq._worker.worker import Worker
from pgq.django import Queue
from pgq.django._names import TaskResult, base, normalize_json, signals
from pgq.django.tasks import PgqBackend, named, set_field


class DjangoWorker(Worker):
    """Works off the jobs of a backend of Django's tasks.

    Plain functions run in threads, each with Django's connection of its thread; coroutine functions
    run in the loop, and use the connection of one more thread.

    Args:
        backend: whose tasks they are.
        options: the arguments of `pgq.Worker`.
    """

    def __init__(self, backend: PgqBackend, **options: Any) -> None:
        self._backend = backend
        super().__init__(**options)

    def _consumer(self, queue: str | Prefix) -> Consumer:
        if queue not in self._consumers:
            self._consumers[queue] = _Consumer(self._backend, str(queue))
        return self._consumers[queue]


class _Consumer(Consumer):
    """Has the tasks that were given to the worker, and those of Django that jobs name."""

    def __init__(self, backend: PgqBackend, queue: str) -> None:
        super().__init__()
        self._backend = backend
        self.handler = PgqTask(_refuse, queue)

    def task_of(self, job: Job[Any]) -> PgqTask[Any, Any]:
        name = job.headers.get(TASK_HEADER) if isinstance(job.headers, dict) else None
        if isinstance(name, str) and name not in self.tasks:
            self.tasks[name] = handler_of(self._backend, name, job.queue)
        return super().task_of(job)


def _refuse(job: Job[Any]) -> None:
    named(None)  # raises


def tidy() -> None:
    """Do what Django does between requests, in the thread whose connections a task uses."""
    reset_queries()
    close_old_connections()


def handler_of(
    backend: PgqBackend, name: str, queue: str, tidy: Callable[[], None] = tidy
) -> PgqTask[Any, Any]:
    """Return what calls a task of Django; raises `UnknownTask` if there is none of the name."""
    function: Any = named(name).func
    handle: Callable[[Job[Any]], Any]

    if iscoroutinefunction(function):

        async def handle_async(job: Job[Any]) -> Any:
            attempt = Attempt(backend, job, tidy)
            # The connection is that of the thread in which Django's ORM runs.
            await sync_to_async(attempt.begin)()
            try:
                value = normalize_json(await function(*attempt.args, **attempt.kwargs))
            except BaseException as exc:
                await sync_to_async(attempt.fail)(exc)
                raise
            await sync_to_async(attempt.succeed)(value)
            return value

        handle = handle_async
    else:

        def handle_plain(job: Job[Any]) -> Any:
            attempt = Attempt(backend, job, tidy)
            attempt.begin()
            try:
                value = attempt.call(function)
            except BaseException as exc:
                attempt.fail(exc)
                raise
            attempt.succeed(value)
            return Settled() if backend.atomic else value

        handle = handle_plain
    return PgqTask(handle, queue, name=name)


class Attempt:
    """An attempt at a task, with the signals and the care for connections that Django expects."""

    def __init__(self, backend: PgqBackend, job: Job[Any], tidy: Callable[[], None]) -> None:
        self._backend = backend
        self._job = job
        self._tidy = tidy
        self.result: TaskResult = backend.result_of(job, backend.task_of(job), "active")
        context = (
            [base.TaskContext(task_result=self.result)] if self.result.task.takes_context else []
        )
        self.args: list[Any] = [*context, *self.result.args]
        self.kwargs: dict[str, Any] = self.result.kwargs

    def begin(self) -> None:
        """Begin, in the thread whose connection the task uses."""
        self._tidy()
        signals.task_started.send(type(self._backend), task_result=self.result)

    def call(self, function: Callable[..., Any]) -> Any:
        """Call a plain function; in a transaction with the completion, if the backend is so."""
        if not self._backend.atomic:
            return normalize_json(function(*self.args, **self.kwargs))
        with transaction.atomic(using=self._backend.database):
            value = normalize_json(function(*self.args, **self.kwargs))
            if not Queue(using=self._backend.database).complete(self._job, value):
                raise LeaseLost("what the task wrote is rolled back")
        return value

    def succeed(self, value: Any) -> None:
        """End with a result."""
        set_field(self.result, "_return_value", value)
        self._end(base.TaskResultStatus.SUCCESSFUL)

    def fail(self, error: BaseException) -> None:
        """End with an error; the task has failed if it is not tried again."""
        is_last = self._job.attempt >= self._job.max_attempts
        is_failure = isinstance(error, (Exception, SystemExit)) and not isinstance(
            error, (Outcome, LeaseLost)
        )
        if isinstance(error, (GiveUp, Cancel)) or (is_last and is_failure):
            self.result.errors.append(
                base.TaskError(
                    exception_class_path=f"{type(error).__module__}.{type(error).__qualname__}",
                    traceback="".join(format_exception(error)),
                )
            )
            self._end(base.TaskResultStatus.FAILED)
        else:
            self._tidy()

    def _end(self, status: str) -> None:
        set_field(self.result, "status", status)
        set_field(self.result, "finished_at", timezone.now())
        signals.task_finished.send_robust(type(self._backend), task_result=self.result)
        self._tidy()
