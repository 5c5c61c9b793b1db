"""A worker behind a network that fails: nothing is lost or done twice, nothing hangs for ever."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partialmethod
from typing import Any, Final, Literal, TypeAlias

import asyncpg
import pgq
import pytest
import pytest_asyncio

from .proxy import Proxy
from .sessions import Connection, Dsn, sessions, until, within
from .workers import FAST, SHORT, Clock, Hook, Moment, ended, running

pytestmark = pytest.mark.once

Way: TypeAlias = Literal["up", "down"]

CALL: Final = timedelta(seconds=1)
LEASE: Final = timedelta(seconds=6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A worker whose pool leads through a network, and who looks on beside it."""

    proxy: Proxy
    pool: asyncpg.Pool[Any]
    worker: pgq.Worker
    queue: pgq.Queue
    observer: Connection


@pytest_asyncio.fixture
async def scene(dsn: Dsn, queue: pgq.Queue, connection: Connection) -> AsyncIterator[Scene]:
    with Proxy(dsn) as proxy:
        async with asyncpg.create_pool(**proxy.dsn, min_size=0, max_size=10) as pool:
            worker = pgq.Worker(pool, poll_interval=FAST, call_timeout=CALL)
            yield Scene(proxy=proxy, pool=pool, worker=worker, queue=queue, observer=connection)
            proxy.cut()


async def test_an_idle_worker_notices_that_all_its_connections_are_dead(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Who sleeps asks again after half a minute at most.
    wait: Any = partialmethod(pgq.Queue.wait, max_wait=timedelta(seconds=0.5))
    monkeypatch.setattr(pgq.Queue, "wait", wait)
    asleep = asyncio.Event()
    Hook(monkeypatch, "after", "wait", asleep.set)

    @scene.worker.handler("default", timeout=SHORT)
    async def handle(_: pgq.Job) -> None: ...

    async with running(scene.worker):
        await within(asleep.wait())
        scene.proxy.forget(up=True, down=True)
        job_id = await scene.queue.enqueue(1)
        assert await ended(scene.observer, 1) == [(job_id, "completed", 1)]
    assert "listen" in caplog.text
    assert "trying again" in caplog.text


@pytest.mark.parametrize("way", ["up", "down"])
async def test_an_outcome_on_its_way_is_written_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, way: Way
) -> None:
    Hook(monkeypatch, "before", "complete_many", lambda: scene.proxy.forget(**{way: True}))

    @scene.worker.handler("default", timeout=SHORT)
    async def handle(_: pgq.Job) -> None: ...

    async with running(scene.worker):
        for number in range(1, 4):
            await scene.queue.enqueue(number)
            await ended(scene.observer, number)
    first, second, _ = await ended(scene.observer, 3)
    assert (first[2], second[2]) == (1, 1)
    assert "trying again" in caplog.text
    assert "lost the lease" not in caplog.text
    assert "was lost, and it was refused" not in caplog.text, "the archive tells"


async def test_an_outcome_that_nothing_tells_of_is_not_taken_for_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pgq")
    await pgq.Admin(scene.observer).configure_queue(scene.queue.name, keep_completed=timedelta(0))
    hook = Hook(monkeypatch, "before", "complete_many", lambda: scene.proxy.forget(down=True))

    @scene.worker.handler("default", timeout=LEASE)
    async def handle(_: pgq.Job) -> None: ...

    async def told() -> bool:
        return "either the first call wrote the outcome, or" in caplog.text

    async with running(scene.worker):
        while not hook.done:
            await scene.queue.enqueue(1)
            await until(gone(scene.observer))
        await until(told)
    assert "lost the lease" not in caplog.text


def gone(observer: Connection) -> Callable[[], Awaitable[bool]]:
    """Return a condition: no job is live."""

    async def is_gone() -> bool:
        return not await observer.fetchval("select exists (select from pgq.job)")

    return is_gone


