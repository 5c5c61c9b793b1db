"""Jobs that kill their worker, and the jobs that it had claimed with them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import asyncpg
import pgq
import pytest
from pgq import _sql, testing
from pgq._cli.supervisor import Supervisor
from pgq._worker.unbegun import Unbegun, left
from pgserver import PATIENCE

from .cli_session import running, variables
from .sessions import Connection, started, until, within

pytestmark = pytest.mark.once
SHOP = """
import asyncio, os, sys
from datetime import timedelta
import asyncpg, pgq

poisoned = asyncio.Event()
worker = pgq.Worker()


@worker.handler("begun", concurrency=10, timeout=timedelta(seconds=1))
async def work(job):
    if job.payload == "poison":
        poisoned.set()
        for _ in range(3):  # what was claimed with it begins
            await asyncio.sleep(0)
        os._exit(70)
    if poisoned.is_set():
        await asyncio.Event().wait()


async def die(job):
    if job.payload == "poison":
        os._exit(70)


worker.handler("together", concurrency=11, timeout=timedelta(hours=1))(die)
worker.handler("prefetched", concurrency=1, prefetch=20, timeout=timedelta(hours=1))(die)


async def serve():
    async with asyncpg.create_pool(min_size=0) as pool:
        await worker.run(pool)


if __name__ == "__main__":
    asyncio.run(serve())
"""
COMMANDS = {
    "a command": ("-m", "pgq", "worker", "shop:worker"),
    "a run": ("shop.py",),
}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A directory with a module."""
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    return tmp_path


