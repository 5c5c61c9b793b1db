"""How a worker ends: at a signal, on uvloop, as process 1, in a thread, in a notebook."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import signal
import subprocess
import threading
import warnings
from collections.abc import Container, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final

import asyncpg
import pgq
import pytest
from pgq._worker import run as _run
from pgserver import Server

from .sessions import Connection, Dsn, started, until, within
from .workers import FAST, Child, child, ended

pytestmark = pytest.mark.once

NAME: Final = "pgq worker"
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
SESSIONS: Final = 4  # of the worker, while it runs

# Says on standard output what it does; job 1 lasts until there is a line on standard input.
WORKER: Final = """
import asyncio, os, sys
from datetime import timedelta
import asyncpg, pgq

async def main(grace, application_name):
    gate = asyncio.Event()

    def open_gate():
        sys.stdin.readline()
        gate.set()

    asyncio.get_running_loop().add_reader(sys.stdin, open_gate)
    settings = {"application_name": application_name}
    async with asyncpg.create_pool(min_size=0, server_settings=settings) as pool:
        worker = pgq.Worker(pool, grace=timedelta(seconds=float(grace)))

        @worker.handler("default", concurrency=2)
        async def handle(job):
            print("begun", job.payload, flush=True)
            await (gate if job.payload == 1 else asyncio.Event()).wait()
            print("done", job.payload, flush=True)

        # Whatever its namespace calls it, /proc is the one of the outside.
        print(os.getpid(), os.readlink("/proc/self"), flush=True)
        await worker.run()
    print("ended", flush=True)

if sys.argv[1] == "uvloop":
    import uvloop
    uvloop.run(main(*sys.argv[2:]))
else:
    asyncio.run(main(*sys.argv[2:]))
"""

# Says which signals it hears of by handlers of its own, while a worker runs and after that.
APPLICATION: Final = """
import asyncio, os, signal, sys
import asyncpg, pgq

async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, print, "SIGTERM")
    signal.signal(signal.SIGINT, lambda *_: os.write(1, b"SIGINT\\n"))
    async with asyncpg.create_pool(min_size=0) as pool:
        worker = pgq.Worker(pool)

        @worker.handler("default")
        async def handle(job):
            print("begun")

        await worker.run()
    print("ended")
    await asyncio.Event().wait()

sys.stdout.reconfigure(line_buffering=True)
if sys.argv[1] == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
"""

# A worker in a notebook: cells with await in them, all on the loop that runs already.
CELLS: Final = (
    "worker = pgq.Worker(pool)\nbegun = asyncio.Event()",
    "@worker.handler('default')\nasync def handle(job):\n    begun.set()",
    "task = asyncio.create_task(worker.run())",
    "await queue.enqueue(1)\nawait within(begun.wait())",
    "worker.stop()\nawait within(task)",
)


@cache
def first_of_a_namespace() -> Sequence[str]:
    """Return what makes a command process 1 of a namespace; nothing where that is forbidden.

    Process 1 is sent no signal that it does not handle: that it handles them is always tested.
    """
    unshare = ["unshare", "--pid", "--fork", "--kill-child"]
    for command in (unshare, [*unshare, "--user", "--map-root-user"]):
        if subprocess.run([*command, "true"], check=False, capture_output=True).returncode == 0:
            return command
    return []


async def begun(worker: Child, observer: Connection) -> int:
    """Wait until two jobs have begun and all connections are open; return the pid it sees."""
    own, outside = (await worker.line()).split()
    worker.pid = int(outside)
    assert {await worker.line(), await worker.line()} == {"begun 1", "begun 2"}
    await has_sessions(observer, [SESSIONS])
    return int(own)


async def has_sessions(observer: Connection, numbers: Container[int]) -> None:
    """Wait until the worker has so many, fewer when it stops: the one that listens ends at once."""

    async def counted() -> bool:
        query = "select count(*) from pg_stat_activity where application_name = $1"
        return await observer.fetchval(query, NAME) in numbers

    await until(counted)


def handles(pid: int, number: signal.Signals) -> bool:
    """Tell whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


async def given_back(queue: pgq.Queue) -> list[tuple[int, int]]:
    """Return payload and attempt of the jobs that may be claimed."""
    return [(job.payload, job.attempt) for job in await queue.dequeue(10)]


@pytest.mark.parametrize("first", [False, True], ids=["process", "process 1"])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_sigterm_lets_handlers_finish_and_gives_the_rest_back(
    server: Server, connection: Connection, queue: pgq.Queue, loop: str, first: bool
) -> None:
    one, *_ = await queue.enqueue_many([1, 2, 3])
    prefix = first_of_a_namespace() if first else ()
    async with child(server, connection, WORKER, loop, "1", NAME, prefix=prefix) as worker:
        assert (await begun(worker, connection) == 1) == bool(prefix)
        assert all(handles(worker.pid, number) for number in SIGNALS)
        os.kill(worker.pid, signal.SIGTERM)
        await has_sessions(connection, range(SESSIONS))
        worker.send_line()
        assert (await worker.line(), await worker.line()) == ("done 1", "ended")
        assert await worker.ended() == 0
    assert (await ended(connection, 1))[0] == (one, "completed", 1)
    assert await given_back(queue) == [(2, 1), (3, 1)]


