"""Which jobs a command is about: the options that select them, and the search for them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any, Final

import click

from pgq._cli import output, params, sql
from pgq._cli.base import Client
from pgq._cli.output import Column

_FIRST_STEP: Final = 1000  # ids that are looked at at once; doubled while too few jobs are found
_PAGE: Final = 10_000  # jobs that are fetched at once

_GROUPS: Final = (
    Column("jobs", right=True),
    Column("queue"),
    Column("state"),
    Column("task"),
    Column("ids"),
    Column("last_error", "last error", show=output.error_line),
)


@dataclass(frozen=True, slots=True)
class Filter:
    """What a job has to be like; None: no matter.

    Args:
        queue: its queue.
        states: one of these.
        task: the header "task".
        error: a part of its last error, in small or large letters.
        payload: JSON that its payload contains.
        group: its group key.
        worker: who claimed it last.
        since: not before that time, or that long ago. A job's time is that of its end, else of its
            claim, else of its enqueue.
        until: before that.
    """

    queue: str | None = None
    states: tuple[str, ...] | None = None
    task: str | None = None
    error: str | None = None
    payload: str | None = None
    group: str | None = None
    worker: str | None = None
    since: datetime | timedelta | None = None
    until: datetime | timedelta | None = None

    def __bool__(self) -> bool:
        """Tell whether it says more than the queue and the state."""
        return any(
            getattr(self, field.name) is not None
            for field in fields(self)
            if field.name not in ("queue", "states")
        )

    def arguments(self) -> list[object]:
        """Return the arguments of the statements that take it, from $4 on."""
        return [
            self.queue,
            list(self.states) if self.states else None,
            *(self.task, self.error, self.payload, self.group, self.worker),
            *(
                end if isinstance(end, kind) else None
                for end in (self.since, self.until)
                for kind in (datetime, timedelta)
            ),
        ]


def filter_options(*states: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of a `Filter`, as its argument `wanted`.

    Args:
        states: those that may be chosen; one needs no option.
    """
    options: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = [
        click.option("--queue", help="Of this queue; all that you may observe by default."),
        click.option("--task", metavar="NAME", help='With this header "task".'),
        click.option("--error", metavar="TEXT", help="With this text in the last error."),
        click.option(
            "--payload",
            type=params.json_text,
            metavar="JSON",
            help="""With a payload that contains this, as '{"to": "ada"}'.""",
        ),
        click.option("--group", metavar="KEY", help="Of this group."),
        click.option("--worker", metavar="NAME", help="Claimed by this worker last."),
        click.option(
            "--since",
            type=params.moment,
            metavar="TIME|DURATION",
            help="Ended, else claimed, else enqueued since then, or as long ago.",
        ),
        click.option("--until", type=params.moment, metavar="TIME|DURATION", help="Before that."),
    ]
    if len(states) > 1:
        options.insert(
            1,
            click.option(
                "--state",
                "states",
                type=click.Choice(states),
                multiple=True,
                help="In this state; may be repeated.",
            ),
        )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(*args: Any, **kwargs: Any) -> Any:
            names = {field.name for field in fields(Filter)} & kwargs.keys()
            wanted = Filter(**{name: kwargs.pop(name) for name in names})
            return function(*args, wanted=replace(wanted, states=wanted.states or states), **kwargs)

        for option in reversed(options):
            option(command)
        return command

    return decorate


@dataclass(slots=True)
class Search:
    """The jobs that match a filter, from the largest id down.

    Args:
        client: where they are.
        wanted: what they are like.
        low: the ids above it have been looked at.
    """

    client: Client
    wanted: Filter
    low: int = 0

    async def pages(
        self, statement: str, *, limit: int, before: int | None = None, depth: int | None = None
    ) -> AsyncGenerator[list[dict[str, Any]]]:
        """Yield pages of jobs.

        Args:
            statement: JOBS_BETWEEN or IDS_BETWEEN.
            limit: the most jobs.
            before: only jobs below this id.
            depth: how many ids are looked at; None: all.
        """
        top = await self._top_id() if before is None else before - 1
        last = 0 if depth is None else max(top - depth, 0)
        self.low, step = top, _FIRST_STEP
        while limit and self.low > last:
            high, self.low = self.low, max(self.low - step, last)
            most = min(limit, _PAGE)
            page = await self.client.fetch_by_index(
                statement, self.low, high, most, *self.wanted.arguments()
            )
            if len(page) == most < limit:
                self.low = page[-1]["id"] - 1
            limit -= len(page)
            step *= 2
            yield page

    async def _top_id(self) -> int:
        """Return the largest id of a job; 0 if there is none."""

        async def is_below_a_job(job_id: int) -> bool:
            [answer] = await self.client.fetch_by_index(sql.HAS_JOB_ABOVE, job_id)
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


def show_groups(jobs: Sequence[dict[str, Any]]) -> None:
    """Print which jobs there are, those of a queue, state and task together."""
    keys = ("queue", "state", "task")
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for job in jobs:
        groups.setdefault(tuple(job[key] for key in keys), []).append(job)
    rows: list[dict[str, Any]] = []
    for key, members in sorted(groups.items(), key=lambda item: -len(item[1])):
        ids = [str(job["id"]) for job in members]
        shown = ", ".join(ids) if len(ids) < 4 else f"{ids[0]}, {ids[1]} ... {ids[-1]}"
        errors = Counter(output.error_line(job["last_error"]) for job in members)
        row = dict(zip(keys, key, strict=True))
        error = errors.most_common(1)[0][0]
        rows.append({**row, "jobs": len(members), "ids": shown, "last_error": error})
    output.show(output.table(rows, _GROUPS))
