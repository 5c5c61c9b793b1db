"""What a command exits with, and how an error becomes one line."""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
from pathlib import Path
from typing import IO, Any, Final

import asyncpg
import click

from pgq._errors import ConnectionLost, Error, NotInstalled

FAILED: Final = 1
USAGE: Final = 2
SERVER: Final = 3

_WRITING: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_NOT_INSTALLED: Final = frozenset({"3F000", "42P01", "42883"})
_ARGUMENTS: Final = re.compile(r"\(.*\)", re.DOTALL)  # of a function
_INSTALL_HINT: Final = (
    "Run 'pgq install', or name the schema of the pgq functions with --schema; 'pgq doctor' "
    "tells more."
)
_GRANT_HINT: Final = "A role that manages the queue can grant the privilege with pgq_grant."

# What the hints of the server name, and this does as well.
COMMANDS: Final = {
    "pgq_cancel": "pgq cancel",
    "pgq_cancel_all": "pgq cancel --all",
    "pgq_cancel_key": "pgq cancel --key",
    "pgq_configure_queue": "pgq queue configure",
    "pgq_create_queue": "pgq queue create",
    "pgq_drop_queue": "pgq queue drop",
    "pgq_enqueue": "pgq enqueue",
    "pgq_enqueue_many": "pgq enqueue --lines",
    "pgq_get": "pgq job",
    "pgq_health": "pgq health",
    "pgq_jobs": "pgq jobs",
    "pgq_locks": "pgq locks",
    "pgq_obstacles": "pgq doctor",
    "pgq_pause": "pgq pause",
    "pgq_pause_schedule": "pgq schedule pause",
    "pgq_purge": "pgq purge",
    "pgq_queue_settings": "pgq queue show",
    "pgq_queues": "pgq queues",
    "pgq_resume": "pgq resume",
    "pgq_resume_schedule": "pgq schedule resume",
    "pgq_run_schedule": "pgq schedule run",
    "pgq_retry": "pgq retry",
    "pgq_retry_dead": "pgq retry --all",
    "pgq_schedule": "pgq schedule add",
    "pgq_schedules": "pgq schedules",
    "pgq_unblock": "pgq unblock",
    "pgq_unschedule": "pgq schedule remove",
    "pgq_workers": "pgq workers",
}
_CALL: Final = re.compile(r"(?:SELECT )?\b(pgq_\w+)(?:\( ?(E?)'((?:[^']|'')*)'\))?")


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


def in_commands(hint: str) -> str:
    """Return a hint of the server with commands in place of the functions that do the same."""

    def command(match: re.Match[str]) -> str:
        name, escapes, argument = match.groups()
        if name not in COMMANDS:
            return match[0]
        if argument is None:
            return match[0].replace(name, COMMANDS[name]).removeprefix("SELECT ")
        argument = argument.replace("''", "'")
        argument = argument.replace("\\\\", "\\") if escapes else argument
        return f"{COMMANDS[name]} {shlex.quote(argument)}"

    return _CALL.sub(command, hint)


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
        hint = in_commands(hint) if hint else None
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
