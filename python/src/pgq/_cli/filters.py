"""Which jobs a command is about: the options that select them, and the search for them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Final

import click

from pgq._cli import output, params
from pgq._cli.output import Column
from pgq._operate import wording
from pgq._operate.search import Filter

_GROUPS: Final = (
    Column("jobs", right=True),
    Column("queue"),
    Column("state"),
    Column("task"),
    Column("ids"),
    Column("last_error", "last error", show=wording.error_line),
)


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
        errors = Counter(wording.error_line(job["last_error"]) for job in members)
        row = dict(zip(keys, key, strict=True))
        error = errors.most_common(1)[0][0]
        rows.append({**row, "jobs": len(members), "ids": shown, "last_error": error})
    output.show(output.table(rows, _GROUPS))
