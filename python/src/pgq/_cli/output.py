"""How results are printed: as tables for people, as JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import click
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from pgq._cli import params
from pgq._cli.base import settings
from pgq._operate import wording

JSON_COLUMNS: Final = ("payload", "headers", "checkpoint", "result", "history")
_PIPE_COLUMNS: Final = 10**9  # lines to a pipe or file are not cut
_LONG: Final = {"payload", "last_error", "query", "detail", "waiting_query", "blocking_query"}
_STYLES: Final = {
    "ok": "green",
    "warning": "yellow",
    "problem": "red",
    "dead": "red",
    "active": "green",
}

Row = Mapping[str, Any]


def console(*, stderr: bool = False) -> Console:
    """Return where to print; colours and cutting of lines are for terminals."""
    out = Console(stderr=stderr, highlight=False)
    if not out.is_terminal:
        out.width = _PIPE_COLUMNS
    return out


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        name: of the row's value.
        heading: None takes the name.
        show: makes text of the row's value.
        right: align it as numbers are.
    """

    name: str
    heading: str | None = None
    show: Callable[[Any], str] = wording.line
    right: bool = False


def table(rows: Iterable[Row], columns: Sequence[Column]) -> Table:
    """Return a table of rows."""
    # Where there is not room for all, the long ones share what the others leave.
    is_cut = console().is_terminal and any(column.name in _LONG for column in columns)
    result = Table(box=None, pad_edge=False, header_style="bold", expand=is_cut)
    for column in columns:
        result.add_column(
            column.heading or column.name.replace("_", " "),
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if is_cut and column.name in _LONG else None,
        )
    for row in rows:
        shown = [column.show(row[column.name]) for column in columns]
        result.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in shown))
    return result


def show(renderable: RenderableType) -> None:
    """Print a table or the like; to a pipe or file without blanks at the ends of lines."""
    out = console()
    if out.is_terminal:
        out.print(renderable)
        return
    with out.capture() as captured:
        out.print(renderable)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def plain(row: Row) -> dict[str, Any]:
    """Return a row for JSON: columns of the type jsonb as they are, not as text."""
    return {
        name: _loaded(value) if name in JSON_COLUMNS and value is not None else value
        for name, value in row.items()
    }


def _loaded(text: str) -> Any:
    try:
        return params.exact(text)
    except ValueError:  # a number of 5000 digits, or that no float keeps; arrays as deep
        return text


def _encode(value: object) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    return str(value)


def print_json(value: Any) -> None:
    """Print a value as JSON: times in ISO 8601, durations in seconds."""
    click.echo(json.dumps(value, default=_encode, ensure_ascii=False, indent=2))


def print_rows(rows: Sequence[Row], columns: Sequence[Column], nothing: str) -> None:
    """Print rows as a table, or all that they hold as JSON.

    Args:
        rows: what there is.
        columns: what of it the table shows.
        nothing: what is said when there is none.
    """
    if settings().json:
        print_json([plain(row) for row in rows])
    elif rows:
        show(table(rows, columns))
    else:
        click.echo(nothing, err=True)


def say(message: str, **facts: Any) -> None:
    """Print what was done as a sentence, or the facts as JSON."""
    if settings().json:
        print_json(facts)
    else:
        click.echo(message)
