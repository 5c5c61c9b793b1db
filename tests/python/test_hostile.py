"""Handlers and middleware that misbehave: no job is lost, no slot leaks, nothing goes on alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final

import asyncpg
import asyncpg.transaction
import pgq
import pytest
from pgq._worker.link import answered
from pgserver import PATIENCE

from .sessions import Connection, until, within
from .workers import FAST, SHORT, Clock, errors_of_attempts, running

pytestmark = pytest.mark.once

MOMENT: Final = timedelta(milliseconds=1)
HOUR: Final = timedelta(hours=1)
WRONG: Any = 5


@pytest.fixture
def worker(pool: asyncpg.Pool[Any]) -> pgq.Worker:
    return pgq.Worker(pool, poll_interval=FAST)


async def seen(queue: pgq.Queue, job_id: int) -> pgq.JobSnapshot:
    job = await queue.get(job_id)
    assert job is not None
    return job


class Odd(BaseException):
    """What is no Exception, like the outcomes of pytest."""


@pytest.mark.parametrize("error", [Odd(), GeneratorExit(), SystemExit(3)], ids=repr)
async def test_whatever_a_coroutine_raises_fails_its_job(
    queue: pgq.Queue, worker: pgq.Worker, error: BaseException
) -> None:
    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        raise error

    job_id = await queue.enqueue(1, max_attempts=1)
    await within(worker.run_until_idle())
    job = await seen(queue, job_id)
    assert job.state == "dead"
    assert "in handle" in str(job.last_error)


async def test_who_cancels_itself_has_failed(queue: pgq.Queue, worker: pgq.Worker) -> None:
    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        raise asyncio.CancelledError

    job_id = await queue.enqueue(1, max_attempts=1)
    await within(worker.run_until_idle())
    assert (await seen(queue, job_id)).state == "dead"


@pytest.mark.parametrize("error", [StopIteration(1), KeyboardInterrupt(), Odd()], ids=repr)
async def test_whatever_a_thread_raises_fails_its_job(
    queue: pgq.Queue, worker: pgq.Worker, error: BaseException
) -> None:
    @worker.handler("default")
    def handle(_: pgq.Job) -> None:
        raise error

    job_id = await queue.enqueue(1, max_attempts=1)
    await within(worker.run_until_idle())
    job = await seen(queue, job_id)
    assert job.state == "dead"
    assert "in handle" in str(job.last_error)


class TwoArgumentsError(Exception):
    """What pickle writes but cannot read."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def leave(_: pgq.Job) -> None:
    sys.exit(3)


def divide(_: pgq.Job) -> None:
    raise ZeroDivisionError


def raise_two(_: pgq.Job) -> None:
    raise TwoArgumentsError(1, 2)


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (leave, RuntimeError("SystemExit(3)")),
        (divide, ZeroDivisionError()),
        (raise_two, RuntimeError("TwoArgumentsError('1 and 2')")),
    ],
)
async def test_whatever_a_process_raises_fails_its_job_with_its_traceback(
    queue: pgq.Queue, worker: pgq.Worker, function: Callable[[pgq.Job], None], error: Exception
) -> None:
    heard: list[str] = []

    @worker.error
    def hear(_: pgq.Job, exception: Exception) -> None:
        heard.append(repr(exception))

    worker.handler("default", process=True)(function)
    job_id = await queue.enqueue(1, max_attempts=1)
    await within(worker.run_until_idle())
    job = await seen(queue, job_id)
    assert job.state == "dead"
    assert f"in {function.__name__}" in str(job.last_error)
    assert heard == [repr(error)]


def be_interrupted(_: pgq.Job) -> str:
    os.kill(os.getpid(), signal.SIGINT)
    return "gone on"


def come_back(_: pgq.Job) -> None:
    raise pgq.Retry("busy", in_=HOUR)


