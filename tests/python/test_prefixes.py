"""Workers that work off all queues whose names begin with a text."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import asyncpg
import pgq
import pytest

from .sessions import Connection, until, within
from .workers import running

pytestmark = [pytest.mark.server, pytest.mark.once]

MAIL = pgq.Prefix("mail.")
SESSIONS: dict[str, dict[str, str]] = {"a": {}}


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers look for queues again soon."""
    monkeypatch.setattr("pgq._worker.finder._FIND_SECONDS", 0.02)


async def put(connection: Connection, queue: str, payload: int = 0, task: str = "") -> int:
    """Add a job to a queue, and create the queue before if it is not there."""
    await connection.execute("select pgq_create_queue($1, if_not_exists => true)", queue)
    headers = {"task": task} if task else None
    return await pgq.Queue(connection, queue).enqueue(payload, headers=headers)


async def test_a_worker_finds_the_queues_of_a_prefix_and_those_that_come_later(
    pool: asyncpg.Pool[Any], a: Connection
) -> None:
    done: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    worker = pgq.Worker(pool)

    @worker.handler(MAIL)
    async def handle(job: pgq.Job[int]) -> None:
        await done.put((job.queue, job.payload))

    await put(a, "mail.a", 1)
    await put(a, "mail", 2)
    await put(a, "other", 3)
    async with running(worker):
        assert await within(done.get()) == ("mail.a", 1)
        await put(a, "mail.b", 4)
        assert await within(done.get()) == ("mail.b", 4)
        await put(a, "mail.a", 5)
        assert await within(done.get()) == ("mail.a", 5)
    left = await a.fetch("select queue from pgq_jobs where state = 'ready' order by queue")
    assert [row["queue"] for row in left] == ["mail", "other"]


async def test_a_worker_that_finds_no_queue_waits_for_the_first_one(
    pool: asyncpg.Pool[Any], a: Connection
) -> None:
    done = asyncio.Event()
    worker = pgq.Worker(pool)

    @worker.handler(MAIL)
    async def handle(job: pgq.Job[int]) -> None:
        done.set()

    async def is_ready() -> bool:
        return worker.health().status == "ok"

    async with running(worker):
        await until(is_ready)
        await put(a, "mail.first")
        await within(done.wait())


async def test_a_name_goes_before_a_prefix_and_a_longer_prefix_before_a_shorter_one(
    pool: asyncpg.Pool[Any], a: Connection
) -> None:
    worker = pgq.Worker(pool)
    seen: list[tuple[str, str]] = []
    for each in (pgq.Prefix(""), MAIL, pgq.Prefix("mail.big."), "mail.one"):

        @worker.handler(each)
        async def handle(job: pgq.Job[int], each: str = str(each)) -> None:
            seen.append((job.queue, each))

    for queue in ("mail.one", "mail.two", "mail.big.three", "four"):
        await put(a, queue)
    await within(worker.run_until_idle())
    assert sorted(seen) == [
        ("four", "*"),
        ("mail.big.three", "mail.big.*"),
        ("mail.one", "mail.one"),
        ("mail.two", "mail.*"),
    ]
    assert worker.queues == {"mail.one"}


async def test_tasks_are_handled_in_the_queues_of_a_prefix(
    pool: asyncpg.Pool[Any], a: Connection
) -> None:
    seen: list[str] = []

    @pgq.task("mail.default")
    async def send(job: pgq.Job[int]) -> None:
        seen.append(f"send in {job.queue}")

    @pgq.task("mail.default")
    async def bounce(job: pgq.Job[int]) -> None:
        seen.append(f"bounce in {job.queue}")

    worker = pgq.Worker(pool)
    worker.add(send, bounce, queue=MAIL)
    with pytest.raises(ValueError, match=r"queue 'mail\.\*' has a task 'send' already"):
        worker.add(pgq.task("mail.default", name="send")(lambda job: None), queue=MAIL)
    await put(a, "mail.a", task="send")
    await put(a, "mail.b", task="bounce")
    await put(a, "mail.default", task="send")
    await within(worker.run_until_idle())
    assert sorted(seen) == ["bounce in mail.b", "send in mail.a", "send in mail.default"]
    seen.clear()
    assert await worker.run_job(await put(a, "mail.c", task="send"), connection=a)
    assert seen == ["send in mail.c"]
    with pytest.raises(pgq.UnknownTask):
        await worker.run_job(await put(a, "default", task="send"), connection=a)


