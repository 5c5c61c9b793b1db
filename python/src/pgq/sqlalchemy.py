"""Queues in the transactions of SQLAlchemy's sessions and connections, over asyncpg or psycopg.

Needs the extra "sqlalchemy". A call runs on the connection of the session, so it begins the
session's transaction if nothing has, and takes effect when that commits. Statements go through
SQLAlchemy: its logs and events see them.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeAlias

import asyncpg
from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import DataError, DBAPIError, OperationalError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from pgq._calls import Dumps, diagnose
from pgq._driver import Driver, SessionDriver, Statement
from pgq._errors import (
    ConnectionLost,
    Diagnosis,
    Error,
    InvalidArgument,
    NotSupported,
    expect,
    translate,
)
from pgq._queue import Queue as AsyncpgQueue
from pgq._rows import Loads, Row, read_json
from pgq._sync import SyncQueue

__all__ = ["AsyncQueue", "Queue"]

_Session: TypeAlias = Session | scoped_session[Any] | Connection
_AsyncSession: TypeAlias = AsyncSession | async_scoped_session[Any] | AsyncConnection


class Queue(SyncQueue):
    """One queue in the transaction of a session, for producers and plain consumers.

    Args:
        session: a Session, a scoped one, or a Connection.
        name: the queue.
        schema: as in `pgq.Queue`, like the further arguments.
    """

    def __init__(
        self,
        session: _Session,
        name: str = "default",
        *,
        schema: str | None = None,
        dumps: Dumps = json.dumps,
        loads: Loads = read_json,
    ) -> None:
        driver = SyncDriver(session)
        super().__init__(AsyncpgQueue(driver, name, schema=schema, dumps=dumps, loads=loads))


class AsyncQueue(AsyncpgQueue):
    """One queue in the transaction of an asynchronous session, with the methods of `pgq.Queue`.

    Their argument `connection` stays what it is there: one of asyncpg, for a single call.

    Args:
        session: an AsyncSession, a scoped one, or an AsyncConnection.
        name: the queue.
        schema: as in `pgq.Queue`, like the further arguments.
    """

    def __init__(
        self,
        session: _AsyncSession,
        name: str = "default",
        *,
        schema: str | None = None,
        dumps: Dumps = json.dumps,
        loads: Loads = read_json,
    ) -> None:
        driver = AsyncDriver(session)
        super().__init__(driver, name, schema=schema, dumps=dumps, loads=loads)


class SyncDriver(Driver):
    """A synchronous session; its calls wait for nothing that an event loop would run."""

    def __init__(self, session: _Session) -> None:
        expect("session", session, Session, scoped_session, Connection)
        self._session = session

    async def fetch(self, statement: Statement) -> Sequence[Row]:
        """Run a statement, and return its rows."""
        with explained(statement.sql):
            return _run(self._session, statement)

    def is_in_transaction(self) -> bool:
        """Return True: SQLAlchemy begins a transaction with any statement."""
        return True


class AsyncDriver(SessionDriver):
    """An asynchronous session."""

    def __init__(self, session: _AsyncSession) -> None:
        expect("session", session, AsyncSession, async_scoped_session, AsyncConnection)
        self.session: _AsyncSession = session

    async def fetch(self, statement: Statement) -> Sequence[Row]:
        """Run a statement, and return its rows."""
        own = self.session
        if isinstance(own, async_scoped_session):
            own = own()
        with explained(statement.sql):
            return await own.run_sync(_run, statement)  # one switch to SQLAlchemy and back

    def is_in_transaction(self) -> bool:
        """Return True: SQLAlchemy begins a transaction with any statement."""
        return True

    def savepoint(self) -> AbstractAsyncContextManager[Any]:
        """Return a part of the transaction that rolls back alone."""
        return self.session.begin_nested()


def _run(session: _Session, statement: Statement) -> Sequence[Row]:
    connection = session if isinstance(session, Connection) else session.connection()
    sent = _styled(statement, connection.dialect)
    return connection.exec_driver_sql(*sent).mappings().all()


def _styled(statement: Statement, dialect: Dialect) -> tuple[str, Any]:
    if dialect.name == "postgresql":  # others have these styles, too
        if dialect.paramstyle == "numeric_dollar":
            return statement
        if dialect.paramstyle == "pyformat":
            return statement.pyformat()
    raise NotSupported(f"pgq knows asyncpg and psycopg, not {dialect.name}+{dialect.driver}")


@contextmanager
def explained(sql: str = "") -> Generator[None]:
    """Raise errors of SQLAlchemy as those of pgq, where they mean one of them."""
    try:
        yield
    except DBAPIError as exc:
        error = _error_of(exc, sql)
        if error is None:
            raise
        raise error from exc
    except TimeoutError:  # that of asyncpg's command_timeout: the connection is there
        raise
    except OSError as exc:
        raise ConnectionLost(f"cannot connect to the server: {exc}") from exc


def _error_of(exc: DBAPIError, sql: str) -> Error | None:
    found: Diagnosis | None = None
    raised: Any = exc.orig
    if isinstance(raised.__cause__, asyncpg.PostgresError):
        found = diagnose(raised.__cause__)
    elif hasattr(raised, "diag"):
        found = Diagnosis.of_libpq(raised, raised.diag)
    if found is not None and found.sqlstate:
        return translate(found, sql)
    # The driver itself has found it.
    if exc.connection_invalidated or isinstance(exc, OperationalError):
        return ConnectionLost("the connection to the server is lost")
    if isinstance(exc, (DataError, ProgrammingError)):
        return InvalidArgument(str(exc.orig))
    return None
