"""Transactions of handlers in sessions of SQLAlchemy; needs the extra "sqlalchemy"."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnection
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from pgq._driver import Statement
from pgq._errors import ConnectionLost, expect
from pgq._rows import Row
from pgq._worker.config import Sessions
from pgq._worker.link import answered
from pgq.sqlalchemy import AsyncDriver, explained


class Begun(AsyncDriver):
    """A session and its transaction, which stays open until the worker commits it.

    Args:
        session: one that has begun.
    """

    def __init__(self, session: AsyncSession) -> None:
        super().__init__(session)
        self._own = session
        self._transaction = session.sync_session.get_transaction()

    async def fetch(self, statement: Statement) -> Sequence[Row]:
        """Run a statement in that transaction; raises RuntimeError if the handler has ended it."""
        if self._own.sync_session.get_transaction() is not self._transaction:
            raise RuntimeError(
                "the handler has ended the transaction of its session: the worker commits it"
                " together with the job; session.flush() writes before, session.begin_nested()"
                " makes a part that may roll back"
            )
        return await super().fetch(statement)

    async def close(self, *, timeout: float) -> None:
        """Close the connection, whatever it is doing."""
        await asyncio.wait_for(self._own.invalidate(), timeout)


def check(sessions: Sessions) -> None:
    """Raise TypeError unless it makes asynchronous sessions."""
    expect("sessions", sessions, async_sessionmaker)


@asynccontextmanager
async def transaction(sessions: Sessions, call_seconds: float) -> AsyncGenerator[Begun]:
    """Begin a transaction in a new session; nothing that ends it can hang."""
    session = sessions()
    assert isinstance(session, AsyncSession)
    try:
        begun = await _begun(session)
        try:
            yield begun
        except BaseException:
            with suppress(Exception):  # the server does it as the connection ends
                await answered(begun, session.rollback(), call_seconds)
            raise
        try:
            await answered(begun, session.commit(), call_seconds)
        except DBAPIError as exc:
            if exc.connection_invalidated:
                raise ConnectionLost("the connection to the server is lost") from exc
            raise
    finally:
        await session.close()


async def _begun(session: AsyncSession) -> Begun:
    await session.begin()
    with explained():
        try:
            await session.connection()
        except NoConnection as exc:  # all of the engine's pool are in use
            raise TimeoutError(str(exc)) from exc
    return Begun(session)
