"""`pgq jobs`, `pgq job`, `pgq retry`, `pgq cancel` and `pgq move`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any, Final, get_args

import click
from rich.text import Text

from pgq._cli import output, params
from pgq._cli.base import Command, connected, settings
from pgq._cli.errors import FAILED, Failure
from pgq._cli.filters import filter_options, show_groups
from pgq._cli.output import JSON_COLUMNS, Column
from pgq._cli.queues import unknown_queue
from pgq._errors import DuplicateKey, NotPermitted
from pgq._models import JobState, Unreadable
from pgq._operate import bulk, sql, wording
from pgq._operate.client import Client
from pgq._operate.search import Filter, Search

_MOST: Final = 10**9

_COLUMNS: Final = (
    Column("id", right=True),
    Column("queue"),
    Column("state"),
    Column("priority", "pri", right=True),
    Column("attempts", right=True),
    Column("enqueued_at", "enqueued"),
    Column("task"),
    Column("worker"),
    Column("payload"),
    Column("last_error", "error", show=wording.error_line),
)


@click.command(
    cls=Command,
    examples="""
        pgq jobs --queue emails
        pgq jobs --queue emails --state dead --error timeout --since 2h
        pgq jobs --task welcome --payload '{"to": "ada@example.org"}' --limit 100
        pgq jobs --before 81230 --json
    """,
)
@filter_options(*get_args(JobState))
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
    client: Client, *, wanted: Filter, limit: int, before: int | None, depth: int
) -> None:
    """List the newest jobs, live and archived.

    Goes down from the largest id until it has found enough jobs or looked at --depth ids, so
    that it is cheap in a queue of whichever length. Where it stopped early it says so, on
    stderr: go on with --before. Exits with 1 if there is no such queue.
    """
    search = Search(client, wanted)
    pages = search.pages(sql.JOBS_BETWEEN, limit=limit, before=before, depth=depth)
    found = [job async for page in pages for job in page]
    if not found and wanted.queue is not None:
        await _check_queue(client, wanted.queue)
    if settings().json:
        output.print_json([output.plain(job) for job in found])
    elif found:
        rows = [{**job, "attempts": f"{job['attempt']}/{job['max_attempts']}"} for job in found]
        output.show(output.table(rows, _COLUMNS))
    if len(found) < limit and search.low > 0:
        low = search.low
        click.echo(f"Looked at ids above {low} only: go on with --before {low + 1}.", err=True)
    elif not found and not settings().json:
        click.echo("There is no such job that you may observe.", err=True)


async def _check_queue(client: Client, name: str) -> None:
    if not await client.fetch(sql.QUEUE_SETTINGS, name):
        raise unknown_queue(name)


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
        lines = wording.text(shown).splitlines() or [""]
        console.print(Text(f"{name:{width}}  {lines[0]}"), soft_wrap=True)
        for more in lines[1:]:
            console.print(Text(f"{'':{width}}  {more}"), soft_wrap=True)


@click.command(
    cls=Command,
    examples="""
        pgq retry 81230 81231
        pgq retry --queue emails --all
        pgq retry --queue emails --error timeout --since 2h
        pgq retry --task welcome --yes
    """,
)
@click.argument("job_ids", type=int, nargs=-1, metavar="[ID]...")
@filter_options("dead")
@click.option("--all", "everything", is_flag=True, help="All dead jobs of --queue.")
@click.option("--yes", is_flag=True, help="Do it, with those that the other options select.")
def retry(job_ids: tuple[int, ...], *, wanted: Filter, everything: bool, yes: bool) -> None:
    """Make dead jobs ready again, with all their attempts.

    With a --task, --error or the like: shows how many and which dead jobs these select, and does
    it with --yes, in steps. Exits with 1 if one of the ids is not that of a dead job, or if a
    live job has its dedupe key.
    """
    if wanted and not job_ids and not everything:
        _retry_matching(wanted, yes=yes)
    elif job_ids and wanted.queue is None and not wanted and not everything:
        _retry(job_ids)
    elif wanted.queue is not None and everything and not wanted and not job_ids:
        _retry_queue(wanted.queue)
    else:
        raise click.UsageError("Give ids, or --queue and --all, or --task, --error or the like.")


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
    while ids := await client.admin().retry_dead(queue):
        if not retried.keys().isdisjoint(ids):
            break
        retried.update(dict.fromkeys(ids))
    output.say(f"{wording.jobs_are(len(retried))} ready again", retried=list(retried), refused=[])


@connected
async def _retry_matching(client: Client, wanted: Filter, *, yes: bool) -> None:
    async def retry(ids: list[int]) -> list[int]:
        return await bulk.retry(client, ids)

    found = await _matching(client, wanted, yes=yes, what="retry")
    if found is not None:
        retried = await _in_steps([job["id"] for job in found], retry)
        refused = sorted({job["id"] for job in found} - set(retried))
        message = f"{wording.jobs_are(len(retried))} ready again"
        if refused:
            message += (
                f"; {wording.jobs(len(refused))} not: no longer dead, or a live job has the key"
            )
        output.say(message, retried=retried, refused=refused)


async def _matching(
    client: Client, wanted: Filter, *, yes: bool, what: str
) -> list[dict[str, Any]] | None:
    """Return the jobs that are to be changed, the oldest first; without --yes, show them."""
    pages = Search(client, wanted).pages(sql.IDS_BETWEEN, limit=_MOST)
    found = [job async for page in pages for job in page]
    if not found and wanted.queue is not None:
        await _check_queue(client, wanted.queue)
    found.reverse()
    if yes:
        return found
    if settings().json:
        output.print_json({"matching": [job["id"] for job in found]})
    elif found:
        show_groups(found)
        click.echo(f"\n{wording.jobs(len(found))}: add --yes to {what} them.")
    else:
        click.echo("There is no such job that you may observe.", err=True)
    return None


async def _in_steps(
    ids: list[int], change: Callable[[list[int]], Awaitable[list[int]]]
) -> list[int]:
    """Change jobs, some in each transaction, and tell how far it is."""
    done: list[int] = []
    for start in range(0, len(ids), bulk.STEP):
        done += await change(ids[start : start + bulk.STEP])
        if len(ids) > bulk.STEP:
            click.echo(f"{min(start + bulk.STEP, len(ids))} of {len(ids)}", err=True)
    return done


@click.command(
    cls=Command,
    examples="""
        pgq cancel 81230 81231
        pgq cancel --queue crawl --key example.org --force
        pgq cancel --queue crawl --all
        pgq cancel --task crawl --state scheduled --payload '{"host": "example.org"}' --yes
    """,
)
@click.argument("job_ids", type=int, nargs=-1, metavar="[ID]...")
@filter_options("ready", "scheduled", "waiting", "active")
@click.option("--key", help="The live job of --queue with this dedupe key.")
@click.option("--all", "everything", is_flag=True, help="All live jobs of --queue.")
@click.option("--force", is_flag=True, help="Active jobs, too: their receipts are void then.")
@click.option("--yes", is_flag=True, help="Do it, with those that --task and the like select.")
def cancel(
    job_ids: tuple[int, ...],
    *,
    wanted: Filter,
    key: str | None,
    everything: bool,
    force: bool,
    yes: bool,
) -> None:
    """Cancel live jobs.

    With a --task, --error or the like: shows how many and which live jobs these select, and does
    it with --yes, in steps. The worker of an active job is told at its next heartbeat, and there
    is no other attempt; the job is active until then, and not counted with --all. Exits with 1
    if one of the jobs is not live.
    """
    is_named = job_ids or key is not None or everything
    if wanted and not is_named:
        _cancel_matching(wanted, force=force, yes=yes)
    elif job_ids and wanted.queue is None and key is None and not everything and not wanted:
        _cancel(job_ids, force=force)
    elif (
        wanted.queue is not None and (key is not None) != everything and not wanted and not job_ids
    ):
        _cancel_in_queue(wanted.queue, key, force=force)
    else:
        raise click.UsageError(
            "Give ids, or --queue and --key, or --queue and --all, or --task, --error or the like."
        )


@connected
async def _cancel_matching(client: Client, wanted: Filter, *, force: bool, yes: bool) -> None:
    async def cancel(ids: list[int]) -> list[int]:
        return await bulk.cancel(client, ids, force=force)

    found = await _matching(client, wanted, yes=yes, what="cancel")
    if found is not None:
        cancelled = await _in_steps([job["id"] for job in found], cancel)
        left = {job["id"]: job["state"] for job in found if job["id"] not in set(cancelled)}
        asked = [job_id for job_id, state in left.items() if state == "active" and not force]
        refused = [job_id for job_id in left if job_id not in asked]
        message = f"{wording.jobs_are(len(cancelled))} cancelled"
        if asked:
            message += f"; the workers of {len(asked)} active ones are told"
        output.say(message, cancelled=cancelled, asked=asked, refused=refused)


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
    if key is None:
        count = await client.admin().cancel_all(name, force=force)
        output.say(f"{wording.jobs_are(count)} cancelled", queue=name, cancelled=count)
    elif await client.queue(name).cancel_key(key, force=force):
        output.say(f"the job with the key {key} is cancelled", queue=name, cancelled=1)
    else:
        message = f"no live job has the key {key}, or it is active: then its worker is told"
        raise Failure(message)


@click.command(
    cls=Command,
    examples="""
        pgq move 81230 81231 --priority 10
        pgq move --queue emails --task newsletter --to bulk
        pgq move --queue emails --task newsletter --to bulk --priority -5 --yes
    """,
)
@click.argument("job_ids", type=int, nargs=-1, metavar="[ID]...")
@filter_options("ready", "scheduled", "waiting")
@click.option("--to", metavar="QUEUE", help="Their new queue.")
@click.option("--priority", type=click.IntRange(-32768, 32767), help="Their new priority.")
@click.option("--yes", is_flag=True, help="Do it, with those that the other options select.")
def move(
    job_ids: tuple[int, ...], *, wanted: Filter, to: str | None, priority: int | None, yes: bool
) -> None:
    """Give jobs that are not active another queue or priority.

    With a --queue, --task or the like: shows how many and which jobs these select, and does it
    with --yes. Jobs of groups, and those older than the new queue, stay where they are. Exits
    with 1 if one of the ids stays.
    """
    selects = bool(wanted) or wanted.queue is not None
    if bool(job_ids) == selects or (to is None and priority is None):
        raise click.UsageError(
            "Give ids, or --queue, --task or the like; and --to or --priority, or both."
        )
    _move(job_ids, wanted, to, priority, yes=yes)


@connected
async def _move(
    client: Client,
    job_ids: tuple[int, ...],
    wanted: Filter,
    queue: str | None,
    priority: int | None,
    *,
    yes: bool,
) -> None:
    """Move each job in a transaction of its own: one that stays keeps no other back."""
    is_named = bool(job_ids)
    if not is_named:
        found = await _matching(client, wanted, yes=yes, what="move")
        if found is None:
            return
        job_ids = tuple(job["id"] for job in found)
    moved, refused = list[int](), list[int]()
    for job_id in job_ids:
        try:
            done = await client.queue().move(job_id, queue=queue, priority=priority)
            reason = "there is no such job, or it is active or has ended"
        except bulk.NOT_MOVED as exc:
            done, reason = False, str(exc.args[0])
        (moved if done else refused).append(job_id)
        if not done:
            click.echo(f"job {job_id}: {reason}", err=True)
    if is_named:
        _say_of_each("is moved", moved=moved, refused=refused)
    else:
        output.say(f"{wording.jobs_are(len(moved))} moved", moved=moved, refused=refused)


def _say_of_each(what: str, **ids: list[int]) -> None:
    """Print what was done with which jobs; fail if one was refused."""
    done = next(iter(ids.values()))
    if done or settings().json:
        output.say("\n".join(f"job {job_id} {what}" for job_id in done), **ids)
    if ids["refused"]:
        raise click.exceptions.Exit(FAILED)
