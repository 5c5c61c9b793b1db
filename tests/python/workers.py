"""Running workers and acting at chosen moments of theirs, for the tests of faults."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import asyncpg
import pgq
import pytest
from pgserver import PATIENCE, Server

from .sessions import Connection, until, within

FAST: Final = timedelta(milliseconds=5)
SHORT: Final = timedelta(seconds=4)  # a lease: soon renewed, but not lost on a busy machine
Moment: TypeAlias = Literal["before", "after"]


@contextlib.asynccontextmanager
async def running(
    worker: pgq.Worker, patience: float = PATIENCE
) -> AsyncGenerator[asyncio.Task[None], None]:
    """Run the worker for as long as the block lasts, then stop it and wait for its end."""
    task = asyncio.create_task(worker.run(handle_signals=False))
    try:
        yield task
    finally:
        worker.stop()
        await within(task, patience)


async def ended(
    observer: Connection | asyncpg.Pool[Any], number: int
) -> list[tuple[int, str, int]]:
    """Return id, state and attempt of all jobs, once so many have been completed."""

    async def settled() -> bool:
        query = "select count(*) from pgq_jobs where state = 'completed'"
        return bool(await observer.fetchval(query) >= number)

    await until(settled, pause=0.02)
    rows = await observer.fetch("select id, state, attempt from pgq_jobs order by id")
    return [(row["id"], row["state"], row["attempt"]) for row in rows]


class Hook:
    """Acts once, `before` the server is asked or `after` it has answered a method of Queue.

    The first call only prepares its statement before it runs it: the `nth` is acted on.
    """

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        moment: Moment,
        method: str,
        action: Callable[[], Awaitable[None] | None],
        nth: int = 2,
    ) -> None:
        original = getattr(pgq.Queue, method)
        self.calls = 0
        self.nth = nth

        async def hooked(queue: pgq.Queue, *args: Any, **options: Any) -> Any:
            self.calls += 1
            due = self.calls == nth
            if due and moment == "before":
                await act()
            answer = await original(queue, *args, **options)
            if due and moment == "after":
                await act()
            return answer

        async def act() -> None:
            if (acting := action()) is not None:
                await acting

        patch.setattr(pgq.Queue, method, hooked)

    @property
    def done(self) -> bool:
        """Whether the action was taken, or is about to be."""
        return self.calls >= self.nth


class Clock:
    """By which runs tell how old a claim is; it goes only as far as it is told."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.time = timedelta(0)
        for name in ("attempt", "claim", "holding", "lost"):
            patch.setattr(f"pgq._worker.{name}.time", self)

    def monotonic(self) -> float:
        return self.time.total_seconds()


class Child:
    """A process that tells on its standard output what it does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin
        assert process.stdout
        self._process = process
        self._input = process.stdin
        self._output = process.stdout
        self.pid = process.pid

    async def line(self) -> str:
        """Return the next line."""
        line = (await within(self._output.readline())).decode()
        assert line, "it has ended"
        return line.rstrip("\n")

    async def says(self, text: str) -> str:
        """Return the next line that has this text."""
        while text not in (line := await self.line()):
            pass
        return line

    def send_line(self) -> None:
        """Write a line to its standard input."""
        self._input.write(b"\n")

    async def ended(self) -> int:
        """Return its exit status."""
        return await within(self._process.wait())


async def tried_twice(queue: pgq.Queue, worker: pgq.Worker) -> list[pgq.Job]:
    """Have a job retried once, and return its two attempts."""
    attempts: list[pgq.Job] = []

    @worker.handler("default")
    async def handle(job: pgq.Job) -> None:
        attempts.append(job)
        if job.attempt == 1:
            raise pgq.Retry(in_=FAST)

    async def is_done() -> bool:
        await worker.run_until_idle()
        return len(attempts) == 2

    await queue.enqueue(1)
    await until(is_done)
    return attempts


def is_alive(pid: int) -> bool:
    """Tell whether a process runs."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    except (FileNotFoundError, ProcessLookupError):  # the latter when it goes meanwhile
        return False


async def is_gone(pid: int) -> None:
    """Wait for the end of a process that is somebody else's."""

    async def gone() -> bool:
        return not is_alive(pid)

    await until(gone)


@contextlib.asynccontextmanager
async def child(
    server: Server,
    connection: Connection,
    script: str,
    *arguments: str,
    prefix: Sequence[str] = (),
) -> AsyncGenerator[Child]:
    """Run a Python script, in reach of the database of a connection; end it with the block."""
    database = await connection.fetchval("select current_database()")
    process = await asyncio.create_subprocess_exec(
        *prefix,
        *(sys.executable, "-c", script),
        *arguments,
        env={**server.environment(), "PGDATABASE": database},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
        await within(process.communicate())  # until nothing that it started has its output


def errors_of_attempts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the errors with which attempts end, as instrumentation sees them."""
    ends: list[str] = []

    async def instrument(job: pgq.Job, call_next: pgq.Endpoint) -> Any:
        try:
            return await call_next(job)
        except BaseException as exc:
            ends.append(repr(exc))
            raise

    monkeypatch.setattr("pgq._worker.handle.instrumentation", [instrument])
    return ends