async def test_a_process_takes_no_notice_of_the_terminal(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    worker.handler("default", process=True)(be_interrupted)
    job_id = await queue.enqueue(1, max_attempts=1)
    await within(worker.run_until_idle())
    assert (await seen(queue, job_id)).result == "gone on"


async def test_a_process_may_ask_for_another_try(queue: pgq.Queue, worker: pgq.Worker) -> None:
    worker.handler("default", process=True)(come_back)
    job_id = await queue.enqueue(1, max_attempts=2)
    await within(worker.run_until_idle())
    job = await seen(queue, job_id)
    assert (job.state, job.attempt, job.last_error) == ("scheduled", 1, "busy")


@pytest.mark.parametrize("outcome", [pgq.Retry, pgq.Cancel])
async def test_a_reason_may_be_an_exception(
    queue: pgq.Queue, worker: pgq.Worker, outcome: Callable[..., Exception]
) -> None:
    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        raise outcome(LookupError("no such address"))

    job_id = await queue.enqueue(1, max_attempts=1)
    await within(worker.run_until_idle())
    assert (await seen(queue, job_id)).last_error == "no such address"


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (lambda: pgq.Retry(in_=WRONG), "TypeError: in_ must be timedelta or None, not int"),
        (lambda: pgq.Retry(in_=-HOUR), "ValueError: in_ must not be negative"),
        (lambda: pgq.Retry(in_=timedelta.max), "InvalidArgument"),
        (lambda: pgq.Snooze(WRONG), "TypeError: for_ must be timedelta, not int"),
        (lambda: pgq.Snooze(-HOUR), "ValueError: for_ must not be negative"),
        (lambda: pgq.Snooze(timedelta.max), "InvalidArgument"),
    ],
)
async def test_an_outcome_that_is_not_possible_fails_the_job(
    queue: pgq.Queue, worker: pgq.Worker, outcome: Callable[[], Exception], error: str
) -> None:
    @worker.handler("default")
    async def handle(_: pgq.Job) -> Any:
        return outcome()

    job_id = await queue.enqueue(1, max_attempts=1)
    await within(worker.run_until_idle())
    job = await seen(queue, job_id)
    assert job.state == "dead"
    assert error in str(job.last_error)


@pytest.mark.parametrize("calls", [True, False])
async def test_middleware_that_hides_the_error_of_a_transaction_completes_its_job(
    connection: Connection, queue: pgq.Queue, worker: pgq.Worker, calls: bool
) -> None:
    await connection.execute("create table effect (n integer)")

    @worker.middleware
    async def hide(job: pgq.Job, call_next: Any) -> str:
        if calls:
            with contextlib.suppress(ZeroDivisionError):
                await call_next(job)
        return "hidden"

    @worker.handler("default", transaction=True)
    async def handle(_: pgq.Job, connection: Connection) -> Any:
        await connection.execute("insert into effect values (1)")
        raise ZeroDivisionError

    job_id = await queue.enqueue(1)
    await within(worker.run_until_idle())
    job = await seen(queue, job_id)
    assert (job.state, job.result) == ("completed", "hidden")
    assert await connection.fetch("select from effect") == []


