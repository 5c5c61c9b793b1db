"""The worker: what it runs, what it tells the server, and how it stops, without sleeping."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from datetime import timedelta
from operator import attrgetter
from typing import Any

import asyncpg
import pgq
import pytest
from pgq._worker.heartbeat import Heartbeat
from pgq._worker.link import Link, Outage
from pgq._worker.settle import Settler
from pgserver import PATIENCE, Server

from .sessions import Connection, started, stop_clock, within
from .workers import FAST, SHORT

NO_TIME = timedelta(0)


@contextlib.asynccontextmanager
async def running(worker: pgq.Worker) -> AsyncGenerator[asyncio.Task[None], None]:
    """Run the worker for as long as the block lasts, then stop it and wait for its end."""
    task = asyncio.create_task(worker.run())
    try:
        yield task
    finally:
        worker.stop()
        await within(task)


async def patiently(waiting: asyncio.Future[Any] | asyncio.Event | asyncio.Task[Any]) -> Any:
    """Wait for what must happen, but not for ever."""
    return await within(waiting.wait() if isinstance(waiting, asyncio.Event) else waiting)


async def last_error(queue: pgq.Queue, job_id: int) -> str:
    """Return the error of a dead job."""
    assert await queue.retry(job_id)
    job = await queue.claim(job_id)
    assert job.last_error is not None
    return job.last_error


class Watch:
    """Lets a test see and act on each call of a method of Queue before the caller goes on."""

    def __init__(self, patch: pytest.MonkeyPatch, method: str) -> None:
        original = getattr(pgq.Queue, method)
        self.calls: list[tuple[Any, ...]] = []
        self.then: Callable[[Any], None] | None = None

        async def watched(queue: pgq.Queue, *args: Any, **options: Any) -> Any:
            answer = await original(queue, *args, **options)
            self.calls.append(args)
            if self.then is not None:
                self.then(answer)
            return answer

        patch.setattr(pgq.Queue, method, watched)


@pytest.fixture
def worker(pool: asyncpg.Pool[Any]) -> pgq.Worker:
    return pgq.Worker(pool, name="test", poll_interval=FAST)


async def test_every_job_is_handled_once_and_completed(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    ids = await queue.enqueue_many(range(200))
    handled: list[pgq.Job] = []
    done = asyncio.Event()

    @worker.handler("default", concurrency=20)
    async def handle(job: pgq.Job) -> None:
        handled.append(job)
        if len(handled) == len(ids):
            done.set()

    async with running(worker):
        await patiently(done)
    assert [job.id for job in handled] == ids
    assert {job.worker for job in handled} == {"test"}
    for job_id in ids:
        with pytest.raises(pgq.UnknownJob):
            await queue.claim(job_id)


async def test_no_more_jobs_are_claimed_than_slots_are_free(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    await queue.enqueue_many(range(5))
    gate, full, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    started: list[int] = []

    @worker.handler("default", concurrency=3)
    async def handle(job: pgq.Job) -> None:
        started.append(job.payload)
        if len(started) == 3:
            full.set()
        await gate.wait()
        if len(started) == 5:
            done.set()

    async with running(worker):
        await patiently(full)
        free = await queue.dequeue(10)
        assert [job.payload for job in free] == [3, 4]
        for job in free:
            await queue.release(job)
        gate.set()
        await patiently(done)
    assert sorted(started) == [0, 1, 2, 3, 4]


async def test_completions_that_come_together_go_together(
    monkeypatch: pytest.MonkeyPatch, queue: pgq.Queue, worker: pgq.Worker
) -> None:
    await queue.enqueue_many(range(8))
    watch = Watch(monkeypatch, "complete_many")
    running_now: list[pgq.Job] = []
    gate, done = asyncio.Event(), asyncio.Event()
    watch.then = lambda _: done.set()

    @worker.handler("default", concurrency=8)
    async def handle(job: pgq.Job) -> None:
        running_now.append(job)
        if len(running_now) == 8:
            gate.set()
        await gate.wait()

    async with running(worker):
        await patiently(done)
    assert [len(receipts) for receipts, _ in watch.calls] == [8]


async def test_a_completion_waits_for_nothing_but_the_call_before_it(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    await queue.enqueue_many(range(4))
    jobs = await queue.dequeue(4)
    written: list[int] = []
    gate = asyncio.Event()
    link = Link(pool, 10, Outage("w", "it works"))

    async def write(_: object) -> list[int]:
        written.append(len(written))
        await gate.wait()
        return [job.id for job in jobs]

    link.run = write  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
    ended: list[pgq.Job] = []

    def settled(job: pgq.Job, accepted: bool | None) -> None:
        assert accepted
        ended.append(job)

    def refused(job: pgq.Job, exc: Exception) -> None:
        pytest.fail(f"{job.id}: {exc!r}")

    settler = Settler(queue, link, settled, refused)

    async def loops(number: int = 10) -> None:
        for _ in range(number):
            await asyncio.sleep(0)

    async with started(settler.run()):
        await loops()
        settler.complete(jobs[0], None)
        await loops()
        assert len(written) == 1, "no timer stands before it"
        for job in jobs[1:]:
            settler.complete(job, None)
        await loops()
        assert (len(written), ended) == (1, [])
        gate.set()
        await loops()
        assert (len(written), ended) == (2, jobs), "the others go together"


async def test_results_that_come_together_go_together(
    monkeypatch: pytest.MonkeyPatch, queue: pgq.Queue, worker: pgq.Worker
) -> None:
    ids = await queue.enqueue_many(range(20))
    gate = asyncio.Event()
    watch = Watch(monkeypatch, "complete_many")

    @worker.handler("default", concurrency=20)
    async def handle(job: pgq.Job) -> dict[str, int] | None:
        if job.payload == 19:
            gate.set()
        await gate.wait()
        return {"twice": 2 * job.payload} if job.payload else None

    await worker.run_until_idle()
    assert len(watch.calls) <= 2
    jobs = [await queue.get(job_id) for job_id in ids]
    assert [job and job.result for job in jobs] == [None, *({"twice": 2 * n} for n in range(1, 20))]


@pytest.mark.parametrize("result", [object(), "\0"], ids=["not JSON", "not storable"])
async def test_a_result_that_cannot_be_kept_fails_the_job(
    queue: pgq.Queue, worker: pgq.Worker, monkeypatch: pytest.MonkeyPatch, result: object
) -> None:
    job_id = await queue.enqueue(1, max_attempts=1)
    failed = asyncio.Event()
    Watch(monkeypatch, "fail").then = lambda _: failed.set()

    @worker.handler("default")
    async def handle(_: pgq.Job) -> object:
        return result

    async with running(worker):
        await patiently(failed)
    assert "Error" in await last_error(queue, job_id)


@pytest.mark.parametrize("transaction", [False, True])
async def test_a_result_that_cannot_be_encoded_now_costs_only_its_own_attempt(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, transaction: bool
) -> None:
    told: list[Exception] = []

    def dumps(result: int) -> str:
        if result == 1:
            raise ConnectionRefusedError("nobody keeps what is large")
        return str(result)

    worker = pgq.Worker(pool, dumps=dumps, poll_interval=FAST)

    @worker.error
    async def note(_: pgq.Job, error: Exception) -> None:
        told.append(error)

    async def handle(job: pgq.Job, _: Any = None) -> int:
        result: int = job.payload
        return result

    worker.handler("default", transaction=transaction)(handle)  # type: ignore[call-overload]
    ids = await queue.enqueue_many([1, 2], max_attempts=1)
    await within(worker.run_until_idle())
    first, second = [await queue.get(job_id) for job_id in ids]
    assert first is not None
    assert second is not None
    assert (first.state, second.state, second.result) == ("dead", "completed", 2)
    assert [type(error) for error in told] == [ConnectionRefusedError]


@pytest.mark.parametrize(
    ("result", "calls"), [(object(), 1), ("\0", 3)], ids=["not JSON", "not storable"]
)
async def test_a_result_that_cannot_be_kept_costs_no_connection(
    queue: pgq.Queue,
    worker: pgq.Worker,
    monkeypatch: pytest.MonkeyPatch,
    result: object,
    calls: int,
) -> None:
    pids: list[int] = []

    def watch(method: str) -> None:
        original = getattr(pgq.Queue, method)

        async def watched(queue: pgq.Queue, *args: Any, connection: Any) -> Any:
            pids.append(connection.get_server_pid())
            return await original(queue, *args, connection=connection)

        monkeypatch.setattr(pgq.Queue, method, watched)

    for method in ("complete_many", "complete", "fail"):
        watch(method)

    @worker.handler("default")
    async def handle(_: pgq.Job) -> object:
        return result

    await queue.enqueue(1, max_attempts=1)
    await within(worker.run_until_idle())
    assert len(pids) == calls
    assert len(set(pids)) == 1, "others may wait for it: it may be long until there is one again"


@pytest.mark.parametrize("transaction", [False, True])
async def test_an_exception_fails_the_job_with_its_traceback(
    queue: pgq.Queue, worker: pgq.Worker, monkeypatch: pytest.MonkeyPatch, transaction: bool
) -> None:
    job_id = await queue.enqueue(1, max_attempts=1)
    failed = asyncio.Event()
    Watch(monkeypatch, "fail").then = lambda _: failed.set()

    async def handle(_: pgq.Job, __: Any = None) -> None:
        raise LookupError("a \0 byte, a lone \udc80 surrogate")

    worker.handler("default", transaction=transaction)(handle)  # type: ignore[call-overload]
    async with running(worker):
        await patiently(failed)
    error = await last_error(queue, job_id)
    assert "test_worker.py" in error.splitlines()[1], "the worker's own frames are left out"
    assert "in handle" in error
    assert "LookupError: a \\0 byte, a lone \\udc80 surrogate" in error


async def test_of_a_long_traceback_the_end_is_kept(
    queue: pgq.Queue, worker: pgq.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await queue.enqueue(1, max_attempts=1)
    failed = asyncio.Event()
    Watch(monkeypatch, "fail").then = lambda _: failed.set()
    monkeypatch.setattr("pgq._worker.settle._ERROR_CHARACTERS", 10)

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        raise LookupError("the end")

    async with running(worker):
        await patiently(failed)
    assert await last_error(queue, job_id) == ": the end\n"


async def test_a_transaction_handler_writes_with_the_completion(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, worker: pgq.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pool.execute("create table effect (n integer)")
    await queue.enqueue_many([1, 2], max_attempts=1)
    done = asyncio.Event()
    Watch(monkeypatch, "complete").then = lambda _: done.set()

    @worker.handler("default", transaction=True)
    async def handle(job: pgq.Job, connection: asyncpg.Connection[Any]) -> None:
        await connection.execute("insert into effect values ($1)", job.payload)
        if job.payload == 1:
            raise RuntimeError("after the effect")

    async with running(worker):
        await patiently(done)
    assert await pool.fetch("select n from effect") == [(2,)]


@pytest.mark.parametrize("durable", [True, False])
async def test_only_claims_may_be_lost_in_a_crash(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    second = pgq.Queue(pool, "second")
    await pgq.Admin(pool).create_queue(second.name)
    # The first claim after a start is durable in any event.
    await pool.execute("select from pgq_dequeue()")
    await pool.execute(
        """
        create table seen (event text, synchronous_commit text);
        create function see() returns trigger language plpgsql as $$
        begin
            insert into public.seen values (tg_op, current_setting('synchronous_commit'));
            return null;
        end
        $$;
        create trigger see after insert or update or delete on pgq.job
           for each row execute function see();
        """
    )
    await queue.enqueue(1)
    await second.enqueue(2)
    completed: set[str] = set()
    done = asyncio.Event()
    worker = pgq.Worker(pool, durable_claims=durable)

    def complete(name: str) -> None:
        completed.add(name)
        if len(completed) == 2:
            done.set()

    Watch(monkeypatch, "complete_many").then = lambda _: complete("plain")
    Watch(monkeypatch, "complete").then = lambda _: complete("in a transaction")

    @worker.handler("default")
    async def handle(job: pgq.Job) -> None: ...

    @worker.handler("second", transaction=True)
    async def handle_in_transaction(job: pgq.Job, connection: Any) -> None: ...

    async with running(worker):
        await patiently(done)
    async with pool.acquire() as connection:
        relaxed = not durable and connection.get_server_version().major >= 15
        rows = await connection.fetch("select distinct * from seen order by event")
    assert [tuple(row) for row in rows] == [
        ("DELETE", "on"),
        ("INSERT", "on"),
        ("UPDATE", "off" if relaxed else "on"),
    ]


async def test_a_transaction_whose_lease_is_lost_is_rolled_back(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, worker: pgq.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    await pool.execute("create table effect (n integer)")
    await queue.enqueue(1)
    over = asyncio.Event()

    @worker.handler("default", transaction=True)
    async def handle(job: pgq.Job, connection: asyncpg.Connection[Any]) -> None:
        await connection.execute("insert into effect values (1)")
        assert await queue.complete(job)  # somebody else, on another connection
        over.set()

    async with running(worker):
        await patiently(over)
    assert await pool.fetch("select n from effect") == []
    assert "lost the lease of job" in caplog.text
    assert "rolled back" in caplog.text


async def test_a_handler_whose_lease_is_lost_is_cancelled(
    queue: pgq.Queue, worker: pgq.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    await queue.enqueue_many([1, 2], max_attempts=1)
    gate, cancelled = asyncio.Event(), asyncio.Event()

    @worker.handler("default", concurrency=2, timeout=SHORT)
    async def handle(job: pgq.Job) -> None:
        if job.payload == 1:
            assert await queue.complete(job)  # somebody else
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
        await gate.wait()

    async with running(worker):
        await patiently(cancelled)
        gate.set()
    assert "the handler was cancelled" in caplog.text
    about_jobs = [r.getMessage() for r in caplog.records if hasattr(r, "pgq_job_id")]
    assert not any("failed" in text for text in about_jobs)
    assert await queue.dequeue() == []


async def test_what_is_late_is_refused_and_reported(
    queue: pgq.Queue, worker: pgq.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    await queue.enqueue(1)
    done = asyncio.Event()

    @worker.handler("default")
    async def handle(job: pgq.Job) -> None:
        assert await queue.complete(job)  # somebody else
        done.set()

    async with running(worker):
        await patiently(done)
    assert "its outcome was refused" in caplog.text


async def test_a_blocked_event_loop_keeps_its_leases(
    queue: pgq.Queue, worker: pgq.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeout = timedelta(seconds=2)
    await queue.enqueue_many([1, 2], max_attempts=1)
    renewed, done = threading.Event(), asyncio.Event()
    expiry: list[Any] = []

    def on_renewal(leases: list[pgq.Lease]) -> None:
        if expiry and leases and leases[0].lease_expires_at - timeout > expiry[0]:
            renewed.set()  # at a time at which the first lease would have run out

    Watch(monkeypatch, "heartbeat_many").then = on_renewal
    completed = Watch(monkeypatch, "complete_many")
    completed.then = lambda _: done.set()

    @worker.handler("default", concurrency=2, timeout=timeout)
    async def handle(job: pgq.Job) -> None:
        if job.payload == 1:
            expiry.append(job.lease_expires_at)
            assert renewed.wait(PATIENCE)

    async with running(worker):
        await patiently(done)
    assert await queue.dequeue() == []
    assert sum(len(receipts) for receipts, _ in completed.calls) == 2


async def test_a_row_that_is_locked_does_not_cost_the_other_leases(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, worker: pgq.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.enqueue_many([1, 2])
    loop = asyncio.get_running_loop()
    renewed, done = asyncio.Event(), asyncio.Event()
    jobs: dict[int, pgq.Job] = {}

    def on_renewal(leases: list[pgq.Lease]) -> None:
        if len(jobs) < 2:
            return
        claimed, expiry = (
            jobs[2].lease_expires_at,
            {lease.id: lease.lease_expires_at for lease in leases},
        )
        if claimed and expiry[jobs[2].id] > claimed:
            loop.call_soon_threadsafe(renewed.set)

    Watch(monkeypatch, "heartbeat_many").then = on_renewal

    @worker.handler("default", concurrency=2, timeout=SHORT)
    async def handle(job: pgq.Job) -> None:
        jobs[job.payload] = job
        if job.payload == 1:
            async with pool.acquire() as connection, connection.transaction():
                assert await queue.complete(job, connection=connection)
                await renewed.wait()
        else:
            await done.wait()

    async with running(worker):
        await patiently(renewed)
        done.set()


async def test_a_lease_outlives_heartbeats_that_fail(
    queue: pgq.Queue,
    worker: pgq.Worker,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They are tried again soon enough, however short it is."""
    caplog.set_level(logging.DEBUG, "pgq")
    await stop_clock(connection)  # so that a machine that stands still does not end the lease
    await queue.enqueue(1)
    loop, renewed = asyncio.get_running_loop(), asyncio.Event()
    original = pgq.Queue.heartbeat_many
    errors = iter([ConnectionError("unplugged")] * 3)

    async def heartbeat_many(*args: Any, **options: Any) -> list[pgq.Lease]:
        for error in errors:
            raise error
        leases = await original(*args, **options)
        loop.call_soon_threadsafe(renewed.set)
        return leases

    monkeypatch.setattr(pgq.Queue, "heartbeat_many", heartbeat_many)

    @worker.handler("default", timeout=SHORT)
    async def handle(_: pgq.Job) -> None:
        await renewed.wait()

    async with running(worker):
        await patiently(renewed)
    assert caplog.text.count("trying again in 0.3 s: ConnectionError('unplugged')") == 3
    assert "lost the lease" not in caplog.text
    assert await queue.dequeue() == []


