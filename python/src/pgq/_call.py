"""Calls a handler where it is to run: in the event loop, a thread or a process."""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

from pgq._models import Job

R = TypeVar("R")


async def call_in_thread(function: Callable[[Job[Any]], R], job: Job[Any]) -> R:
    """Call a function in a thread of its own, which dies with the interpreter.

    When the caller is cancelled, CancelledError is raised in the thread as soon as that runs Python
    code again, and the call lasts until the thread has ended, or the caller is cancelled once more.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()
    context = copy_context()

    def end(result: Any, error: BaseException | None) -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(result)
        else:
            ended.set_exception(error)

    def tell(result: Any, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, (Exception, asyncio.CancelledError)):
            error = RuntimeError(repr(error))  # an exit would be the whole process's
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
            run()
        except BaseException as exc:  # noqa: BLE001 the interruption may come this late
            tell(None, exc)

    thread = threading.Thread(target=main, name=f"pgq job {job.id}", daemon=True)
    thread.start()
    try:
        result: R = await asyncio.shield(ended)
    except asyncio.CancelledError:
        if ended.done():
            raise
        _interrupt(thread)
        result = await asyncio.shield(ended)
    return result


def _interrupt(thread: threading.Thread) -> None:
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(asyncio.CancelledError)
    )


async def call_in_process(function: Callable[[Job[Any]], R], job: Job[Any]) -> R:
    """Call a function in another process, which is killed when the caller is cancelled."""
    try:
        from anyio import CapacityLimiter, to_process  # noqa: PLC0415 it is optional
    except ImportError as exc:
        raise RuntimeError(
            "handlers in processes need anyio: pip install 'pgq-asyncpg[process]'"
        ) from exc
    return await to_process.run_sync(
        call_by_name,
        function.__module__,
        function.__qualname__,
        job,
        cancellable=True,
        limiter=CapacityLimiter(math.inf),  # the queue's concurrency is the limit
    )


def call_by_name(module: str, name: str, job: Job[Any]) -> Any:
    """Call the function, or that of the task, of the given name."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return getattr(found, "function", found)(job)
