"""`pgq enqueue`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, TypeAlias, get_args

import asyncpg
import click
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from pgq._cli import output, params
from pgq._cli.base import Command, connected
from pgq._cli.errors import Failure, explain
from pgq._errors import Error
from pgq._models import AfterOnDead
from pgq._operate import wording
from pgq._operate.client import SERVER_ERRORS, Client

_Options: TypeAlias = "dict[str, Any]"


@click.command(
    cls=Command,
    examples="""
        pgq enqueue emails '{"to": "ada@example.org"}' --priority 5
        pgq enqueue reports '{"year": 2027}' --run-at 2027-12-31T23:00:00Z --task yearly
        pgq enqueue crawl '{"url": "https://example.org"}' --in 15m --dedupe-key example.org
        pgq enqueue reports '{"of": [81230]}' --after 81230 --after-on-dead run
        pgq enqueue imports - < job.json
        pgq enqueue imports --lines < jobs.jsonl
    """,
)
@click.argument("queue")
@click.argument("payload", required=False)
@click.option("--lines", is_flag=True, help="Add a job for each line of stdin, its payload.")
@click.option(
    "--batch",
    type=click.IntRange(1, 10_000),
    default=1000,
    show_default=True,
    help="With --lines: how many are added, and committed, at a time.",
)
@click.option("--priority", type=int, default=0, help="Higher goes first, -32768 to 32767.")
@click.option("--run-at", type=params.time, help="Not before; local if it names no time zone.")
@click.option("--in", "delay", type=params.duration, help="Not before that time has passed.")
@click.option("--expires-at", type=params.time, help="The job is dead if not started by then.")
@click.option("--dedupe-key", help="Add nothing while a live job of the queue has the key.")
@click.option(
    "--on-duplicate",
    type=click.Choice(["keep", "replace", "error"]),
    default="keep",
    show_default=True,
    help="What happens to the live job with the key.",
)
@click.option("--group-key", help="Jobs of a group run one after the other.")
@click.option("--after", type=int, multiple=True, metavar="ID", help="Wait for another job.")
@click.option(
    "--after-on-dead",
    type=click.Choice(get_args(AfterOnDead)),
    default="die",
    show_default=True,
    help="What it does when that job dies or is cancelled.",
)
@click.option("--max-attempts", type=int, help="Attempts until it is dead; else as the queue says.")
@params.header_options
def enqueue(
    queue: str,
    payload: str | None,
    *,
    lines: bool,
    batch: int,
    run_at: datetime | None,
    delay: timedelta | None,
    headers: tuple[tuple[str, Any], ...],
    task: str | None,
    after: tuple[int, ...],
    **options: Any,
) -> None:
    """Add a job, or one for each line of stdin.

    PAYLOAD is JSON, or - for all of stdin. Prints the id of the job; with --dedupe-key that of
    the live job that has the key.
    """
    if lines == (payload is not None):
        raise click.UsageError("Give a payload, or --lines.")
    if delay is not None and run_at is not None:
        raise click.UsageError("Give --run-at or --in.")
    options |= {"headers": params.headers_of(headers, task), "after": list(after) or None}
    options |= {"run_at": run_at, "delay": delay}
    if payload is None:
        if options.pop("dedupe_key") is not None:
            raise click.UsageError("--dedupe-key is for one job.")
        _enqueue_lines(queue, batch, options)
        return
    text = sys.stdin.read() if payload == "-" else payload
    params.check_payload(text)
    _enqueue_one(queue, text, options)


@connected
async def _enqueue_one(client: Client, name: str, payload: str, options: _Options) -> None:
    queue = client.queue(name, dumps=params.dumps)
    job_id = await queue.enqueue(payload, **options)
    output.say(str(job_id), id=job_id)


@connected
async def _enqueue_lines(client: Client, name: str, batch: int, options: _Options) -> None:
    queue = client.queue(name, dumps=params.dumps)
    group_key = options.pop("group_key")
    payloads = _payloads()
    done = 0
    progress = Progress(
        TextColumn("{task.completed:.0f} jobs"),
        TimeElapsedColumn(),
        console=output.console(stderr=True),
    )
    progress.disable = not progress.console.is_terminal
    with progress:
        shown = progress.add_task("", total=None)
        while part := list(itertools.islice(payloads, batch)):
            bad = next((number for number, text in part if not params.is_json(text)), None)
            texts = [text for number, text in part if bad is None or number < bad]
            keys = None if group_key is None else [group_key] * len(texts)
            try:
                await queue.enqueue_many(texts, group_keys=keys, **options)
            except SERVER_ERRORS as exc:
                failure = explain(exc)
                is_answer = isinstance(exc, (Error, asyncpg.PostgresError))
                least = "" if is_answer and not isinstance(exc, OSError) else "at least "
                told = f"{failure.message} ({least}{wording.jobs_are(done)} added)"
                raise type(failure)(told) from exc
            done += len(texts)
            progress.update(shown, completed=done)
            if bad is not None:
                raise Failure(f"line {bad} is not JSON; {wording.jobs_are(done)} added")
    output.say(wording.jobs(done), jobs=done)


def _payloads() -> Iterator[tuple[int, str]]:
    """Yield the lines of stdin that are not empty, with their numbers."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        if line.strip():
            yield number, line.decode("utf-8", "surrogateescape")
