"""Calls handlers, and what else may block, in threads."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from inspect import isawaitable
from typing import Any, TypeVar

from pgq._models import Job

T = TypeVar("T")


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
        except asyncio.CancelledError as exc:
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


async def call_aside(function: Callable[[], T]) -> T:
    """Call a function that raises nothing in a thread of its own.

    The executor of the loop may be full of what handlers wait for.
    """
    ended: Future[T] = Future()
    threading.Thread(target=lambda: ended.set_result(function()), daemon=True).start()
    return await asyncio.shield(asyncio.wrap_future(ended))


def _interrupt(thread: threading.Thread) -> None:
    assert thread.ident is not None
    if thread.is_alive():  # another one may have its identifier by now
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(asyncio.CancelledError)
        )