@pytest.mark.parametrize(
    "error", [ZeroDivisionError(), pgq.Retry("again"), pgq.Snooze(timedelta(hours=1))], ids=repr
)
async def test_middleware_that_fails_after_a_transaction_does_not_undo_it(
    queue: pgq.Queue, worker: pgq.Worker, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    @worker.middleware
    async def fail(job: pgq.Job, call_next: Any) -> None:
        await call_next(job)
        raise error

    @worker.handler("default", transaction=True)
    async def handle(_: pgq.Job, __: Connection) -> str:
        return "done"

    job_id = await queue.enqueue(1)
    await within(worker.run_until_idle())
    job = await seen(queue, job_id)
    assert (job.state, job.result) == ("completed", "done")
    assert "was completed, but then" in caplog.text
    assert "lost the lease" not in caplog.text


async def test_a_reason_is_kept_up_to_a_length(queue: pgq.Queue, worker: pgq.Worker) -> None:
    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        raise pgq.GiveUp("x" * 1_000_000)

    job_id = await queue.enqueue(1)
    await within(worker.run_until_idle())
    assert (await seen(queue, job_id)).last_error == "x" * 20_000


async def test_an_answer_that_is_read_late_counts(pool: asyncpg.Pool[Any]) -> None:
    """It came while the event loop was blocked, and so did the time by which it was awaited."""
    seconds = 0.1
    async with pool.acquire() as connection:
        statement = await connection.prepare("select 1 from pg_sleep(0.1)")
        # asyncpg has no public name for it.
        socket = attrgetter("_transport")(connection).get_extra_info("socket")

        def block() -> None:
            select.select([socket], [], [], 30)
            time.sleep(seconds)

        async def call() -> Any:
            # The loop's next step, when the query has been sent.
            asyncio.get_running_loop().call_soon(block)
            return await statement.fetchval()

        assert await answered(connection, call(), seconds) == 1
        assert await connection.fetchval("select 2") == 2, "nor is the connection given up"


async def test_a_claim_that_has_waited_for_others_is_not_late(
    pool: asyncpg.Pool[Any],
    worker: pgq.Worker,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The claims of several queues are sent one after the other, on one connection."""
    clock = Clock(monkeypatch)
    dequeue = pgq.Queue.dequeue

    async def slow(self: pgq.Queue, *args: Any, **options: Any) -> Any:
        clock.time += 0.3 * HOUR
        return await dequeue(self, *args, **options)

    async def handle(_: pgq.Job) -> None: ...

    monkeypatch.setattr(pgq.Queue, "dequeue", slow)
    for number in range(6):
        queue = pgq.Queue(pool, f"q{number}")
        await pgq.Admin(pool).create_queue(queue.name)
        await queue.enqueue(1)
        worker.handler(queue.name, timeout=HOUR)(handle)
    await within(worker.run_until_idle())
    assert clock.time > HOUR
    assert await pool.fetchval("select sum(ready + active) from pgq_queues") == 0
    assert "given back" not in caplog.text


async def test_a_claim_that_is_read_late_is_not_begun(
    queue: pgq.Queue, worker: pgq.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the event loop is blocked, the lease of what is being claimed runs out."""
    clock = Clock(monkeypatch)
    dequeue = pgq.Queue.dequeue
    begun: list[tuple[Any, bool]] = []

    async def late_once(self: pgq.Queue, batch: int, lease: timedelta, **options: Any) -> Any:
        if clock.time:
            return await dequeue(self, batch, lease, **options)
        jobs = await dequeue(self, batch, MOMENT, **options)
        await asyncio.sleep(2 * MOMENT.total_seconds())
        clock.time += lease
        return jobs

    @worker.handler("default", timeout=HOUR, batch=1, concurrency=5)
    async def handle(job: pgq.Job) -> None:
        assert job.lease_expires_at is not None
        begun.append((job.payload, datetime.now(UTC) < job.lease_expires_at))

    monkeypatch.setattr(pgq.Queue, "dequeue", late_once)
    for number in range(3):
        await queue.enqueue(number)
    await within(worker.run_until_idle())
    assert sorted(begun) == [(number, True) for number in range(3)]


async def test_a_job_whose_transaction_cannot_begin_is_given_back_if_it_is_cancelled_then(
    queue: pgq.Queue, worker: pgq.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = asyncpg.transaction.Transaction.start
    refused = asyncio.Event()

    async def refuse_once(transaction: asyncpg.transaction.Transaction) -> None:
        task = asyncio.current_task()
        if task is None or not task.get_name().startswith("pgq job"):  # that of the worker's start
            await start(transaction)
            return
        if refused.is_set():
            await start(transaction)
        refused.set()
        raise ConnectionResetError

    monkeypatch.setattr(asyncpg.transaction.Transaction, "start", refuse_once)
    monkeypatch.setattr("pgq._worker.attempt._RELEASE_SECONDS", 60.0)

    @worker.handler("default", transaction=True, concurrency=1, timeout=SHORT)
    async def handle(_: pgq.Job, __: Connection) -> None: ...

    job_id = await queue.enqueue(1)
    async with running(worker):
        await within(refused.wait())
        await queue.cancel(job_id)

        async def ended() -> bool:
            return (await seen(queue, job_id)).state == "cancelled"

        await until(ended)


async def test_a_job_gets_no_context_from_the_one_before(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    tenant: ContextVar[int] = ContextVar("tenant")
    found: list[int | None] = []

    @worker.handler("default", concurrency=1, prefetch=5)
    async def handle(job: pgq.Job) -> None:
        found.append(tenant.get(None))
        tenant.set(job.payload)

    await queue.enqueue_many(range(3))
    await within(worker.run_until_idle())
    assert found == [None, None, None]


async def test_a_plain_function_may_return_a_coroutine(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    async def later() -> str:
        return threading.current_thread().name

    @worker.handler("default")
    def handle(_: pgq.Job) -> Any:
        return later()

    job_id = await queue.enqueue(1)
    await within(worker.run_until_idle())
    assert (await seen(queue, job_id)).result == threading.current_thread().name


async def cancelled(run: asyncio.Task[None]) -> None:
    """Cancel a run and wait for its end."""
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(run)


async def test_a_handler_that_is_cancelled_may_clean_up(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    begun = asyncio.Event()
    steps: list[int] = []

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for step in range(20):
                await asyncio.sleep(0)
                steps.append(step)

    await queue.enqueue(1)
    run = asyncio.create_task(worker.run(handle_signals=False))
    await within(begun.wait())
    await cancelled(run)
    assert steps == list(range(20))


async def test_a_deadline_is_no_less_a_failure_when_the_worker_stops(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    worker = pgq.Worker(pool)
    late = asyncio.Event()

    @worker.handler("default", deadline=FAST)
    async def handle(_: pgq.Job) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            late.set()
            await asyncio.Event().wait()

    job_id = await queue.enqueue(1, max_attempts=1)
    run = asyncio.create_task(worker.run(handle_signals=False))
    await within(late.wait())
    await cancelled(run)
    job = await seen(queue, job_id)
    assert job.state == "dead"
    assert "the deadline of the task has passed" in str(job.last_error)


async def test_a_job_is_not_given_back_before_its_thread_has_ended(
    queue: pgq.Queue, worker: pgq.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, begun, other_begun = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    other_released = asyncio.Event()
    gate, gone = threading.Event(), threading.Event()
    released: list[tuple[int, bool]] = []
    release = pgq.Queue.release

    async def watched(queue: pgq.Queue, job: pgq.Job, *args: Any, **options: Any) -> bool:
        released.append((job.payload, gone.is_set()))
        if job.payload == 2:
            other_released.set()
        return await release(queue, job, *args, **options)

    monkeypatch.setattr(pgq.Queue, "release", watched)

    @pgq.task("default")
    def thread(_: pgq.Job) -> None:
        try:
            loop.call_soon_threadsafe(begun.set)
            while True:
                time.sleep(0.001)
        finally:
            gate.wait(PATIENCE)
            gone.set()

    @pgq.task("default")
    async def other(_: pgq.Job) -> None:
        other_begun.set()
        await asyncio.Event().wait()

    worker.add(thread, other)
    for number, task in enumerate((thread, other), 1):
        await queue.enqueue(number, headers={"task": task.name})
    run = asyncio.create_task(worker.run(handle_signals=False))
    await within(begun.wait())
    await within(other_begun.wait())
    run.cancel()
    # They are cancelled, and given back, in the order in which they began.
    await within(other_released.wait())
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await within(run)
    # A claim that was under way at the end may get them again, and gives them back at once.
    assert released[0] == (2, False)
    assert (1, True) in released
    assert (1, False) not in released


async def test_a_thread_that_has_just_been_started_can_be_interrupted(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    loop, started = asyncio.get_running_loop(), asyncio.Event()

    def hold_up(*_: object) -> None:
        """Stop the thread before it runs its target, as a busy machine may."""
        sys.setprofile(None)
        if threading.current_thread().name.startswith("pgq job"):
            loop.call_soon_threadsafe(started.set)
            time.sleep(0.1)

    @worker.handler("default")
    def handle(_: pgq.Job) -> None:
        while True:
            time.sleep(0.001)

    await queue.enqueue(1)
    threading.setprofile(hold_up)
    try:
        run = asyncio.create_task(worker.run(handle_signals=False))
        await within(started.wait())
    finally:
        threading.setprofile(None)
    await cancelled(run)
    (job,) = await queue.dequeue()
    assert job.attempt == 1


async def test_a_thread_that_does_not_end_keeps_its_lease_and_holds_up_nobody(
    queue: pgq.Queue,
    worker: pgq.Worker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("pgq._worker.run._CANCEL_SECONDS", 0.05)
    loop, begun, gate = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    @worker.handler("default", deadline=FAST)
    def handle(_: pgq.Job) -> None:
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                loop.call_soon_threadsafe(begun.set)
                gate.wait(PATIENCE)

    others = asyncio.all_tasks()
    job_id = await queue.enqueue(1)
    run = asyncio.create_task(worker.run(handle_signals=False))
    await within(begun.wait())
    await cancelled(run)
    assert (await seen(queue, job_id)).state == "active"
    assert "was not given back" in caplog.text
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == others
    gate.set()


@pytest.mark.parametrize("error", [ZeroDivisionError(), Odd()], ids=repr)
async def test_who_fails_to_clean_up_is_given_back_all_the_same(
    queue: pgq.Queue,
    worker: pgq.Worker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
) -> None:
    begun = asyncio.Event()
    ends = errors_of_attempts(monkeypatch)

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise error

    await queue.enqueue(1, max_attempts=1)
    run = asyncio.create_task(worker.run(handle_signals=False))
    await within(begun.wait())
    await cancelled(run)
    (job,) = await queue.dequeue()
    assert (job.attempt, job.last_error) == (1, None)
    assert "failed as it was cancelled" in caplog.text
    assert ends == ["CancelledError('abort')"]


async def test_who_fails_to_clean_up_is_cancelled_all_the_same(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    begun = asyncio.Event()

    @worker.handler("default", timeout=SHORT)
    async def handle(_: pgq.Job) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError

    job_id = await queue.enqueue(1)
    async with running(worker):
        await within(begun.wait())
        await queue.cancel(job_id)

        async def ended() -> bool:
            return (await seen(queue, job_id)).state == "cancelled"

        await until(ended)
    assert (await seen(queue, job_id)).last_error == "cancelled on request"


async def test_what_fails_at_the_deadline_is_told_beside_it(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    @worker.handler("default", deadline=FAST)
    async def handle(_: pgq.Job) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError

    job_id = await queue.enqueue(1, max_attempts=1)
    await within(worker.run_until_idle())
    error = str((await seen(queue, job_id)).last_error)
    assert "ZeroDivisionError" in error
    assert error.endswith("TimeoutError: the deadline of the task has passed\n")


async def test_who_takes_no_notice_of_a_cancellation_holds_up_nobody_for_ever(
    queue: pgq.Queue,
    worker: pgq.Worker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("pgq._worker.run._CANCEL_SECONDS", 0.05)
    stubborn, other, gate = asyncio.Event(), asyncio.Event(), asyncio.Event()
    tasks: list[asyncio.Task[Any] | None] = []

    @worker.handler("default", deadline=FAST)
    async def handle(job: pgq.Job) -> None:
        if job.payload == 2:
            other.set()
            return
        tasks.append(asyncio.current_task())
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()
            stubborn.set()

    job_id = await queue.enqueue(1)
    run = asyncio.create_task(worker.run(handle_signals=False))
    await within(stubborn.wait())
    await queue.enqueue(2)
    await within(other.wait())
    try:
        await cancelled(run)
        assert (await seen(queue, job_id)).state == "active"
        told = (
            f"job {job_id} (handle) of queue 'default' was not given back: its lease will run out"
        )
        assert caplog.messages[-1] == told
    finally:
        gate.set()  # else nothing ends it
    (task,) = tasks
    assert task is not None
    await within(asyncio.wait([task]))


async def test_what_is_not_given_back_is_told_also_if_a_run_is_cancelled_twice(
    queue: pgq.Queue, worker: pgq.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    begun, interrupted, gate = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        begun.set()
        try:
            await gate.wait()
        finally:
            interrupted.set()
            await gate.wait()

    await queue.enqueue(1)
    run = asyncio.create_task(worker.run(handle_signals=False))
    await within(begun.wait())
    run.cancel()
    await within(interrupted.wait())
    await cancelled(run)
    assert "was not given back" in caplog.text


async def test_a_run_that_is_cancelled_twice_leaves_nothing_behind(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, worker: pgq.Worker
) -> None:
    begun, interrupted = asyncio.Event(), asyncio.Event()

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            interrupted.set()
            await asyncio.Event().wait()

    others = asyncio.all_tasks()
    await queue.enqueue(1)
    run = asyncio.create_task(worker.run(handle_signals=False))
    await within(begun.wait())
    run.cancel()
    await within(interrupted.wait())
    await cancelled(run)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == others
    assert [thread for thread in threading.enumerate() if thread.name == "pgq-heartbeat"] == []
    await within(pool.close())


async def test_a_run_gives_its_jobs_back_when_all_tasks_of_the_loop_are_cancelled(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    begun: set[int] = set()
    full = asyncio.Event()

    @worker.handler("default")
    async def handle(job: pgq.Job) -> None:
        begun.add(job.payload)
        if len(begun) == 3:
            full.set()
        await asyncio.Event().wait()

    others = asyncio.all_tasks()
    await queue.enqueue_many(range(3))
    run = asyncio.create_task(worker.run(handle_signals=False))
    await within(full.wait())
    for task in asyncio.all_tasks() - others - {run}:
        task.cancel()
    await cancelled(run)
    assert [(job.payload, job.attempt) for job in await queue.dequeue(5)] == [
        (0, 1),
        (1, 1),
        (2, 1),
    ]


async def test_a_signal_stops_all_workers_of_a_loop(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    await pgq.Admin(pool).create_queue("other")
    begun = {name: asyncio.Event() for name in ("default", "other")}
    before = signal.getsignal(signal.SIGTERM)
    runs: list[asyncio.Task[None]] = []

    async def handle(job: pgq.Job) -> None:
        begun[job.queue].set()

    for name in begun:
        worker = pgq.Worker(pool, poll_interval=FAST)
        worker.handler(name)(handle)
        runs.append(asyncio.create_task(worker.run()))
        await pgq.Queue(pool, name).enqueue(1)
    for event in begun.values():
        await within(event.wait())
    os.kill(os.getpid(), signal.SIGTERM)
    await within(asyncio.gather(*runs))
    assert signal.getsignal(signal.SIGTERM) == before


async def test_a_queue_that_nobody_handles_is_not_worked_off(worker: pgq.Worker) -> None:
    @worker.handler("default")
    async def handle(_: pgq.Job) -> None: ...

    worker.configure("other", concurrency=2)
    with pytest.raises(ValueError, match="no handler for queue 'other'"):
        await worker.run()
