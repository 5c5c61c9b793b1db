"""What the worker logs carries its facts as attributes, under names of their own."""

from __future__ import annotations

import ast
import asyncio
import logging
from pathlib import Path
from typing import Any, Final

import asyncpg
import pgq
import pytest
from pgq._log import about, trouble

from .sessions import Connection, until, within
from .workers import FAST, Hook, running

pytestmark = pytest.mark.once

SOURCES: Final = sorted(Path(pgq.__file__).parent.glob("_*.py"))
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
    ]


def test_every_record_carries_facts() -> None:
    calls = [call for source in SOURCES for call in log_calls(source)]
    assert len(calls) > 5
    for call in calls:
        [extra] = [keyword.value for keyword in call.keywords if keyword.arg == "extra"]
        assert isinstance(extra, ast.Call)
        assert isinstance(extra.func, ast.Name)
        assert extra.func.id in {about.__name__, trouble.__name__}


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