@contextlib.asynccontextmanager
async def working(
    dsn: dict[str, Any], shop: Path, command: tuple[str, ...]
) -> AsyncGenerator[Process]:
    """Run Python, and kill what is left of it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, env={**os.environ, **variables(dsn)}, cwd=shop
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await within(process.wait())


async def create_all(connection: Connection) -> None:
    for name in ("begun", "together", "prefetched"):
        await pgq.Admin(connection).create_queue(name, max_attempts=5)


async def states(queue: pgq.Queue, ids: list[pgq.JobId]) -> list[tuple[str, int]]:
    jobs = [await queue.get(job_id) for job_id in ids]
    return [(job.state, job.attempt) for job in jobs if job is not None]


def completed(queue: pgq.Queue, ids: list[pgq.JobId]) -> Callable[[], Awaitable[bool]]:
    """Return a condition: these jobs are completed."""

    async def are_completed() -> bool:
        return {state for state, _ in await states(queue, ids)} == {"completed"}

    return are_completed


async def test_a_job_that_kills_its_worker_ends_dead_and_its_neighbours_complete(
    dsn: dict[str, Any], connection: Connection, shop: Path
) -> None:
    await create_all(connection)
    queue = pgq.Queue(connection, "begun")
    poison, *healthy = await queue.enqueue_many(["poison", *range(10)])

    async def are_over() -> bool:
        ends = [state for state, _ in await states(queue, [poison, *healthy])]
        return {"completed", "dead"}.issuperset(ends)

    async with running(dsn, "worker", "shop:worker", "--processes", "2", cwd=shop) as worker:
        await until(are_over, 4 * PATIENCE, pause=0.05)  # through five leases and as many starts
        assert await worker.terminated() == 0
    assert await states(queue, [poison]) == [("dead", 5)]
    assert {state for state, _ in await states(queue, healthy)} == {"completed"}


@pytest.mark.parametrize("name", ["together", "prefetched"])
async def test_what_a_killed_process_had_not_begun_comes_back_at_once_and_uncounted(
    monkeypatch: pytest.MonkeyPatch,
    dsn: dict[str, Any],
    connection: Connection,
    shop: Path,
    name: str,
) -> None:
    await create_all(connection)
    queue = pgq.Queue(connection, name)
    poison, *healthy = await queue.enqueue_many(["poison", *range(10)])

    monkeypatch.chdir(shop)
    command = (sys.executable, "-m", "pgq", "worker", "shop:worker", "--supervised")
    supervisor = Supervisor(command, {**os.environ, **variables(dsn)}, 1)  # it claims all of them
    async with started(supervisor.run()) as run:
        try:
            await until(
                completed(queue, healthy), pause=0.05
            )  # their leases would last for an hour
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            assert await within(run) == 0
    assert await states(queue, healthy) == [("completed", 1)] * 10
    assert await states(queue, [poison]) == [("active", 1)]


@pytest.mark.parametrize("name", ["together", "prefetched"])
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
async def test_what_a_killed_worker_had_not_begun_comes_back_uncounted_when_one_starts_again(
    dsn: dict[str, Any], connection: Connection, shop: Path, command: tuple[str, ...], name: str
) -> None:
    await create_all(connection)
    queue = pgq.Queue(connection, name)
    poison, *healthy = await queue.enqueue_many(["poison", *range(10)])

    async with working(dsn, shop, command) as killed:
        assert await within(killed.wait()) == 70
    assert await states(queue, healthy) == [("active", 1)] * 10
    async with working(dsn, shop, command):
        await until(completed(queue, healthy), pause=0.05)  # their leases would last for an hour
    assert await states(queue, healthy) == [("completed", 1)] * 10
    assert await states(queue, [poison]) == [("active", 1)]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_a_second_lost_lease_comes_back_to_claims_that_do_no_maintenance(
    pool: asyncpg.Pool[Any], connection: Connection, level: str
) -> None:
    await connection.execute(
        "select pgq_create_queue('q', backoff_base => '0'); select pgq_enqueue('1', 'q')"
    )
    await connection.execute(f"set default_transaction_isolation = '{level}'")
    for attempt in range(1, 5):
        claim = "select attempt from pgq_dequeue(1, '1 h', 'q')"
        assert await connection.fetchval(claim) == attempt
        await connection.execute("update pgq.job set lease_expires_at = now()")
        await pool.execute("select pgq_maintain()")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A temporary directory."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def kill(unbegun: Unbegun) -> None:
    """Let go of the lock, as the end of a process does, and of nothing else."""
    unbegun.file.close()


def killed(*ids: int) -> None:
    """Leave the receipts of jobs."""
    unbegun = Unbegun("a")
    unbegun.add(testing.job(None, id=number, token=-number) for number in ids)
    kill(unbegun)


def found(whose: str = "a") -> list[list[tuple[int, int]]]:
    """Return what killed workers have left."""
    return [[(*receipt,) for receipt in receipts] for _, receipts in left(whose)]


def test_receipts_outlive_whoever_has_written_them(place: Path) -> None:
    jobs = [testing.job(None, id=number, token=-number) for number in range(1, 5000)]
    first = Unbegun("a")
    first.add(jobs)
    for job in [*jobs[2:], jobs[0], jobs[0]]:
        first.discard(job.token)
    assert found() == []  # it lives
    kill(first)
    assert found("b") == []  # another database
    assert found() == [[(2, -2)]]
    for path, _ in left("a"):
        path.unlink()
    assert list(place.iterdir()) == []


def test_of_more_jobs_than_there_is_room_for_nothing_is_kept(place: Path) -> None:
    killed(*range(1, 5000))
    assert [len(receipts) for receipts in found()] == [4096]
    assert len(list(place.iterdir())) == 1


@pytest.mark.parametrize("kept", [0, 1])
def test_the_file_of_a_worker_that_ends_stays_if_it_holds_receipts(place: Path, kept: int) -> None:
    first = Unbegun("a")
    first.add([testing.job(None, id=1, token=-1)] * kept)
    first.close()
    first.add([testing.job(None, id=2, token=-2)])
    first.discard(pgq.Token(-2))
    assert len(list(place.iterdir())) == kept
    assert found() == [[(1, -1)]] * kept


@pytest.mark.parametrize("removed", [True, False])
def test_receipts_that_cannot_be_dropped_are_given_up(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, removed: bool
) -> None:
    first = Unbegun("a")
    first.add([testing.job(None, id=1, token=-1)])
    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", Mock(side_effect=OSError(28, "No space left on device")))
        if not removed:
            patch.setattr(Path, "unlink", Mock(side_effect=OSError(30, "Read-only file system")))
        first.discard(pgq.Token(-1))
        first.add([testing.job(None, id=2, token=-2)])
    assert list(place.iterdir()) == ([] if removed else [first.path])
    assert "cannot be written any more: OSError(28" in caplog.text
    assert found() == []  # its lock stays until the end
    first.close()
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("fails", ["fcntl.flock", "pathlib.Path.rename"])
def test_a_file_that_cannot_be_made_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(fails, Mock(side_effect=OSError(37, "No locks available")))
        with pytest.raises(OSError, match="No locks"):
            Unbegun("a")
    assert list(place.iterdir()) == []


def test_only_files_of_this_user_are_taken(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(1)
    (file,) = place.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr("os.geteuid", lambda: file.stat().st_uid + 1)
        assert found() == []
    (place / f"{file.name}-link").symlink_to(file)
    assert found() == [[(1, -1)]]


def test_half_a_receipt_is_none(place: Path) -> None:
    killed(1)
    (file,) = place.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert found() == [[]]


def test_a_process_that_a_handler_has_forked_does_not_keep_the_lock(place: Path) -> None:
    script = """
