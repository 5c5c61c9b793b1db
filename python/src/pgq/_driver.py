"""The way from `Queue` to other drivers than asyncpg, and statements for any driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, LiteralString, NamedTuple, Protocol, TypeAlias, TypeVar

from pgq._rows import Row

T = TypeVar("T")


class Statement(NamedTuple):
    """One SQL statement and its parameters, for any driver.

    Attributes:
        sql: with `$1`, `$2` ... for the parameters, as asyncpg and the server itself take it.
        parameters: text, numbers, booleans, times, intervals, lists of them, or None.
    """

    sql: LiteralString
    parameters: tuple[Any, ...]

    @classmethod
    def of(cls, sql: Any, arguments: Sequence[object]) -> Statement:
        """Make one; other sequences become lists, which every driver takes for arrays."""
        return cls(sql.strip(), tuple(map(_plain, arguments)))

    def pyformat(self) -> tuple[LiteralString, dict[str, Any]]:
        """Return it with `%(p1)s`, `%(p2)s` ..., and the parameters by their names.

        This is the style of psycopg, psycopg2 and Django: `cursor.execute(*statement.pyformat())`.
        """
        sql: Any = self.sql.replace("%", "%%")
        for number in range(1, len(self.parameters) + 1):
            sql = sql.replace(f"${number}::", f"%(p{number})s::")
        named = {f"p{number}": value for number, value in enumerate(self.parameters, 1)}
        return sql, named


class PsycopgConnection(Protocol):
    """A synchronous connection of psycopg."""

    def pipeline(self) -> AbstractContextManager[Any]:
        """Only psycopg has this."""
        ...


class _Connection(Protocol):
    def exec_driver_sql(self, statement: str, parameters: Any = None, /) -> Any: ...


class _Session(Protocol):
    def connection(self) -> _Connection: ...


class _AsyncConnection(Protocol):
    async def exec_driver_sql(self, statement: str, parameters: Any = None, /) -> Any: ...


class _AsyncSession(Protocol):
    async def connection(self) -> _AsyncConnection: ...


# What SQLAlchemy has, for type checkers of applications that do not have SQLAlchemy.
AnySession: TypeAlias = _Session | _Connection
AnyAsyncSession: TypeAlias = _AsyncSession | _AsyncConnection


class Driver(ABC):
    """A connection of another library, on which the methods of `Queue` run."""

    @abstractmethod
    async def fetch(self, statement: Statement) -> Sequence[Row]:
        """Run a statement in the transaction of the connection, and return its rows.

        Raises:
            Error: as the methods of `Queue` do; other errors pass as the library raises them.
        """

    @abstractmethod
    def is_in_transaction(self) -> bool:
        """Tell whether the next statement commits together with others."""


class SessionDriver(Driver):
    """A session that handlers may get, too."""

    session: Any

    @abstractmethod
    def savepoint(self) -> AbstractAsyncContextManager[Any]:
        """Return a part of the transaction that rolls back alone."""


class Recorder(Driver):
    """Runs nothing: notes the statement that a method would run."""

    statement: Statement

    async def fetch(self, statement: Statement) -> Sequence[Row]:
        """Note the statement; as its result, the method gets an id that no job has."""
        self.statement = statement
        return [{"id": 0}]

    def is_in_transaction(self) -> bool:
        """Return True: who runs the statement decides."""
        return True


def driver_of(session: AnyAsyncSession) -> SessionDriver:
    """Return the driver of an asynchronous session of SQLAlchemy."""
    from pgq import sqlalchemy  # noqa: PLC0415 it is an extra

    own: Any = session
    return sqlalchemy.AsyncDriver(own)


def sync_driver_of(connection: PsycopgConnection | None, session: AnySession | None) -> Driver:
    """Return the driver of a connection of psycopg, or of a session of SQLAlchemy."""
    if (connection is None) == (session is None):
        raise TypeError("either a connection or a session is needed")
    if connection is not None:
        from pgq import psycopg  # noqa: PLC0415 it is an extra

        given: Any = connection
        return psycopg.SyncDriver(given)
    from pgq import sqlalchemy  # noqa: PLC0415 it is an extra

    own: Any = session
    return sqlalchemy.SyncDriver(own)


def finish(call: Coroutine[Any, Any, T]) -> T:
    """Return the result of a method that runs on a synchronous driver, and so waits for nothing."""
    try:
        call.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    call.close()
    raise RuntimeError("a synchronous call has waited for something")


def _plain(argument: Any) -> Any:
    return list(argument) if _is_array(argument) else argument


def _is_array(argument: object) -> bool:
    return isinstance(argument, Sequence) and not isinstance(argument, (str, bytes))
