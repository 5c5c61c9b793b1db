"""One way to the server: runs the functions of the extension, and says what their errors mean."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import asyncpg
import asyncpg.pool

from pgq import _sql
from pgq._driver import Driver, Statement
from pgq._errors import ConnectionLost, Diagnosis, WrongTransaction, expect, translate
from pgq._models import JobId
from pgq._rows import Row

if TYPE_CHECKING:
    PooledConnection: TypeAlias = asyncpg.pool.PoolConnectionProxy[Any]
    Connection: TypeAlias = asyncpg.Connection[Any] | PooledConnection
    Executor: TypeAlias = asyncpg.Pool[Any] | Connection
else:  # they are generic in their stubs only
    PooledConnection = asyncpg.pool.PoolConnectionProxy
    Connection = asyncpg.Connection | PooledConnection
    Executor = asyncpg.Pool | Connection

Dumps: TypeAlias = Callable[[Any], str]

_DIALECT: Final = "postgresql.asyncpg"


class Calls:
    """Base of the classes whose methods run functions of the extension.

    Args:
        executor: an asyncpg pool or connection, or that of another driver.
        schema: where the functions are; None leaves it to search_path.
        dumps: makes JSON text.
    """

    _instead: ClassVar[Mapping[str, str]] = {}  # what it sends in place of some statements

    def __init__(
        self, executor: Executor | Driver, *, schema: str | None = None, dumps: Dumps = json.dumps
    ) -> None:
        self._executor = executor
        self._schema = schema
        self._dumps = dumps

    async def version(self, *, connection: Connection | None = None) -> str:
        """Return the version of the installed extension."""
        value: str = await self._value(connection, _sql.VERSION)
        return value

    async def _fetch(
        self, connection: Connection | None, statement: str, *args: object
    ) -> Sequence[Row]:
        executor = self._executor if connection is None else connection
        sql = _sql.in_schema(self._instead.get(statement, statement), self._schema)
        if isinstance(executor, Driver):
            return await executor.fetch(Statement.of(sql, args))
        if isinstance(executor, asyncpg.Pool):
            acquired = await acquire(executor)
            try:
                return await self._fetch(acquired, statement, *args)
            finally:
                with suppress(Exception):  # a connection that breaks then has answered before
                    await executor.release(acquired)
        if not hasattr(executor, "fetch"):
            expect("connection", executor, asyncpg.Pool, asyncpg.Connection)
        if statement in _sql.JOINING:
            _check_begun(executor)
        try:
            return await executor.fetch(sql, *args)
        except asyncpg.PostgresError as exc:
            error = translate(diagnose(exc), statement)
            if error is None:
                raise
            raise error from exc
        except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as exc:
            if not _is_lost(executor, exc):
                raise
            raise ConnectionLost("the connection to the server is lost") from exc

    async def _value(self, connection: Connection | None, statement: str, *args: object) -> Any:
        [row] = await self._fetch(connection, statement, *args)
        return next(iter(row.values()))

    async def _column(
        self, connection: Connection | None, statement: str, *args: object
    ) -> list[JobId]:
        return [row["id"] for row in await self._fetch(connection, statement, *args)]

    def _json(self, value: Any) -> str | None:
        return None if value is None else self._dumps(value)

    def _headers(self, headers: Mapping[str, Any] | None) -> str | None:
        if headers is None:
            return None
        expect("headers", headers, Mapping)
        return self._dumps(dict(headers))


def diagnose(error: asyncpg.PostgresError) -> Diagnosis:
    """Return what an error of asyncpg says."""
    return Diagnosis(
        sqlstate=error.sqlstate or "",
        message=str(error.args[0]) if error.args else "",
        detail=error.detail,
        hint=error.hint,
        context=error.context,
        source_file=error.server_source_filename,
        is_stale_plan=isinstance(error, asyncpg.InvalidCachedStatementError),
    )


async def acquire(pool: asyncpg.Pool[Any]) -> PooledConnection:
    """Take a connection from a pool; raises `ConnectionLost` if it cannot connect."""
    try:
        return await pool.acquire()
    except TimeoutError:
        raise
    except asyncpg.PostgresError as exc:
        error = translate(diagnose(exc))
        if error is None:
            raise
        raise error from exc
    except (OSError, asyncpg.InternalClientError) as exc:
        raise ConnectionLost(f"cannot connect to the server: {exc}") from exc


def _is_lost(connection: Connection, error: Exception) -> bool:
    """Tell whether an error means that a connection is gone.

    asyncpg raises InternalClientError when a call begins as the server ends the session, and
    InterfaceError when it has ended, or when its pool has taken it back for that.
    """
    if not isinstance(error, asyncpg.InterfaceError):
        return not isinstance(error, TimeoutError)
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        return True


def _check_begun(executor: Executor) -> None:
    """Refuse the connection of a session of SQLAlchemy that has not begun its transaction yet.

    SQLAlchemy sends BEGIN with its own first statement. What ran before would have committed by
    itself, and outlive a rollback of the session. Its connections are those of no pool of asyncpg;
    nothing else tells them from the application's own. SQLAlchemy registers the dialect when an
    engine asks for it; its module is loaded with any part of the dialect for PostgreSQL.
    """
    dialects = sys.modules.get("sqlalchemy.dialects")
    if (
        dialects is not None
        and _DIALECT in dialects.registry.impls
        and isinstance(executor, asyncpg.Connection)
        and not isinstance(executor, asyncpg.pool.PoolConnectionProxy)
        and not executor.is_in_transaction()
    ):
        raise WrongTransaction(
            "no transaction is open on the connection, and SQLAlchemy may own it",
            detail="SQLAlchemy begins a transaction with its first statement. A job that is"
            " enqueued before would commit by itself, and stay when the session rolls back.",
            hint="With a session and a task: enqueue(..., session=session); or else first: await"
            ' session.execute(text("select 1")). With a connection of your own: async with'
            " connection.transaction().",
        )