@pytest.mark.parametrize("first", [False, True], ids=["process", "process 1"])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_a_second_sigterm_ends_a_worker_at_once(
    server: Server, connection: Connection, queue: pgq.Queue, loop: str, first: bool
) -> None:
    await queue.enqueue_many([1, 2, 3])
    prefix = first_of_a_namespace() if first else ()
    async with child(server, connection, WORKER, loop, "3600", NAME, prefix=prefix) as worker:
        await begun(worker, connection)
        os.kill(worker.pid, signal.SIGTERM)
        await has_sessions(connection, range(SESSIONS))
        os.kill(worker.pid, signal.SIGTERM)
        assert await worker.line() == "ended"
        assert await worker.ended() == 0
    assert await given_back(queue) == [(1, 1), (2, 1), (3, 1)]


# A handler that blocks the event loop, for much longer than the test lasts. It says when a signal
# was heard: of two that come together another thread than the one that sleeps may get one.
BLOCKED: Final = """
import asyncio, os, sys, time
from datetime import timedelta
import asyncpg, pgq
from pgq._worker import run as _run

_run._SETTLE_SECONDS = 0.5
signalled = _run.Run.signalled

def heard(run, number):
    signalled(run, number)
    os.write(1, b"heard\\n")  # it may have come in the middle of the other print

_run.Run.signalled = heard

async def main():
    async with asyncpg.create_pool(min_size=0) as pool:
        worker = pgq.Worker(pool, grace=timedelta(seconds=float(sys.argv[1])))

        @worker.handler("default")
        async def handle(job):
            print("begun", flush=True)
            time.sleep(600)

        await worker.run()

asyncio.run(main())
"""


@pytest.mark.parametrize(("grace", "signals"), [("1", SIGNALS[:1]), ("3600", SIGNALS)])
async def test_a_worker_whose_event_loop_is_blocked_ends_in_time_nevertheless(
    server: Server,
    connection: Connection,
    queue: pgq.Queue,
    grace: str,
    signals: Sequence[signal.Signals],
) -> None:
    job_id = await queue.enqueue(1)
    async with child(server, connection, BLOCKED, grace) as worker:
        assert await worker.line() == "begun"
        for number in signals:
            os.kill(worker.pid, number)
            assert await worker.line() == "heard"
        assert await worker.ended() == 128 + signals[-1]
    job = await queue.get(job_id)
    assert job is not None
    assert (job.state, job.attempt) == ("active", 1), "its lease will run out"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_the_signal_handlers_of_the_application_are_there_after_a_worker(
    server: Server, connection: Connection, queue: pgq.Queue, loop: str
) -> None:
    await queue.enqueue(1)
    async with child(server, connection, APPLICATION, loop) as worker:
        assert await worker.line() == "begun"
        os.kill(worker.pid, signal.SIGTERM)
        assert (await worker.line(), await worker.line()) == ("SIGTERM", "ended")
        for number in SIGNALS:
            os.kill(worker.pid, number)
            assert await worker.line() == number.name


