"""What the worker logs carries its facts as attributes, under names of their own."""

from __future__ import annotations

import ast
import asyncio
import logging
import re
import signal
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import asyncpg
import pgq
import pytest
from pgq._log import about, about_worker, trouble
from pgq._worker.watch import Watch
from pgserver import PATIENCE

from .sessions import Connection, until, within
from .workers import FAST, SHORT, Hook, running

pytestmark = pytest.mark.once

PACKAGE: Final = Path(pgq.__file__).parent
SOURCES: Final = sorted([*PACKAGE.glob("_*.py"), *PACKAGE.glob("_worker/*.py")])
TERMINATE: Final = """
    select pg_terminate_backend(pid) from pg_stat_activity
     where pid <> pg_backend_pid() and datname = current_database()
"""


def facts(record: logging.LogRecord) -> dict[str, Any]:
    """Return what a record has beside that which every record has."""
    plain = logging.makeLogRecord({}).__dict__
    extra = {name: value for name, value in record.__dict__.items() if name not in plain}
    return {name: value for name, value in extra.items() if name != "message"}


def log_calls(source: Path) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "log"
        and node.func.attr not in {"isEnabledFor", "addFilter"}
    ]


def test_every_record_carries_facts() -> None:
    calls = [call for source in SOURCES for call in log_calls(source)]
    assert len(calls) > 5
    for call in calls:
        [extra] = [keyword.value for keyword in call.keywords if keyword.arg == "extra"]
        assert isinstance(extra, ast.Call)
        assert isinstance(extra.func, ast.Name)
        assert extra.func.id in {about.__name__, about_worker.__name__, trouble.__name__}


def about_jobs(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if "pgq_job_id" in facts(record)]


async def logged(caplog: pytest.LogCaptureFixture, text: str) -> logging.LogRecord:
    """Return the first record with a text, once there is one."""

    async def found() -> list[logging.LogRecord]:
        return [record for record in caplog.records if text in record.getMessage()]

    return (await until(found))[0]


