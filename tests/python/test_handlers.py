"""How handlers are called: where, in what, for how long, and how they are cancelled."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import asyncpg
import pgq
import pytest
from pgq._worker import call as _call
from pgserver import PATIENCE

from .sessions import Connection, started, until, within
from .workers import FAST, SHORT

pytestmark = pytest.mark.once

LONG = 60  # seconds that no test waits for
LONG_LEASE = timedelta(days=24, microseconds=1)


@pytest.fixture
def worker(pool: asyncpg.Pool[Any]) -> pgq.Worker:
    return pgq.Worker(pool, poll_interval=FAST)


@asynccontextmanager
async def running(worker: pgq.Worker) -> AsyncGenerator[None, None]:
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await within(task)


async def patiently(event: asyncio.Event) -> None:
    await within(event.wait())


async def ended(queue: pgq.Queue, job_id: int) -> tuple[str, str | None]:
    """Wait until a job has gone through a worker and return its state and last error."""

    async def at_rest() -> pgq.JobSnapshot | None:
        job = await queue.get(job_id)
        assert job is not None
        return None if job.state in {"ready", "active"} else job

    job = await until(at_rest, pause=0.01)
    assert job is not None
    return job.state, job.last_error


def wait_in_python(seconds: float = LONG) -> None:
    """Wait in steps between which a thread can be interrupted."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.001)