async def test_a_worker_restores_no_signal_handler_that_it_has_not_replaced(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = signal.getsignal
    before = [given(number) for number in SIGNALS]
    worker = pgq.Worker(pool)

    def not_by_python(number: int) -> Any:
        return None if number == signal.SIGTERM else given(number)

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        worker.stop()

    monkeypatch.setattr(signal, "getsignal", not_by_python)
    await queue.enqueue(1)
    try:
        await worker.run()
        assert [given(number) for number in SIGNALS] == [before[0], signal.SIG_IGN]
    finally:
        signal.signal(signal.SIGINT, before[1])


def terminated_in_a_fork() -> int:
    """Return the exit code of a process that is forked and sends itself SIGTERM."""
    with warnings.catch_warnings():  # there are threads
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_process_that_a_handler_forks_has_no_signal_handlers_of_the_worker(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, *, in_thread: bool
) -> None:
    worker = pgq.Worker(pool)

    async def handle(_: pgq.Job) -> int:
        return terminated_in_a_fork()

    def handle_in_a_thread(_: pgq.Job) -> int:
        return terminated_in_a_fork()

    worker.handler("default")(handle_in_a_thread if in_thread else handle)
    before = signal.getsignal(signal.SIGTERM)
    async with started(worker.run()) as run:
        for number in (1, 2):
            job_id = await queue.enqueue(1)
            await ended(pool, number)
            job = await queue.get(job_id)
            assert job is not None
            assert job.result == -signal.SIGTERM
        worker.stop()
        await within(run)
    assert signal.getsignal(signal.SIGTERM) is before


def hanging(worker: pgq.Worker) -> asyncio.Event:
    """Give a worker a handler that does not end; returns what tells that it has begun."""
    begun = asyncio.Event()

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        begun.set()
        await asyncio.Event().wait()

    return begun


async def test_abort_ends_a_worker_as_a_second_signal_does(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    worker = pgq.Worker(pool)
    begun = hanging(worker)
    await queue.enqueue(1)
    async with started(worker.run(handle_signals=False)) as run:
        await within(begun.wait())
        worker.abort()
        await within(run, 15)
    assert await given_back(queue) == [(1, 1)]


async def test_abort_skips_the_grace_also_if_a_handler_does_not_heed_it(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    begun, waits, gate = asyncio.Event(), asyncio.Event(), threading.Event()
    worker = pgq.Worker(pool, grace=timedelta(hours=1))

    @worker.handler("default")
    def handle(_: pgq.Job) -> None:
        loop.call_soon_threadsafe(begun.set)
        gate.wait()

    original: Any = vars(_run.Run)["_running"]

    def running(run: _run.Run) -> list[asyncio.Task[None]]:
        waits.set()  # which goes on when it waits for these
        tasks: list[asyncio.Task[None]] = original(run)
        return tasks

    monkeypatch.setattr(_run.Run, "_running", running)
    monkeypatch.setattr(_run, "_CANCEL_SECONDS", 0.1)
    await queue.enqueue(1)
    try:
        async with started(worker.run(handle_signals=False)) as run:
            await within(begun.wait())
            worker.stop()
            await within(waits.wait())
            worker.abort()
            await within(run, 15)
    finally:
        gate.set()


async def test_a_pool_that_is_closed_ends_its_worker_and_costs_no_attempt(
    dsn: Dsn, queue: pgq.Queue
) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()
    pool = await asyncpg.create_pool(**dsn, min_size=0)
    worker = pgq.Worker(pool)
    worker.configure("default", concurrency=1, prefetch=1)

    @worker.handler("default", transaction=True)
    async def handle(_: pgq.Job, __: Connection) -> None:
        begun.set()
        await gate.wait()

    ids = await queue.enqueue_many([1, 2], max_attempts=1)
    async with started(worker.run(handle_signals=False)) as run:
        await within(begun.wait())
        async with started(pool.close()) as closing:
            await asyncio.sleep(0)
            assert pool.is_closing()
            gate.set()
            await within(run, 15)
            await within(closing, 15)
    jobs = [await queue.get(job_id) for job_id in ids]
    assert [(job.state, job.attempt) for job in jobs if job] == [("completed", 1), ("ready", 0)]


async def test_a_pool_that_is_closed_ends_a_worker_that_has_nothing_to_do(
    dsn: Dsn, queue: pgq.Queue
) -> None:
    pool = await asyncpg.create_pool(**dsn, min_size=0)
    worker = pgq.Worker(pool)

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None: ...

    await queue.enqueue(1)
    async with started(worker.run(handle_signals=False)) as run:
        await ended(pool, 1)
        await within(pool.close(), 15)
        await within(run, 15)


async def test_a_worker_that_is_cancelled_while_it_stops_gives_its_jobs_back(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    worker = pgq.Worker(pool)
    begun = hanging(worker)
    await queue.enqueue(1)
    async with started(worker.run()) as run:
        await within(begun.wait())
        worker.stop()
        for _ in range(10):
            await asyncio.sleep(0)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(run, 15)
    assert await given_back(queue) == [(1, 1)]


async def test_jobs_that_are_cancelled_before_their_first_step_are_given_back(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    worker = pgq.Worker(pool)
    test = asyncio.current_task()

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        for task in asyncio.all_tasks():  # as asyncio.run does when it is interrupted
            if task is not test:
                task.cancel()

    await queue.enqueue_many([1, 2, 3])
    async with started(worker.run()) as run:
        with pytest.raises(asyncio.CancelledError):
            await within(run, 15)
    assert await given_back(queue) == [(2, 1), (3, 1)]


async def test_a_worker_in_a_thread_leaves_signals_alone(
    dsn: Dsn, queue: pgq.Queue, connection: Connection
) -> None:
    job_id = await queue.enqueue(1)
    before = [signal.getsignal(number) for number in SIGNALS]
    seen: list[tuple[threading.Thread, Any]] = []

    async def main() -> None:
        async with asyncpg.create_pool(**dsn, min_size=0) as pool:
            worker = pgq.Worker(pool, poll_interval=FAST)

            @worker.handler("default")
            async def handle(_: pgq.Job) -> None:
                handlers = [signal.getsignal(number) for number in SIGNALS]
                seen.append((threading.current_thread(), handlers))
                worker.stop()

            await worker.run()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    await asyncio.to_thread(thread.join, 30)
    assert seen == [(thread, before)]
    assert await ended(connection, 1) == [(job_id, "completed", 1)]


async def test_a_worker_runs_in_the_cells_of_a_notebook(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, connection: Connection
) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    names: dict[str, Any] = {"asyncio": asyncio, "pgq": pgq, "pool": pool, "queue": queue}
    names |= {"within": within}
    for cell in CELLS:
        code = compile(cell, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        outcome = eval(code, names)
        if inspect.isawaitable(outcome):
            await outcome
    assert [state for _, state, _ in await ended(connection, 1)] == ["completed"]
    assert [signal.getsignal(number) for number in SIGNALS] == before