async def test_a_record_about_a_job_names_it(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = await queue.enqueue(1, max_attempts=1)
    worker = pgq.Worker(pool, poll_interval=FAST)

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        raise LookupError

    async with running(worker):
        record = await logged(caplog, "failed")
    assert facts(record) == {"pgq_job_id": job_id, "pgq_queue": "default", "pgq_attempt": 1}


async def test_a_record_about_the_server_has_the_error_and_the_pause(
    pool: asyncpg.Pool[Any],
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = pgq.Worker(pool, poll_interval=FAST)
    asleep = asyncio.Event()
    Hook(monkeypatch, "after", "wait", asleep.set, nth=1)

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None: ...

    async with running(worker):
        await within(asleep.wait())
        await connection.execute(TERMINATE)
        for text in ("listen", "a call to the server failed"):
            record = await logged(caplog, text)
            named = facts(record)
            assert set(named) == {"pgq_error", "pgq_pause"}
            assert str(named["pgq_error"]) in record.getMessage()
            assert f"{named['pgq_pause']:.1f} s" in record.getMessage()


@pgq.task("default", name="thumbnail")
async def end_as_told(job: pgq.Job[str]) -> None:
    match job.payload:
        case "retry":
            raise pgq.Retry("busy")
        case "snooze":
            raise pgq.Snooze(timedelta(hours=1))
        case "give-up":
            raise pgq.GiveUp("no such image")
        case "cancel":
            raise pgq.Cancel("not wanted")
        case _:
            raise LookupError(job.payload)


@pytest.mark.parametrize(
    ("how", "level", "end"),
    [
        ("fail 1", "WARNING", "failed, attempt 1 of 1: it is dead"),
        ("fail 3", "WARNING", "failed, attempt 1 of 3: it is to be tried again"),
        ("retry 3", "INFO", "ended with Retry, attempt 1 of 3: it is to be tried again: busy"),
        ("retry 1", "WARNING", "ended with Retry, attempt 1 of 1: it is dead: busy"),
        ("snooze 1", "INFO", "ended with Snooze, attempt 1 of 1: it is given back for 1:00:00"),
        ("give-up 3", "WARNING", "ended with GiveUp, attempt 1 of 3: it is dead: no such image"),
        ("cancel 3", "INFO", "ended with Cancel, attempt 1 of 3: it is cancelled: not wanted"),
    ],
)
async def test_the_log_tells_what_becomes_of_a_job(
    pool: asyncpg.Pool[Any],
    caplog: pytest.LogCaptureFixture,
    how: str,
    level: str,
    end: str,
) -> None:
    caplog.set_level(logging.INFO, "pgq")
    how, attempts = how.split()
    job = await end_as_told.enqueue(how, max_attempts=int(attempts), connection=pool)
    await within(pgq.Worker(pool, [end_as_told]).run_until_idle())
    [record] = about_jobs(caplog)
    assert record.getMessage() == f"job {job.id} (thumbnail) of queue 'default' {end}"
    assert record.levelname == level
    assert facts(record) == {"pgq_job_id": job.id, "pgq_queue": "default", "pgq_attempt": 1}
    assert (record.exc_info is not None) == (how == "fail")


async def test_a_job_that_was_to_be_cancelled_is_not_tried_again(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever its handler makes of the cancellation."""
    caplog.set_level(logging.INFO, "pgq")
    worker = pgq.Worker(pool, poll_interval=FAST)
    begun = asyncio.Event()

    @worker.handler("default", timeout=SHORT)
    async def handle(_: pgq.Job) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise pgq.Retry("interrupted") from None

    job_id = await queue.enqueue(1)
    async with running(worker):
        await within(begun.wait())
        assert not await queue.cancel(job_id)
        await logged(caplog, "ended with Retry, attempt 1 of 20: it is cancelled: interrupted")
    job = await queue.get(job_id)
    assert job is not None
    assert job.state == "cancelled"


async def test_the_logged_traceback_begins_in_the_handler(
    pool: asyncpg.Pool[Any], caplog: pytest.LogCaptureFixture
) -> None:
    job = await end_as_told.enqueue("fail", max_attempts=1, connection=pool)
    await within(pgq.Worker(pool, [end_as_told]).run_until_idle())
    snapshot = await job.get()
    assert snapshot is not None
    assert snapshot.last_error is not None
    assert snapshot.last_error.count("  File ") == 1
    assert snapshot.last_error in caplog.text


async def test_at_level_debug_the_duration_of_each_attempt_is_logged(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    worker = pgq.Worker(pool)

    @worker.handler("default")
    async def resize(_: pgq.Job) -> None: ...

    for level in ("INFO", "DEBUG"):
        caplog.set_level(level, "pgq")
        job_id = await queue.enqueue(1, max_attempts=2)
        await within(worker.run_until_idle())
    [record] = about_jobs(caplog)
    told = rf"job {job_id} \(resize\) of queue 'default', attempt 1 of 2, took 0\.\d\d\d s"
    assert re.fullmatch(told, record.getMessage())
    assert facts(record) == {"pgq_job_id": job_id, "pgq_queue": "default", "pgq_attempt": 1}


async def test_a_worker_that_stops_tells_what_it_waits_for_and_gives_back(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pgq")
    worker = pgq.Worker(pool, name="one", grace=timedelta(hours=1))
    begun = asyncio.Semaphore(0)

    @worker.handler("default", concurrency=2, prefetch=1)
    async def hang(_: pgq.Job) -> None:
        begun.release()
        await asyncio.Event().wait()

    ids = await queue.enqueue_many([1, 2, 3])
    run = asyncio.create_task(worker.run())
    for _ in range(2):
        await within(begun.acquire())
    signal.raise_signal(signal.SIGTERM)
    record = await logged(caplog, "the worker stops")
    assert record.getMessage() == (
        "the worker stops; it waits for jobs at work (2), 3600 s at most;"
        " a second signal ends them at once"
    )
    assert facts(record) == {"pgq_worker": "one"}
    signal.raise_signal(signal.SIGTERM)
    await within(run)
    cancelled = [record.getMessage() for record in about_jobs(caplog)]
    ends = "(hang) of queue 'default' is given back: its handler was cancelled"
    assert sorted(cancelled) == [f"job {job_id} {ends}" for job_id in ids[:2]]
    assert caplog.messages[-1] == "the worker has stopped; jobs given back: 3"


@pytest.mark.parametrize("how", ["stop", "abort", "idle"])
async def test_a_worker_logs_its_stop_only_if_it_waits(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    caplog.set_level(logging.INFO, "pgq")
    worker = pgq.Worker(pool, grace=timedelta(0))
    begun = asyncio.Event()

    @worker.handler("default")
    async def hang(_: pgq.Job) -> None:
        begun.set()
        await asyncio.Event().wait()

    if how != "idle":
        await queue.enqueue(1)
    async with running(worker):
        if how != "idle":
            await within(begun.wait())
        if how == "abort":
            worker.abort()
    stops = ["the worker stops; it waits for jobs at work (1), 0 s at most"]
    assert [text for text in caplog.messages if "stops" in text] == stops * (how == "stop")
    assert ("jobs given back: 1" in caplog.text) == (how != "idle")


async def test_a_blocked_event_loop_is_told_once(
    pool: asyncpg.Pool[Any],
    queue: pgq.Queue,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pgq._worker.watch._PAUSE_SECONDS", 0.001)
    monkeypatch.setattr("pgq._worker.watch._BLOCKED_SECONDS", 0.5)
    start = Watch.start
    watches: list[Watch] = []
    worker = pgq.Worker(pool, name="one", poll_interval=FAST)
    told = threading.Event()
    told_again = threading.Event()

    def start_later(watch: Watch) -> None:
        watches.append(watch)

    class Listen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "event loop" in record.getMessage():
                (told_again if told.is_set() else told).set()

    @worker.handler("default")
    async def block(_: pgq.Job) -> list[bool]:
        start(watches[0])  # not before: a slow start of the run would be told, too
        return [told.wait(PATIENCE), told_again.wait(2)]

    monkeypatch.setattr(Watch, "start", start_later)
    listen = Listen()
    logging.getLogger("pgq").addHandler(listen)
    try:
        job_id = await queue.enqueue(1)
        await within(worker.run_until_idle())
    finally:
        logging.getLogger("pgq").removeHandler(listen)
    job = await queue.get(job_id)
    assert job is not None
    assert job.result == [True, False]
    record = await logged(caplog, "event loop")
    assert record.getMessage().endswith(f"at work: job {job_id} (block) of queue 'default'")
    assert facts(record) == {"pgq_worker": "one"}


async def test_a_worker_has_started_when_all_is_checked(
    pool: asyncpg.Pool[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pgq")
    queue = pgq.Queue(pool, "images")
    worker = pgq.Worker(pool, name="one")

    @worker.handler("images")
    async def handle(_: pgq.Job) -> None: ...

    with pytest.raises(pgq.UnknownQueue):
        await worker.run_until_idle()
    assert caplog.messages == []
    await pgq.Admin(pool).create_queue(queue.name)
    await within(worker.run_until_idle())
    assert caplog.messages == ["worker one has started"]
    assert facts(caplog.records[0]) == {"pgq_worker": "one"}
