"""A backend of Django's tasks, whose jobs commit with the transaction that enqueues them.

On Django 5.2 this needs the package django-tasks, the backport of `django.tasks`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from django.core import checks
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from pgq._errors import InvalidPayload, NotPermitted, UnknownTask
from pgq._models import FailedAttempt, Job, JobSnapshot, JobState
from pgq._task import TASK_HEADER
from pgq.django import DjangoDriver, Queue
from pgq.django._names import (
    BaseTaskBackend,
    Task,
    TaskResult,
    base,
    exceptions,
    normalize_json,
    signals,
)

__all__ = ["PgqBackend"]

_STATUS: Final[Mapping[JobState, str]] = {
    "ready": base.TaskResultStatus.READY,
    "scheduled": base.TaskResultStatus.READY,
    "waiting": base.TaskResultStatus.READY,
    "active": base.TaskResultStatus.RUNNING,
    "completed": base.TaskResultStatus.SUCCESSFUL,
    "dead": base.TaskResultStatus.FAILED,
    "cancelled": base.TaskResultStatus.FAILED,
}
_UNKNOWN: Final = "unknown"
_ALIKE: Final = 100  # characters by which errors are told apart from what ended a job otherwise
_TRACEBACK: Final = "Traceback (most recent call last):\n"
_CAUSED: Final = "\nThe above exception was the direct cause of the following exception:\n\n"


class PgqBackend(BaseTaskBackend):
    """Tasks as jobs of pgq, on a database of Django.

    A task that fails is tried again as its queue is configured; it has failed when no attempt is
    left. Its result is kept for the queue's `keep_completed`. The role needs the privileges
    "enqueue" and "observe" on the queues.

    Options:
        database: the alias of the database; "default" by default.
        max_attempts: attempts of each task; None (the default) takes the queue's.
        atomic: run each task in a transaction in which its job is completed, too: what it writes to
            the database happens exactly once. Such tasks are no coroutine functions.
    """

    supports_defer: bool = True
    supports_async_task: bool = True
    supports_get_result: bool = True
    supports_priority: bool = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.database: str = self.options.get("database", DEFAULT_DB_ALIAS)
        self.max_attempts: int | None = self.options.get("max_attempts")
        self.atomic: bool = self.options.get("atomic", False)
        self.supports_async_task = not self.atomic

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Enqueue a task, in the transaction that is open on Django's connection."""
        self.validate_task(task)
        payload = {"args": normalize_json(args), "kwargs": normalize_json(kwargs)}
        queue = Queue(task.queue_name, using=self.database)
        with self._transaction():  # no worker is faster
            job_id = queue.enqueue(
                payload,
                priority=task.priority,
                run_at=_aware(task.run_after),
                max_attempts=self.max_attempts,
                headers={TASK_HEADER: task.module_path},
            )
            job = queue.get(job_id)
            if job is None:
                self._refuse(task.queue_name)
        result = self.result_of(job, task, job.state)
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def _transaction(self) -> AbstractContextManager[Any]:
        """Return a transaction, or nothing where one is open.

        An inner `atomic` would end the open one for what is refused before the server knows of it.
        """
        if DjangoDriver(self.database).is_in_transaction():
            return nullcontext()
        return transaction.atomic(using=self.database)

    def _refuse(self, queue: str) -> NoReturn:
        with transaction.atomic(using=self.database, savepoint=False):  # the job is rolled back
            raise NotPermitted(
                f'a task of queue "{queue}" cannot be looked at, and its result is needed',
                hint=f"select pgq_grant('{queue}', role, '{{enqueue, observe}}')",
            )

    def get_result(self, result_id: str) -> TaskResult:
        """Look at a task that was enqueued, in any process."""
        try:
            job = Queue(using=self.database).get(int(result_id))
            if job is None or (self.queues and job.queue not in self.queues):
                raise exceptions.TaskResultDoesNotExist(result_id)
            result = self.result_of(job, self.task_of(job), job.state)
        except (ValueError, UnknownTask) as exc:
            raise exceptions.TaskResultDoesNotExist(result_id) from exc
        if job.state == "completed":
            set_field(result, "_return_value", job.result)
        return result

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Refuse a database that is not PostgreSQL's."""
        if connections[self.database].vendor != "postgresql":
            yield checks.Error(
                f'TASKS["{self.alias}"] is of pgq, but database "{self.database}" is not'
                " PostgreSQL.",
                hint="Name another database in its OPTIONS.",
                id="pgq.E001",
            )

    def task_of(self, job: Job) -> Task:
        """Return the task of a job, as it was enqueued.

        Raises:
            UnknownTask: the job names none that can be imported.
        """
        name = job.headers.get(TASK_HEADER) if isinstance(job.headers, dict) else None
        task = named(name)
        is_later = job.run_at > job.enqueued_at
        return task.using(
            priority=max(base.TASK_MIN_PRIORITY, min(job.priority, base.TASK_MAX_PRIORITY)),
            queue_name=job.queue,
            backend=self.alias,
            run_after=job.run_at if is_later else None,
        )

    def result_of(self, job: Job, task: Task, state: JobState) -> TaskResult:
        """Return what Django is to know of a job; a worker knows the last attempt alone.

        Raises:
            InvalidPayload: the payload is not that of a task.
        """
        is_call = isinstance(job.payload, dict)
        if not is_call:
            raise InvalidPayload('the payload of a task is {"args": [...], "kwargs": {...}}')
        call: dict[str, Any] = job.payload
        failed: list[FailedAttempt] = []
        finished_at: datetime | None = None
        if isinstance(job, JobSnapshot):
            failed, finished_at = job.history or [], job.finished_at
        claims = [datetime.fromisoformat(one["claimed_at"]).astimezone(UTC) for one in failed]
        if job.claimed_at is not None:
            claims.append(job.claimed_at)
        return base.TaskResult(
            task=task,
            id=str(job.id),
            status=_STATUS[state],
            enqueued_at=job.enqueued_at,
            started_at=claims[0] if claims else None,
            last_attempted_at=claims[-1] if claims else None,
            finished_at=finished_at,
            args=call.get("args", []),
            kwargs=call.get("kwargs", {}),
            backend=self.alias,
            errors=[_error(text) for text in _errors(job, failed)],
            worker_ids=_workers(job, failed),
        )


