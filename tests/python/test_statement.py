"""The statement of an enqueue, for drivers of which pgq knows nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import asyncpg
import pgq
import psycopg
import pytest

pytestmark = pytest.mark.once


@dataclass
class Email:
    to: str


@pgq.task("default")
async def send(job: pgq.Job[Email]) -> None: ...


@pgq.task("default", schema='odd "%$1')
async def send_elsewhere(job: pgq.Job[Email]) -> None: ...


async def test_a_statement_adds_what_enqueue_adds(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    options: Any = {
        "dedupe_key": "d",
        "priority": 3,
        "run_at": datetime(2020, 1, 1, tzinfo=UTC),
        "headers": {"trace": "%s"},
        "max_attempts": 2,
    }
    sql, parameters = send.statement(Email("100 % $1"), **options)
    job_id = await pool.fetchval(sql, *parameters)
    [stated] = await queue.dequeue()
    assert stated.id == job_id
    assert stated.payload == {"to": "100 % $1"}
    assert stated.headers == {"task": "send", "trace": "%s"}
    await queue.complete(stated)

    await send.enqueue(Email("100 % $1"), connection=pool, **options)
    [enqueued] = await queue.dequeue()
    for name in ("payload", "headers", "priority", "dedupe_key", "max_attempts"):
        assert getattr(stated, name) == getattr(enqueued, name)


async def test_pyformat_has_every_parameter_by_its_name(
    dsn: dict[str, Any], queue: pgq.Queue
) -> None:
    first = await queue.enqueue(1)
    statement = send.statement(
        Email("50 % $2::text"), after=(first,), delay=timedelta(hours=1), group_key=None
    )
    async with await psycopg.AsyncConnection.connect(
        host=dsn["host"], port=dsn["port"], user=dsn["user"], dbname=dsn["database"]
    ) as own:
        cursor = await own.execute(*statement.pyformat())
        row = await cursor.fetchone()
    assert row is not None
    job = await queue.get(row[0])
    assert job is not None
    assert (job.state, job.payload) == ("waiting", {"to": "50 % $2::text"})
    assert job.run_at - job.enqueued_at > timedelta(minutes=59)


async def test_psycopg2_takes_a_statement_with_all_kinds_of_parameters(
    dsn: dict[str, Any], queue: pgq.Queue
) -> None:
    first = await queue.enqueue(1)
    later = datetime(2999, 1, 1, tzinfo=UTC)
    psycopg2: Any = import_module("psycopg2")  # it has no types
    own = psycopg2.connect(
        host=dsn["host"], port=dsn["port"], user=dsn["user"], dbname=dsn["database"]
    )
    ids: list[int] = []
    given: list[dict[str, Any]] = [
        {"after": (first,), "headers": {"trace": "%s"}},
        {"delay": timedelta(hours=1), "priority": 3},
        {"run_at": later, "dedupe_key": "50 %"},
    ]
    with own, own.cursor() as cursor:
        for options in given:
            cursor.execute(*send.statement(Email("50 % $2::text"), **options).pyformat())
            ids.append(*cursor.fetchone())
    own.close()
    jobs = [await queue.get(job_id) for job_id in ids]
    waiting, delayed, scheduled = (job for job in jobs if job is not None)
    assert (waiting.state, waiting.payload) == ("waiting", {"to": "50 % $2::text"})
    assert waiting.headers == {"task": "send", "trace": "%s"}
    assert delayed.run_at - delayed.enqueued_at > timedelta(minutes=59)
    assert (delayed.priority, scheduled.run_at, scheduled.dedupe_key) == (3, later, "50 %")


def test_the_schema_is_quoted_in_each_style() -> None:
    statement = send_elsewhere.statement(Email("ada@example.org"))
    assert statement.sql.startswith('select "odd ""%$1".pgq_enqueue(')
    sql, parameters = statement.pyformat()
    assert sql.startswith('select "odd ""%%$1".pgq_enqueue(')
    assert set(re.findall(r"%\((\w+)\)s", sql)) == set(parameters)
    assert [parameters[f"p{number}"] for number in range(1, 14)] == list(statement.parameters)


def test_what_the_client_can_check_is_checked() -> None:
    wrong: Any = "ada@example.org"
    with pytest.raises(pgq.InvalidPayload):
        send.statement(wrong)
    with pytest.raises(pgq.InvalidArgument, match="no time zone"):
        send.statement(Email("x"), run_at=datetime(2030, 1, 1))  # noqa: DTZ001 it is the fault
