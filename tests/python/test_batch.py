"""Batches: what runs at the end, and what is known of each of the jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import asyncpg
import pgq
import psycopg
import pytest
from pgq import testing
from sqlalchemy import URL, create_engine
from sqlalchemy.dialects import registry
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

pytestmark = pytest.mark.server

JOBS: Final = {"ok": "completed", "dead": "dead", "no": "cancelled"}


@pgq.task("default")
async def step(job: pgq.Job[str]) -> str:
    if job.payload == "dead":
        raise pgq.GiveUp("dead it is")
    if job.payload == "no":
        raise pgq.Cancel("not wanted")
    return job.payload


@pgq.task("default")
async def report(job: pgq.Job[str]) -> str:
    return job.payload


async def add(pool: asyncpg.Pool[Any], payloads: list[str]) -> tuple[pgq.Batch, int]:
    """Add a batch and its report in one transaction; return the batch and the report's id."""
    async with pool.acquire() as connection, connection.transaction():
        handles = await step.enqueue_many(payloads, connection=connection)
        batch = pgq.Batch(pool, handles)
        ending = await report.enqueue("end", connection=connection, **batch.at_end)
    return batch, ending.id


async def test_a_report_runs_when_all_have_ended_and_sees_what_became_of_each(
    pool: asyncpg.Pool[Any],
) -> None:
    seen: list[tuple[pgq.Progress, list[tuple[Any, Any]]]] = []

    async def look(job: pgq.Job[Any], call_next: Any) -> Any:
        if job.headers and job.headers["task"] == "report":
            of_it = pgq.Batch.of(pool, job)
            became = [(ended.payload, ended.state) async for ended in of_it.jobs()]
            seen.append((await of_it.progress(), became))
        return await call_next(job)

    batch, ending = await add(pool, [*JOBS])
    assert await batch.progress() == pgq.Progress(
        total=3, pending=3, completed=0, dead=0, cancelled=0, unknown=0
    )
    worker = pgq.Worker(pool, [step, report])
    worker.middleware(look)
    await worker.run_until_idle()
    every = pgq.Progress(total=3, pending=0, completed=1, dead=1, cancelled=1, unknown=0)
    assert seen == [(every, [*JOBS.items()])]
    found = await pgq.Queue(pool).get(ending)
    assert found is not None
    assert found.state == "completed"
    assert pgq.Batch.of(pool, found).ids == batch.ids


async def test_of_jobs_that_are_not_kept_nothing_is_known(pool: asyncpg.Pool[Any]) -> None:
    await pgq.Admin(pool).configure_queue("default", keep_completed=timedelta(0))
    batch, _ = await add(pool, ["ok", "dead"])
    await pgq.Worker(pool, [step, report]).run_until_idle()
    progress = await batch.progress()
    assert (progress.unknown, progress.dead) == (1, 1)
    assert [job.state async for job in batch.jobs()] == ["dead"]


async def test_a_batch_of_many_queues_is_stored_as_ranges(pool: asyncpg.Pool[Any]) -> None:
    many = await step.enqueue_many(["ok"] * 1500, connection=pool)
    lone = await pgq.Queue(pool).enqueue("ok")
    await pgq.Queue(pool).enqueue("of no batch")
    last = await step.enqueue("ok", connection=pool)
    batch = pgq.Batch(pool, [last, lone, *many, many[0]])
    assert batch.at_end.get("headers") == {
        "pgq_batch": [[many[0].id, lone], [last.id, last.id]],
    }
    ending = await report.enqueue("end", connection=pool, **batch.at_end)
    found = await ending.get(connection=pool)
    assert found is not None
    assert found.state == "waiting"
    again = pgq.Batch.of(pool, found)
    assert len(again.ids) == 1502
    assert [job.id async for job in again.jobs()] == [*again.ids]
    assert (await again.progress()).pending == 1502


async def end_all(pool: asyncpg.Pool[Any]) -> None:
    await pgq.Worker(pool, [step, report]).run_until_idle()


ENDED: Final = pgq.Progress(total=3, pending=0, completed=1, dead=1, cancelled=1, unknown=0)


def url_of(driver: str, dsn: dict[str, Any]) -> URL:
    place = {"host": str(dsn["host"]), "port": str(dsn["port"])}
    return URL.create(
        f"postgresql+{driver}", username=dsn["user"], database=dsn["database"], query=place
    )


