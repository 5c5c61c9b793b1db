"""Databases for tests: made from a template, on a server that others use, too."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import asyncpg

from pgq import _sql

T = TypeVar("T")

_CLOSE_SECONDS: Final = 10.0  # for connections that a test has not given back to come back
_HINTS: Final = {
    "0A000": "Install pgq on the server, with `make install PG_CONFIG=...`.",
    "42501": "The role has to be able to create databases: ALTER ROLE ... CREATEDB.",
    "58P01": "Install pgq on the server, with `make install PG_CONFIG=...`.",
}
_UNREACHABLE: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)
_WHICH_SERVER: Final = (
    "Name a server by --pgq-dsn, PGQ_TEST_DSN, pgq_dsn in pytest's ini file or the PG* variables."
)


class UnfitServer(Exception):  # noqa: N818 it says what is unfit
    """There is no server, or one that tests cannot use; the message says how to mend it."""


class Databases:
    """The databases of one run of tests.

    One session makes and drops them. It has a thread and an event loop of its own, so its methods
    block, whether or not a loop runs where they are called. Its application_name is the beginning
    of their names: what has no such session is left over from a run that was killed, and dropped.

    Args:
        dsn: a server and a role that may create databases; None is for the PG* variables. The
            session is in the database that it names, or in "postgres".

    Raises:
        UnfitServer: no connection is possible.
    """

    def __init__(self, dsn: str | None) -> None:
        self._dsn = dsn or "postgresql://"
        self._run = f"pgq_test_{os.urandom(4).hex()}"
        self._template = f"{self._run}_template"
        self._names = (f"{self._run}_{number}" for number in itertools.count(1))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._session = self._wait(self._connect())
        except _UNREACHABLE as exc:
            self._stop()
            raise UnfitServer(f"pgq's tests have no server: {exc}\n{_WHICH_SERVER}") from exc

    async def _connect(self) -> asyncpg.Connection[Any]:
        has_database = urlsplit(self._dsn).path.strip("/") or "PGDATABASE" in os.environ
        return await asyncpg.connect(
            self._dsn,
            database=None if has_database else "postgres",
            server_settings={"application_name": self._run, "idle_session_timeout": "0"},
        )

    def prepare(self, schema: str | Callable[[str], object]) -> None:
        """Make the template, with the extension and the application's own schema.

        Args:
            schema: SQL text, or a function, also a coroutine function, that gets the DSN.

        Raises:
            UnfitServer: databases or the extension cannot be created.
        """
        self._wait(self._drop_left_over())
        dsn = self._dsn_of(self._template)
        try:
            self._execute(_sql.CREATE_DATABASE, name=self._template)
            self._wait(_run_script(dsn, _sql.CREATE_EXTENSION))
        except asyncpg.PostgresError as exc:
            hint = _HINTS.get(exc.sqlstate or "", _WHICH_SERVER)
            raise UnfitServer(f"pgq's tests cannot use the server: {exc}\n{hint}") from exc
        if isinstance(schema, str):
            self._wait(_run_script(dsn, schema))
        elif inspect.iscoroutinefunction(schema):
            self._wait(schema(dsn))
        elif inspect.iscoroutine(made := schema(dsn)):
            self._wait(made)

    def create(self) -> str:
        """Make a database from the template and return its DSN."""
        name = next(self._names)
        self._execute(_sql.COPY_DATABASE, name=name, template=self._template)
        return self._dsn_of(name)

    def drop(self, dsn: str) -> None:
        """Drop a database that `create` made, whoever uses it."""
        self._execute(_sql.DROP_DATABASE, name=urlsplit(dsn).path.strip("/"))

    @asynccontextmanager
    async def open_pool(self, dsn: str) -> AsyncGenerator[asyncpg.Pool[Any]]:
        """Open a pool in the loop of the caller, and close it."""
        pool = await asyncpg.create_pool(dsn, min_size=0)
        try:
            yield pool
        finally:
            await asyncio.wait_for(pool.close(), _CLOSE_SECONDS)

    def close(self) -> None:
        """Drop the template and end the session."""
        self._execute(_sql.DROP_DATABASE, name=self._template)
        self._wait(self._session.close())
        self._stop()

    async def _drop_left_over(self) -> None:
        for row in await self._session.fetch(_sql.LEFT_OVER_DATABASES):
            with suppress(asyncpg.PostgresError):  # another run does the same
                await self._session.execute(_sql.DROP_DATABASE.format(name=row["datname"]))

    def _dsn_of(self, database: str) -> str:
        server = urlsplit(self._dsn)
        query = f"?{server.query}" if server.query else ""
        return f"postgresql://{server.netloc}/{database}{query}"

    def _execute(self, statement: str, **names: str) -> None:
        self._wait(self._session.execute(statement.format(**names)))

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _run_script(dsn: str, sql: str) -> None:
    connection: asyncpg.Connection[Any] = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"{sql}\n;select 1")  # asyncpg cannot run nothing
    finally:
        await connection.close()
