"""pgq in Django: a backend of its tasks, a worker, an admin, and queues on its connections.

Needs the extra "django". `INSTALLED_APPS` names this package. A call joins the transaction of
Django's connection, `transaction.atomic` for example; without one it commits by itself. Statements
go through Django: its log and its `execute_wrapper` see them.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.utils import DataError, InterfaceError, OperationalError, ProgrammingError
from django.db.utils import Error as DatabaseError

from pgq._calls import Dumps
from pgq._driver import Driver, Statement
from pgq._errors import ConnectionLost, Diagnosis, Error, InvalidArgument, translate
from pgq._queue import Queue as AsyncpgQueue
from pgq._rows import Loads, Row, read_json
from pgq._sync import SyncQueue

__all__ = ["Queue"]


class Queue(SyncQueue):
    """One queue on a connection of Django, for producers and plain consumers.

    Args:
        name: the queue.
        using: the alias of the database.
        schema: as in `pgq.Queue`, like the further arguments.
    """

    def __init__(
        self,
        name: str = "default",
        *,
        using: str = DEFAULT_DB_ALIAS,
        schema: str | None = None,
        dumps: Dumps = json.dumps,
        loads: Loads = read_json,
    ) -> None:
        driver = DjangoDriver(using)
        super().__init__(AsyncpgQueue(driver, name, schema=schema, dumps=dumps, loads=loads))


class DjangoDriver(Driver):
    """The connection that Django has for a database in the thread of the caller."""

    def __init__(self, using: str) -> None:
        self._using = using

    async def fetch(self, statement: Statement) -> Sequence[Row]:
        """Run a statement, and return its rows."""
        with _explained(statement), connections[self._using].cursor() as cursor:
            cursor.execute(*statement.pyformat())
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def is_in_transaction(self) -> bool:
        """Tell whether the next statement commits together with others."""
        connection = connections[self._using]
        return connection.in_atomic_block or not connection.get_autocommit()


@contextmanager
def _explained(statement: Statement) -> Generator[None]:
    try:
        yield
    except DatabaseError as exc:
        error = _error_of(exc, statement)
        if error is None:
            raise
        raise error from exc


def _error_of(exc: DatabaseError, statement: Statement) -> Error | None:
    raised: Any = exc.__cause__
    said = getattr(raised, "diag", None)
    if said is not None and said.sqlstate is not None:
        return translate(Diagnosis.of_libpq(raised, said), statement.sql)
    if said is not None and isinstance(exc, (ProgrammingError, DataError)):  # psycopg refuses it
        return InvalidArgument(str(exc))
    if isinstance(exc, (OperationalError, InterfaceError)):  # the driver itself has found it
        return ConnectionLost(f"the connection to the server is lost: {exc}")
    return None
