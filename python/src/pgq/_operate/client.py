"""A connection, and what is asked on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from pgq._admin import Admin
from pgq._errors import Error
from pgq._operate import sql
from pgq._queue import Queue
from pgq._sql import in_schema

# What a connection, the server or pgq may raise.
SERVER_ERRORS: Final = (
    Error,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,  # a TimeoutError, too
)


@dataclass(frozen=True, slots=True)
class Client:
    """A connection, and the schema of the pgq functions."""

    connection: asyncpg.Connection[Any]
    schema: str | None

    def queue(self, name: str = "default", **options: Any) -> Queue:
        """Return a queue on this connection; `options` are those of `pgq.Queue`."""
        return Queue(self.connection, name, schema=self.schema, **options)

    def admin(self, **options: Any) -> Admin:
        """Return what operators do on this connection; `options` are those of `pgq.Admin`."""
        return Admin(self.connection, schema=self.schema, **options)

    async def fetch(self, statement: str, *args: object) -> list[dict[str, Any]]:
        """Run a statement of `pgq._operate.sql` and return its rows."""
        rows = await self.connection.fetch(in_schema(statement, self.schema), *args)
        return [dict(row.items()) for row in rows]

    async def fetch_by_index(
        self, statement: str, *args: object, milliseconds: int | None = None
    ) -> list[dict[str, Any]]:
        """Run a statement that must not scan tables, in a transaction of its own.

        Args:
            statement: see `fetch`.
            args: see `fetch`.
            milliseconds: how long it may take; then the server cancels it.
        """
        limit = "" if milliseconds is None else sql.WITHIN.format(milliseconds)
        async with self.connection.transaction():
            await self.connection.execute(sql.WITH_INDEXES + limit)
            return await self.fetch(statement, *args)
