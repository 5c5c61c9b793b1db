"""Handlers in processes: what they get from their worker, and that they end with it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import asyncpg
import pgq
import pytest
from pgq._worker import child as _child
from pgserver import Server

from .cli_session import variables
from .programs import run_program
from .sessions import Connection, until, within
from .workers import FAST, child, ended, is_alive, is_gone, running

pytestmark = pytest.mark.once

# Hangs in a process that it names in a file.
HANG: Final = """
import ctypes, os, pathlib

def hang(job):
    pathlib.Path("pid").write_text(str(os.getpid()))
    library = ctypes.PyDLL if job.payload == "keeps the GIL" else ctypes.CDLL
    library(None).pause()
"""

WORKER: Final = """
import asyncio, os, sys
import asyncpg, pgq

os.chdir(sys.argv[2])
sys.path.append(sys.argv[2])
from hang import hang

async def main():
    async with asyncpg.create_pool(min_size=0) as pool:
        worker = pgq.Worker(pool)
        worker.handler("default", process=True)(hang)
        await worker.run()

if sys.argv[1] == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
"""

# A program that has all in its main module.
MAIN: Final = """
import asyncio
from dataclasses import dataclass
import asyncpg, pgq

@dataclass
class Size:
    n: int

@pgq.task("default", process=True)
def double(job: pgq.Job[Size]) -> Size:
    return Size(job.payload.n * 2)

async def main():
    async with asyncpg.create_pool(min_size=0) as pool:
        await double.enqueue(Size(4), connection=pool)
        worker = pgq.Worker(pool, [double])

        @worker.after
        def tell(job, result):
            print(result)

        await worker.run_until_idle()

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture
def worker(pool: asyncpg.Pool[Any]) -> pgq.Worker:
    return pgq.Worker(pool, poll_interval=FAST)


async def told(directory: Path) -> int:
    """Return the process that hangs."""

    async def written() -> str:
        file = directory / "pid"
        return file.read_text(encoding="utf-8") if file.exists() else ""

    return int(await until(written))


ENDS = ["asyncio waits", "uvloop waits"]
if sys.platform == "linux":  # which alone tells a process that its parent has ended
    ENDS.append("asyncio keeps the GIL")


@pytest.mark.parametrize("how", ENDS)
async def test_a_process_ends_with_its_worker(
    server: Server, connection: Connection, queue: pgq.Queue, tmp_path: Path, how: str
) -> None:
    loop, _, how = how.partition(" ")
    (tmp_path / "hang.py").write_text(HANG, encoding="utf-8")
    await queue.enqueue(how)
    async with child(server, connection, WORKER, loop, str(tmp_path)) as worker:
        pid = await told(tmp_path)
        assert is_alive(pid)
        os.kill(worker.pid, signal.SIGKILL)
        await is_gone(pid)


async def test_a_process_ends_with_its_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hang.py").write_text(HANG, encoding="utf-8")
    ours, theirs = socket.socketpair()
    program = f"from pgq._worker.child import main; main({theirs.fileno()})"
    with theirs:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program), pass_fds=[theirs.fileno()]
        )
    with ours:
        job = pickle.dumps(SimpleNamespace(payload="waits"))
        request = pickle.dumps(_child.Request("hang", "hang", _child.Main(None, None), job))
        ours.sendall(_child.LENGTH.pack(len(request)) + request)
        assert await told(tmp_path) == process.pid
    assert await within(process.wait()) == -signal.SIGKILL


def start_a_program(_: pgq.Job) -> int:
    print("the handler")
    command = "cat; echo the program; head -c 200000 /dev/zero >&2; kill -TERM $$; exit 1"
    return subprocess.run(command, shell=True, check=False).returncode


async def test_what_a_handler_starts_is_an_ordinary_program(
    queue: pgq.Queue, worker: pgq.Worker, capfd: pytest.CaptureFixture[str]
) -> None:
    worker.handler("default", process=True, concurrency=1)(start_a_program)
    job_ids = await queue.enqueue_many([1, 2])
    await within(worker.run_until_idle())
    for job_id in job_ids:
        job = await queue.get(job_id)
        assert job is not None
        assert job.result == -signal.SIGTERM, job.last_error
    assert capfd.readouterr().out.splitlines() == ["the handler", "the program"] * 2


def give_signal_handlers(_: pgq.Job) -> list[bool]:
    return [signal.getsignal(number) is heard for number in _child.SIGNALS]


def heard(*_: object) -> None:
    raise AssertionError("it is the worker's")


