"""`pgq schedules` and `pgq schedule`."""

from __future__ import annotations

from typing import Any, Final

import click

from pgq._cli import output, params
from pgq._cli.base import Command, Group, connected
from pgq._cli.errors import Failure
from pgq._cli.output import Column
from pgq._operate import sql, wording
from pgq._operate.client import Client

_COLUMNS: Final = (
    Column("name"),
    Column("cron"),
    Column("timezone"),
    Column("queue"),
    Column("next_at", "next"),
    Column("last_at", "last"),
    Column("missed"),
    Column("paused"),
    Column("payload"),
)


@click.command(
    cls=Command,
    examples="""
        pgq schedules
        pgq schedules --json
    """,
)
@connected
async def schedules(client: Client) -> None:
    """List the schedules of the queues that you may observe."""
    rows = await client.fetch(sql.SCHEDULES)
    output.print_rows(rows, _COLUMNS, "There is no schedule that you may observe.")


@click.group(cls=Group)
def schedule() -> None:
    """Add, remove, pause or resume a schedule."""


@schedule.command(
    cls=Command,
    examples="""
        pgq schedule add nightly '30 2 * * mon-fri' reports --timezone Europe/Berlin
        pgq schedule add poll '*/5 * * * *' api '{"page": 1}' --missed skip
    """,
)
@click.argument("name")
@click.argument("cron")
@click.argument("queue")
@click.argument("payload", default="{}")
@click.option("--timezone", default="UTC", show_default=True, help="Whose local time it is about.")
@click.option("--priority", type=int, default=0, help="Of the jobs.")
@click.option("--max-attempts", type=int, help="Of the jobs; else as the queue says.")
@click.option(
    "--missed",
    type=click.Choice(["once", "all", "skip"]),
    default="once",
    show_default=True,
    help="Of times at which nobody called pgq: one job for all, for each, or none.",
)
@params.header_options
def add(
    name: str,
    queue: str,
    payload: str,
    *,
    headers: tuple[tuple[str, Any], ...],
    task: str | None,
    **options: Any,
) -> None:
    """Add a job to a queue at the times that a cron expression names.

    CRON is the five fields of crontab(5), six with one for seconds before them, @hourly and the
    like, or '@every 90 seconds'. A schedule of that name is replaced.
    """
    params.check_payload(payload)
    options |= {"payload": payload, "headers": params.headers_of(headers, task)}
    _add(name, queue, options)


@connected
async def _add(client: Client, name: str, queue: str, options: dict[str, Any]) -> None:
    first = await client.admin(dumps=params.dumps).schedule(name, queue=queue, **options)
    output.say(f"schedule {name}: next {wording.text(first)}", schedule=name, next_at=first)


@schedule.command(cls=Command, examples="pgq schedule remove nightly")
@click.argument("name")
@connected
async def remove(client: Client, name: str) -> None:
    """Remove a schedule. Jobs that it has added stay."""
    _check(name, done=await client.admin().unschedule(name))
    output.say(f"schedule {name} is removed", schedule=name, removed=True)


@schedule.command("pause", cls=Command, examples="pgq schedule pause nightly")
@click.argument("name")
@connected
async def pause_schedule(client: Client, name: str) -> None:
    """Let a schedule add no more jobs."""
    _check(name, done=await client.admin().pause_schedule(name))
    output.say(f"schedule {name} is paused", schedule=name, paused=True)


@schedule.command("resume", cls=Command, examples="pgq schedule resume nightly")
@click.argument("name")
@connected
async def resume_schedule(client: Client, name: str) -> None:
    """Let a paused schedule go on with its next time."""
    _check(name, done=await client.admin().resume_schedule(name))
    output.say(f"schedule {name} is resumed", schedule=name, paused=False)


@schedule.command("run", cls=Command, examples="pgq schedule run nightly")
@click.argument("name")
@connected
async def run_schedule(client: Client, name: str) -> None:
    """Add the job of a schedule now; its next time stays."""
    job_id = await client.admin().run_schedule(name)
    _check(name, done=job_id is not None)
    output.say(f"schedule {name} has added job {job_id}", schedule=name, job=job_id)


def _check(name: str, *, done: bool) -> None:
    if not done:
        raise Failure(f"there is no schedule {name} that you may manage")
