"""Queues on connections of psycopg 3, for synchronous and asynchronous code.

Needs the extra "psycopg". A call joins the transaction of its connection. Unless the connection has
`autocommit`, psycopg begins one by itself, and the call takes effect at `connection.commit()`.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from pgq._calls import Dumps
from pgq._driver import Driver, Statement
from pgq._errors import ConnectionLost, Diagnosis, InvalidArgument, expect, translate
from pgq._queue import Queue as AsyncpgQueue
from pgq._rows import Loads, Row, read_json
from pgq._sync import SyncQueue

__all__ = ["AsyncQueue", "Queue"]

_REFUSED: Final = (psycopg.ProgrammingError, psycopg.DataError)


class Queue(SyncQueue):
    """One queue on a connection of psycopg, for producers and plain consumers.

    Args:
        connection: a connection; its row factory and cursor factory do not matter.
        name: the queue.
        schema: as in `pgq.Queue`, like the further arguments.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        name: str = "default",
        *,
        schema: str | None = None,
        dumps: Dumps = json.dumps,
        loads: Loads = read_json,
    ) -> None:
        driver = SyncDriver(connection)
        super().__init__(AsyncpgQueue(driver, name, schema=schema, dumps=dumps, loads=loads))


class AsyncQueue(AsyncpgQueue):
    """One queue on an asynchronous connection of psycopg, with the methods of `pgq.Queue`.

    Their argument `connection` stays what it is there: one of asyncpg, for a single call.

    Args:
        connection: a connection; its row factory and cursor factory do not matter.
        name: the queue.
        schema: as in `pgq.Queue`, like the further arguments.
    """

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        name: str = "default",
        *,
        schema: str | None = None,
        dumps: Dumps = json.dumps,
        loads: Loads = read_json,
    ) -> None:
        driver = AsyncDriver(connection)
        super().__init__(driver, name, schema=schema, dumps=dumps, loads=loads)


class SyncDriver(Driver):
    """A synchronous connection; its calls wait for nothing that an event loop would run."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        expect("connection", connection, psycopg.Connection)
        self._connection = connection

    async def fetch(self, statement: Statement) -> Sequence[Row]:
        """Run a statement, and return its rows."""
        with _explained(self._connection, statement):
            cursor = psycopg.RawCursor(self._connection, row_factory=dict_row)
            return cursor.execute(*statement).fetchall()

    def is_in_transaction(self) -> bool:
        """Tell whether the next statement commits together with others."""
        return _is_in_transaction(self._connection)


class AsyncDriver(Driver):
    """An asynchronous connection."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        expect("connection", connection, psycopg.AsyncConnection)
        self._connection = connection

    async def fetch(self, statement: Statement) -> Sequence[Row]:
        """Run a statement, and return its rows."""
        with _explained(self._connection, statement):
            cursor = psycopg.AsyncRawCursor(self._connection, row_factory=dict_row)
            await cursor.execute(*statement)
            return await cursor.fetchall()

    def is_in_transaction(self) -> bool:
        """Tell whether the next statement commits together with others."""
        return _is_in_transaction(self._connection)


def _is_in_transaction(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    is_idle = connection.info.transaction_status == TransactionStatus.IDLE
    return not (connection.autocommit and is_idle)


@contextmanager
def _explained(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], statement: Statement
) -> Generator[None]:
    try:
        yield
    except psycopg.Error as exc:
        error = translate(Diagnosis.of_libpq(exc, exc.diag), statement.sql)
        if error is None and exc.sqlstate is None:  # psycopg itself has found it
            if isinstance(exc, _REFUSED):
                error = InvalidArgument(str(exc))
            elif connection.closed:
                error = ConnectionLost("the connection to the server is lost")
        if error is None:
            raise
        raise error from exc
