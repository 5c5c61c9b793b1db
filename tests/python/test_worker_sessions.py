"""Handlers that get a session of SQLAlchemy, whose transaction completes their jobs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import asyncpg
import pgq
import pgq.sqlalchemy
import pgq.testing
import pytest
from sqlalchemy import URL, text
from sqlalchemy.dialects import registry
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from .sessions import Connection

pytestmark = pytest.mark.once


class Base(DeclarativeBase): ...


class Signup(Base):
    __tablename__ = "signup"
    email: Mapped[str] = mapped_column(primary_key=True)


@pytest.fixture(params=["asyncpg", "psycopg"])
async def engine(
    dsn: dict[str, Any], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[AsyncEngine]:
    known: Any = registry
    # Other tests use connections that belong to no pool: what an engine registers goes with it.
    monkeypatch.setattr(known, "impls", dict(known.impls))
    url = URL.create(
        f"postgresql+{request.param}",
        username=dsn["user"],
        database=dsn["database"],
        query={"host": str(dsn["host"]), "port": str(dsn["port"])},
    )
    engine = create_async_engine(url, pool_size=1, max_overflow=0, pool_timeout=0.1)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield engine
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.drop_all)
    await engine.dispose()


@pgq.task("default", transaction=True)
async def sign_up(job: pgq.Job[str], session: AsyncSession) -> str:
    session.add(Signup(email=job.payload))
    return job.payload


def worker_of(
    engine: AsyncEngine, pool: asyncpg.Pool[Any] | None, task: pgq.Task[Any, Any]
) -> pgq.Worker:
    return pgq.Worker(pool, [task], sessions=async_sessionmaker(engine))


async def signups(connection: Connection) -> list[str]:
    return [row["email"] for row in await connection.fetch("select email from signup order by 1")]


async def test_what_a_handler_adds_and_its_job_commit_together(
    engine: AsyncEngine, pool: asyncpg.Pool[Any], connection: Connection
) -> None:
    handle = await sign_up.enqueue("ada@example.org", connection=pool)
    await worker_of(engine, pool, sign_up).run_until_idle()
    assert await handle.result() == "ada@example.org"
    assert await signups(connection) == ["ada@example.org"]
    same = "select count(distinct xmin::text) from (select xmin from signup {}) x"
    archived = "union all select xmin from pgq.archive"
    assert await connection.fetchval(same.format(archived)) == 1, "one transaction wrote both"


async def test_a_handler_that_fails_leaves_nothing(
    engine: AsyncEngine, pool: asyncpg.Pool[Any], connection: Connection
) -> None:
    @pgq.task("default", transaction=True)
    async def fails(job: pgq.Job[str], session: AsyncSession) -> None:
        session.add(Signup(email=job.payload))
        await session.flush()
        raise ValueError("no")

    handle = await fails.enqueue("ada@example.org", connection=pool, max_attempts=1)
    await worker_of(engine, pool, fails).run_until_idle()
    found = await handle.get(connection=pool)
    assert found is not None
    assert found.state == "dead"
    assert "ValueError: no" in str(found.last_error)
    assert await signups(connection) == []


async def test_a_row_that_the_commit_refuses_fails_the_job(
    engine: AsyncEngine, pool: asyncpg.Pool[Any], connection: Connection
) -> None:
    await connection.execute("insert into signup values ('ada@example.org')")
    failures: list[Exception] = []
    worker = worker_of(engine, pool, sign_up)

    @worker.error
    def note(_: pgq.Job[Any], error: Exception) -> None:
        failures.append(error)

    handle = await sign_up.enqueue("ada@example.org", connection=pool, max_attempts=1)
    await worker.run_until_idle()
    found = await handle.get(connection=pool)
    assert found is not None
    assert found.state == "dead"
    assert [type(failure) for failure in failures] == [IntegrityError]


async def test_what_a_handler_adds_without_a_lease_is_rolled_back(
    engine: AsyncEngine, pool: asyncpg.Pool[Any], queue: pgq.Queue, connection: Connection
) -> None:
    @pgq.task("default", transaction=True)
    async def slow(job: pgq.Job[str], session: AsyncSession) -> None:
        session.add(Signup(email=job.payload))
        assert await queue.release(job, timedelta(hours=1))

    await slow.enqueue("ada@example.org", connection=pool)
    await worker_of(engine, pool, slow).run_until_idle()
    assert await signups(connection) == []
    assert await connection.fetchval("select state from pgq_jobs") == "scheduled"


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_handler_that_ends_the_transaction_fails(
    engine: AsyncEngine, pool: asyncpg.Pool[Any], end: str
) -> None:
    @pgq.task("default", transaction=True)
    async def ends(_: pgq.Job[str], session: AsyncSession) -> None:
        await getattr(session, end)()

    handle = await ends.enqueue("ada@example.org", connection=pool, max_attempts=1)
    await worker_of(engine, pool, ends).run_until_idle()
    found = await handle.get(connection=pool)
    assert found is not None
    assert found.state == "dead"
    assert "has ended the transaction of its session" in str(found.last_error)


async def test_a_session_that_the_server_ends_fails_its_job_alone(
    engine: AsyncEngine, pool: asyncpg.Pool[Any], connection: Connection
) -> None:
    @pgq.task("default", transaction=True)
    async def ended(job: pgq.Job[str], session: AsyncSession) -> None:
        session.add(Signup(email=job.payload))
        if job.payload == "lost":
            pid = (await session.execute(text("select pg_backend_pid()"))).scalar_one()
            await connection.execute("select pg_terminate_backend($1, 10000)", pid)

    lost = await ended.enqueue("lost", connection=pool)
    kept = await ended.enqueue("kept", connection=pool)
    await worker_of(engine, pool, ended).run_until_idle()
    assert await signups(connection) == ["kept"]
    found = await lost.get(connection=pool)
    assert found is not None
    assert found.state in ("active", "scheduled"), "its lease runs out, or it is tried again"
    done = await kept.get(connection=pool)
    assert done is not None
    assert done.state == "completed"


async def test_a_deadline_ends_what_a_session_waits_for(
    engine: AsyncEngine, pool: asyncpg.Pool[Any], connection: Connection
) -> None:
    @pgq.task("default", transaction=True, deadline=timedelta(milliseconds=100))
    async def late(job: pgq.Job[str], session: AsyncSession) -> None:
        session.add(Signup(email=job.payload))
        if job.payload == "late":
            await session.flush()
            await session.execute(text("select pg_sleep(600)"))

    handle = await late.enqueue("late", connection=pool, max_attempts=1)
    worker = worker_of(engine, pool, late)
    await worker.run_until_idle()
    found = await handle.get(connection=pool)
    assert found is not None
    assert "the deadline of the task has passed" in str(found.last_error)
    again = pgq.Worker(pool, [sign_up], sessions=async_sessionmaker(engine))
    done = await sign_up.enqueue("ada@example.org", connection=pool)
    await again.run_until_idle()
    assert await done.result() == "ada@example.org", "the engine has its connection again"
    assert await signups(connection) == ["ada@example.org"]


async def test_a_job_without_a_connection_in_the_engine_is_given_back(
    engine: AsyncEngine, pool: asyncpg.Pool[Any], connection: Connection
) -> None:
    handle = await sign_up.enqueue("ada@example.org", connection=pool)
    worker = worker_of(engine, pool, sign_up)
    async with AsyncSession(engine) as busy:
        await busy.execute(text("select 1"))

        async def free(_job: pgq.Job[Any], call: pgq.Endpoint) -> Any:
            try:
                return await call(_job)
            finally:
                await busy.close()

        worker.middleware(free)
        await worker.run_until_idle()
    assert await handle.result() == "ada@example.org"
    found = await handle.get(connection=pool)
    assert found is not None
    assert found.attempt == 1, "the try that did not begin is not counted"
    assert await signups(connection) == ["ada@example.org"]


async def test_jobs_run_inline_in_the_session_that_enqueues_them(
    engine: AsyncEngine, connection: Connection
) -> None:
    with pgq.testing.inline(worker_of(engine, None, sign_up)):
        async with AsyncSession(engine) as session:
            handle = await sign_up.enqueue("ada@example.org", session=session)
            assert [row.email for row in await session.execute(text("table signup"))] == [
                "ada@example.org"
            ]
            found = await pgq.sqlalchemy.AsyncQueue(session).get(handle.id)
            assert found is not None
            assert found.state == "completed"
            await session.rollback()
    assert await signups(connection) == []
    assert await connection.fetchval("select count(*) from pgq_jobs") == 0


async def test_one_job_runs_in_a_session(
    engine: AsyncEngine, pool: asyncpg.Pool[Any], connection: Connection
) -> None:
    handle = await sign_up.enqueue("ada@example.org", connection=pool)
    worker = worker_of(engine, None, sign_up)
    with pytest.raises(pgq.NotSupported, match="in a session"):
        await worker.run_job(handle.id, connection=pool)
    again = await sign_up.enqueue("eve@example.org", connection=pool)
    async with AsyncSession(engine) as session:
        with pytest.raises(TypeError, match=r"^either a connection or a session"):
            await worker.run_job(again.id, connection=pool, session=session)
        assert await worker.run_job(again.id, session=session)
        await session.commit()
    assert await signups(connection) == ["eve@example.org"]
    without = pgq.Worker(None, [sign_up])
    third = await sign_up.enqueue("bob@example.org", connection=pool)
    async with AsyncSession(engine) as session:
        with pytest.raises(pgq.NotSupported, match="in a session"):
            await without.run_job(third.id, session=session)


async def test_only_an_async_sessionmaker_makes_sessions(engine: AsyncEngine) -> None:
    for wrong in (AsyncSession(engine), engine, AsyncSession):
        sessions: Any = wrong
        with pytest.raises(TypeError, match=r"^sessions must be async_sessionmaker, not "):
            pgq.Worker(None, [sign_up], sessions=sessions)
