"""Jobs in the transactions of SQLAlchemy's sessions, which begin with their first statement."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import asyncpg
import pgq
import pgq.sqlalchemy
import psycopg
import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from pgq import _enqueue
from sqlalchemy import URL, Engine, create_engine, event, text
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql import asyncpg as asyncpg_dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from werkzeug.exceptions import BadRequest

from .sessions import Connection

pytestmark = pytest.mark.once

DIALECT: Final = "postgresql.asyncpg"


@pgq.task("default")
async def send(_: pgq.Job[str]) -> None: ...


async def enqueue_by_task(connection: asyncpg.Connection[Any]) -> object:
    return await send.enqueue("ada@example.org", connection=connection)


CALLS: dict[str, Callable[[pgq.Queue, asyncpg.Connection[Any]], Awaitable[object]]] = {
    "enqueue": lambda queue, own: queue.enqueue(1, connection=own),
    "enqueue_many": lambda queue, own: queue.enqueue_many([1], connection=own),
    "task": lambda _, own: enqueue_by_task(own),
    "queue of the connection": lambda _, own: pgq.Queue(own).enqueue(1),
    "complete": lambda queue, own: queue.complete((1, 1), connection=own),
    "complete_many": lambda queue, own: queue.complete_many([(1, 1)], connection=own),
    "complete_and_dequeue": lambda queue, own: queue.complete_and_dequeue([], connection=own),
    "fail": lambda queue, own: queue.fail((1, 1), connection=own),
    "release": lambda queue, own: queue.release((1, 1), connection=own),
    "pop": lambda queue, own: queue.pop(connection=own),
}


@pytest.fixture(autouse=True)
def dialect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the dialect known while a test runs: others use connections that belong to no pool."""
    known: Any = registry
    monkeypatch.setattr(known, "impls", {**known.impls, DIALECT: lambda: asyncpg_dialect.dialect})


@pytest.fixture
async def session(dsn: dict[str, Any]) -> AsyncGenerator[AsyncSession]:
    url = URL.create("postgresql+asyncpg", username=dsn["user"], database=dsn["database"])
    where = {"host": dsn["host"], "port": dsn["port"]}
    engine = create_async_engine(url, connect_args=where)
    async with AsyncSession(engine) as session:
        yield session
    await engine.dispose()


async def driver(session: AsyncSession) -> asyncpg.Connection[Any]:
    """Return the connection of asyncpg that a session uses."""
    connection = await session.connection()
    raw: Any = (await connection.get_raw_connection()).driver_connection
    assert type(raw) is asyncpg.Connection
    own: asyncpg.Connection[Any] = raw
    return own


@pytest.mark.parametrize("call", CALLS)
async def test_a_session_that_has_not_begun_is_refused(
    session: AsyncSession, queue: pgq.Queue, call: str
) -> None:
    job_id = await queue.enqueue("before")
    with pytest.raises(pgq.WrongTransaction, match="SQLAlchemy may own it") as caught:
        await CALLS[call](queue, await driver(session))
    assert "session.execute" in str(caught.value.hint)
    await session.rollback()
    assert [job.id for job in await queue.dequeue(10)] == [job_id]


async def test_a_job_ends_with_the_session_that_has_begun(
    session: AsyncSession, queue: pgq.Queue
) -> None:
    await session.execute(text("select 1"))
    await send.enqueue("rolled back", connection=await driver(session))
    await session.rollback()
    await session.execute(text("select 1"))
    await send.enqueue("committed", connection=await driver(session))
    await session.commit()
    assert [job.payload for job in await queue.dequeue(10)] == ["committed"]


async def test_a_session_enqueues_by_a_statement_of_its_own(
    session: AsyncSession, queue: pgq.Queue
) -> None:
    enqueue = text("select pgq_enqueue(cast(:payload as jsonb))")
    await session.execute(enqueue, {"payload": json.dumps("rolled back")})
    await session.rollback()
    await session.execute(enqueue, {"payload": json.dumps("committed")})
    await session.commit()
    assert [job.payload for job in await queue.dequeue(10)] == ["committed"]


async def test_what_wraps_a_connection_is_refused_by_its_type(
    session: AsyncSession, queue: pgq.Queue
) -> None:
    connection = await session.connection()
    raw = await connection.get_raw_connection()
    for wrapper in (session, connection, raw, raw.dbapi_connection):
        wrong: Any = wrapper
        with pytest.raises(TypeError, match=f"Connection, not {type(wrapper).__name__}$"):
            await queue.enqueue(1, connection=wrong)
    assert await queue.dequeue() == []