import os, sys
from pgq import _sql, testing
from pgq._worker.unbegun import Unbegun
unbegun = Unbegun("a")
unbegun.add([testing.job(None, id=1, token=-1)])
if os.fork() == 0:
    print("forked", flush=True)
    sys.stdin.read()
    os._exit(0)
os._exit(70)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": str(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"forked\n"
        assert process.wait(PATIENCE) == 70
        assert found() == [[(1, -1)]]
        process.stdin.close()  # which the other one waits for


async def test_one_worker_that_cannot_be_helped_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch,
    place: Path,
    pool: asyncpg.Pool[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    whose = await pool.fetchval(_sql.WHOSE)
    for number in (1, 2):
        unbegun = Unbegun(whose)
        unbegun.add([testing.job(None, id=number, token=-number)])
        kill(unbegun)
    release = AsyncMock(side_effect=[ConnectionError("unplugged"), True])
    monkeypatch.setattr(pgq.Queue, "release", release)
    worker = pgq.Worker(pool)

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None: ...

    caplog.set_level("INFO", "pgq")
    await worker.run_until_idle()
    assert "cannot be given back: ConnectionError('unplugged')" in caplog.text
    assert "had not begun are given back: 1" in caplog.text
    assert len(found(whose)) == 1


async def test_who_connects_as_another_role_leaves_receipts_alone(
    connection: Connection, pool: asyncpg.Pool[Any]
) -> None:
    mine = await connection.fetchval(_sql.WHOSE)
    assert mine == await pool.fetchval(_sql.WHOSE)
    await connection.execute("create role clerk; set session authorization clerk")
    try:
        assert await connection.fetchval(_sql.WHOSE) != mine
    finally:
        await connection.execute("reset session authorization; drop role clerk")


async def test_a_worker_runs_where_no_file_can_be_made(
    monkeypatch: pytest.MonkeyPatch, pool: asyncpg.Pool[Any], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    queue = pgq.Queue(pool, "q")
    await pgq.Admin(pool).create_queue(queue.name)
    job_id = await queue.enqueue(1)
    worker = pgq.Worker(pool)

    @worker.handler("q")
    async def handle(_: pgq.Job) -> None: ...

    await worker.run_until_idle()
    assert (job := await queue.get(job_id)) is not None
    assert job.state == "completed"
    assert "count an attempt if the worker is killed: FileNotFoundError" in caplog.text
