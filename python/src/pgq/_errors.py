# ruff: noqa: N818 (errors are named for what happened; the base class says that they are errors)

from __future__ import annotations

import re
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final

from pgq import _sql


class Error(Exception):
    """Base of all errors of pgq.

    The message is the server's. `sqlstate` is its five-character code (None where the error was
    found by the client), `detail` and `hint` are the server's further lines or None. The
    driver's error, if there was one, is `__cause__`.
    """

    def __init__(
        self,
        message: str,
        *,
        sqlstate: str | None = None,
        detail: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        text = super().__str__()
        if self.detail:
            text += f"\nDETAIL:  {self.detail}"
        if self.hint:
            text += f"\nHINT:  {self.hint}"
        return text


class InvalidArgument(Error, ValueError):
    """An argument is missing, out of range or malformed; nothing was written."""


class InvalidPayload(InvalidArgument):
    """A payload or result is not of the type that its task declares, or cannot be read."""


class UnknownTask(Error):
    """The worker has no task for the job."""


class JobDead(Error):
    """The job whose result was awaited has died; the message is its last error, if any."""


class JobCancelled(Error):
    """The job whose result was awaited was cancelled; the message is the reason, if any."""


class UnknownQueue(Error):
    """The queue, or a role that is granted something, does not exist."""


class QueueExists(Error):
    """A queue of this name exists already."""


class QueueInUse(Error):
    """The queue still holds jobs and was not dropped."""


class UnknownJob(Error):
    """The job does not exist or has ended."""


class DuplicateKey(Error):
    """A live job of the queue has the dedupe key."""


class QueueFull(Error):
    """The queue has as many ready jobs as its `max_ready` allows."""


class PayloadTooLong(Error):
    """A value is larger than its queue or pgq allows, or the priority is one too many."""


class JobHeld(Error):
    """Somebody else holds the job; or one that has used pgq stays open while a queue is dropped."""


class NotClaimable(Error):
    """Nobody can claim the job now; pgq cannot watch a table without a primary key.

    Or a database cannot become another shard.
    """


class LeaseLost(Error):
    """The receipt is stale: somebody else may have the job now."""


class WrongShard(Error):
    """The job is of another shard; the hint says of which one."""


class NotSupported(Error):
    """The extension, its version or the connection does not support what was asked for."""


class WrongTransaction(Error):
    """The call is not possible at this isolation level, or needs an open transaction."""


class ConnectionLost(Error, ConnectionError):
    """The connection to the server is lost, or cannot be made.

    Nobody knows then whether the server has done what it was asked for. The cause is the error of
    the driver or of the system.
    """


class SerializationFailure(Error):
    """The transaction met a concurrent change and has to be run again."""


class NotPermitted(Error):
    """The role may not call the function."""


class NotInstalled(Error):
    """The pgq functions are not in the given schema, or not in search_path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """An error of the server, as every driver tells it."""

    sqlstate: str
    message: str
    detail: str | None = None
    hint: str | None = None
    context: str | None = None  # if a function has met it, and not the statement that calls it
    source_file: str | None = None  # of the server
    is_stale_plan: bool = False  # a prepared statement is of another schema

    @classmethod
    def of_libpq(cls, error: Exception, said: Any) -> Diagnosis:
        """Make one of the `diag` of an error of psycopg or psycopg2."""
        return cls(
            sqlstate=said.sqlstate or "",
            message=said.message_primary or str(error),
            detail=said.message_detail,
            hint=said.message_hint,
            context=said.context,
            source_file=said.source_file,
            is_stale_plan=said.source_function == "RevalidateCachedQuery",
        )


# What is missing is a column, a table, a row type, a function, or what a plan names: an internal
# error of the parts of the server that look it up.
_INTERNAL: Final = "XX000"
_MISSING: Final = frozenset({"42703", "42P01", "42804", "42883", _INTERNAL})
_LOOKS_UP: Final = frozenset(
    {"aclchk.c", "fmgr.c", "funcapi.c", "lsyscache.c", "pl_comp.c", "relation.c", "typcache.c"}
)
_WATCHES: Final = frozenset({_sql.WATCH, _sql.UNWATCH})
_UPDATED_HINT: Final = "The extension was updated while the call was waiting: repeat it."

# The server has ended the session, or takes none; so has class 08.
_GONE: Final = frozenset({"25P03", "57P01", "57P02", "57P03", "57P05"})

_BY_SQLSTATE: Final[dict[str, type[Error]]] = {
    "0A000": NotSupported,
    "22000": InvalidArgument,  # asyncpg could not encode it
    "22003": InvalidArgument,
    "22004": InvalidArgument,
    "22021": InvalidArgument,  # text with a zero byte
    "22023": InvalidArgument,
    "22P02": InvalidArgument,  # text that is not JSON
    "22P05": InvalidArgument,  # JSON that the server cannot store: \u0000
    "23505": DuplicateKey,
    "25001": WrongTransaction,
    "26000": NotSupported,  # a prepared statement that is in another session
    "3F000": NotInstalled,
    "40001": SerializationFailure,
    "42501": NotPermitted,
    "42704": UnknownQueue,  # or role
    "42710": QueueExists,
    "42883": NotInstalled,
    "42P05": NotSupported,  # a prepared statement that was made in another session
    "53400": QueueFull,
    "54000": PayloadTooLong,
    "55000": NotClaimable,
    "55006": QueueInUse,
    "55P03": JobHeld,
    "P0002": UnknownJob,
    "PQ001": LeaseLost,
    "PQ002": WrongShard,
}

_INSTALL_HINT: Final = (
    "CREATE EXTENSION pgq in this database, and name its schema: Queue(..., schema=...), "
    "or add it to search_path."
)
_POOLER_HINT: Final = (
    "A pooler gives each transaction another session, as PgBouncer does with pool_mode = "
    "transaction: connect with statement_cache_size=0, or let the pooler keep prepared statements."
)


def expect(name: str, value: object, *kinds: type) -> None:
    """Raise TypeError unless an argument is of one of some types; its value may be a secret."""
    if not isinstance(value, kinds):
        wanted = " or ".join("None" if kind is NoneType else kind.__name__ for kind in kinds)
        raise TypeError(f"{name} must be {wanted}, not {type(value).__name__}")


def translate(found: Diagnosis, statement: str = "") -> Error | None:
    """Return the pgq error for an error of the server, None where it is not pgq's to explain.

    The arguments that it names by their numbers get their names in the statement.
    """
    sqlstate, message = found.sqlstate, found.message
    is_inside = found.context is not None
    # Others may be missing as well: what a condition of `watch` calls, the schema of a table.
    is_watch = statement in _WATCHES
    is_missing = sqlstate in _MISSING and (sqlstate != _INTERNAL or found.source_file in _LOOKS_UP)
    if is_missing and is_inside and not is_watch:
        return SerializationFailure(
            message, sqlstate=sqlstate, detail=found.detail, hint=_UPDATED_HINT
        )
    is_lost = sqlstate in _GONE or sqlstate.startswith("08")
    kind = ConnectionLost if is_lost else _BY_SQLSTATE.get(sqlstate)
    if kind is None or found.is_stale_plan:
        return None  # the latter has 0A000, too
    if kind is NotInstalled and is_watch and (is_inside or sqlstate != "42883"):
        return None
    hint = _INSTALL_HINT if kind is NotInstalled else found.hint
    if sqlstate in ("26000", "42P05"):
        hint = _POOLER_HINT
    # asyncpg has the number of an argument that it cannot send in its text only.
    if (number := re.search(r"query argument (\$\d+)", message)) is not None:
        named = re.search(rf"(\w+) => {re.escape(number[1])}\b", statement)
        if named is not None:
            message = message.replace(number[0], f"argument {named[1]}", 1)
    return kind(message, sqlstate=sqlstate, detail=found.detail, hint=hint)