def named(path: object) -> Task:
    """Return the task of Django that a job names; raises `UnknownTask` if there is none."""
    try:
        found: object = import_string(path) if isinstance(path, str) else None
    except ImportError as exc:
        raise UnknownTask(f"cannot import the task {path!r}: {exc}") from exc
    if not isinstance(found, base.Task):
        raise UnknownTask(f"{path!r} is no task of Django")
    return found


def set_field(result: TaskResult, name: str, value: object) -> None:
    """Set a field of a result, which is frozen for others."""
    object.__setattr__(result, name, value)


def _aware(time: datetime | None) -> datetime | None:
    return timezone.make_aware(time) if time is not None and timezone.is_naive(time) else time


def _errors(job: Job, failed: Sequence[FailedAttempt]) -> list[str]:
    """Return the errors of the attempts; the last one is kept whole beside the history."""
    texts = [one["error"] for one in failed if one["error"] is not None]
    if job.last_error is None:
        return texts
    if texts and texts[-1][:_ALIKE] == job.last_error[:_ALIKE]:
        texts.pop()
    return [*texts, job.last_error]


def _workers(job: Job, failed: Sequence[FailedAttempt]) -> list[str]:
    workers = [_UNKNOWN] * job.attempt
    for one in failed:
        if one["attempt"] <= job.attempt:  # else it was before a retry
            workers[one["attempt"] - 1] = one["worker"] or _UNKNOWN
    if workers and job.claimed_at is not None:
        workers[-1] = job.worker or _UNKNOWN
    return workers


def _error(text: str) -> Any:
    """Read a traceback: the first line behind its frames that is not indented names the class."""
    cause, _, outer = text.rpartition(_CAUSED)
    if cause and "\nRuntimeError: SystemExit(" in outer:
        text = cause  # the exit of a plain task, as the worker tells of it
    found = re.match(r"(?: .*\n)*([\w.]+)[:\n]", text.rpartition(_TRACEBACK)[2])
    path = found[1] if found is not None and _TRACEBACK in text else "pgq.JobDead"
    return base.TaskError(
        exception_class_path=path if "." in path else f"builtins.{path}", traceback=text
    )
