"""The processes of `pgq worker --processes` and `--reload`."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from pgq._cli.errors import FAILED, USAGE

_FIRST_PAUSE_SECONDS: Final = 0.5
_LAST_PAUSE_SECONDS: Final = 30.0
_SETTLED_SECONDS: Final = 60.0  # after which the pauses begin anew
_KILL_SECONDS: Final = 20.0  # after a second signal

log = logging.getLogger("pgq")


class Supervisor:
    """Keeps a number of worker processes running until a signal.

    Each has a session of its own, so that Ctrl-C reaches this process only, which tells them to
    stop; and a pipe from this process as stdin: they stop when it is gone, and at once when there
    is something in it.

    Args:
        command: what a process runs; it must stop on SIGTERM, which it may get more than once.
        environment: its variables.
        processes: how many there are.
        rereads: pass SIGHUP on, for which they read a file again.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        processes: int,
        *,
        rereads: bool = False,
    ) -> None:
        self._command = command
        self._environment = environment
        self._processes = processes
        self._rereads = rereads
        self._running: set[Process] = set()
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._status = 0
        self._begun = time.monotonic()

    async def run(self, changes: AsyncIterator[object] | None = None) -> int:
        """Run until SIGTERM or SIGINT.

        Args:
            changes: whenever it yields all processes are started again; one that has ended by
                itself waits for that, too.

        Returns:
            The exit status: 0 if all have ended as they were told to.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        if self._rereads:
            loop.add_signal_handler(signal.SIGHUP, self._send, signal.SIGHUP)
        keeping = [self._keep(waits=changes is not None) for _ in range(self._processes)]
        if changes is None:
            await asyncio.gather(*keeping)
            return self._status
        watching = asyncio.create_task(self._watch(changes))
        watching.add_done_callback(lambda _: self._stop())
        await asyncio.gather(*keeping)
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        return self._status

    def _has_settled(self) -> bool:
        """Tell whether others may be at work, with what the target was when they were started."""
        return time.monotonic() - self._begun > _SETTLED_SECONDS

    def _signalled(self) -> None:
        if self._stopping.is_set():
            self._abort()
            asyncio.get_running_loop().call_later(_KILL_SECONDS, self._send, signal.SIGKILL)
        else:
            self._stop()

    def _stop(self) -> None:
        self._stopping.set()
        self._changed.set()
        self._send(signal.SIGTERM)

    def _abort(self) -> None:
        for process in self._running:
            assert process.stdin is not None
            process.stdin.write(b"\n")

    def _send(self, number: signal.Signals) -> None:
        for process in self._running:
            with suppress(ProcessLookupError):
                process.send_signal(number)

    async def _keep(self, *, waits: bool) -> None:
        """Run one process after the other."""
        pause = _FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            changed = self._changed
            begun = time.monotonic()
            try:
                process, status = await self._run()
            except OSError as exc:
                if not self._has_settled():
                    raise
                log.warning("a process cannot be started, trying again in %.1f s: %r", pause, exc)
                pause = await self._rest(pause)
                continue
            if self._stopping.is_set():
                if status not in (0, -signal.SIGTERM):
                    log.warning("process %d ended with %d", process.pid, status)
                    self._status = self._status or FAILED
            elif waits:
                if not changed.is_set():
                    log.warning(
                        "process %d ended with %d: waiting for changes", process.pid, status
                    )
                await changed.wait()
            elif status == USAGE and not self._has_settled():
                self._status = USAGE
                self._stop()
            else:
                if time.monotonic() - begun > _SETTLED_SECONDS:
                    pause = _FIRST_PAUSE_SECONDS
                log.warning(
                    "process %d ended with %d: starting another in %.1f s",
                    process.pid,
                    status,
                    pause,
                )
                pause = await self._rest(pause)

    async def _rest(self, pause: float) -> float:
        """Wait for so many seconds, or until it is to stop, and return how many come next."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), pause)
        return min(pause * 2, _LAST_PAUSE_SECONDS)

    async def _run(self) -> tuple[Process, int]:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=PIPE,
            env=self._environment,
            start_new_session=True,
        )
        self._running.add(process)
        if self._stopping.is_set():
            process.terminate()
        log.info("process %d starts", process.pid)
        status = await process.wait()
        self._running.discard(process)
        return process, status

    async def _watch(self, changes: AsyncIterator[object]) -> None:
        async for _ in changes:
            log.info("files have changed: starting again")
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
            self._send(signal.SIGTERM)