async def test_a_failure_that_was_written_is_not_taken_for_a_lost_lease(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Hook(monkeypatch, "before", "fail", lambda: scene.proxy.forget(down=True))

    @scene.worker.handler("default", timeout=LEASE)
    async def handle(_: pgq.Job) -> None:
        raise pgq.GiveUp("no")

    async def dead() -> bool:
        query = "select count(*) from pgq_jobs where state = 'dead'"
        return bool(await scene.observer.fetchval(query) == 3)

    async with running(scene.worker):
        await scene.queue.enqueue_many(range(3))
        await until(dead)
    assert "trying again" in caplog.text
    assert "lost the lease" not in caplog.text


def polling(scene: Scene) -> pgq.Worker:
    """Return a worker that claims again and again."""
    return pgq.Worker(scene.pool, poll_interval=FAST, call_timeout=CALL, listen=False)


@pytest.mark.parametrize("way", ["up", "down"])
async def test_a_claim_whose_answer_is_lost_costs_no_attempt(
    scene: Scene,
    dsn: Dsn,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    way: Way,
) -> None:
    caplog.set_level("INFO", "pgq")
    worker = polling(scene)
    await pgq.Admin(scene.observer).configure_queue(scene.queue.name, max_attempts=1)

    @worker.handler("default", timeout=LEASE)
    async def handle(_: pgq.Job) -> None: ...

    async with claim_lost(scene, dsn, monkeypatch, way), running(worker):
        assert await ended(scene.observer, 1) == [(1, "completed", 1)]
    assert "trying again" in caplog.text
    assert ("given back: 1" in caplog.text) == (way == "down")


@contextlib.asynccontextmanager
async def claim_lost(
    scene: Scene, dsn: Dsn, monkeypatch: pytest.MonkeyPatch, way: Way = "down"
) -> AsyncGenerator[None, None]:
    """Add a job as the worker claims it, and lose the claim, or its answer."""
    async with sessions(dsn, 1) as (producer,):
        await producer.execute("begin")
        await scene.queue.enqueue(1, connection=producer)

        async def lose() -> None:
            await producer.execute("commit")
            scene.proxy.forget(**{way: True})

        Hook(monkeypatch, "before", "dequeue", lose)
        yield


async def test_a_lost_claim_that_the_server_is_still_at_is_found_later(
    scene: Scene, dsn: Dsn, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pgq.Admin(scene.observer).configure_queue(scene.queue.name, max_attempts=1)
    worker = polling(scene)
    release = pgq.Queue.release_unheld
    calls = 0

    async def release_unheld(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        # The first times as if the claim had not been committed yet.
        return [] if calls < 3 else await release(*args, **options)

    monkeypatch.setattr(pgq.Queue, "release_unheld", release_unheld)

    @worker.handler("default", timeout=LEASE)
    async def handle(_: pgq.Job) -> None: ...

    async with claim_lost(scene, dsn, monkeypatch), running(worker):
        assert await ended(scene.observer, 1) == [(1, "completed", 1)]


async def test_a_worker_gives_back_what_a_lost_claim_has_taken_when_it_stops(
    scene: Scene, dsn: Dsn, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = polling(scene)

    @worker.handler("default", timeout=timedelta(hours=1))
    async def handle(_: pgq.Job) -> None: ...

    async def claimed() -> bool:
        return bool(await scene.observer.fetchval("select state = 'active' from pgq_jobs"))

    async with claim_lost(scene, dsn, monkeypatch), running(worker):
        found = await until(claimed)
    assert found
    job = await scene.observer.fetchrow("select state, attempt from pgq_jobs")
    assert job is not None
    assert tuple(job) == ("ready", 0)


async def test_lost_claims_are_told_from_what_is_held(
    scene: Scene, dsn: Dsn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its own jobs at work are given back, nor those of another one of its name."""
    worker = polling(scene)
    gate, at_work = asyncio.Event(), asyncio.Event()
    seen: list[int] = []
    await pgq.Admin(scene.observer).configure_queue(scene.queue.name, max_attempts=1)
    name = worker.name
    held = await scene.queue.enqueue(0)
    other = await scene.queue.dequeue(
        timeout=timedelta(hours=1), worker=name, connection=scene.observer
    )
    assert [job.id for job in other] == [held]
    first = await scene.queue.enqueue(1)

    @worker.handler("default", concurrency=2, timeout=LEASE)
    async def handle(job: pgq.Job) -> None:
        seen.append(job.id)
        if job.id == first:
            at_work.set()
            await gate.wait()

    async with running(worker):
        await within(at_work.wait())
        async with claim_lost(scene, dsn, monkeypatch):
            assert len(await ended(scene.observer, 1)) == 3
        gate.set()
        await ended(scene.observer, 2)
    assert sorted(seen) == [first, first + 1]
    assert await scene.queue.complete(other[0], connection=scene.observer)


async def test_lost_leases_are_remembered_as_long_as_they_may_last(
    scene: Scene, dsn: Dsn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(monkeypatch)
    worker = polling(scene)
    release = pgq.Queue.release_unheld
    asked: list[list[pgq.Token]] = []
    begun: asyncio.Queue[pgq.Job] = asyncio.Queue()
    gates: asyncio.Queue[None] = asyncio.Queue()

    async def release_unheld(
        queue: pgq.Queue, name: str, tokens: list[pgq.Token], *args: Any, **options: Any
    ) -> Any:
        asked.append(tokens)
        return await release(queue, name, tokens, *args, **options)

    monkeypatch.setattr(pgq.Queue, "release_unheld", release_unheld)

    @worker.handler("default", timeout=LEASE)
    async def handle(job: pgq.Job) -> None:
        await begun.put(job)
        if job.payload == 0:
            await gates.get()

    async def lose_lease(nth: int) -> pgq.Job:
        await scene.queue.enqueue(0)
        job = await within(begun.get())
        assert await scene.queue.complete(job, connection=scene.observer)
        await gates.put(None)

        async def told() -> bool:
            return caplog.text.count("its outcome was refused") == nth

        await until(told)
        return job

    async with running(worker):
        first = await lose_lease(1)
        clock.time += LEASE
        second = await lose_lease(2)
        async with claim_lost(scene, dsn, monkeypatch):
            await ended(scene.observer, 3)
    assert second.token in asked[0]
    assert first.token not in asked[0]


async def test_what_a_run_leaves_at_work_is_not_given_back_by_the_next_one(
    scene: Scene, dsn: Dsn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgq._worker.run._CANCEL_SECONDS", 0.05)
    at_work, gate = asyncio.Event(), asyncio.Event()
    stubborn: list[pgq.Job] = []
    tasks: list[asyncio.Task[Any] | None] = []
    async with asyncpg.create_pool(**scene.proxy.dsn, min_size=0, max_size=2) as pool:
        worker = pgq.Worker(pool, poll_interval=FAST, call_timeout=CALL, listen=False)

        @worker.handler("default", timeout=timedelta(hours=1))
        async def handle(job: pgq.Job) -> None:
            if job.payload == 0:
                stubborn.append(job)
                tasks.append(asyncio.current_task())
                at_work.set()
                while not gate.is_set():
                    with contextlib.suppress(asyncio.CancelledError):
                        await gate.wait()

        await scene.queue.enqueue(0)
        try:
            run = asyncio.create_task(worker.run(handle_signals=False))
            await within(at_work.wait())
            worker.abort()
            await within(run)
            # The next run claims in the session that is released last: in that of the first claim.
            for session in [await pool.acquire() for _ in range(2)]:
                await pool.release(session)
            async with claim_lost(scene, dsn, monkeypatch), running(worker):
                await ended(scene.observer, 1)
            assert await scene.queue.complete(stubborn[0], connection=scene.observer)
        finally:
            gate.set()  # else nothing ends it
        for task in tasks:
            assert task is not None
            await within(asyncio.wait([task]))


async def test_leases_outlive_a_heartbeat_that_is_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ids = await scene.queue.enqueue_many(range(20))
    lose = lambda: scene.proxy.forget(up=True, down=True)  # noqa: E731
    hook = Hook(monkeypatch, "before", "heartbeat_many", lose, nth=1)
    gate = asyncio.Event()

    @scene.worker.handler("default", concurrency=20, timeout=LEASE)
    async def handle(_: pgq.Job) -> None:
        await gate.wait()

    async with running(scene.worker):

        async def outlived() -> bool:
            query = "select min(lease_expires_at) - max(claimed_at) > $1 from pgq_jobs"
            return bool(await scene.observer.fetchval(query, LEASE + timedelta(seconds=1)))

        await until(outlived)
        assert hook.done
        gate.set()
        assert await ended(scene.observer, 20) == [(job_id, "completed", 1) for job_id in ids]
    assert "heartbeat failed" in caplog.text
    assert "lost the lease" not in caplog.text


async def test_outcomes_and_leases_wait_for_the_network_to_come_back(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    ids = await scene.queue.enqueue_many(range(20))
    gate, full = asyncio.Event(), asyncio.Event()
    begun: list[pgq.Job] = []

    @scene.worker.handler("default", concurrency=20, timeout=LEASE)
    async def handle(job: pgq.Job) -> None:
        begun.append(job)
        if len(begun) == 20:
            full.set()
        await gate.wait()

    async with running(scene.worker):
        await within(full.wait())
        scene.proxy.hold(up=True, down=True)
        gate.set()

        async def noticed() -> bool:
            return "TimeoutError" in caplog.text

        await until(noticed)
        scene.proxy.heal()
        assert await ended(scene.observer, 20) == [(job_id, "completed", 1) for job_id in ids]


async def test_a_handler_whose_statement_is_not_answered_is_tried_again(scene: Scene) -> None:
    await scene.observer.execute("create table effect (job bigint)")
    await pgq.Admin(scene.observer).configure_queue(scene.queue.name, backoff_base=timedelta(0))
    job_id = await scene.queue.enqueue(1)

    @scene.worker.handler("default", timeout=SHORT, transaction=True)
    async def handle(job: pgq.Job, connection: Connection) -> None:
        if job.attempt == 1:
            scene.proxy.forget(up=True, down=True)
        await connection.execute("insert into effect values ($1)", job.id, timeout=1)

    async with running(scene.worker):
        assert await ended(scene.observer, 1) == [(job_id, "completed", 2)]
    assert await scene.observer.fetch("select job from effect") == [(job_id,)]


@pytest.mark.parametrize(
    ("moment", "up"),
    [
        pytest.param("before", False, id="completed, and rolled back"),
        pytest.param("after", True, id="never committed"),
        pytest.param("after", False, id="committed"),
    ],
)
async def test_a_transaction_that_breaks_off_has_all_its_effects_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, moment: Moment, up: bool
) -> None:
    # The server does not notice either that the network is gone, and holds the transaction open.
    database = await scene.observer.fetchval("select current_database()")
    await scene.observer.execute(
        f"alter database {database} set idle_in_transaction_session_timeout = '1s'"
    )
    await scene.observer.execute("create table effect (job bigint)")
    ids = await scene.queue.enqueue_many([1, 2, 3])
    hook = Hook(monkeypatch, moment, "complete", lambda: scene.proxy.forget(up=up, down=True))

    @scene.worker.handler("default", concurrency=1, timeout=SHORT, transaction=True)
    async def handle(job: pgq.Job, connection: Connection) -> None:
        await connection.execute("insert into effect values ($1)", job.id)

    async with running(scene.worker):
        rows = await ended(scene.observer, 3)
    assert [row[:2] for row in rows] == [(job_id, "completed") for job_id in ids]
    assert hook.done
    effects = await scene.observer.fetch("select job from effect order by job")
    assert [effect["job"] for effect in effects] == ids


async def test_a_transaction_that_cannot_begin_costs_no_attempt(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The claim is answered, then there is no network for the transaction."""
    job_id = await scene.queue.enqueue(1, max_attempts=1)
    Hook(monkeypatch, "after", "dequeue", scene.proxy.refuse, nth=1)

    @scene.worker.handler("default", timeout=LEASE, transaction=True)
    async def handle(_: pgq.Job, __: Connection) -> None: ...

    async with running(scene.worker):

        async def failed() -> bool:
            return "trying again in 1.0 s" in caplog.text  # to give the job back, then

        await until(failed)
        scene.proxy.accept()
        assert await ended(scene.observer, 1) == [(job_id, "completed", 1)]


async def test_a_network_that_breaks_again_and_again_costs_and_doubles_nothing(
    scene: Scene,
) -> None:
    await scene.observer.execute("create table effect (job bigint)")
    ids = await scene.queue.enqueue_many(range(200))
    scene.proxy.latency = 0.002

    @scene.worker.handler("default", concurrency=7, timeout=SHORT, transaction=True)
    async def handle(job: pgq.Job, connection: Connection) -> None:
        await connection.execute("insert into effect values ($1)", job.id)

    async with running(scene.worker):
        for number in range(1, 11):

            async def progressed(number: int = number) -> bool:
                query = "select count(*) from effect"
                return bool(await scene.observer.fetchval(query) >= 15 * number)

            await until(progressed)
            scene.proxy.cut()
            if number % 5 == 0:
                scene.proxy.refuse()
                scene.proxy.accept()
        rows = await ended(scene.observer, 200)
    assert [row[:2] for row in rows] == [(job_id, "completed") for job_id in ids]
    effects = await scene.observer.fetch("select job from effect order by job")
    assert [effect["job"] for effect in effects] == ids


async def test_a_worker_stops_in_time_while_the_network_is_gone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pgq._worker.run._SETTLE_SECONDS", 1.0)
    await scene.queue.enqueue_many(range(20))
    gate, full = asyncio.Event(), asyncio.Event()
    begun: list[pgq.Job] = []

    @scene.worker.handler("default", concurrency=20, timeout=SHORT)
    async def handle(job: pgq.Job) -> None:
        begun.append(job)
        if len(begun) == 20:
            full.set()
        await gate.wait()

    async with running(scene.worker) as task:
        await within(full.wait())
        scene.proxy.hold(up=True, down=True)
        gate.set()
        start = time.monotonic()
        scene.worker.stop()
        await within(task)
        assert time.monotonic() - start < 6
    assert "was not given back" in caplog.text
