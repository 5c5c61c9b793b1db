"""`pgq install` and `pgq upgrade`: by files of the server, by pg_tle, or by script."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

import asyncpg
import click

from pgq._cli import output
from pgq._cli.base import Command, connected
from pgq._cli.errors import Failure, ServerFailure
from pgq._operate import sql
from pgq._operate.client import Client
from pgq._version import PACKAGE

Way: TypeAlias = Literal["CREATE EXTENSION", "pg_tle", "script"]
Found: TypeAlias = Literal[
    "nothing", "extension", "script", "tables", "functions", "skytools", "foreign"
]

FILES_HINT: Final = (
    "In a checkout of pgq, on the machine of the server: "
    "make install PG_CONFIG=/path/to/the/server's/pg_config"
)
SCRIPTS: Final = Path(__file__).parents[1] / "_scripts"
SCRIPTS_HINT: Final = "Install a released package, or one from a checkout in which make all has run"
_BETWEEN: Final = "\n$pgq_script$;\n"  # after the first of a script's two statements
_NOT_INSTALLED: Final = "pgq is not installed in this database"


@dataclass(frozen=True, slots=True)
class Extension:
    """What the server has of the extension.

    Args:
        found: what this database has of it; "tables" and "functions" are what a half removed
            installation has left.
        version: of what was found, or None.
        schema: of its functions, or None.
        files: the version of the server's files, or None.
        has_tle: the database has pg_tle.
    """

    found: Found
    version: str | None
    schema: str | None
    files: str | None
    has_tle: bool

    @property
    def installed(self) -> str | None:
        """The version that is installed, as a whole."""
        return self.version if self.found in ("extension", "script") else None

    @property
    def is_script(self) -> bool:
        """It is installed without being an extension."""
        return self.found == "script"

    @property
    def problem(self) -> tuple[str, str] | None:
        """Why pgq cannot be used or installed as things are, and what helps; None if it can."""
        half = "pgq is half removed from this database:"
        gone = f"its tables are gone, the functions of {self.version} are in {self.schema}"
        uninstall = f"psql --file {shlex.quote(str(SCRIPTS / 'pgq-uninstall.sql'))}"
        save = "Copy the jobs that you need from pgq.job and pgq.archive. Then remove the rest"
        foreign = "Use another database, or another server if the files are not pgq's"
        return {
            "tables": (
                f"{half} its functions are gone, its jobs are there",
                f"{save}: {uninstall}",
            ),
            "functions": (f"{half} {gone}", f"Remove them: {uninstall}"),
            "skytools": ("this is the PgQ of Skytools, which is called pgq, too", foreign),
            "foreign": (f"{_NOT_INSTALLED}, which has another schema pgq", "Use another database"),
        }.get(self.found)

    @property
    def way(self) -> Way:
        """How it is installed and upgraded."""
        if self.is_script:
            return "script"
        if self.files is not None:
            return "CREATE EXTENSION"
        return "pg_tle" if self.has_tle else "script"

    @property
    def available(self) -> str | None:
        """The version that it can be upgraded to, or None if an extension lacks its files."""
        if self.way == "CREATE EXTENSION":
            return self.files
        lacks_files = self.way == "script" and self.installed is not None and not self.is_script
        return None if lacks_files else PACKAGE


async def look(client: Client) -> Extension:
    """Look for the extension in the database and on the server."""
    [row] = await client.fetch(sql.EXTENSION)
    return Extension(**row)


@click.command(
    cls=Command,
    examples="""
        pgq install
        pgq install --schema jobs
    """,
)
@connected
async def install(client: Client) -> None:
    """Install pgq in the database.

    Creates the extension if the server has its files, or the database pg_tle, which is given them;
    else runs the script of this package, which needs neither. Says which it was.

    --schema names an existing schema for the functions; by default it is the first one of
    search_path. Does nothing if pgq is there.
    """
    found = await _look(client)
    if found.installed is not None:
        if client.schema not in (None, found.schema):
            raise Failure(f"pgq {found.installed} is installed, in the schema {found.schema}")
        _say(found, "is installed already")
        return
    try:
        if found.way == "script":
            await _run_script(client, "pgq.sql", client.schema)
        else:
            await _create_extension(client, found)
    except asyncpg.InvalidSchemaNameError as exc:
        raise Failure(f"there is no schema {client.schema}. Hint: CREATE SCHEMA") from exc
    _say(await look(client), "is installed now")


async def _create_extension(client: Client, found: Extension) -> None:
    if found.way == "pg_tle":
        await _run_script(client, "pgq-tle.sql")
    statement = sql.CREATE_EXTENSION
    if client.schema is not None:
        statement = sql.CREATE_EXTENSION_IN.format(sql.quoted(client.schema))
    await client.connection.execute(statement)


@click.command(cls=Command, examples="pgq upgrade")
@connected
async def upgrade(client: Client) -> None:
    """Upgrade pgq in the database, in the way in which it was installed.

    To the version of the server's files, or of this package. Does nothing if it is of that
    version. Exits with 3 if it is not installed, or its files are gone.
    """
    found = await _look(client)
    if found.installed is None:
        raise ServerFailure(f"{_NOT_INSTALLED}. Hint: pgq install")
    if found.available is None:
        raise ServerFailure(f"the server does not have the extension's files. Hint: {FILES_HINT}")
    if found.installed == found.available:
        _say(found, "is up to date")
        return
    if found.way == "script":
        for name in _steps(found.installed):
            await _run_script(client, name)
    else:
        if found.way == "pg_tle":
            await _run_script(client, "pgq-tle.sql")
        await client.connection.execute(sql.UPDATE_EXTENSION)
    _say(await look(client), f"was {found.installed} before")


async def _look(client: Client) -> Extension:
    found = await look(client)
    if found.problem is not None:
        what, hint = found.problem
        raise ServerFailure(f"{what}. Hint: {hint}")
    return found


def _steps(version: str) -> list[str]:
    """Return the names of the scripts that lead from a version to that of this package."""
    names = sorted(entry.name for entry in scripts().iterdir())
    steps: list[str] = []
    while version != PACKAGE:
        step = next((name for name in names if name.startswith(f"pgq--{version}--")), None)
        if step is None:
            raise Failure(f"this package, {PACKAGE}, has no script for version {version}")
        steps.append(step)
        version = step.removesuffix(".sql").split("--")[2]
    return steps


async def _run_script(client: Client, name: str, schema: str | None = None) -> None:
    """Run a script, statement by statement: the server logs all that is sent with what fails."""
    statements = (scripts() / name).read_text(encoding="utf-8").partition(_BETWEEN)
    async with client.connection.transaction():
        await client.connection.execute(sql.CHOOSE_SCHEMA, schema)
        for statement in (statements[0] + _BETWEEN, statements[2]):
            await client.connection.execute(statement)


def scripts() -> Path:
    """Return the directory of the scripts that are part of this package."""
    if not SCRIPTS.is_dir():
        raise Failure(f"this package was built without the scripts. Hint: {SCRIPTS_HINT}")
    return SCRIPTS


def _say(found: Extension, what: str) -> None:
    newer = ""
    if found.available is None:
        newer = "; the server does not have its files"
    elif found.available != found.installed:
        newer = f"; version {found.available} is available: pgq upgrade"
    output.say(
        f"pgq {found.installed} {what}, in the schema {found.schema}, by {found.way}{newer}",
        installed=found.installed,
        available=found.available,
        schema=found.schema,
        way=found.way,
    )
