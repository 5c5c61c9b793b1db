"""`pgq queues`, `pgq queue`, `pgq pause`, `pgq resume`, `pgq unblock` and `pgq purge`."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, cast

import asyncpg
import click

from pgq._admin import Admin
from pgq._cli import output, params
from pgq._cli.base import Command, Group, connected, settings
from pgq._cli.errors import Failure
from pgq._cli.output import Column
from pgq._errors import QueueInUse
from pgq._models import JobState
from pgq._operate import sql, when, wording
from pgq._operate.client import Client

COLUMNS: Final = (
    Column("queue"),
    Column("ready", right=True),
    Column("scheduled", right=True),
    Column("waiting", right=True),
    Column("active", right=True),
    Column("dead", right=True),
    Column("oldest_ready_age", "oldest ready", right=True),
    Column("completed_last_minute", "done/min", right=True),
    Column("failed_last_minute", "failed/min", right=True),
    Column("paused"),
    Column("estimated"),
)
_PURGEABLE: Final = ("ready", "scheduled", "waiting", "dead", "completed", "cancelled")


@click.command(
    cls=Command,
    examples="""
        pgq queues
        pgq queues --json
    """,
)
@connected
async def queues(client: Client) -> None:
    """List the queues.

    Shows how many jobs are in which state, for how long the oldest one has been ready, and how
    many were completed and how many attempts failed in the last minute. Of many jobs the number
    is estimated. --json shows the last hour, the next due time, the limits and the descriptions,
    too.
    """
    rows = await client.fetch(sql.QUEUES)
    output.print_rows(rows, COLUMNS, "There is no queue that you may observe.")


_SETTINGS: Final[tuple[tuple[str, Any, str], ...]] = (
    ("max-attempts", int, "Attempts until a job is dead; 20."),
    ("backoff-base", params.duration, "The wait after the first failed attempt; 1s."),
    ("backoff-factor", float, "By which the wait grows with every attempt; 2."),
    ("backoff-max", params.duration, "The longest wait; 1h."),
    ("keep-completed", params.duration, "How long completed jobs are kept; 1d, 0 for not at all."),
    ("keep-dead", params.duration, "How long dead and cancelled jobs are kept; 30d."),
    ("max-active", int, "The most active jobs at a time; 0 for no limit."),
    ("dedupe-for", params.duration, "How long a dedupe key stays taken after completion; 0."),
    ("group-concurrency", int, "The most active jobs of a group; 1."),
    (
        "group-on-dead",
        click.Choice(["continue", "block"]),
        "What the group does when one of its jobs dies; continue.",
    ),
    ("rate-limit", int, "The most jobs that start per --rate-interval; 0 for no limit."),
    ("rate-interval", params.duration, "See there; 1s."),
    ("rate-burst", int, "The most that start at once after a pause; 0 for --rate-limit."),
    ("priority-ageing", params.duration, "Raise priorities by one for each such time; 0, never."),
    ("max-ready", int, "Enqueue fails with so many ready jobs; 0 for no bound."),
    ("max-payload", int, "The most bytes of a payload; 0 for no bound."),
    ("description", str, "What the queue is for; an empty one removes it."),
)


def _queue_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    for name, kind, text in reversed(_SETTINGS):
        function = click.option(f"--{name}", type=kind, help=text)(function)
    return function


def _setting(value: Any) -> str:
    """Return the value of a setting as the options take it."""
    if isinstance(value, timedelta):
        return when.shown_duration(value)
    shown = wording.line(value)
    return shown.removesuffix(".0") if isinstance(value, float) else shown


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@click.group(cls=Group)
def queue() -> None:
    """Create, configure, show or drop a queue."""


@queue.command(
    cls=Command,
    examples="""
        pgq queue create emails --if-not-exists
        pgq queue create api --max-attempts 5 --rate-limit 100 --rate-interval 1m
    """,
)
@click.argument("name")
@_queue_settings
@click.option("--if-not-exists", is_flag=True, help="Leave a queue of that name as it is.")
@connected
async def create(client: Client, /, name: str, **options: Any) -> None:
    """Create a queue. The help names the default of each setting."""
    created = await client.admin().create_queue(name, **_given(options))
    output.say(
        f"queue {name} is created" if created else f"queue {name} exists already",
        queue=name,
        created=created,
    )


@queue.command(
    cls=Command,
    examples="""
        pgq queue configure emails --max-attempts 5 --backoff-base 10s
    """,
)
@click.argument("name")
@_queue_settings
def configure(name: str, **options: Any) -> None:
    """Change settings of a queue. Those that are not given stay."""
    if not _given(options):
        raise click.UsageError("Give a setting.")
    _configure(name, _given(options))


@connected
async def _configure(client: Client, name: str, options: dict[str, Any]) -> None:
    await client.admin().configure_queue(name, **options)
    given = ", ".join(
        f"{option.replace('_', '-')} {_setting(value)}" for option, value in options.items()
    )
    output.say(f"queue {name} is configured: {given}", queue=name, configured=True, **options)


_SHOWN: Final = (
    Column("mark", " "),
    Column("setting"),
    Column("value"),
    Column("default"),
)


@queue.command(
    cls=Command,
    examples="""
        pgq queue show emails
        pgq queue show emails --json
    """,
)
@click.argument("name")
@connected
async def show(client: Client, name: str) -> None:
    """Show the settings of a queue. Those that are not the defaults are marked.

    Exits with 1 if there is no such queue that you may observe.
    """
    rows = await client.fetch(sql.QUEUE_SETTINGS, name)
    if not rows:
        raise unknown_queue(name)
    if settings().json:
        output.print_json(rows[0])
        return
    arguments = inspect.signature(Admin.create_queue).parameters.values()
    defaults = {one.name: one.default for one in arguments if one.default is not one.empty}
    shown = [
        {
            "mark": "*" if value != defaults[column] else "",
            "setting": column.replace("_", "-"),
            "value": _setting(value),
            "default": _setting(defaults[column]),
        }
        for column, value in rows[0].items()
        if column in defaults
    ]
    output.show(output.table(shown, _SHOWN))
    if rows[0]["paused"]:
        click.echo(f"\n{name} is paused: pgq resume {shlex.quote(name)}")


def unknown_queue(name: str) -> Failure:
    """Return the failure for a queue that is not there, or that the caller may not observe."""
    hint = "pgq queues lists those that you may observe."
    return Failure(f'queue "{name}" does not exist. Hint: {hint}')


@queue.command(
    cls=Command,
    examples="""
        pgq queue drop emails
        pgq queue drop emails --force
    """,
)
@click.argument("name")
@click.option("--force", is_flag=True, help="Also with the jobs that it holds.")
@connected
async def drop(client: Client, name: str, *, force: bool) -> None:
    """Drop a queue. Exits with 1 if it holds live or dead jobs, unless forced."""
    try:
        await client.admin().drop_queue(name, force=force)
    except QueueInUse as exc:
        hint = "Drop it with --force to delete its live and dead jobs, too."
        raise Failure(f"{exc.args[0]}. Hint: {hint}") from exc
    output.say(f"queue {name} is dropped", queue=name, dropped=True)


@click.command(cls=Command, examples="pgq pause emails")
@click.argument("name", metavar="QUEUE")
@connected
async def pause(client: Client, name: str) -> None:
    """Hand out no more jobs of a queue. Active jobs go on, and enqueue works."""
    await client.admin().pause(name)
    output.say(f"queue {name} is paused", queue=name, paused=True)


@click.command(cls=Command, examples="pgq resume emails")
@click.argument("name", metavar="QUEUE")
@connected
async def resume(client: Client, name: str) -> None:
    """Hand out jobs of a paused queue again."""
    rows: list[dict[str, Any]] = []
    with suppress(asyncpg.InsufficientPrivilegeError):  # who may manage need not observe
        rows = await client.fetch(sql.QUEUE_SETTINGS, name)
    await client.admin().resume(name)
    done = "is resumed" if all(row["paused"] for row in rows) else "was not paused"
    output.say(f"queue {name} {done}", queue=name, paused=False)


@click.command(cls=Command, examples="pgq unblock emails ada@example.org")
@click.argument("name", metavar="QUEUE")
@click.argument("group_key", metavar="GROUP")
@connected
async def unblock(client: Client, name: str, group_key: str) -> None:
    """Let a group go on that a dead job blocks. The job stays dead.

    Groups are blocked in queues with --group-on-dead block. Exits with 1 if the group is not
    blocked.
    """
    if not await client.admin().unblock(name, group_key):
        raise Failure(f"the group {group_key} of {name} is not blocked")
    output.say(f"group {group_key} goes on", queue=name, group_key=group_key, unblocked=True)


@click.command(
    cls=Command,
    examples="""
        pgq purge emails
        pgq purge emails --state dead --yes
    """,
)
@click.argument("name", metavar="QUEUE")
@click.option(
    "--state",
    "states",
    type=click.Choice(_PURGEABLE),
    multiple=True,
    default=_PURGEABLE[:3],
    show_default=True,
    help="Which jobs; may be repeated.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(name: str, states: tuple[str, ...], *, yes: bool) -> None:
    """Delete the jobs of a queue that are in some states. Active jobs stay."""
    if not yes:
        click.confirm(f"Delete all {', '.join(states)} jobs of {name}?", abort=True, err=True)
    _purge(name, states)


@connected
async def _purge(client: Client, name: str, states: tuple[str, ...]) -> None:
    count = await client.admin().purge(name, cast("tuple[JobState, ...]", states))
    output.say(f"{wording.jobs_are(count)} deleted", queue=name, deleted=count)
