"""`pgq jobs`, `pgq job`, `pgq retry` and `pgq cancel`."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, Final, get_args

import click
from rich.text import Text

from pgq._cli import output, params, sql
from pgq._cli.base import Client, Command, connected, settings
from pgq._cli.errors import FAILED, Failure
from pgq._cli.output import JSON_COLUMNS, Column
from pgq._cli.queues import unknown_queue
from pgq._errors import DuplicateKey, NotPermitted
from pgq._models import JobState, Unreadable

_FIRST_STEP: Final = 1000  # ids that are looked at at once; doubled while too few jobs are found

_COLUMNS: Final = (
    Column("id", right=True),
    Column("queue"),
    Column("state"),
    Column("priority", "pri", right=True),
    Column("attempts", right=True),
    Column("enqueued_at", "enqueued"),
    Column("worker"),
    Column("payload"),
    Column("last_error", "error", show=output.error_line),
)


@click.command(
    cls=Command,
    examples="""
        pgq jobs --queue emails
        pgq jobs --queue emails --state dead --limit 100
        pgq jobs --before 81230 --json
    """,
)
@click.option("--queue", help="Of this queue; all that you may observe by default.")
@click.option(
    "--state",
    "states",
    type=click.Choice(get_args(JobState)),
    multiple=True,
    help="In this state; may be repeated.",
)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many.")
@click.option("--before", type=click.IntRange(1), metavar="ID", help="Only jobs below this id.")
@click.option(
    "--depth",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    help="How many ids are looked at.",
)
@connected
async def jobs(
    client: Client,
    *,
    queue: str | None,
    states: tuple[str, ...],
    limit: int,
    before: int | None,
    depth: int,
) -> None:
    """List the newest jobs, live and archived.

    Goes down from the largest id until it has found enough jobs or looked at --depth ids, so
    that it is cheap in a queue of whichever length. Where it stopped early it says so, on
    stderr: go on with --before. Exits with 1 if there is no such queue.
    """
    top = await _top_id(client, queue) if before is None else before - 1
    found: list[dict[str, Any]] = []
    low, step = top, _FIRST_STEP
    while len(found) < limit and low > max(top - depth, 0):
        high, low = low, max(low - step, top - depth, 0)
        wanted = (queue, list(states) or None, limit - len(found))
        found += await client.fetch_by_index(sql.JOBS_BETWEEN, low, high, *wanted)
        step *= 2
    if not found and queue is not None and not await client.fetch(sql.QUEUE_SETTINGS, queue):
        raise unknown_queue(queue)
    if settings().json:
        output.print_json([output.plain(job) for job in found])
    elif found:
        rows = [{**job, "attempts": f"{job['attempt']}/{job['max_attempts']}"} for job in found]
        output.show(output.table(rows, _COLUMNS))
    if len(found) < limit and low > 0:
        click.echo(f"Looked at ids above {low} only: go on with --before {low + 1}.", err=True)
    elif not found and not settings().json:
        click.echo("There is no such job that you may observe.", err=True)


async def _top_id(client: Client, queue: str | None) -> int:
    """Return the largest id of a job; 0 if there is none."""

    async def is_below_a_job(job_id: int) -> bool:
        [answer] = await client.fetch_by_index(sql.HAS_JOB_ABOVE, job_id, queue)
        return bool(answer["found"])

    low, high = 0, _FIRST_STEP
    if not await is_below_a_job(low):
        return 0
    while await is_below_a_job(high):
        low, high = high, high * 8
    while high - low > 1:
        middle = (low + high) // 2
        if await is_below_a_job(middle):
            low = middle
        else:
            high = middle
    return high


@click.command(
    cls=Command,
    examples="""
        pgq job 81230
        pgq job 81230 --json
    """,
)
@click.argument("job_id", type=int, metavar="ID")
@connected
async def job(client: Client, job_id: int) -> None:
    """Show all of one job. Exits with 1 if there is none that you may observe."""
    found = await client.queue(loads=params.exact).get(job_id)
    if found is None:
        raise Failure(f"there is no job {job_id} that you may observe")
    values = ((field.name, getattr(found, field.name)) for field in fields(found))
    columns = {
        name: value.text if isinstance(value, Unreadable) else value for name, value in values
    }
    if settings().json:
        output.print_json(columns)
        return
    console = output.console()
    width = max(map(len, columns))
    for name, value in columns.items():
        if value is None or value is False:
            continue
        shown = json.dumps(value, ensure_ascii=False, indent=2) if name in JSON_COLUMNS else value
        lines = output.text(shown).splitlines() or [""]
        console.print(Text(f"{name:{width}}  {lines[0]}"), soft_wrap=True)
        for more in lines[1:]:
            console.print(Text(f"{'':{width}}  {more}"), soft_wrap=True)


@click.command(
    cls=Command,
    examples="""
        pgq retry 81230 81231
        pgq retry --queue emails --all
    """,
)
@click.argument("job_ids", type=int, nargs=-1, metavar="[ID]...")
@click.option("--queue", help="With --all: of this queue.")
@click.option("--all", "everything", is_flag=True, help="All dead jobs of --queue.")
def retry(job_ids: tuple[int, ...], queue: str | None, *, everything: bool) -> None:
    """Make dead jobs ready again, with all their attempts.

    Exits with 1 if one of the ids is not that of a dead job, or if a live job has its dedupe key.
    """
    if job_ids and queue is None and not everything:
        _retry(job_ids)
    elif queue is not None and everything and not job_ids:
        _retry_queue(queue)
    else:
        raise click.UsageError("Give ids, or --queue and --all.")


@connected
async def _retry(client: Client, job_ids: tuple[int, ...]) -> None:
    retried, refused = list[int](), list[int]()
    for job_id in job_ids:
        try:
            done = await client.queue().retry(job_id)
            reason = "there is no such dead job"
        except DuplicateKey as exc:
            done, reason = False, str(exc.args[0])
        (retried if done else refused).append(job_id)
        if not done:
            click.echo(f"job {job_id}: {reason}", err=True)
    _say_of_each("is ready again", retried=retried, refused=refused)


@connected
async def _retry_queue(client: Client, queue: str) -> None:
    """Retry in batches, until there is none, or one has died again meanwhile."""
    retried: dict[int, None] = {}
    while ids := await client.queue(queue).retry_dead():
        if not retried.keys().isdisjoint(ids):
            break
        retried.update(dict.fromkeys(ids))
    output.say(f"{output.jobs_are(len(retried))} ready again", retried=list(retried), refused=[])


@click.command(
    cls=Command,
    examples="""
        pgq cancel 81230 81231
        pgq cancel --queue crawl --key example.org --force
        pgq cancel --queue crawl --all
    """,
)
@click.argument("job_ids", type=int, nargs=-1, metavar="[ID]...")
@click.option("--queue", help="With --key or --all: of this queue.")
@click.option("--key", help="The live job of --queue with this dedupe key.")
@click.option("--all", "everything", is_flag=True, help="All live jobs of --queue.")
@click.option("--force", is_flag=True, help="Active jobs, too: their receipts are void then.")
def cancel(
    job_ids: tuple[int, ...], queue: str | None, key: str | None, *, everything: bool, force: bool
) -> None:
    """Cancel live jobs.

    The worker of an active job is told at its next heartbeat, and there is no other attempt;
    the job is active until then, and not counted with --all. Exits with 1 if one of the jobs is
    not live.
    """
    if job_ids and queue is None and key is None and not everything:
        _cancel(job_ids, force=force)
    elif queue is not None and (key is not None) != everything and not job_ids:
        _cancel_in_queue(queue, key, force=force)
    else:
        raise click.UsageError("Give ids, or --queue and --key, or --queue and --all.")


@connected
async def _cancel(client: Client, job_ids: tuple[int, ...], *, force: bool) -> None:
    cancelled, asked, refused = list[int](), list[int](), list[int]()
    for job_id in job_ids:
        if await client.queue().cancel(job_id, force=force):
            cancelled.append(job_id)
            continue
        if await _is_asked(client, job_id):
            asked.append(job_id)
            click.echo(f"job {job_id}: it is active, and its worker is told", err=True)
        else:
            refused.append(job_id)
            click.echo(f"job {job_id}: there is no such live job that you may observe", err=True)
    _say_of_each("is cancelled", cancelled=cancelled, asked=asked, refused=refused)


async def _is_asked(client: Client, job_id: int) -> bool:
    try:
        job = await client.queue().get(job_id)
    except NotPermitted:
        return False
    return job is not None and job.cancel_requested


@connected
async def _cancel_in_queue(client: Client, name: str, key: str | None, *, force: bool) -> None:
    queue = client.queue(name)
    if key is None:
        count = await queue.cancel_all(force=force)
        output.say(f"{output.jobs_are(count)} cancelled", queue=name, cancelled=count)
    elif await queue.cancel_key(key, force=force):
        output.say(f"the job with the key {key} is cancelled", queue=name, cancelled=1)
    else:
        message = f"no live job has the key {key}, or it is active: then its worker is told"
        raise Failure(message)


def _say_of_each(what: str, **ids: list[int]) -> None:
    """Print what was done with which jobs; fail if one was refused."""
    done = next(iter(ids.values()))
    if done or settings().json:
        output.say("\n".join(f"job {job_id} {what}" for job_id in done), **ids)
    if ids["refused"]:
        raise click.exceptions.Exit(FAILED)
