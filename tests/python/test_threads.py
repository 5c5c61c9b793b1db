"""Plain functions: which threads handlers and hooks run in, and what those threads keep."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import asyncpg
import pgq
import pytest

from .sessions import within
from .workers import FAST, running

pytestmark = pytest.mark.once

HOOKS = ["before", "handler", "after"]


@pytest.fixture
def worker(pool: asyncpg.Pool[Any]) -> pgq.Worker:
    return pgq.Worker(pool, poll_interval=FAST)


class Bound(threading.local):
    """What a library binds to a thread, as Django binds connections."""

    made: list[int]

    def __init__(self, made: list[int]) -> None:
        made.append(threading.get_ident())


def name_thread(heard: dict[str, set[int]], name: str) -> Callable[..., None]:
    """Return a plain hook that tells which thread it runs in."""

    def hook(*_: Any) -> None:
        heard.setdefault(name, set()).add(threading.get_ident())

    return hook


async def test_jobs_one_after_the_other_share_a_thread(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    made: list[int] = []
    bound = Bound(made)
    at_once = threading.Barrier(4)

    @worker.handler("default", concurrency=4)
    def handle(job: pgq.Job) -> None:
        vars(bound)
        if job.payload < 4:  # all four places are at work once
            at_once.wait()

    made.clear()
    await queue.enqueue_many(range(100))
    await within(worker.run_until_idle())
    assert len(made) == len(set(made)) == 4


async def test_the_threads_end_with_the_run(queue: pgq.Queue, worker: pgq.Worker) -> None:
    used: list[threading.Thread] = []

    @worker.handler("default")
    def handle(_: pgq.Job) -> None:
        used.append(threading.current_thread())

    await queue.enqueue(1)
    await within(worker.run_until_idle())
    [thread] = used
    await within(asyncio.to_thread(thread.join))
    assert thread.daemon


async def test_an_interrupted_thread_handles_no_other_job(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    begun: list[tuple[int, threading.Thread]] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    @worker.handler("default", concurrency=1, deadline=FAST)
    def handle(job: pgq.Job) -> None:
        begun.append((job.payload, threading.current_thread()))
        if job.payload == 1:
            while True:
                threading.Event().wait(0.001)
        loop.call_soon_threadsafe(done.set)

    await queue.enqueue(1, max_attempts=1)
    await queue.enqueue(2)
    async with running(worker):
        await within(done.wait())
        [(_, first), (_, second)] = begun
        assert first is not second
        await within(asyncio.to_thread(first.join))


async def test_a_function_that_hangs_takes_only_its_own_thread(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    free, hangs = threading.Event(), threading.Event()
    threads: set[int] = set()

    @worker.handler("default", concurrency=2)
    def handle(job: pgq.Job) -> None:
        if job.payload == 0:
            hangs.set()
            free.wait()
        else:
            threads.add(threading.get_ident())
        if job.payload == 50:
            free.set()

    await queue.enqueue(0)
    async with running(worker):
        await within(asyncio.to_thread(hangs.wait))
        await queue.enqueue_many(range(1, 51))
        await within(asyncio.to_thread(free.wait))
    assert len(threads) == 1


async def test_plain_hooks_run_in_the_thread_of_the_handler(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    heard: dict[str, set[int]] = {}
    worker.before(name_thread(heard, "before"))
    worker.after(name_thread(heard, "after"))
    worker.handler("default", concurrency=1)(name_thread(heard, "handler"))
    await queue.enqueue(1)
    await within(worker.run_until_idle())
    assert heard == dict.fromkeys(HOOKS, heard["handler"])
    assert heard["handler"] != {threading.get_ident()}


async def test_a_hook_hears_of_an_error_in_the_thread_of_the_handler(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    heard: dict[str, set[int]] = {}
    tell = name_thread(heard, "handler")
    worker.error(name_thread(heard, "error"))

    @worker.handler("default", concurrency=1)
    def handle(_: pgq.Job) -> None:
        tell()
        raise ZeroDivisionError

    await queue.enqueue(1, max_attempts=1)
    await within(worker.run_until_idle())
    assert heard["error"] == heard["handler"]


async def test_run_job_uses_one_thread_for_a_handler_and_its_hooks(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, worker: pgq.Worker
) -> None:
    heard: dict[str, set[int]] = {}
    worker.before(name_thread(heard, "before"))
    worker.after(name_thread(heard, "after"))
    worker.handler("default")(name_thread(heard, "handler"))
    job_id = await queue.enqueue(1)
    assert await within(worker.run_job(job_id, connection=pool))
    assert heard == dict.fromkeys(HOOKS, heard["handler"])
    assert len(heard["handler"]) == 1


async def test_hooks_of_a_coroutine_run_on_the_loop_and_so_do_coroutine_hooks(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    heard: dict[str, set[int]] = {}
    other = name_thread(heard, "coroutine hook")

    @worker.before
    async def before(_: pgq.Job) -> None:
        other()

    worker.after(name_thread(heard, "plain hook"))

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None: ...

    await queue.enqueue(1)
    await within(worker.run_until_idle())
    here = {threading.get_ident()}
    assert heard == {"coroutine hook": here, "plain hook": here}


async def test_a_context_variable_set_in_the_thread_is_seen_around_it(
    queue: pgq.Queue, worker: pgq.Worker
) -> None:
    step: ContextVar[str] = ContextVar("step", default="none")
    seen: list[str] = []

    @worker.middleware
    async def around(job: pgq.Job, call_next: pgq.Endpoint) -> Any:
        seen.append(step.get())
        result = await call_next(job)
        seen.append(step.get())
        return result

    @worker.before
    def before(_: pgq.Job) -> None:
        step.set("before")

    @worker.handler("default", concurrency=1)
    def handle(_: pgq.Job) -> None:
        seen.append(step.get())
        step.set("handler")

    await queue.enqueue_many([1, 2])
    await within(worker.run_until_idle())
    assert seen == ["none", "before", "handler"] * 2
