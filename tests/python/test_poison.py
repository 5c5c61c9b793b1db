"""Jobs that kill their worker, and the jobs that it had claimed with them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pgq
import pytest
from pgq import _unbegun, testing
from pgq._cli.supervisor import Supervisor
from pgserver import PATIENCE

from .cli_session import running, variables
from .sessions import Connection, started, until, within

pytestmark = pytest.mark.once
SHOP = """
import asyncio, os
from datetime import timedelta
import pgq

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
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A directory with a module."""
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    return tmp_path


async def create_all(connection: Connection) -> None:
    for name in ("begun", "together", "prefetched"):
        await pgq.Queue(connection, name).create(max_attempts=5)


async def states(queue: pgq.Queue, ids: list[pgq.JobId]) -> list[tuple[str, int]]:
    jobs = [await queue.get(job_id) for job_id in ids]
    return [(job.state, job.attempt) for job in jobs if job is not None]


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

    async def are_over() -> bool:
        return {state for state, _ in await states(queue, healthy)} == {"completed"}

    monkeypatch.chdir(shop)
    command = (sys.executable, "-m", "pgq", "worker", "shop:worker", "--supervised")
    supervisor = Supervisor(command, {**os.environ, **variables(dsn)}, 1)  # it claims all of them
    async with started(supervisor.run()) as run:
        try:
            await until(are_over, pause=0.05)  # their leases would last for an hour
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            assert await within(run) == 0
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


def test_receipts_outlive_whoever_has_written_them() -> None:
    jobs = [testing.job(None, id=number, token=-number) for number in range(1, 5000)]
    with _unbegun.new_file() as file:

        def successor() -> _unbegun.Unbegun:
            return _unbegun.Unbegun(os.dup(file.fileno()))

        first = successor()
        assert first.left == []
        first.add(jobs)
        assert len(successor().left) == 4096  # of more jobs nothing is kept
        for job in [*jobs[2:], jobs[0], jobs[0]]:
            first.discard(job.token)
        second = successor()
        assert second.left == [(2, -2)]
        second.add(jobs[:1])
        assert sorted(successor().left) == [(1, -1), (2, -2)]
        second.discard(jobs[1].token)
        assert successor().left == [(1, -1)]


def test_half_a_receipt_is_none() -> None:
    with _unbegun.new_file() as file:
        os.pwrite(file.fileno(), b"\1", 0)  # the process ended before it wrote the token
        assert _unbegun.Unbegun(os.dup(file.fileno())).left == []