@pytest.fixture
def dialects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget after the test that there was an engine on asyncpg."""
    known: Any = registry
    monkeypatch.setattr(known, "impls", {**known.impls})


@pytest.mark.usefixtures("dialects")
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_batch_looks_with_a_session(
    dsn: dict[str, Any], pool: asyncpg.Pool[Any], driver: str
) -> None:
    engine = create_async_engine(url_of(driver, dsn))
    async with AsyncSession(engine) as session:
        handles = await step.enqueue_many([*JOBS], session=session)
        ending = await report.enqueue("end", session=session, **pgq.Batch(None, handles).at_end)
        await session.commit()
        await end_all(pool)
        found = await ending.get(session=session)
        assert found is not None
        batch = pgq.Batch.of(session, found)
        assert await batch.progress() == ENDED
        assert [job.state async for job in batch.jobs()] == [*JOBS.values()]
        nowhere = pgq.Batch(None, handles)
        with pytest.raises(TypeError, match="not NoneType"):
            await nowhere.progress()
        async with pool.acquire() as connection:
            assert await nowhere.progress(connection=connection) == ENDED
    await engine.dispose()


async def test_a_batch_looks_from_synchronous_code(
    dsn: dict[str, Any], pool: asyncpg.Pool[Any]
) -> None:
    where = {"host": dsn["host"], "port": dsn["port"], "user": dsn["user"]}
    with psycopg.connect(**where, dbname=dsn["database"], autocommit=True) as own:
        with own.transaction():
            handles = step.enqueue_many_sync([*JOBS], connection=own)
            batch = pgq.Batch(None, handles)
            report.enqueue_sync("end", connection=own, **batch.at_end)
        assert batch.progress_sync(connection=own).pending == 3
        await end_all(pool)
        assert batch.progress_sync(connection=own) == ENDED
        states = [job.state for job in batch.jobs_sync(connection=own)]
    assert states == [*JOBS.values()]
    engine = create_engine(url_of("psycopg", dsn))
    with Session(engine) as session:
        assert batch.progress_sync(session=session) == ENDED
        assert [job.state for job in batch.jobs_sync(session=session)] == [*JOBS.values()]
    engine.dispose()
    with pytest.raises(TypeError, match=r"^either a connection or a session"):
        batch.progress_sync()


async def test_an_empty_batch_is_at_its_end(pool: asyncpg.Pool[Any]) -> None:
    batch, ending = await add(pool, [])
    found = await pgq.Queue(pool).get(ending)
    assert found is not None
    assert found.state == "ready"
    assert (await batch.progress()).total == 0


async def test_a_report_has_headers_of_its_own(pool: asyncpg.Pool[Any]) -> None:
    batch = pgq.Batch(pool, [await step.enqueue("ok", connection=pool)])
    options = batch.at_end
    options["headers"] = {**(options.get("headers") or {}), "trace": "1"}
    found = await (await report.enqueue("end", connection=pool, **options)).get()
    assert found is not None
    assert (found.headers or {})["trace"] == "1"
    assert pgq.Batch.of(pool, found).ids == batch.ids


async def test_a_rolled_back_batch_leaves_no_report(pool: asyncpg.Pool[Any]) -> None:
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        handles = await step.enqueue_many(["ok"], connection=connection)
        options = pgq.Batch(pool, handles).at_end
        ending = await report.enqueue("end", connection=connection, **options)
        await transaction.rollback()
    assert await ending.get(connection=pool) is None
    assert (await pgq.Batch(pool, handles).progress()).unknown == 1


async def test_a_plain_job_is_at_the_end_of_no_batch(pool: asyncpg.Pool[Any]) -> None:
    (job,) = [await (await step.enqueue("ok", connection=pool)).get()]
    assert job is not None
    with pytest.raises(pgq.InvalidArgument, match="does not run at the end of a batch"):
        pgq.Batch.of(pool, job)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ([[1, 10**12]], "at most 1000000 jobs, not 1000000000000$"),
        ([[1, 600_000]] * 2, "at most 1000000 jobs"),
        ([1], "pgq_batch of job 1: Expected `array`"),
        ("1-3", "pgq_batch of job 1: Expected `array`"),
        ([[1, 2, 3]], "pgq_batch of job 1: Expected `array` of length 2"),
        ([[1, None]], "pgq_batch of job 1: Expected `int`"),
    ],
)
async def test_a_header_that_somebody_made_up_is_refused(header: Any, message: str) -> None:
    nowhere: Any = None
    job = testing.job(1, headers={"pgq_batch": header})
    with pytest.raises(pgq.InvalidArgument, match=message):
        pgq.Batch.of(nowhere, job)
    backward = testing.job(1, headers={"pgq_batch": [[3, 1], [7, 8]]})
    assert pgq.Batch.of(nowhere, backward).ids == (7, 8)


async def test_a_batch_is_bounded() -> None:
    nowhere: Any = None
    assert len(pgq.Batch(nowhere, range(1, 1_000_001)).ids) == 1_000_000
    with pytest.raises(pgq.InvalidArgument, match=r"at most 1000000 jobs, not 1000001$"):
        pgq.Batch(nowhere, range(1, 1_000_002))
