"""How a handler is called, with hooks, middleware and instrumentation around it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from typing import Any, Final

from pgq._errors import LeaseLost
from pgq._log import about, log
from pgq._models import Job
from pgq._outcomes import Outcome, Settled
from pgq._rows import with_payload
from pgq._task import DEADLINE_HEADER, Task, checked_deadline, is_coroutine_function
from pgq._worker.call import InThread
from pgq._worker.config import Endpoint, Middleware, Settings
from pgq._worker.processes import Processes

DEADLINE_PASSED: Final = "the deadline of the task has passed"

# Around each attempt of every worker of the process, with what fails before the handler is called.
instrumentation: Final[list[Middleware]] = []


class RolledBack(LeaseLost):
    """The lease was lost before the transaction could complete the job."""


class NotBegun(Exception):  # noqa: N818 it is no error of the job
    """The server could not be reached to begin the transaction."""


def instrumented(attempt: Endpoint, job: Job[Any]) -> Awaitable[Any]:
    """Make an attempt at a job, with what instruments the process around it."""
    for call in instrumentation:
        attempt = partial(_call_around, call, attempt)
    return attempt(job)


def decoded(task: Task[Any, Any], job: Job[Any]) -> Job[Any]:
    """Return a job with the payload that the handler of its task takes; raises `InvalidPayload`."""
    if not task.payloads.is_typed:
        return job
    return with_payload(job, task.payloads.decode(job.payload))


def deadline_of(task: Task[Any, Any], job: Job[Any]) -> float | None:
    """Return the seconds that an attempt may take: by the job's header, else by its task."""
    seconds = job.headers.get(DEADLINE_HEADER) if isinstance(job.headers, dict) else None
    if seconds is None:
        return None if task.deadline is None else task.deadline.total_seconds()
    return checked_deadline(seconds)


async def tell(
    settings: Settings, job: Job[Any], error: BaseException, thread: InThread | None
) -> None:
    """Call the hooks for errors with what an attempt has failed with; plain ones in its thread."""
    if not isinstance(error, Exception):
        error, cause = RuntimeError(repr(error)), error  # an exit would be the whole process's
        error.__cause__ = cause
    for hook in settings.error:
        await _logged(thread, hook, job, error)


def endpoint(
    settings: Settings,
    task: Task[Any, Any],
    in_transaction: Endpoint,
    processes: Processes,
    thread: InThread | None,
) -> Endpoint:
    """Return what calls the handler of a task, with hooks and middleware around it.

    It takes a job as `decoded` returns it.

    Args:
        settings: of the worker.
        task: the job's.
        in_transaction: calls the handler and completes the job, for a task with `transaction`.
        processes: where it is called that is to run in one.
        thread: where a plain one is called, and plain hooks around it.
    """
    call: Endpoint
    if task.transaction:
        call = in_transaction
    elif thread is not None:
        call = partial(thread.call, task.function)
    elif task.run_in == "process":
        call = partial(processes.call, task.function)
    else:
        call = task.function
    if settings.before or settings.after:
        call = partial(_call_with_hooks, settings, thread, call)
    for middleware in reversed(settings.middleware):
        call = partial(_call_around, middleware, call)
    return call


def returned(result: Any) -> Any:
    """Return what a handler has returned; raises it if it is an `Outcome`."""
    if isinstance(result, Outcome):
        raise result
    return result


def text_of(settings: Settings, task: Task[Any, Any], result: Any) -> str | None:
    """Return a result as JSON text; what is raised is the attempt's, not the connection's."""
    return None if result is None else settings.dumps(task.results.encode(result))


async def call_and_complete(
    settings: Settings,
    task: Task[Any, Any],
    job: Job[Any],
    argument: object,
    complete: Callable[[str | None], Awaitable[bool]],
) -> Any:
    """Call a handler, and complete its job, in a transaction that is open.

    Args:
        settings: of the worker.
        task: the job's.
        job: the handler's.
        argument: the handler's connection or session; its transaction has to roll back if this
            raises.
        complete: called with the result as JSON text; tells whether the lease was good.

    Raises:
        RolledBack: it was not.
        Outcome: the handler returned or raised one.
    """
    try:
        result = returned(await task.function(job, argument))
    except Settled as exc:
        raise TypeError("the worker completes the job of a handler with transaction=True") from exc
    if not await complete(text_of(settings, task, result)):
        raise RolledBack(f"what the handler of job {job.id} wrote is rolled back")
    return result


async def _call_with_hooks(
    settings: Settings, thread: InThread | None, endpoint: Endpoint, job: Job[Any]
) -> Any:
    for before in settings.before:
        await _answer(thread, before, job)
    result = await endpoint(job)
    if not isinstance(result, Outcome):
        for after in settings.after:
            await _logged(thread, after, job, result)
    return result


async def _call_around(middleware: Middleware, endpoint: Endpoint, job: Job[Any]) -> Any:
    return await middleware(job, endpoint)


async def _answer(thread: InThread | None, hook: Callable[..., Any], *args: Any) -> None:
    if thread is not None and not is_coroutine_function(hook):
        await thread.call(hook, *args)
    elif isawaitable(answer := hook(*args)):
        await answer


async def _logged(
    thread: InThread | None, hook: Callable[..., Any], job: Job[Any], end: object
) -> None:
    try:
        await _answer(thread, hook, job, end)
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException:  # an exit would be the whole process's
        log.exception("a hook failed", extra=about(job))
