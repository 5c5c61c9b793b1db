"""`pgq install` and `pgq upgrade`, and what versions go together."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

import asyncpg
import click

from pgq._cli import output, sql
from pgq._cli.base import Client, Command, connected
from pgq._cli.errors import Failure, ServerFailure

FILES_HINT: Final = (
    "In a checkout of pgq, on the machine of the server: "
    "make install PG_CONFIG=/path/to/the/server's/pg_config"
)
SKYTOOLS: Final = "this is the PgQ of Skytools, which is called pgq, too"
PACKAGE: Final = version("pgq-asyncpg")


@dataclass(frozen=True, slots=True)
class Extension:
    """What the server has of the extension.

    Args:
        installed: the version in this database, or None.
        schema: of its functions.
        available: the version of the server's files, or None.
        is_skytools: it is another extension of the same name.
    """

    installed: str | None
    schema: str | None
    available: str | None
    is_skytools: bool


async def look(client: Client) -> Extension:
    """Look for the extension in the database and on the server."""
    [row] = await client.fetch(sql.EXTENSION)
    return Extension(**row)


def is_supported(extension: str) -> bool:
    """Tell whether this package is made for a version of the extension."""
    return _series(extension) == _series(PACKAGE)


def _series(release: str) -> list[str]:
    """Return the part of a version in which releases are compatible: 1 of 1.4.2, 0.3 of 0.3.1."""
    parts = release.split(".")
    return parts[:2] if parts[0] == "0" else parts[:1]


@click.command(
    cls=Command,
    examples="""
        pgq install
        pgq install --schema jobs
    """,
)
@connected
async def install(client: Client) -> None:
    """Create the extension in the database.

    --schema names an existing schema for the functions; by default it is the first one of
    search_path. Does nothing if the extension is there. Exits with 3 if the server does not
    have its files.
    """
    found = await look(client)
    if found.is_skytools:
        raise ServerFailure(SKYTOOLS)
    if found.installed is not None:
        if client.schema not in (None, found.schema):
            raise Failure(f"pgq {found.installed} is installed, in the schema {found.schema}")
        _say(found, "is installed already")
        return
    _check_files(found)
    statement = sql.CREATE_EXTENSION
    if client.schema is not None:
        statement = sql.CREATE_EXTENSION_IN.format(sql.quoted(client.schema))
    try:
        await client.connection.execute(statement)
    except asyncpg.InvalidSchemaNameError as exc:
        raise Failure(f"there is no schema {client.schema}. Hint: CREATE SCHEMA") from exc
    _say(await look(client), "is installed now")


@click.command(cls=Command, examples="pgq upgrade")
@connected
async def upgrade(client: Client) -> None:
    """Update the extension in the database to the version of the server's files.

    Does nothing if it is of that version. Exits with 3 if it is not installed.
    """
    found = await look(client)
    if found.is_skytools:
        raise ServerFailure(SKYTOOLS)
    if found.installed is None:
        raise ServerFailure("pgq is not installed in this database. Hint: pgq install")
    _check_files(found)
    if found.installed == found.available:
        _say(found, "is up to date")
        return
    await client.connection.execute(sql.UPDATE_EXTENSION)
    _say(await look(client), f"was {found.installed} before")


def _check_files(found: Extension) -> None:
    if found.available is None:
        raise ServerFailure(f"the server does not have the extension's files. Hint: {FILES_HINT}")


def _say(found: Extension, what: str) -> None:
    output.say(
        f"pgq {found.installed} {what}, in the schema {found.schema}; "
        f"the server has {found.available or 'no files'}",
        installed=found.installed,
        available=found.available,
        schema=found.schema,
    )