async def test_other_connections_commit_by_themselves_where_no_engine_was_made(
    dsn: dict[str, Any], queue: pgq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = await asyncpg.connect(**dsn)
    known: Any = registry
    monkeypatch.delitem(known.impls, DIALECT)
    await queue.enqueue("own", connection=own)
    await own.close()
    assert [job.payload for job in await queue.dequeue(10)] == ["own"]


async def test_connections_of_a_pool_may_commit_by_themselves(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    async with pool.acquire() as own:
        await queue.enqueue("pool", connection=own)
    assert [job.payload for job in await queue.dequeue(10)] == ["pool"]


def url_of(driver: str, dsn: dict[str, Any]) -> URL:
    return URL.create(
        f"postgresql+{driver}",
        username=dsn["user"],
        database=dsn["database"],
        query={"host": str(dsn["host"]), "port": str(dsn["port"])},
    )


@pytest.fixture(params=["asyncpg", "psycopg"])
async def async_engine(
    dsn: dict[str, Any], request: pytest.FixtureRequest
) -> AsyncGenerator[AsyncEngine]:
    engine = create_async_engine(url_of(request.param, dsn))
    yield engine
    await engine.dispose()


@pytest.fixture
def engine(dsn: dict[str, Any]) -> Generator[Engine]:
    engine = create_engine(url_of("psycopg", dsn))
    yield engine
    engine.dispose()


async def test_an_enqueue_is_the_first_statement_of_a_session_or_joins_it(
    async_engine: AsyncEngine, queue: pgq.Queue
) -> None:
    async with AsyncSession(async_engine) as session:
        await send.enqueue("rolled back", session=session)
        await session.rollback()
        await session.execute(text("select 1"))
        await send.enqueue("rolled back, too", session=session)
        await session.rollback()
        handle = await send.enqueue("one", session=session, headers={"n": 1}, priority=1)
        handles = await send.enqueue_many(
            ["two", "three"], session=session, dedupe_key=lambda to: to, group_key=lambda _: "g"
        )
        assert await queue.dequeue(10) == []
        await session.commit()
    assert [await handle.get(connection=queue_pool(queue)) for handle in handles]
    [job] = await queue.dequeue()
    assert (job.id, job.payload, job.headers) == (handle.id, "one", {"task": "send", "n": 1})
    assert [job.payload for job in await queue.dequeue(10)] == ["two"]


def queue_pool(queue: pgq.Queue) -> asyncpg.Pool[Any]:
    pool = queue._executor  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    assert isinstance(pool, asyncpg.Pool)
    return pool


async def test_connections_and_scoped_sessions_are_sessions(
    async_engine: AsyncEngine, queue: pgq.Queue
) -> None:
    async with async_engine.begin() as connection:
        await send.enqueue("connection", session=connection)
    scoped = async_scoped_session(async_sessionmaker(async_engine), scopefunc=lambda: 1)
    await send.enqueue("scoped", session=scoped)
    await scoped.commit()
    await scoped.remove()
    async with AsyncSession(async_engine) as session, session.begin():
        savepoint = await session.begin_nested()
        await send.enqueue("nested", session=session)
        await savepoint.rollback()
    assert [job.payload for job in await queue.dequeue(10)] == ["connection", "scoped"]


async def test_a_synchronous_session_commits_its_jobs(engine: Engine, queue: pgq.Queue) -> None:
    with Session(engine) as session:
        send.enqueue_sync("rolled back", session=session)
        session.rollback()
        first = send.enqueue_sync("session", session=session)
        handles = send.enqueue_many_sync(
            ["a", "b"], session=session, dedupe_key=lambda to: to, delay=timedelta(0)
        )
        session.commit()
    with engine.begin() as connection:
        send.enqueue_sync("connection", session=connection)
    scoped = scoped_session(sessionmaker(engine))
    send.enqueue_sync("scoped", session=scoped)
    scoped.commit()
    scoped.remove()
    jobs = await queue.dequeue(10)
    assert [job.id for job in jobs[:3]] == [first.id, *(handle.id for handle in handles)]
    assert [job.payload for job in jobs] == ["session", "a", "b", "connection", "scoped"]
    assert jobs[1].dedupe_key == "a"


async def test_a_request_of_flask_commits_its_jobs(dsn: dict[str, Any], queue: pgq.Queue) -> None:
    application = Flask(__name__)
    application.config["SQLALCHEMY_DATABASE_URI"] = url_of("psycopg", dsn)
    db = SQLAlchemy(application)

    @application.post("/<name>")
    def sign_up(name: str) -> str:
        db.session.execute(text("create table if not exists customer as select"))
        handle = send.enqueue_sync(name, session=db.session)
        if name == "bob":
            raise BadRequest
        db.session.commit()
        return str(handle.id)

    client = application.test_client()
    assert client.post("/bob").status_code == 400
    answer = client.post("/ada")
    with application.app_context():
        db.engine.dispose()
    assert [(str(job.id), job.payload) for job in await queue.dequeue(10)] == [(answer.text, "ada")]


async def test_a_task_takes_a_connection_of_psycopg(dsn: dict[str, Any], queue: pgq.Queue) -> None:
    where = {"host": dsn["host"], "port": dsn["port"], "dbname": dsn["database"]}
    with psycopg.connect(**where, user=dsn["user"]) as own:
        send.enqueue_sync("rolled back", connection=own)
        own.rollback()
        one = send.enqueue_sync("one", connection=own, dedupe_key="k")
        more = send.enqueue_many_sync(["two"], connection=own)
    jobs = await queue.dequeue(10)
    assert [(job.id, job.payload) for job in jobs] == [(one.id, "one"), (more[0].id, "two")]


async def test_enqueues_in_sessions_pass_through_middleware(
    async_engine: AsyncEngine, engine: Engine, queue: pgq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_enqueue, "middleware", [])

    @pgq.enqueue_middleware
    async def sign(new: pgq.NewJobs, call_next: pgq.Enqueue) -> Sequence[pgq.JobId]:
        if "refused" in new.payloads:
            raise PermissionError
        return await call_next(replace(new, headers={**new.headers, "caller": "ada"}))

    async with AsyncSession(async_engine) as session, session.begin():
        await send.enqueue("one", session=session)
        await send.enqueue_many(["two"], session=session)
        with pytest.raises(PermissionError):
            await send.enqueue("refused", session=session)
    with Session(engine) as plain, plain.begin():
        send.enqueue_sync("three", session=plain)
        pgq.sqlalchemy.Queue(plain).enqueue_many(["four"])
        with pytest.raises(PermissionError):
            send.enqueue_sync("refused", session=plain)
    jobs = await queue.dequeue(10)
    assert [job.payload for job in jobs] == ["one", "two", "three", "four"]
    assert {(job.headers or {})["caller"] for job in jobs} == {"ada"}


@pgq.task("default")
async def double(job: pgq.Job[int]) -> int:
    return 2 * job.payload


async def test_a_handle_looks_with_a_session(
    async_engine: AsyncEngine, pool: asyncpg.Pool[Any]
) -> None:
    async with AsyncSession(async_engine) as session:
        handle = await double.enqueue(4, session=session)
        found = await handle.get(session=session)
        assert found is not None
        assert (found.id, found.state) == (handle.id, "ready")
        with pytest.raises(ValueError, match="pass one here, or a pool"):
            await handle.get()
        with pytest.raises(TypeError, match=r"^either a connection or a session"):
            await handle.get(connection=pool, session=session)
        await session.commit()
        await pgq.Worker(pool, [double]).run_until_idle()
        assert await handle.result(session=session) == 8
        other = await double.enqueue(5, session=session)
        await session.commit()
        assert await other.cancel(session=session)
        await session.rollback()
        assert await other.cancel(session=session)
        await session.commit()
        with pytest.raises(pgq.JobCancelled):
            await other.result(session=session)


async def test_sessions_have_queues(async_engine: AsyncEngine, engine: Engine) -> None:
    async with AsyncSession(async_engine) as session:
        emails = pgq.sqlalchemy.AsyncQueue(session)
        await emails.enqueue({"percent": "100 % :p1 $1"})
        await session.commit()
        [job] = await emails.dequeue()
        await session.commit()
        assert job.payload == {"percent": "100 % :p1 $1"}
        assert await emails.heartbeat(job, checkpoint=1) is not None
        assert await emails.complete(job, {"done": True})
        await session.commit()
        with pytest.raises(ValueError, match="durable=False"):
            await emails.dequeue(durable=False)
    with Session(engine) as session:
        letters = pgq.sqlalchemy.Queue(session)
        done = letters.get(job.id)
        assert done is not None
        assert (done.state, done.result, done.checkpoint) == ("completed", {"done": True}, 1)
        assert not letters.complete(job)


async def test_errors_in_a_session_are_those_of_pgq(async_engine: AsyncEngine) -> None:
    async with AsyncSession(async_engine) as session:
        emails = pgq.sqlalchemy.AsyncQueue(session)
        await emails.enqueue(1, dedupe_key="k")
        for call, kind, sqlstate in (
            (emails.enqueue(1, dedupe_key="k", on_duplicate="error"), pgq.DuplicateKey, "23505"),
            (emails.claim(10**6), pgq.UnknownJob, "P0002"),
            (pgq.sqlalchemy.AsyncQueue(session, "none").pop(), pgq.UnknownQueue, "42704"),
            (
                pgq.sqlalchemy.AsyncQueue(session, schema="elsewhere").version(),
                pgq.NotInstalled,
                "3F000",
            ),
        ):
            with pytest.raises(kind) as caught:
                async with session.begin_nested():
                    await call
            assert type(caught.value) is kind
            assert caught.value.sqlstate == sqlstate
            assert isinstance(caught.value.__cause__, DBAPIError)
        wrong: Any = [object()]
        with pytest.raises(pgq.InvalidArgument):
            async with session.begin_nested():
                await emails.enqueue(1, after=wrong)
        await session.commit()
        assert len(await emails.dequeue(10)) == 1


async def test_a_session_that_the_server_ends_is_lost(
    async_engine: AsyncEngine, connection: Connection
) -> None:
    async with AsyncSession(async_engine) as session:
        pid = (await session.execute(text("select pg_backend_pid()"))).scalar_one()
        await connection.execute("select pg_terminate_backend($1, 10000)", pid)
        with pytest.raises(pgq.ConnectionLost):
            await send.enqueue("lost", session=session)
        await session.rollback()
        await send.enqueue("kept", session=session)
        await session.commit()
    assert await connection.fetchval("select count(*) from pgq_jobs") == 1


async def test_a_call_that_takes_too_long_is_told_as_on_a_bare_connection(
    dsn: dict[str, Any], connection: Connection
) -> None:
    engine = create_async_engine(url_of("asyncpg", dsn), connect_args={"command_timeout": 0.2})
    bare = await asyncpg.connect(**dsn, command_timeout=0.2)
    async with connection.transaction(), AsyncSession(engine) as session, bare.transaction():
        await send.enqueue("first", connection=connection, dedupe_key="k")
        with pytest.raises(TimeoutError):
            await send.enqueue("second", session=session, dedupe_key="k")
        with pytest.raises(TimeoutError):
            await send.enqueue("second", connection=bare, dedupe_key="k")
    await bare.close()
    await engine.dispose()


async def test_a_server_that_is_not_there_is_a_lost_connection(dsn: dict[str, Any]) -> None:
    for driver in ("asyncpg", "psycopg"):
        engine = create_async_engine(url_of(driver, {**dsn, "host": "/nowhere"}))
        async with AsyncSession(engine) as session:
            with pytest.raises(pgq.ConnectionLost):
                await send.enqueue("lost", session=session)
        await engine.dispose()


async def test_statements_go_through_the_events_of_sqlalchemy(
    async_engine: AsyncEngine, engine: Engine
) -> None:
    seen: list[str] = []
    for target in (async_engine.sync_engine, engine):
        event.listen(target, "before_cursor_execute", lambda *args: seen.append(args[2]))
    async with AsyncSession(async_engine) as session:
        await send.enqueue("x", session=session)
    with Session(engine) as session:
        send.enqueue_sync("x", session=session)
    assert [statement for statement in seen if "pgq_enqueue" in statement] == seen[-2:]


async def test_either_a_connection_or_a_session_is_needed(
    async_engine: AsyncEngine, engine: Engine, pool: asyncpg.Pool[Any]
) -> None:
    any_send: Any = send
    async with AsyncSession(async_engine) as session:
        for options in ({}, {"connection": pool, "session": session}):
            with pytest.raises(TypeError, match=r"^either a connection or a session"):
                await any_send.enqueue("x", **options)
    with Session(engine) as session:
        for options in ({}, {"connection": object(), "session": session}):
            with pytest.raises(TypeError, match=r"^either a connection or a session"):
                any_send.enqueue_many_sync(["x"], **options)
        with pytest.raises(TypeError, match=r"^session must be AsyncSession .*, not Session$"):
            await any_send.enqueue("x", session=session)
    with pytest.raises(TypeError, match=r"^session must be Session .*, not AsyncEngine$"):
        any_send.enqueue_sync("x", session=async_engine)


@pytest.mark.parametrize("paramstyle", ["qmark", "pyformat"])  # the latter is that of pymysql
def test_other_databases_and_drivers_are_not_supported(paramstyle: str) -> None:
    engine = create_engine("sqlite://", paramstyle=paramstyle)
    with (
        Session(engine) as session,
        pytest.raises(pgq.NotSupported, match=r"not sqlite\+pysqlite$"),
    ):
        send.enqueue_sync("x", session=session)
    engine.dispose()
