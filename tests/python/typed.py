"""How tasks are typed, for `make lint`: an ignored error that is not there is one itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

import asyncpg
import pgq
import pgq.psycopg
import pgq.sqlalchemy
import psycopg
from pgq import testing
from pydantic import BaseModel
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)
from sqlalchemy.orm import Session, scoped_session


@dataclass
class SendEmail:
    to: str


@pgq.task("emails")
async def send(job: pgq.Job[SendEmail]) -> int:
    assert_type(job.payload, SendEmail)
    return len(job.payload.to)


class Text(TypedDict):
    to: str


class Letter(BaseModel):
    to: str


@pgq.task("emails")
async def text(job: pgq.Job[Text]) -> None:
    assert_type(job.payload["to"], str)


@pgq.task("emails")
async def write(job: pgq.Job[Letter]) -> None:
    assert_type(job.payload.to, str)


@pgq.task("emails")
def send_in_a_thread(job: pgq.Job[SendEmail]) -> int:
    return len(job.payload.to)


@pgq.task("emails", transaction=True)
async def send_in_a_transaction(job: pgq.Job[SendEmail], connection: pgq.Connection) -> int:
    await connection.execute("insert into sent values ($1)", job.payload.to)
    return 1


@pgq.task("emails", transaction=True)
async def store(job: pgq.Job[SendEmail], session: AsyncSession) -> None:
    session.add(job.payload)


@pgq.task("emails")
async def take_anything(job: pgq.Job) -> None:
    assert_type(job.payload, Any)


@pgq.task("emails")
async def give_up(job: pgq.Job) -> int | pgq.GiveUp:
    return pgq.GiveUp("there is no such address")


async def right(
    connection: pgq.Connection, executor: pgq.Executor, pool: asyncpg.Pool[Any]
) -> None:
    handle = await send.enqueue(SendEmail("ada"), priority=5, connection=connection)
    assert_type(handle, pgq.JobHandle[int])
    assert_type(await handle.result(connection=pool), int)
    assert_type(await send.handle(1, connection=executor).result(), int)
    assert_type(send_in_a_thread, pgq.Task[SendEmail, int])
    assert_type(send_in_a_transaction, pgq.Task[SendEmail, int])
    assert_type(await handle.get(), pgq.JobSnapshot | None)
    assert_type(await handle.cancel(force=True, connection=pool), bool)
    await send(testing.job(SendEmail("ada")))
    await send_in_a_transaction(testing.job(SendEmail("ada")), connection)
    await send.enqueue_many((SendEmail(to) for to in "ab"), connection=pool, run_at=None)
    await take_anything.enqueue({"to": "ada"}, connection=pool)
    await text.enqueue({"to": "ada"}, connection=pool)
    await write.enqueue(Letter(to="ada"), connection=pool)
    await send.schedule("daily", "0 9 * * *", SendEmail("ada"), connection=pool)
    pgq.Worker(pool, [send, send_in_a_thread, send_in_a_transaction, take_anything])


async def right_elsewhere(
    session: AsyncSession, connection: AsyncConnection, scoped: async_scoped_session[AsyncSession]
) -> None:
    assert_type(await send.enqueue(SendEmail("ada"), session=session), pgq.JobHandle[int])
    await send.enqueue(SendEmail("ada"), session=connection, dedupe_key="ada")
    await send.enqueue_many([SendEmail("ada")], session=scoped)
    handle = await send.enqueue(SendEmail("ada"), session=session)
    assert_type(await handle.result(session=session), int)
    assert_type(await pgq.Batch(session, [handle]).progress(), pgq.Progress)
    pgq.Batch(connection, [handle])
    pgq.Worker(tasks=[store], sessions=async_sessionmaker())


def right_sync(
    own: psycopg.Connection, session: Session, connection: Connection, scoped: scoped_session[Any]
) -> None:
    assert_type(send.enqueue_sync(SendEmail("ada"), connection=own), pgq.JobHandle[int])
    send.enqueue_sync(SendEmail("ada"), session=session)
    send.enqueue_sync(SendEmail("ada"), session=scoped)
    send.enqueue_many_sync([SendEmail("ada")], session=connection, dedupe_key=lambda e: e.to)
    batch = pgq.Batch(None, [1])
    assert_type(batch.progress_sync(connection=own), pgq.Progress)
    assert_type([*batch.jobs_sync(session=session)], list[pgq.JobSnapshot])
    own.execute(send.statement(SendEmail("ada")).pyformat()[0])
    assert_type(pgq.psycopg.Queue(own).enqueue(1), pgq.JobId)
    assert_type(pgq.sqlalchemy.Queue(session).dequeue(), list[pgq.Job])


async def wrong_elsewhere(session: AsyncSession, own: psycopg.AsyncConnection) -> None:
    send.enqueue_sync(SendEmail("ada"), session=session)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    send.enqueue_sync(SendEmail("ada"), connection=own)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await send.enqueue(SendEmail("ada"), connection=session)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    send.statement({"to": "ada"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def wrong_sync(session: Session) -> None:
    _ = send.enqueue(SendEmail("ada"), session=session)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


worker = pgq.Worker()


@worker.middleware
async def around(job: pgq.Job, call_next: pgq.Endpoint) -> Any:
    return await call_next(job)


@worker.before
def before(job: pgq.Job) -> None: ...


@worker.after
async def after(job: pgq.Job, result: Any) -> None: ...


@worker.error
async def report(job: pgq.Job, error: Exception) -> str:
    return f"{job.id}: {error}"


outermost: pgq.Middleware = around


@worker.before  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUntypedFunctionDecorator]
def before_takes_no_result(job: pgq.Job, result: Any) -> None: ...


@worker.error  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUntypedFunctionDecorator]
def error_takes_an_exception(job: pgq.Job) -> None: ...


@worker.middleware  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUntypedFunctionDecorator]
def middleware_is_asynchronous(job: pgq.Job, call_next: pgq.Endpoint) -> int:
    return 1


async def wrong(connection: pgq.Connection) -> None:
    await send(testing.job(1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await send.enqueue(SendEmail("ada"))  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await send.enqueue({"to": "ada"}, connection=connection)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await send.enqueue(SendEmail("ada"), connection=connection, priority="high")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await send.enqueue(SendEmail("ada"), connection=connection, prio=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await text.enqueue({"from": "ada"}, connection=connection)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await write.enqueue({"to": "ada"}, connection=connection)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await send.schedule("daily", "0 9 * * *", 1, connection=connection)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await send.enqueue_many([1], connection=connection)  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    await send_in_a_thread.enqueue(1, connection=connection)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await send_in_a_transaction.enqueue(1, connection=connection)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]

    @pgq.task("emails", transaction=True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async def takes_no_connection(_: pgq.Job[SendEmail]) -> None: ...
