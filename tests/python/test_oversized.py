"""Jobs that take long to be read, or cannot be read at all: they hold up no others."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import asyncpg
import pgq
import pytest

from .sessions import until
from .workers import FAST, SHORT, Hook, ended, running

pytestmark = pytest.mark.once

CALL: Final = timedelta(seconds=1)
# Stands for what the server does with a text of more than 1 GB, and for a slow network.
READER: Final = """
    create function read_job(jsonb) returns text language plpgsql strict as $$
    begin
        if $1 = '"unreadable"' then
            raise program_limit_exceeded using message = 'out of memory';
        end if;
        perform pg_sleep(($1 ->> 'seconds')::float8) where jsonb_typeof($1) = 'object';
        return concat($1);
    end
    $$;
    create cast (jsonb as text) with function read_job(jsonb);
"""


async def work(pool: asyncpg.Pool[Any], payloads: list[Any], completed: int) -> list[Any]:
    """Let a worker handle jobs with these payloads; return the state and error of the others."""
    worker = pgq.Worker(pool, poll_interval=FAST, call_timeout=CALL)

    @worker.handler("default", timeout=SHORT)
    async def handle(_: pgq.Job) -> None: ...

    await pgq.Queue(pool).enqueue_many(payloads)
    await pool.execute(READER)
    async with running(worker):
        rows = await ended(pool, completed)
        assert [row[2] for row in rows if row[1] == "completed"] == [1] * completed
        query = "select state, attempt, last_error from pgq_jobs where state <> 'completed'"

        async def failed() -> list[Any] | None:
            rows = await pool.fetch(query)
            done = all(row["last_error"] is not None for row in rows)
            return [tuple(row) for row in rows] if done else None

        found = await until(failed) if len(payloads) > completed else []
    return found or []


async def test_a_job_that_cannot_be_read_fails_alone(pool: asyncpg.Pool[Any]) -> None:
    payloads = [1, 2, 3, "unreadable", 4, 5, 6, 7, 8, 9]
    [(state, attempt, error)] = await work(pool, payloads, 9)
    assert (state, attempt) == ("dead", 1)
    assert error == "the job cannot be read: out of memory"


async def test_jobs_that_are_too_large_to_be_read_together_are_read_one_by_one(
    pool: asyncpg.Pool[Any],
) -> None:
    assert await work(pool, [{"seconds": 0.4}] * 6, 6) == []


async def test_one_job_may_take_as_long_to_be_read_as_its_lease_lasts(
    pool: asyncpg.Pool[Any],
) -> None:
    assert await work(pool, [1, {"seconds": 1.5}, 2], 3) == []


async def test_a_job_that_is_never_read_is_tried_again_later_and_holds_up_nobody(
    pool: asyncpg.Pool[Any],
) -> None:
    [(state, attempt, error)] = await work(pool, [1, {"seconds": 3600}, 2], 2)
    assert (state, attempt) == ("scheduled", 1)
    assert error.startswith("the job cannot be read: ")


async def test_a_job_that_another_worker_has_failed_meanwhile_ends_no_worker(
    pool: asyncpg.Pool[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail_it() -> None:
        await pool.execute("""
            select pgq_fail(c.id, c.token, 'elsewhere', retryable => false)
              from pgq_claim((select j.id from pgq_jobs j where j.payload = '"unreadable"')) c""")

    # The first claim cannot be read, the second one is to fail the job.
    hook = Hook(monkeypatch, "before", "claim", fail_it)
    assert await work(pool, ["unreadable", 1, 2], 2) == [("dead", 1, "elsewhere")]
    assert hook.done