async def test_a_coroutine_is_cancelled_at_its_deadline(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    job_id = await queue.enqueue(1, max_attempts=1)

    @worker.handler("default", deadline=FAST)
    async def handle(_: pgq.Job) -> None:
        await asyncio.sleep(LONG)

    async with running(worker):
        state, error = await ended(queue, job_id)
    assert state == "dead"
    assert error is not None
    assert "TimeoutError: the deadline of the task has passed" in error
    assert "await asyncio.sleep(LONG)" in error


async def test_a_job_has_a_deadline_of_its_own(queue: pgq.Queue, worker: pgq.Worker) -> None:
    late = await queue.enqueue(1, max_attempts=1, headers={"deadline": 0.05})
    wrong = await queue.enqueue(1, max_attempts=1, headers={"deadline": "soon"})
    good = await queue.enqueue(0, max_attempts=1, headers={"deadline": 600})

    @worker.handler("default", deadline=FAST)
    async def handle(job: pgq.Job) -> None:
        await asyncio.sleep(LONG if job.payload else 2 * FAST.total_seconds())

    async with running(worker):
        ends = [await ended(queue, job_id) for job_id in (late, wrong, good)]
    assert [state for state, _ in ends] == ["dead", "dead", "completed"]
    assert "TimeoutError: the deadline of the task has passed" in str(ends[0][1])
    assert "must be a positive number of seconds, not 'soon'" in str(ends[1][1])


async def test_a_job_that_is_run_by_itself_has_its_own_deadline(
    connection: Connection, worker: pgq.Worker
) -> None:
    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        await asyncio.sleep(LONG)

    job_id = await pgq.Queue(connection).enqueue(1, headers={"deadline": 0.05})
    with pytest.raises(TimeoutError, match="the deadline of the task has passed"):
        await worker.run_job(job_id, connection=connection)


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_request_to_cancel_reaches_the_handler(
    queue: pgq.Queue, worker: pgq.Worker, kind: str
) -> None:
    job_id = await queue.enqueue(1)
    loop = asyncio.get_running_loop()
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def in_the_loop(_: pgq.Job) -> None:
        begun.set()
        try:
            await asyncio.sleep(LONG)
        finally:
            cancelled.set()

    def in_a_thread(_: pgq.Job) -> None:
        loop.call_soon_threadsafe(begun.set)
        try:
            wait_in_python()
        except asyncio.CancelledError:
            loop.call_soon_threadsafe(cancelled.set)
            raise

    worker.handler("default", timeout=SHORT)(in_the_loop if kind == "coroutine" else in_a_thread)
    async with running(worker):
        await patiently(begun)
        assert not await queue.cancel(job_id)
        await patiently(cancelled)
        assert await ended(queue, job_id) == ("cancelled", "cancelled on request")


async def test_a_thread_whose_lease_is_lost_is_interrupted(
    queue: pgq.Queue, worker: pgq.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = await queue.enqueue(1)
    loop, begun, gone = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    @worker.handler("default", timeout=SHORT)
    def handle(_: pgq.Job) -> None:
        loop.call_soon_threadsafe(begun.set)
        try:
            wait_in_python()
        finally:
            loop.call_soon_threadsafe(gone.set)

    async with running(worker):
        await patiently(begun)
        assert await queue.cancel(job_id, force=True)
        await patiently(gone)
    assert "the handler was cancelled" in caplog.text


async def test_a_thread_that_does_not_listen_keeps_its_slot(
    pool: asyncpg.Pool[Any],
    queue: pgq.Queue,
    worker: pgq.Worker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = pgq.Queue(pool, "other")
    await pgq.Admin(pool).create_queue(other.name)
    interrupted, later = asyncio.Event(), asyncio.Event()
    inside, free = threading.Event(), threading.Event()
    interrupt: Any = vars(_call)["_interrupt"]
    begun: list[int] = []

    def watched(thread: threading.Thread) -> None:
        assert inside.wait(PATIENCE)
        interrupt(thread)
        interrupted.set()

    monkeypatch.setattr(_call, "_interrupt", watched)

    @worker.handler("default", concurrency=1, prefetch=1, deadline=FAST)
    def handle(job: pgq.Job) -> None:
        begun.append(job.payload)
        while not free.is_set():
            with suppress(asyncio.CancelledError):
                inside.set()
                free.wait(LONG)

    @worker.handler("other")
    async def handle_other(_: pgq.Job) -> None:
        later.set()

    await queue.enqueue_many([1, 2], max_attempts=1)
    async with running(worker):
        await patiently(interrupted)
        # If that had freed the slot, job 2, which the worker holds, would have begun by now.
        await other.enqueue(3)
        await patiently(later)
        assert begun == [1]
        free.set()


async def test_an_exit_in_a_thread_fails_the_job_only(queue: pgq.Queue, worker: pgq.Worker) -> None:
    job_id = await queue.enqueue(1, max_attempts=1)

    @worker.handler("default")
    def handle(_: pgq.Job) -> None:
        sys.exit(3)

    await worker.run_until_idle()
    state, error = await ended(queue, job_id)
    assert state == "dead"
    assert "SystemExit(3)" in str(error)


async def test_every_handler_sees_the_context_of_the_run(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    shared: ContextVar[str] = ContextVar("shared")
    seen: dict[str, str] = {}

    @pgq.task("default")
    async def coroutine(_: pgq.Job) -> None:
        seen["coroutine"] = shared.get()

    @pgq.task("default")
    def thread(_: pgq.Job) -> None:
        seen["thread"] = shared.get()

    @pgq.task("default", transaction=True)
    async def transaction(_: pgq.Job, __: pgq.Connection) -> None:
        seen["transaction"] = shared.get()

    worker = pgq.Worker(pool, [coroutine, thread, transaction])
    for task in (coroutine, thread, transaction):
        await task.enqueue(None, connection=pool)
    shared.set("client")
    await worker.run_until_idle()
    assert seen == dict.fromkeys(["coroutine", "thread", "transaction"], "client")


async def test_a_thread_sees_the_context_of_its_middleware(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    tenant: ContextVar[int] = ContextVar("tenant")
    seen: list[int] = []

    @worker.middleware
    async def set_tenant(job: pgq.Job, call_next: Any) -> Any:
        tenant.set(job.payload)
        return await call_next(job)

    @worker.handler("default")
    def handle(_: pgq.Job) -> None:
        seen.append(tenant.get())

    await queue.enqueue_many([1, 2])
    await worker.run_until_idle()
    assert sorted(seen) == [1, 2]


def hang(job: pgq.Job[str]) -> None:
    Path(job.payload).write_text(str(os.getpid()), encoding="utf-8")
    wait_in_python()


async def test_a_process_is_killed_when_its_job_is_cancelled(
    queue: pgq.Queue, worker: pgq.Worker, tmp_path: Path
) -> None:
    told = tmp_path / "pid"
    job_id = await queue.enqueue(str(told))
    worker.handler("default", process=True, timeout=SHORT)(hang)
    async with running(worker):
        while not told.exists() or not told.read_text(encoding="utf-8"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await queue.cancel(job_id)
        assert (await ended(queue, job_id))[0] == "cancelled"
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text(encoding="utf-8")), 0)


async def test_a_process_ends_although_nobody_can_run_anything_in_the_executor_of_the_loop(
    queue: pgq.Queue, worker: pgq.Worker, tmp_path: Path
) -> None:
    gate = threading.Event()
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as executor:
        loop.set_default_executor(executor)
        filled = loop.run_in_executor(None, gate.wait)
        try:
            job_id = await queue.enqueue(str(tmp_path / "pid"), max_attempts=1)
            worker.handler("default", process=True, deadline=FAST)(hang)
            async with running(worker):
                state, error = await ended(queue, job_id)
        finally:
            gate.set()
        await filled
    assert state == "dead"
    assert "TimeoutError: the deadline of the task has passed" in str(error)


def die(_: pgq.Job) -> None:
    os._exit(1)


async def test_a_process_that_dies_fails_its_job(queue: pgq.Queue, worker: pgq.Worker) -> None:
    job_id = await queue.enqueue(1, max_attempts=1)
    worker.handler("default", process=True)(die)
    await worker.run_until_idle()
    state, error = await ended(queue, job_id)
    assert state == "dead"
    assert "BrokenWorkerProcess" in str(error)


async def test_middleware_goes_around_hooks_and_those_around_the_handler(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    order: list[str] = []

    @worker.middleware
    async def outer(job: pgq.Job, call_next: Any) -> Any:
        order.append("outer")
        result = await call_next(job)
        order.append("outer ends")
        return result * 2

    @worker.middleware
    async def inner(job: pgq.Job, call_next: Any) -> Any:
        order.append("inner")
        return await call_next(job)

    @worker.before
    async def before(_: pgq.Job) -> None:
        order.append("before")

    @worker.after
    def after(_: pgq.Job, result: Any) -> None:
        order.append(f"after {result}")

    @worker.handler("default")
    async def handle(job: pgq.Job) -> Any:
        order.append("handler")
        return job.payload

    job_id = await queue.enqueue(7)
    await worker.run_until_idle()
    assert order == ["outer", "inner", "before", "handler", "after 7", "outer ends"]
    job = await queue.get(job_id)
    assert job is not None
    assert job.result == 14


async def test_hooks_hear_of_errors_and_do_not_hide_them(
    queue: pgq.Queue, worker: pgq.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Any] = []

    @worker.error
    def broken(*_: object) -> None:
        raise LookupError("a hook of no use")

    @worker.error
    async def hear(job: pgq.Job, error: Exception) -> None:
        heard.append((job.payload, repr(error)))

    @worker.before
    def refuse(job: pgq.Job) -> None:
        if job.payload == 2:
            raise PermissionError("not this one")

    @worker.handler("default")
    async def handle(job: pgq.Job) -> None:
        if job.payload == 3:
            raise pgq.Cancel
        raise ZeroDivisionError

    ids = await queue.enqueue_many([1, 2, 3], max_attempts=1)
    await worker.run_until_idle()
    assert heard == [(1, "ZeroDivisionError()"), (2, "PermissionError('not this one')")]
    assert "LookupError: a hook of no use" in caplog.text
    states = [await ended(queue, job_id) for job_id in ids]
    assert [state for state, _ in states] == ["dead", "dead", "cancelled"]
    assert "not this one" in str(states[1][1])


async def test_a_transaction_that_is_to_be_retried_is_rolled_back(
    connection: Connection, queue: pgq.Queue, worker: pgq.Worker
) -> None:
    await connection.execute("create table effect (n integer)")

    @worker.handler("default", transaction=True)
    async def handle(job: pgq.Job, connection: pgq.Connection) -> pgq.Snooze:
        assert isinstance(connection, get_args(pgq.Connection))
        await connection.execute("insert into effect values ($1)", job.payload)
        return pgq.Snooze(timedelta(hours=1))

    job_id = await queue.enqueue(1)
    await worker.run_until_idle()
    assert (await ended(queue, job_id))[0] == "scheduled"
    assert await connection.fetch("select from effect") == []


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({"concurrency": 2}, [2]),
        ({"concurrency": 2, "prefetch": 3}, [5]),
        ({"concurrency": 2, "prefetch": 3, "batch": 2}, [2, 2, 1]),
    ],
)
async def test_as_many_jobs_are_claimed_as_may_be_held(
    queue: pgq.Queue,
    worker: pgq.Worker,
    monkeypatch: pytest.MonkeyPatch,
    options: Any,
    batches: list[int],
) -> None:
    claimed: list[int] = []
    enough, gate = asyncio.Event(), asyncio.Event()
    dequeue = pgq.Queue.dequeue

    async def watched(*args: Any, **kwargs: Any) -> list[pgq.Job]:
        jobs = await dequeue(*args, **kwargs)
        claimed.append(len(jobs))
        if sum(claimed) == sum(batches):
            enough.set()
        return jobs

    monkeypatch.setattr(pgq.Queue, "dequeue", watched)
    at_work = 0

    worker.configure("default", **options)

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        nonlocal at_work
        at_work += 1
        await gate.wait()

    await queue.enqueue_many(range(20))
    async with running(worker):
        await patiently(enough)
        await asyncio.sleep(0)
        assert (claimed, at_work) == (batches, 2)
        worker.stop()
        gate.set()
    monkeypatch.undo()
    rest = await queue.dequeue(100)
    assert [(job.payload, job.attempt) for job in rest] == [(n, 1) for n in range(2, 20)]


@pytest.mark.parametrize("prefetch", [0, 2])
async def test_outcomes_that_are_being_written_make_room_for_as_many_jobs(
    queue: pgq.Queue,
    worker: pgq.Worker,
    monkeypatch: pytest.MonkeyPatch,
    prefetch: int,
) -> None:
    most = 2 * (1 + prefetch)
    begun = completed = most_held = 0
    enough, gate = asyncio.Event(), asyncio.Event()
    complete_many = pgq.Queue.complete_many

    async def withheld(*args: Any, **kwargs: Any) -> list[pgq.JobId]:
        nonlocal completed
        await gate.wait()
        ids = await complete_many(*args, **kwargs)
        completed += len(ids)
        return ids

    monkeypatch.setattr(pgq.Queue, "complete_many", withheld)

    @worker.handler("default", concurrency=1, prefetch=prefetch)
    async def handle(_: pgq.Job) -> None:
        nonlocal begun, most_held
        begun += 1
        most_held = max(most_held, begun - completed)
        if begun == most:
            enough.set()

    await queue.enqueue_many(range(30))
    async with started(worker.run_until_idle()) as working:
        await patiently(enough)
        await asyncio.sleep(0.2)  # for more, if it were not bounded
        gate.set()
        await within(working)
    assert (completed, most_held) == (30, most)


@pytest.mark.parametrize("listen", [True, False])
@pytest.mark.parametrize("concurrency", [1, 10])
async def test_at_a_limit_a_worker_goes_on_when_its_outcome_is_written(
    pool: asyncpg.Pool[Any],
    queue: pgq.Queue,
    monkeypatch: pytest.MonkeyPatch,
    concurrency: int,
    listen: bool,
) -> None:
    hour = timedelta(hours=1)

    async def wait_long(*_: Any, **__: Any) -> timedelta:
        return hour

    monkeypatch.setattr(pgq.Queue, "wait", wait_long)
    worker = pgq.Worker(pool, listen=listen, poll_interval=hour)
    left = 5
    enough = asyncio.Event()

    @worker.handler("default", concurrency=concurrency)
    async def handle(_: pgq.Job) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            enough.set()

    await pool.execute("select pgq_configure_queue('default', max_active => 1)")
    await queue.enqueue_many(range(left))
    async with running(worker):
        await patiently(enough)


async def test_one_result_that_cannot_be_stored_does_not_cost_the_others(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    @worker.handler("default", concurrency=5)
    async def handle(job: pgq.Job) -> Any:
        return "\0" if job.payload == 3 else job.payload

    ids = await queue.enqueue_many(range(5), max_attempts=1)
    await worker.run_until_idle()
    jobs = [await queue.get(job_id) for job_id in ids]
    assert [(job.state, job.result) for job in jobs if job is not None] == [
        *(("completed", n) for n in range(3)),
        ("dead", None),
        ("completed", 4),
    ]


async def test_until_idle_runs_what_a_handler_waits_for(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    child_begun = asyncio.Event()

    @worker.handler("default", concurrency=2)
    async def handle(job: pgq.Job) -> None:
        if job.payload == "child":
            child_begun.set()
        else:
            await queue.enqueue("child")
            await child_begun.wait()

    await queue.enqueue("parent")
    await within(worker.run_until_idle())


async def test_until_idle_follows_jobs_from_queue_to_queue(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, worker: pgq.Worker
) -> None:
    other = pgq.Queue(pool, "other")
    await pgq.Admin(pool).create_queue(other.name)
    handled: list[tuple[str, int]] = []

    @worker.handler("default")
    async def here(job: pgq.Job) -> None:
        handled.append(("default", job.payload))
        await other.enqueue(job.payload + 1)

    @worker.handler("other")
    async def there(job: pgq.Job) -> None:
        handled.append(("other", job.payload))
        if job.payload < 4:
            await queue.enqueue(job.payload + 1)

    for first in (1, 3):
        handled.clear()
        await queue.enqueue(first)
        await worker.run_until_idle()
        assert handled == [("default" if n % 2 else "other", n) for n in range(first, 5)]


async def test_a_worker_can_be_given_its_pool_late(pool: asyncpg.Pool[Any]) -> None:
    worker = pgq.Worker()

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None: ...

    with pytest.raises(ValueError, match="no pool"):
        await worker.run()
    await worker.run_until_idle(pool)
    worker.stop()
    await within(worker.run(pool))
    run = asyncio.create_task(worker.run(pool))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="runs already"):
        await worker.run(pool)
    worker.stop()
    await within(run)


def give_up(_: pgq.Job) -> None:
    raise pgq.GiveUp("there is no such address")


@pytest.mark.parametrize("how", ["raised", "returned", "transaction", "process", "alone"])
async def test_a_job_that_is_given_up_is_dead_at_once(
    connection: Connection, queue: pgq.Queue, worker: pgq.Worker, how: str
) -> None:
    await connection.execute("create table effect (n integer)")

    async def in_the_loop(job: pgq.Job) -> pgq.GiveUp:
        if how != "returned":
            give_up(job)
        return pgq.GiveUp("there is no such address")

    async def in_a_transaction(job: pgq.Job, connection: pgq.Connection) -> None:
        await connection.execute("insert into effect values (1)")
        give_up(job)

    if how == "transaction":
        worker.handler("default", transaction=True)(in_a_transaction)
    elif how == "process":
        worker.handler("default", process=True)(give_up)
    else:
        worker.handler("default")(in_the_loop)
    job_id = await queue.enqueue(1, max_attempts=20)
    if how == "alone":
        assert await worker.run_job(job_id, connection=connection)
    else:
        await worker.run_until_idle()
    assert await ended(queue, job_id) == ("dead", "there is no such address")
    assert await connection.fetch("select from effect") == []


async def test_a_job_that_is_given_up_for_no_reason_has_an_error(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        raise pgq.GiveUp

    job_id = await queue.enqueue(1)
    await worker.run_until_idle()
    assert await ended(queue, job_id) == ("dead", "GiveUp")


def eagerly(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Future[Any]:
    """Make tasks as `asyncio.eager_task_factory` does, which is new in Python 3.12.

    It runs what it can at once; here, only handlers that await nothing.
    """
    if not coroutine.__qualname__.endswith("_execute"):
        return asyncio.Task(coroutine, loop=loop, **options)
    ended = loop.create_future()
    try:
        coroutine.send(None)
    except StopIteration as end:
        ended.set_result(end.value)
    return ended


async def test_a_loop_that_begins_tasks_at_once_makes_no_difference(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    depths: set[int] = set()

    @worker.handler("default", concurrency=1, prefetch=500)
    async def handle(job: pgq.Job) -> None:
        depths.add(len(inspect.stack(0)))

    ids = await queue.enqueue_many(range(300), max_attempts=1)
    factory: Any = getattr(asyncio, "eager_task_factory", eagerly)
    asyncio.get_running_loop().set_task_factory(factory)
    await within(worker.run_until_idle())
    asyncio.get_running_loop().set_task_factory(None)
    assert {(await ended(queue, job_id))[0] for job_id in ids} == {"completed"}
    assert len(depths) == 1, "each begins where the one before began"


async def test_what_no_outcome_is_fails_its_job_only(queue: pgq.Queue, worker: pgq.Worker) -> None:
    class Unspeakable:
        def __str__(self) -> str:
            raise LookupError("it cannot be said")

    class Hasty(pgq.Retry):
        def __init__(self) -> None:
            """Leave out what `Retry` needs."""

    @worker.handler("default")
    async def handle(job: pgq.Job) -> Any:
        if job.payload == 1:
            raise pgq.Cancel(Unspeakable())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        return Hasty() if job.payload == 2 else None

    ids = await queue.enqueue_many([1, 2, 3], max_attempts=1)
    await within(worker.run_until_idle())
    (first, said), (second, lacks), (third, _) = [await ended(queue, job_id) for job_id in ids]
    assert (first, second, third) == ("dead", "dead", "completed")
    assert "it cannot be said" in str(said)
    assert "AttributeError" in str(lacks)


@pytest.mark.parametrize("options", [{"batch": 0}, {"prefetch": -1}, {"timeout": LONG_LEASE}])
async def test_wrong_options_are_told_at_once(worker: pgq.Worker, options: Any) -> None:
    with pytest.raises(ValueError, match="must"):
        worker.configure("default", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"poll_interval": timedelta(0)},
        {"call_timeout": timedelta(0)},
        {"grace": timedelta(seconds=-1)},
    ],
)
async def test_wrong_arguments_are_told_at_once(options: Any) -> None:
    with pytest.raises(ValueError, match="must"):
        pgq.Worker(**options)
