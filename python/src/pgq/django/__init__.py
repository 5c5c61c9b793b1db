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

from django.db import DEFAULT_DB_ALIAS, connections, transaction
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
        with self._explained(statement), connections[self._using].cursor() as cursor:
            cursor.execute(*statement.pyformat())
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def is_in_transaction(self) -> bool:
        """Tell whether the next statement commits together with others."""
        connection = connections[self._using]
        return connection.in_atomic_block or not connection.get_autocommit()

    @contextmanager
    def _explained(self, statement: Statement) -> Generator[None]:
        try:
            yield
        except DatabaseError as exc:
            found: Any = exc.__cause__
            said = getattr(found, "diag", None)
            is_answer = said is not None and said.sqlstate is not None
            if is_answer and connections[self._using].in_atomic_block:
                # The server has: nothing is to run as if it committed.
                transaction.set_rollback(True, using=self._using)
            error: Error | None = None
            if is_answer:
                error = translate(Diagnosis.of_libpq(found, said), statement.sql)
            elif said is not None and isinstance(exc, (ProgrammingError, DataError)):
                error = InvalidArgument(str(exc))  # psycopg refuses it
            elif isinstance(exc, (OperationalError, InterfaceError)):
                # The driver itself has found it.
                error = ConnectionLost(f"the connection to the server is lost: {exc}")
            if error is None:
                raise
            raise error from exc