async def test_heartbeats_stop_with_the_job(
    queue: pgq.Queue, worker: pgq.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.enqueue_many([1, 2, 3])
    loop = asyncio.get_running_loop()
    completed, done = asyncio.Event(), asyncio.Event()
    dropped = threading.Event()
    beat = attrgetter("_beat")(Heartbeat)
    short: list[pgq.Receipt] = []

    async def beat_later(heartbeat: Heartbeat) -> None:
        if dropped.is_set():
            await beat(heartbeat)

    def on_completion(_: set[int]) -> None:
        if completed.is_set():
            dropped.set()  # the next completion is sent when the one before has been dealt with
        completed.set()

    def on_renewal(_: list[pgq.Lease]) -> None:
        loop.call_soon_threadsafe(done.set)

    monkeypatch.setattr(Heartbeat, "_beat", beat_later)
    Watch(monkeypatch, "complete_many").then = on_completion
    renewals = Watch(monkeypatch, "heartbeat_many")
    renewals.then = on_renewal

    @worker.handler("default", concurrency=3, timeout=SHORT)
    async def handle(job: pgq.Job) -> None:
        if job.payload == 1:
            short.append(job.receipt)
        else:
            await (completed if job.payload == 2 else done).wait()

    async with running(worker):
        await patiently(done)
    renewed = [job.receipt for job in renewals.calls[0][0]]
    assert renewed
    assert short[0] not in renewed


async def test_stop_finishes_what_has_begun(queue: pgq.Queue, worker: pgq.Worker) -> None:
    await queue.enqueue_many([1, 2])
    begun, gate = asyncio.Event(), asyncio.Event()

    @worker.handler("default", concurrency=1)
    async def handle(_: pgq.Job) -> None:
        begun.set()
        await gate.wait()

    async with running(worker):
        await patiently(begun)
        worker.stop()
        gate.set()
    (job,) = await queue.dequeue(10)
    assert (job.payload, job.attempt) == (2, 1)


async def test_stop_gives_back_what_has_not_begun(
    queue: pgq.Queue, worker: pgq.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.enqueue_many([1, 2])
    Watch(monkeypatch, "dequeue").then = lambda _: worker.stop()

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        raise AssertionError("it was started")

    await within(worker.run())
    monkeypatch.undo()
    assert [(job.payload, job.attempt) for job in await queue.dequeue(10)] == [(1, 1), (2, 1)]


async def test_what_does_not_finish_in_time_is_given_back(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    worker = pgq.Worker(pool, grace=NO_TIME)
    await queue.enqueue(1)
    begun = asyncio.Event()

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with running(worker):
        await patiently(begun)
    (job,) = await queue.dequeue()
    assert job.attempt == 1


async def test_signals_stop_gracefully_and_then_at_once(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    await queue.enqueue(1)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    begun = asyncio.Event()

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(worker.run())
    await patiently(begun)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    await patiently(task)
    assert {number: signal.getsignal(number) for number in before} == before
    (job,) = await queue.dequeue()
    assert job.attempt == 1


async def test_a_cancelled_run_gives_its_jobs_back(queue: pgq.Queue, worker: pgq.Worker) -> None:
    await queue.enqueue(1)
    begun = asyncio.Event()

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(worker.run(handle_signals=False))
    await patiently(begun)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await patiently(task)
    assert len(await queue.dequeue()) == 1
    assert [thread for thread in threading.enumerate() if thread.name == "pgq-heartbeat"] == []


async def test_a_worker_survives_the_loss_of_its_connections(
    connection: asyncpg.Connection[Any],
    queue: pgq.Queue,
    worker: pgq.Worker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await queue.enqueue(1)
    begun, gate, second = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @worker.handler("default", concurrency=2, timeout=SHORT)
    async def handle(job: pgq.Job) -> None:
        if job.payload == 2:
            second.set()
        else:
            begun.set()
            await gate.wait()

    async with running(worker):
        await patiently(begun)
        await connection.execute(
            """
            select pg_terminate_backend(pid) from pg_stat_activity
             where pid <> pg_backend_pid() and datname = current_database()
            """
        )
        gate.set()
        await pgq.Queue(connection).enqueue(2)
        await patiently(second)
    assert await queue.dequeue() == []
    assert "trying again" in caplog.text


async def test_a_worker_survives_a_call_that_begins_as_its_connection_ends(
    queue: pgq.Queue, worker: pgq.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.enqueue(1)
    done = asyncio.Event()
    dequeue = pgq.Queue.dequeue
    errors = [asyncpg.InternalClientError("cannot switch to state 12")]

    async def refused_once(queue: pgq.Queue, *args: Any, **options: Any) -> list[pgq.Job]:
        if errors:
            raise errors.pop()
        return await dequeue(queue, *args, **options)

    monkeypatch.setattr(pgq.Queue, "dequeue", refused_once)

    @worker.handler("default")
    async def handle(job: pgq.Job) -> None:
        done.set()

    async with running(worker):
        await patiently(done)


async def test_a_worker_survives_a_restart_of_the_server(
    server: Server, pool: asyncpg.Pool[Any], queue: pgq.Queue, worker: pgq.Worker
) -> None:
    await queue.enqueue(1)
    begun, gate, second = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @worker.handler("default", concurrency=2)
    async def handle(job: pgq.Job) -> None:
        if job.payload == 2:
            second.set()
        else:
            begun.set()
            await gate.wait()

    async with running(worker):
        await patiently(begun)
        await asyncio.to_thread(server.stop, "immediate")
        gate.set()
        await asyncio.to_thread(server.start)
        await pool.expire_connections()
        await queue.enqueue(2)
        await patiently(second)
    assert await queue.dequeue() == []


async def test_handlers_of_several_queues_run_side_by_side(
    pool: asyncpg.Pool[Any], worker: pgq.Worker
) -> None:
    await pgq.Admin(pool).create_queue("other")
    both = {name: asyncio.Event() for name in ("default", "other")}
    for name in both:
        await pgq.Queue(pool, name).enqueue(name)

        @worker.handler(name, timeout=timedelta(minutes=1))
        async def handle(job: pgq.Job) -> None:
            both[job.queue].set()
            for event in both.values():
                await event.wait()

    async with running(worker):
        for event in both.values():
            await patiently(event)


async def test_an_unknown_queue_ends_the_worker(worker: pgq.Worker) -> None:
    @worker.handler("nowhere")
    async def handle(_: pgq.Job) -> None: ...

    with pytest.raises(pgq.UnknownQueue):
        await within(worker.run())


async def test_nothing_is_claimed_if_a_queue_is_unknown(
    queue: pgq.Queue, worker: pgq.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = Watch(monkeypatch, "dequeue")
    await queue.enqueue(1)

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None: ...

    worker.handler("nowhere")(handle)
    with pytest.raises(pgq.UnknownQueue, match="nowhere"):
        await within(worker.run())
    assert claims.calls == []


async def test_nothing_is_claimed_if_outcomes_have_no_connection(
    dsn: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = Watch(monkeypatch, "dequeue")
    async with asyncpg.create_pool(**dsn, min_size=0, max_size=2) as small, small.acquire():
        worker = pgq.Worker(small, call_timeout=timedelta(seconds=0.3))

        @worker.handler("default")
        async def handle(_: pgq.Job) -> None: ...

        with pytest.raises(TimeoutError):
            await within(worker.run())
    assert claims.calls == []


async def test_nothing_is_claimed_if_leases_cannot_be_renewed(
    dsn: dict[str, Any], pool: asyncpg.Pool[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = Watch(monkeypatch, "dequeue")
    elsewhere: dict[str, Any] = {**dsn, "database": "postgres"}
    opened: list[asyncpg.Connection[Any]] = []

    async def connect() -> asyncpg.Connection[Any]:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(**elsewhere)
        opened.append(connection)
        return connection

    worker = pgq.Worker(pool, connect=connect)

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None: ...

    with pytest.raises(pgq.NotInstalled, match="pgq_version"):
        await within(worker.run())
    assert claims.calls == []
    assert [connection.is_closed() for connection in opened] == [True]


@pytest.mark.parametrize("extension", ["0.9.0", "9.2.0"])
async def test_a_version_that_is_not_supported_is_told_at_the_start(
    worker: pgq.Worker, monkeypatch: pytest.MonkeyPatch, extension: str
) -> None:
    claims = Watch(monkeypatch, "dequeue")

    async def version(*_: object, **__: object) -> str:
        return extension

    monkeypatch.setattr(pgq.Queue, "version", version)

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None: ...

    with pytest.raises(pgq.NotSupported, match=f"version {extension}") as error:
        await within(worker.run())
    assert "Upgrade the package" in str(error.value.hint)
    assert claims.calls == []


async def test_a_worker_connects_again_whatever_prevents_it_for_a_while(
    dsn: dict[str, Any], queue: pgq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    refused = asyncio.Event()
    errors: list[Exception] = []

    async def init(_: asyncpg.Connection[Any]) -> None:
        if errors:
            refused.set()
            raise errors[0]

    name = {"application_name": "pgq worker"}
    done: asyncio.Queue[int] = asyncio.Queue()
    create = asyncpg.create_pool(**dsn, min_size=0, init=init, server_settings=name)
    async with create as pool:
        worker = pgq.Worker(pool, poll_interval=FAST)

        @worker.handler("default")
        async def handle(job: pgq.Job) -> None:
            done.put_nowait(job.payload)

        async with running(worker):
            await queue.enqueue(1)
            assert await within(done.get()) == 1
            errors.append(LookupError("no such type"))
            await queue.enqueue(2)
            async with asyncpg.create_pool(**dsn, min_size=1, max_size=1) as observer:
                await observer.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where application_name = 'pgq worker'"
                    " and datname = current_database()"
                )
            await queue.enqueue(3)
            await patiently(refused)
            errors.clear()
            assert {await within(done.get()) for _ in range(2)} == {2, 3}
    assert "LookupError('no such type')" in caplog.text


async def test_an_own_connect_opens_the_connections_of_the_worker(
    dsn: dict[str, Any], pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    threads: list[str] = []

    async def connect() -> asyncpg.Connection[Any]:
        threads.append(threading.current_thread().name)
        connection: asyncpg.Connection[Any] = await asyncpg.connect(**dsn)
        return connection

    worker = pgq.Worker(pool, connect=connect)
    await queue.enqueue(1)
    begun = asyncio.Event()

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        begun.set()

    async with running(worker):
        await patiently(begun)
    assert threads == ["pgq-heartbeat", "MainThread"]


async def test_a_heartbeat_that_cannot_connect_ends_the_worker(pool: asyncpg.Pool[Any]) -> None:
    async def connect() -> asyncpg.Connection[Any]:
        raise ConnectionRefusedError("no")

    worker = pgq.Worker(pool, connect=connect)

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None: ...

    with pytest.raises(ConnectionRefusedError):
        await within(worker.run())


async def test_a_heartbeat_without_a_loop_ends_the_worker(
    worker: pgq.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(main: Coroutine[Any, Any, None]) -> None:
        main.close()
        raise OSError("too many open files")

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None: ...

    monkeypatch.setattr("pgq._worker.heartbeat.asyncio.run", run)
    with pytest.raises(OSError, match="too many open files"):
        await within(worker.run())


async def test_a_run_that_is_cancelled_while_it_starts_leaves_no_thread(
    dsn: dict[str, Any], pool: asyncpg.Pool[Any]
) -> None:
    loop, connecting, gate = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    async def connect() -> asyncpg.Connection[Any]:
        loop.call_soon_threadsafe(connecting.set)
        await asyncio.to_thread(gate.wait)
        connection: asyncpg.Connection[Any] = await asyncpg.connect(**dsn)
        return connection

    worker = pgq.Worker(pool, connect=connect)

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None: ...

    task = asyncio.create_task(worker.run())
    await patiently(connecting)
    task.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await patiently(task)
    assert [thread for thread in threading.enumerate() if thread.name == "pgq-heartbeat"] == []


async def test_a_claim_of_the_same_job_here_ends_the_older_one(
    queue: pgq.Queue, worker: pgq.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    await queue.enqueue(1)
    first: list[pgq.Job] = []
    cancelled, done = asyncio.Event(), asyncio.Event()

    @worker.handler("default", concurrency=2, timeout=SHORT)
    async def handle(job: pgq.Job) -> None:
        if not first:
            first.append(job)
            assert await queue.release(job)
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
        await cancelled.wait()
        done.set()

    async with running(worker):
        await patiently(done)
    assert "the handler was cancelled" in caplog.text
    assert await queue.dequeue() == []


async def test_wrong_use_is_told(dsn: dict[str, Any], worker: pgq.Worker) -> None:
    with pytest.raises(ValueError, match="no handler"):
        await worker.run()

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None: ...

    with pytest.raises(ValueError, match="already"):
        worker.handler("default")
    with pytest.raises(ValueError, match="positive"):
        worker.handler("other", concurrency=0)
    with pytest.raises(ValueError, match="positive"):
        worker.handler("other", timeout=NO_TIME)
    async with asyncpg.create_pool(**dsn, min_size=0, max_size=1) as small:
        cramped = pgq.Worker(small)
        cramped.handler("default")(handle)
        with pytest.raises(ValueError, match="at least 2"):
            await cramped.run()


async def test_logging_is_left_to_the_application() -> None:
    log = logging.getLogger("pgq")
    assert log.handlers == []
    assert log.level == logging.NOTSET
