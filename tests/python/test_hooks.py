"""Hooks for errors: each attempt that has failed calls them once, and no other does."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg
import pgq
import pytest
from pgq._worker import run as _run

from .sessions import Connection, started, until, within
from .workers import FAST, SHORT, ended, errors_of_attempts, running

pytestmark = pytest.mark.once


@dataclass
class Email:
    to: str


@pytest.fixture
def worker(pool: asyncpg.Pool[Any]) -> pgq.Worker:
    return pgq.Worker(pool, poll_interval=FAST)


@pytest.fixture
def heard(worker: pgq.Worker) -> list[tuple[Any, str]]:
    """What a hook of the worker hears."""
    heard: list[tuple[Any, str]] = []

    @worker.error
    async def hear(job: pgq.Job, error: Exception) -> None:
        assert isinstance(error, Exception)
        heard.append((job.payload, repr(error).partition("(")[0]))

    return heard


async def state(queue: pgq.Queue, job_id: int) -> str:
    job = await queue.get(job_id)
    assert job is not None
    return job.state


async def divide(_: pgq.Job) -> None:
    raise ZeroDivisionError


async def leave(_: pgq.Job) -> None:
    raise SystemExit(3)


async def hang(_: pgq.Job) -> None:
    await asyncio.Event().wait()


def hang_in_a_thread(_: pgq.Job) -> None:
    while True:
        time.sleep(0.001)


async def take(_: pgq.Job[Email]) -> None: ...


async def return_text(_: pgq.Job) -> int:
    wrong: Any = "text"
    return wrong  # type: ignore[no-any-return]


async def return_no_json(_: pgq.Job) -> Any:
    return object()


async def return_zero_byte(_: pgq.Job) -> Any:
    return "\0"


async def retry_at_the_end_of_time(_: pgq.Job) -> None:
    raise pgq.Retry(in_=timedelta.max)


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (divide, "ZeroDivisionError"),
        (leave, "RuntimeError"),
        (hang, "TimeoutError"),
        (hang_in_a_thread, "TimeoutError"),
        (take, "InvalidPayload"),
        (return_text, "InvalidPayload"),
        (return_no_json, "TypeError"),
        (return_zero_byte, "InvalidArgument"),
        (retry_at_the_end_of_time, "InvalidArgument"),
    ],
)
async def test_a_failure_is_told_once_whatever_it_is(
    queue: pgq.Queue,
    worker: pgq.Worker,
    heard: list[tuple[Any, str]],
    function: Callable[[pgq.Job], Any],
    error: str,
) -> None:
    deadline = FAST if function in {hang, hang_in_a_thread} else None
    worker.handler("default", deadline=deadline)(function)
    job_id = await queue.enqueue(1, max_attempts=1)
    await within(worker.run_until_idle())
    assert await state(queue, job_id) == "dead"
    assert heard == [(1, error)]


async def test_an_exit_of_a_hook_is_not_that_of_the_worker(
    queue: pgq.Queue, worker: pgq.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    @worker.error
    def leave_then(_: pgq.Job, __: BaseException) -> None:
        raise SystemExit(3)

    worker.handler("default")(return_zero_byte)
    job_id = await queue.enqueue(1, max_attempts=1)
    await within(worker.run_until_idle())
    assert await state(queue, job_id) == "dead"
    assert "a hook failed" in caplog.text


async def test_a_task_that_is_not_there_is_told(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, worker: pgq.Worker, heard: list[tuple[Any, str]]
) -> None:
    worker.add(pgq.Task[Any, Any](take, "default"))
    await queue.enqueue(1, headers={"task": "other"}, max_attempts=1)
    await pool.execute("select pgq_enqueue($1::text::jsonb, max_attempts => 1)", "1" * 5000)
    await within(worker.run_until_idle())
    assert sorted(error for _, error in heard) == ["InvalidPayload", "UnknownTask"]


async def test_what_is_around_a_handler_is_told(
    queue: pgq.Queue, worker: pgq.Worker, heard: list[tuple[Any, str]]
) -> None:
    @worker.middleware
    async def around(job: pgq.Job, call_next: pgq.Endpoint) -> Any:
        if job.payload == 1:
            raise PermissionError
        try:
            return await call_next(job)
        except ZeroDivisionError:
            if job.payload == 2:
                return None
            raise LookupError from None

    worker.handler("default")(divide)
    ids = await queue.enqueue_many([1, 2, 3], max_attempts=1)
    await within(worker.run_until_idle())
    assert [await state(queue, job_id) for job_id in ids] == ["dead", "completed", "dead"]
    assert sorted(heard) == [(1, "PermissionError"), (3, "LookupError")]


async def test_a_hook_is_given_the_payload_of_the_handler(
    queue: pgq.Queue, worker: pgq.Worker, heard: list[tuple[Any, str]]
) -> None:
    @worker.handler("default", transaction=True)
    async def handle(_: pgq.Job[Email], __: Connection) -> None:
        raise ZeroDivisionError

    await queue.enqueue({"to": "ada"})
    await within(worker.run_until_idle())
    assert heard == [(Email("ada"), "ZeroDivisionError")]


@pytest.mark.parametrize(
    "outcome", [pgq.Retry(), pgq.Snooze(SHORT), pgq.GiveUp(), pgq.Cancel()], ids=repr
)
async def test_an_outcome_is_no_error(
    queue: pgq.Queue,
    worker: pgq.Worker,
    heard: list[tuple[Any, str]],
    outcome: Exception,
) -> None:
    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        raise outcome

    await queue.enqueue(1)
    await within(worker.run_until_idle())
    assert heard == []


async def test_an_attempt_that_did_not_fail_is_not_told(
    queue: pgq.Queue, worker: pgq.Worker, heard: list[tuple[Any, str]]
) -> None:
    begun: dict[int, asyncio.Event] = {n: asyncio.Event() for n in (1, 2)}
    cancelled = asyncio.Event()

    @worker.handler("default", timeout=SHORT)
    async def handle(job: pgq.Job) -> None:
        begun[job.payload].set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    ids = await queue.enqueue_many([1, 2])
    run = asyncio.create_task(worker.run(handle_signals=False))
    for event in begun.values():
        await within(event.wait())
    await queue.cancel(ids[0])
    await within(cancelled.wait())
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(run)
    assert [await state(queue, job_id) for job_id in ids] == ["cancelled", "ready"]
    assert heard == []


async def test_an_attempt_has_failed_although_the_worker_ends_before_its_hooks(
    queue: pgq.Queue, worker: pgq.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = asyncio.Event()
    ends = errors_of_attempts(monkeypatch)

    @worker.error
    async def hear(_: pgq.Job, __: Exception) -> None:
        told.set()
        await asyncio.Event().wait()

    worker.handler("default")(divide)
    job_id = await queue.enqueue(1, max_attempts=1)
    run = asyncio.create_task(worker.run(handle_signals=False))
    await within(told.wait())
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(run)
    job = await queue.get(job_id)
    assert job is not None
    assert job.state == "dead"
    assert "ZeroDivisionError" in str(job.last_error)
    assert ends == ["ZeroDivisionError()"]


async def test_a_hook_that_hangs_holds_up_no_other_outcome(
    pool: asyncpg.Pool[Any],
    queue: pgq.Queue,
    worker: pgq.Worker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, told = asyncio.Event(), asyncio.Event()
    heard: list[int] = []
    wait: Any = vars(_run)["_wait"]

    async def watched(tasks: list[asyncio.Task[None]], seconds: float) -> None:
        if any(task.get_name().startswith("pgq hooks") for task in tasks):
            gate.set()
        await wait(tasks, seconds)

    monkeypatch.setattr(_run, "_wait", watched)

    @worker.error
    async def hear(job: pgq.Job, _: Exception) -> None:
        told.set()
        await gate.wait()
        heard.append(job.payload)

    @worker.handler("default")
    async def handle(job: pgq.Job) -> Any:
        return "\0" if job.payload == 1 else None

    await queue.enqueue(1, max_attempts=1)
    async with running(worker):
        await within(told.wait())
        await queue.enqueue(2)
        await ended(pool, 1)
        assert heard == []
    assert heard == [1], "the end of the run waits for it"


async def abort_at(event: asyncio.Event, worker: pgq.Worker) -> None:
    """Run a worker, and abort it when an event has come."""
    async with started(worker.run(handle_signals=False)) as run:
        await within(event.wait())
        worker.abort()
        await within(run, 15)


async def test_a_cancellation_is_not_lost_while_a_transaction_begins(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, dsn: dict[str, Any]
) -> None:
    swallowed = asyncio.Event()
    begins = contextvars.ContextVar("begins", default=False)  # also in tasks of asyncpg's

    async def set_up(_: Any) -> None:
        if begins.get():
            swallowed.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async with asyncpg.create_pool(**dsn, min_size=1, setup=set_up) as slow:
        worker = pgq.Worker(slow, grace=timedelta(hours=1))

        @worker.middleware
        async def begin(job: pgq.Job, call_next: pgq.Endpoint) -> Any:
            begins.set(True)
            return await call_next(job)

        @worker.handler("default", transaction=True)
        async def handle(_: pgq.Job, connection: Connection) -> None:
            await asyncio.Event().wait()

        await queue.enqueue(1)
        await abort_at(swallowed, worker)
    assert [job.attempt for job in await queue.dequeue()] == [1], "it was given back"


async def test_a_handler_that_middleware_calls_again_after_a_failed_commit_can_be_stopped(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    again = asyncio.Event()
    worker = pgq.Worker(pool, grace=timedelta(hours=1))

    @worker.middleware
    async def retry(job: pgq.Job, call_next: pgq.Endpoint) -> Any:
        try:
            return await call_next(job)
        except asyncpg.UniqueViolationError:
            again.set()
            return await call_next(job)

    @worker.handler("default", transaction=True)
    async def handle(_: pgq.Job, connection: Connection) -> None:
        if again.is_set():
            await asyncio.Event().wait()
        await connection.execute("insert into effect values (1)")

    await pool.execute("create table effect (n integer unique deferrable initially deferred)")
    await pool.execute("insert into effect values (1)")
    await queue.enqueue(1)
    await abort_at(again, worker)
    assert [job.attempt for job in await queue.dequeue()] == [1], "it was given back"


async def test_a_stop_during_a_commit_that_fails_counts_for_what_comes_then(
    pool: asyncpg.Pool[Any], connection: Connection, queue: pgq.Queue
) -> None:
    worker = pgq.Worker(pool, grace=timedelta(hours=1))
    pids: list[int] = []

    @worker.middleware
    async def retry(job: pgq.Job, call_next: pgq.Endpoint) -> Any:
        try:
            return await call_next(job)
        except asyncpg.UniqueViolationError:
            return await asyncio.Event().wait()

    @worker.handler("default", transaction=True)
    async def handle(_: pgq.Job, connection: Connection) -> None:
        await connection.execute("insert into effect values (1)")
        pids.append(connection.get_server_pid())

    await pool.execute("create table effect (n integer unique deferrable initially deferred)")
    await connection.execute("begin; insert into effect values (1)")
    await queue.enqueue(1)

    async def waits() -> bool:
        blockers = "select pg_blocking_pids($1)"
        return bool(pids and await connection.fetchval(blockers, pids[0]))

    async with started(worker.run(handle_signals=False)) as run:
        await until(waits)
        worker.abort()
        await connection.execute("commit")
        await within(run, 15)
    assert [job.attempt for job in await queue.dequeue()] == [1], "it was given back"


@pytest.mark.parametrize(
    ("function", "error"),
    [(divide, ZeroDivisionError), (return_zero_byte, pgq.InvalidArgument)],
)
async def test_a_job_that_is_run_by_itself_tells_once(
    connection: Connection,
    worker: pgq.Worker,
    heard: list[tuple[Any, str]],
    function: Callable[[pgq.Job], Any],
    error: type[Exception],
) -> None:
    worker.handler("default")(function)
    job_id = await pgq.Queue(connection).enqueue(1)
    with pytest.raises(error):
        await worker.run_job(job_id, connection=connection)
    assert heard == [(1, error.__name__)]