async def test_each_queue_of_a_prefix_has_its_own_concurrency(
    pool: asyncpg.Pool[Any], a: Connection
) -> None:
    at_work: list[str] = []
    go_on = asyncio.Event()
    worker = pgq.Worker(pool)

    @worker.handler(MAIL, concurrency=2)
    async def handle(job: pgq.Job[int]) -> None:
        at_work.append(job.queue)
        await go_on.wait()

    for number in range(3):
        await put(a, "mail.a", number)
        await put(a, "mail.b", number)

    async def all_began(number: int) -> bool:
        return len(at_work) >= number

    async with running(worker):
        await until(partial(all_began, 4))
        held = await a.fetchval("select sum(active) from pgq_queues")
        assert (sorted(at_work), held) == (["mail.a", "mail.a", "mail.b", "mail.b"], 4)
        go_on.set()
        await until(partial(all_began, 6))


async def test_a_queue_that_is_dropped_is_forgotten_and_found_again(
    pool: asyncpg.Pool[Any], a: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="pgq")
    done: asyncio.Queue[int] = asyncio.Queue()
    worker = pgq.Worker(pool)

    @worker.handler(MAIL)
    async def handle(job: pgq.Job[int]) -> None:
        await done.put(job.payload)

    async def loops() -> int:
        return sum("Claimer.run" in str(task.get_coro()) for task in asyncio.all_tasks())

    async def has_forgotten() -> bool:
        return await loops() == 1

    await put(a, "mail.stays")
    async with running(worker) as run:
        assert await within(done.get()) == 0
        for number in (1, 2):
            await put(a, "mail.goes", number)
            assert await within(done.get()) == number
            assert await loops() == 2
            await a.execute("select pgq_drop_queue('mail.goes', true)")
            await until(has_forgotten)
            assert not run.done()
        await put(a, "mail.stays", 3)
        assert await within(done.get()) == 3
    assert caplog.text.count("queue 'mail.goes' is gone") == 2


async def test_a_worker_that_works_until_idle_ends_where_no_queue_is_found(
    pool: asyncpg.Pool[Any],
) -> None:
    worker = pgq.Worker(pool)

    @worker.handler(MAIL)
    async def handle(job: pgq.Job[int]) -> None:
        """Do nothing."""

    await within(worker.run_until_idle())


async def test_the_look_for_queues_outlives_a_restart_of_its_session(
    pool: asyncpg.Pool[Any], a: Connection
) -> None:
    done: asyncio.Queue[str] = asyncio.Queue()
    worker = pgq.Worker(pool, call_timeout=timedelta(seconds=5))

    @worker.handler(MAIL)
    async def handle(job: pgq.Job[int]) -> None:
        await done.put(job.queue)

    await put(a, "mail.a")
    async with running(worker):
        assert await within(done.get()) == "mail.a"
        await a.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where backend_type = 'client backend' and pid <> pg_backend_pid()"
            "   and datname = current_database()"
        )
        await put(a, "mail.b")
        assert await within(done.get()) == "mail.b"


def test_a_prefix_needs_a_handler() -> None:
    worker = pgq.Worker()
    worker.configure(MAIL, concurrency=3)
    pool: Any = SimpleNamespace(get_max_size=lambda: 10)

    @worker.handler("other")
    async def handle(job: pgq.Job[int]) -> None:
        """Do nothing."""

    with pytest.raises(ValueError, match=r"no handler for queue 'mail\.\*'"):
        asyncio.run(worker.run(pool))


def test_a_queue_is_a_name_or_a_prefix() -> None:
    wrong: Any = 7
    with pytest.raises(TypeError, match="queue must be str or Prefix, not int"):
        pgq.Worker().handler(wrong)
