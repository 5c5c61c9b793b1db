"""Calls handlers, and what else may block, in threads."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, copy_context
from inspect import isawaitable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

T = TypeVar("T")

_UNSET: Final = object()


class Threads:
    """The threads in which a run calls plain functions; an idle one is used again.

    So what a function binds to its thread, such as a connection of Django, does not pile up: there
    are as many threads as attempts at the same time, and those whose function hangs. They are
    daemons and do not keep the interpreter from ending.
    """

    def __init__(self) -> None:
        self._idle: list[_Thread] = []  # the one that was used last comes last

    def attempt(self, name: str, *, is_over: Callable[[], bool]) -> InThread:
        """Return the thread of one attempt, which is to be given back with `end`.

        Args:
            name: what the thread is called meanwhile.
            is_over: tells whether nobody waits any more for a function that does not end.
        """
        return InThread(name, self._take, is_over)

    def end(self, attempt: InThread | None) -> None:
        """Let others use the thread of an attempt that has ended, if it had one."""
        if attempt is not None and (thread := attempt.leave()) is not None:
            self._idle.append(thread)

    def close(self) -> None:
        """End the idle threads."""
        while self._idle:
            self._idle.pop().end()

    def _take(self, name: str) -> _Thread:
        return self._idle.pop() if self._idle else _Thread(name)


class InThread:
    """The thread of one attempt: its handler and its plain hooks run there, one by one."""

    def __init__(
        self, name: str, take: Callable[[str], _Thread], is_over: Callable[[], bool]
    ) -> None:
        self._name = name
        self._take = take
        self._is_over = is_over
        self._thread: _Thread | None = None

    def leave(self) -> _Thread | None:
        """Return the thread if another attempt may use it."""
        thread, self._thread = self._thread, None
        return thread

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in the thread; context variables that it sets are set here, too.

        When the caller is cancelled, CancelledError is raised in the thread as soon as that runs
        Python code again. The call lasts until the function has ended, or `is_over` and the caller
        is cancelled once more. An interruption may reach a thread after its function has ended:
        no other attempt uses this thread then.
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
                result = context.run(function, *args)
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

        thread = self._thread = self._thread or self._take(self._name)
        thread.call(main, self._name)
        reason: tuple[object, ...] = ()
        while not ended.done():
            try:
                await asyncio.wait([ended])
            except asyncio.CancelledError as exc:
                if self._is_over():
                    self._give_up(thread)
                    raise
                reason = exc.args
                entered.wait()  # before, nobody would hear of it
                _interrupt(thread.thread)
                self._give_up(thread)
        _set_all(context)
        result, error = ended.result()
        if isinstance(error, asyncio.CancelledError):
            error.args = reason
            raise error
        if isinstance(error, Exception):
            raise error
        if error is not None:
            raise RuntimeError(repr(error)) from error  # an exit would be the whole process's
        return await result if isawaitable(result) else result

    def _give_up(self, thread: _Thread) -> None:
        if self._thread is thread:
            self._thread = None
            thread.end()


class _Thread:
    """A thread that calls one function after the other."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._main, name=name, daemon=True)
        self.thread.start()

    def call(self, function: Callable[[], None], name: str) -> None:
        """Have a function called that raises nothing."""
        self.thread.name = name
        self._calls.put(function)

    def end(self) -> None:
        """Let the thread end after the function that it is in."""
        self._calls.put(None)

    def _main(self) -> None:
        with suppress(asyncio.CancelledError):  # an interruption that has come late
            while (call := self._calls.get()) is not None:
                call()
                del call  # what it refers to is not to be kept


async def call_aside(function: Callable[[], T]) -> T:
    """Call a function that raises nothing in a thread of its own.

    The executor of the loop may be full of what handlers wait for.
    """
    ended: Future[T] = Future()
    threading.Thread(target=lambda: ended.set_result(function()), daemon=True).start()
    return await asyncio.shield(asyncio.wrap_future(ended))


def _set_all(context: Context) -> None:
    for variable, value in context.items():
        if variable.get(_UNSET) is not value:
            variable.set(value)


def _interrupt(thread: threading.Thread) -> None:
    assert thread.ident is not None
    if thread.is_alive():  # another one may have its identifier by now
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(asyncio.CancelledError)
        )
