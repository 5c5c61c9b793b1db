"""Calls a handler where it is to run: in the event loop, a thread or a process."""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import math
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, TypeGuard

from pgq._models import Job


async def call_in_thread(
    function: Callable[[Job[Any]], Any], job: Job[Any], *, is_over: Callable[[], bool]
) -> Any:
    """Call a function in a thread of its own, which dies with the interpreter.

    When the caller is cancelled, CancelledError is raised in the thread as soon as that runs Python
    code again, and the call lasts until the thread has ended, or `is_over` and the caller is
    cancelled once more.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = copy_context()
    entered = threading.Event()

    def end(result: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((result, error))

    def tell(result: Any, error: BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(end, result, error)

    def run() -> None:
        try:
            result = context.run(function, job)
        except BaseException as exc:  # noqa: BLE001 it is raised in the caller
            tell(None, exc)
        else:
            tell(result, None)

    def main() -> None:
        try:
            entered.set()
            run()
        except BaseException as exc:  # noqa: BLE001 the interruption may come this late
            tell(None, exc)

    thread = threading.Thread(target=main, name=f"pgq job {job.id}", daemon=True)
    thread.start()
    reason: tuple[object, ...] = ()
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError as exc:  # noqa: PERF203 it may come again
            if is_over():
                raise
            reason = exc.args
            entered.wait()  # before, nobody would hear of it
            _interrupt(thread)
    result, error = ended.result()
    if isinstance(error, asyncio.CancelledError):
        error.args = reason
        raise error
    if isinstance(error, Exception):
        raise error
    if error is not None:
        raise RuntimeError(repr(error)) from error  # an exit would be the whole process's
    return await result if isawaitable(result) else result


def _interrupt(thread: threading.Thread) -> None:
    assert thread.ident is not None
    if thread.is_alive():  # another one may have its identifier by now
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(asyncio.CancelledError)
        )


async def call_in_process(function: Callable[[Job[Any]], Any], job: Job[Any]) -> Any:
    """Call a function in another process, which is killed when the caller is cancelled."""
    try:
        from anyio import CapacityLimiter, to_process  # noqa: PLC0415 it is optional
    except ImportError as exc:
        raise RuntimeError(
            "handlers in processes need anyio: pip install 'pgq-asyncpg[process]'"
        ) from exc
    result = await to_process.run_sync(
        call_by_name,
        function.__module__,
        function.__qualname__,
        job,
        cancellable=True,
        limiter=CapacityLimiter(math.inf),  # the queue's concurrency is the limit
    )
    if isinstance(result, _Failure):
        raise result.error from _RemoteTraceback(result.text)
    return result


class _RemoteTraceback(Exception):  # noqa: N818 it is part of one
    """The traceback of another process, which cannot be pickled but as text."""


@dataclass(frozen=True, slots=True)
class _Failure:
    error: Exception
    text: str


def call_by_name(module: str, name: str, job: Job[Any]) -> Any:
    """Call the function, or that of the task, of the given name, in a process for that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to workers' processes, too
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return getattr(found, "function", found)(job)
    except BaseException as exc:  # noqa: BLE001 it is raised in the caller
        text = "\n" + "".join(traceback.format_exception(exc))
        return _Failure(exc if _can_be_pickled(exc) else RuntimeError(repr(exc)), text)


def _can_be_pickled(error: BaseException) -> TypeGuard[Exception]:
    try:
        return isinstance(pickle.loads(pickle.dumps(error)), Exception)
    except Exception:  # noqa: BLE001 that is what is asked
        return False