async def test_a_process_does_not_run_the_signal_handlers_of_its_worker(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    worker.handler("default", process=True)(give_signal_handlers)
    before = signal.signal(signal.SIGTERM, heard)
    try:
        job_id = await queue.enqueue(1)
        await within(worker.run_until_idle())
    finally:
        signal.signal(signal.SIGTERM, before)
    job = await queue.get(job_id)
    assert job is not None
    assert job.result == [False, False]


def give_pid(_: pgq.Job) -> int:
    return os.getpid()


async def pid_of(queue: pgq.Queue) -> int:
    """Return the process in which a job is handled."""
    job_id = await queue.enqueue(1, max_attempts=1)

    async def result() -> Any:
        job = await queue.get(job_id)
        assert job is not None
        assert job.state != "dead", job.last_error
        return job.result

    return int(await until(result))


@pytest.mark.parametrize("number", _child.SIGNALS)
async def test_a_signal_is_nothing_to_a_process_that_only_starts(
    queue: pgq.Queue, worker: pgq.Worker, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    started: list[int] = []

    class Signalled(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.send_signal(number)
            started.append(self.pid)

    monkeypatch.setattr(subprocess, "Popen", Signalled)
    worker.handler("default", process=True)(give_pid)
    async with running(worker):
        assert [await pid_of(queue)] == started


async def test_a_process_is_used_again_unless_it_has_died(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    worker.handler("default", process=True)(give_pid)
    async with running(worker):
        first = await pid_of(queue)
        assert await pid_of(queue) == first
        os.kill(first, signal.SIGKILL)
        # A zombie may still have threads, until which nobody can tell its parent of its end.
        await asyncio.to_thread(os.waitid, os.P_PID, first, os.WEXITED | os.WNOWAIT)
        second = await pid_of(queue)
        assert second != first
    assert not is_alive(second)


def leave_a_child(_: pgq.Job) -> None:
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)
    os._exit(7)


async def test_a_process_that_has_died_is_missed_although_what_it_forked_lives(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    worker.handler("default", process=True)(leave_a_child)
    job_id = await queue.enqueue(1, max_attempts=1)
    await within(worker.run_until_idle(), 15)
    job = await queue.get(job_id)
    assert job is not None
    assert job.state == "dead"


def keep_the_gil(_: pgq.Job) -> None:
    ctypes.PyDLL(None).sleep(3)


async def test_a_process_that_keeps_its_gil_for_long_keeps_its_lease(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, worker: pgq.Worker
) -> None:
    job_id = await queue.enqueue(1)
    lease = timedelta(seconds=1)

    async def renewed() -> bool:
        query = "select lease_expires_at > claimed_at + 2 * $1::interval from pgq_jobs"
        return bool(await pool.fetchval(query, lease))

    # With a single place it does not claim the job again should a heartbeat come late.
    worker.handler("default", process=True, timeout=lease, concurrency=1)(keep_the_gil)
    async with running(worker):
        await until(renewed)
        assert await ended(pool, 1) == [(job_id, "completed", 1)]


async def test_a_process_that_was_idle_for_long_is_ended(
    queue: pgq.Queue, worker: pgq.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.handler("default", process=True)(give_pid)
    async with running(worker):
        first = await pid_of(queue)
        monkeypatch.setattr("pgq._worker.processes._IDLE_SECONDS", 0.0)
        assert await pid_of(queue) != first
        assert not is_alive(first)


async def test_a_process_imports_nothing_from_the_current_directory(
    queue: pgq.Queue, worker: pgq.Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pgq", "pickle"):
        (tmp_path / f"{name}.py").write_text("1 / 0", encoding="utf-8")
    worker.handler("default", process=True)(give_pid)
    monkeypatch.chdir(tmp_path)
    async with running(worker):
        assert await pid_of(queue)


@pytest.mark.parametrize("how", ["module", "file"])
async def test_a_handler_may_stand_in_the_main_module(
    dsn: dict[str, Any], tmp_path: Path, how: str
) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "there.py").touch()
    file = tmp_path / "shop" / "sizes.py"
    relative = "from . import there\n" if how == "module" else ""
    file.write_text(relative + MAIN, encoding="utf-8")
    arguments = ["-m", "shop.sizes"] if how == "module" else [str(file)]
    environment = {**os.environ, **variables(dsn)}
    output = run_program(sys.executable, *arguments, cwd=tmp_path, env=environment)
    assert output == "Size(n=8)\n"


async def test_a_main_module_that_starts_a_worker_on_import_is_told(
    dsn: dict[str, Any], queue: pgq.Queue, tmp_path: Path
) -> None:
    job_id = await queue.enqueue({"n": 4}, max_attempts=1)
    program = MAIN.replace("        await double.enqueue(Size(4), connection=pool)\n", "")
    program = program.replace('if __name__ == "__main__":', "if True:")
    (tmp_path / "sizes.py").write_text(program, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "sizes.py")]
    environment = {**os.environ, **variables(dsn)}
    await asyncio.to_thread(run_program, *command, cwd=tmp_path, env=environment)
    job = await queue.get(job_id)
    assert job is not None
    assert "RuntimeError: the main module starts a worker when it is imported" in str(
        job.last_error
    )
