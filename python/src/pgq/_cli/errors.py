"""What a command exits with, and how an error becomes one line."""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path
from typing import IO, Any, Final

import asyncpg
import click

from pgq._errors import ConnectionLost, Error, NotInstalled

FAILED: Final = 1
USAGE: Final = 2
SERVER: Final = 3

# What a connection, the server or pgq may raise.
SERVER_ERRORS: Final = (
    Error,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,  # a TimeoutError, too
)

_WRITING: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_NOT_INSTALLED: Final = frozenset({"3F000", "42P01", "42883"})
_ARGUMENTS: Final = re.compile(r"\(.*\)", re.DOTALL)  # of a function
_INSTALL_HINT: Final = (
    "Run 'pgq install', or name the schema of the pgq functions with --schema; 'pgq doctor' "
    "tells more."
)
_GRANT_HINT: Final = "Who manages the queue can give privileges with pgq_grant."


class Failure(click.ClickException):
    """A command failed: one line for the user."""

    exit_code = FAILED

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line to stderr, and drop what cannot be written to stdout.

        Python would try that again at its end, and exit with 120.
        """
        click.echo(f"pgq: {self.message}", file=file, err=True)
        output: IO[str] | None = sys.stdout  # None if it was closed from the beginning
        try:
            if output is not None:
                output.flush()
        except OSError:
            with Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())


class Misuse(Failure):
    """The command was called with what cannot be used."""

    exit_code = USAGE


class ServerFailure(Failure):
    """The server cannot be reached, or does not have pgq."""

    exit_code = SERVER


def explain(exc: Exception) -> Failure:
    """Return the failure for an error of a connection, of the server or of pgq."""
    if isinstance(exc, Failure):
        return exc
    if isinstance(exc, (Error, asyncpg.PostgresError)):
        sqlstate = exc.sqlstate or ""
        hint: str | None = exc.hint
        message = str(exc.args[0])
        if sqlstate in _NOT_INSTALLED or isinstance(exc, NotInstalled):
            message, hint = _ARGUMENTS.sub("", message), _INSTALL_HINT
        elif sqlstate == "42501":
            hint = hint or _GRANT_HINT
        parts = [message, exc.detail, f"Hint: {hint}" if hint else None]
        message = ". ".join(part.rstrip(".") for part in parts if part) + ("." if hint else "")
        is_refused = (
            (isinstance(exc, Error) and not isinstance(exc, (NotInstalled, ConnectionLost)))
            or sqlstate == "42501"
            or sqlstate.startswith("22")
        )
        return Failure(message) if is_refused else ServerFailure(message)
    if isinstance(exc, OSError) and exc.errno in _WRITING:
        return Failure(f"the output cannot be written: {exc}")
    if isinstance(exc, TimeoutError):
        return ServerFailure("the server did not answer in time")
    return ServerFailure(f"the server cannot be reached: {exc}")
