"""Calls handlers in other processes, which end with this one."""

from __future__ import annotations

import asyncio
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final, Self

from pgq._models import Job
from pgq._worker.call import call_aside
from pgq._worker.child import LENGTH, SIGNALS, Failure, Main, Request

_IDLE_SECONDS: Final = 300.0  # after which a process is not kept

# Nothing is imported before the path is this process's: not from the current directory either.
_PROGRAM: Final = "import sys; sys.path[:] = {}; from pgq._worker.child import main; main({})"


class BrokenWorkerProcess(Exception):  # noqa: N818 what others call it
    """The process of a handler has ended before the handler did."""


class _RemoteTraceback(Exception):  # noqa: N818 it is part of one
    """The traceback of another process, which cannot be pickled but as text."""


class Processes:
    """The processes in which a run calls handlers; one that is idle is used again.

    They belong to the thread in which they are started: some systems kill them at its end.
    """

    def __init__(self) -> None:
        self._all: set[_Process] = set()
        self._idle: list[_Process] = []  # the one that was used last comes last

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Kill them all."""
        self._idle.clear()
        await asyncio.gather(*(self._end(process) for process in tuple(self._all)))

    async def call(self, function: Callable[[Job[Any]], Any], job: Job[Any]) -> Any:
        """Call a function in a process, which is killed when the caller is cancelled."""
        main = _main()
        request = Request(function.__module__, function.__qualname__, main, pickle.dumps(job))
        message = pickle.dumps(request)
        process = await self._take()
        try:
            answer = await process.ask(message)
        except (OSError, asyncio.IncompleteReadError) as exc:
            status = await self._end(process)
            raise BrokenWorkerProcess(f"the process of the handler ended with {status}") from exc
        except BaseException:
            await self._end(process)
            raise
        self._idle.append(process)
        result = pickle.loads(answer)
        if isinstance(result, Failure):
            raise result.error from _RemoteTraceback(result.text)
        return result

    async def _take(self) -> _Process:
        while self._idle and self._idle[0].idle_since < time.monotonic() - _IDLE_SECONDS:
            await self._end(self._idle.pop(0))
        while self._idle:
            process = self._idle.pop()
            if process.is_alive():
                return process
            await self._end(process)
        process = _Process()
        self._all.add(process)
        return process

    async def _end(self, process: _Process) -> int:
        self._all.discard(process)
        return await process.end()


def _main() -> Main:
    module = sys.modules["__main__"]
    sys.modules.setdefault("__mp_main__", module)  # its classes are called so in answers
    spec = getattr(module, "__spec__", None)
    return Main(getattr(spec, "name", None), getattr(module, "__file__", None))


class _Process:
    """A process that has been started, and the socket to it."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._socket, theirs = socket.socketpair()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        path = [str(part) for part in sys.path]
        program = _PROGRAM.format(path, theirs.fileno())
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-u", "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    def is_alive(self) -> bool:
        return self._popen.poll() is None

    async def ask(self, message: bytes) -> bytes:
        """Send a request and return the answer."""
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(sock=self._socket)
        reader, writer = self._streams
        writer.write(LENGTH.pack(len(message)) + message)
        await writer.drain()
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        answer = await reader.readexactly(length)
        self.idle_since = time.monotonic()
        return answer

    async def end(self) -> int:
        """Kill it, and return its exit status."""
        self._popen.kill()
        if self._streams is None:
            self._socket.close()
        else:
            self._streams[1].close()
        return await call_aside(self._popen.wait)
