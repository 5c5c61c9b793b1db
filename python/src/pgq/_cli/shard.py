"""`pgq shard`: the front of databases that share jobs."""

from __future__ import annotations

import re
from typing import Any, Final

import asyncpg
import click

from pgq._cli import output
from pgq._cli.base import Command, Group, connected
from pgq._cli.errors import Failure, ServerFailure, explain
from pgq._cli.extension import scripts
from pgq._operate import sql
from pgq._operate.client import Client

_OF_PSQL: Final = re.compile(r"^\\.*\n", re.MULTILINE)
_NO_SERVER: Final = (
    "the database has no server pgq of PL/Proxy. Hint: 'Beyond one server' in the documentation "
    "shows CREATE EXTENSION plproxy and CREATE SERVER pgq."
)


@click.group(cls=Group)
def shard() -> None:
    """Make the front of shards, or drain a shard."""


@shard.command("install", cls=Command, examples="pgq shard install --dsn postgresql://front/pgq")
@connected
async def install_front(client: Client) -> None:
    """Make the front in the database, or make it again.

    The database has PL/Proxy and the server pgq, which names the shards. It gets the schema
    pgq_proxy, with the functions and views of pgq; shard 0 says which. Each shard gets its number.
    """
    if not await client.connection.fetchval(sql.HAS_FRONT_SERVER):
        raise ServerFailure(_NO_SERVER)
    script = (scripts() / "pgq_proxy.sql").read_text(encoding="utf-8")
    await client.connection.execute(_OF_PSQL.sub("", script))
    shards = await client.connection.fetchval(sql.FRONT_SHARDS)
    output.say(f"the front of {shards} shards is in the schema pgq_proxy", shards=shards)


@shard.command(cls=Command, examples="pgq shard drain 2 --dsn postgresql://front/pgq")
@click.argument("number", type=click.IntRange(0))
@connected
async def drain(client: Client, number: int) -> None:
    """Send a shard no new jobs, and wait until it has none.

    The database is the front. Workers go on to work the shard off. Says on stderr how many jobs
    are left. If this is interrupted, call it again; there may be several fronts: call it in each.
    """

    def tell(_: object, message: Any) -> None:
        click.echo(message.message, err=True)

    client.connection.add_log_listener(tell)
    try:
        await client.connection.execute(sql.DRAIN.format(number))
    except asyncpg.InvalidSchemaNameError as exc:
        raise ServerFailure("the database is no front. Hint: pgq shard install") from exc
    except (
        asyncpg.UndefinedObjectError,
        asyncpg.ObjectInUseError,
        asyncpg.ObjectNotInPrerequisiteStateError,
    ) as exc:
        raise Failure(explain(exc).message) from exc
    output.say(f"shard {number} has no jobs left", shard=number)
