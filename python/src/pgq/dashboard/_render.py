"""Makes HTML: the templates with their filters, and the drawings that need no script."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pgq._operate import finding, wording
from pgq.dashboard._live import Sample

HERE: Final = Path(__file__).parent
STATIC: Final = HERE / "static"
_SPARK_WIDTH: Final = 96
_SPARK_HEIGHT: Final = 20
_SPARK_POINTS: Final = 48


def version_of_files() -> str:
    """Return what changes with the files that browsers keep."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def number(value: float | None) -> str:
    """Return a number with its thousands apart."""
    return "-" if value is None else f"{value:,.0f}"


def capitalized(text: str) -> str:
    """Return a text with a capital letter at its beginning, the others as they are."""
    return text[:1].upper() + text[1:]


def place(values: Sequence[object]) -> str:
    """Return an id for the element that is about these values, and no others."""
    return ":".join(quote(str(value), safe="") for value in values if value is not None)


def many(count: int) -> str:
    """Return how many jobs that are."""
    return f"{number(count)} {'job' if count == 1 else 'jobs'}"


def age(value: timedelta | None) -> str:
    """Return a duration, a dash for none."""
    return "-" if value is None else wording.age(value)


def utc(value: datetime) -> str:
    """Return a time to the second."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def since(value: datetime | None, now: datetime) -> Markup:
    """Return how long ago a time was, or in how long it comes; the time itself is its title."""
    if value is None:
        return Markup("-")
    passed = now - value
    shown = f"in {wording.age(-passed)}" if passed < timedelta(0) else f"{wording.age(passed)} ago"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        value.astimezone(UTC).isoformat(), utc(value), shown
    )


def query(**values: Any) -> str:
    """Return a query of a URL; None and empty values are left out, lists are repeated."""
    return urlencode(
        {name: value for name, value in values.items() if value not in (None, "", [], ())},
        doseq=True,
    )


def spark(points: Sequence[tuple[float, Sample]], name: str, label: str) -> Markup:
    """Draw how a number of a queue moved.

    Args:
        points: times and samples.
        name: of the number.
        label: what is said to people who cannot see it.
    """
    values = [(at, getattr(sample, name)) for at, sample in points]
    known = [(at, float(value)) for at, value in values if value is not None]
    if len(known) < 2:
        return Markup('<svg class="spark" width="{}" height="{}" aria-hidden="true"></svg>').format(
            _SPARK_WIDTH, _SPARK_HEIGHT
        )
    first, last = known[0][0], known[-1][0]
    step = max(len(known) // _SPARK_POINTS, 1)
    # The highest of each step: a short burst stays to be seen.
    kept = [
        (known[i][0], max(value for _, value in known[i : i + step]))
        for i in range(0, len(known), step)
    ]
    top = max(value for _, value in kept) or 1.0
    span = (last - first) or 1.0
    line = " ".join(
        f"{(at - first) / span * _SPARK_WIDTH:.1f},"
        f"{_SPARK_HEIGHT - 1.5 - value / top * (_SPARK_HEIGHT - 3):.1f}"
        for at, value in kept
    )
    end = line.rsplit(" ", 1)[-1].split(",")[0]
    return Markup(
        '<svg class="spark" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img">'
        "<title>{label}: now {now}, at most {top}</title>"
        '<polygon points="0,{h} {line} {end},{h}"/><polyline points="{line}"/></svg>'
    ).format(
        w=_SPARK_WIDTH,
        h=_SPARK_HEIGHT,
        label=label,
        now=number(known[-1][1]),
        top=number(top),
        line=line,
        end=end,
    )


def environment() -> Environment:
    """Return the templates; whatever they show is escaped."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "capitalize_first": capitalized,
        "age": age,
        "error_line": wording.error_line,
        "line": wording.line,
        "literal": finding.literal,
        "number": number,
        "place": place,
        "shell": shlex.quote,
        "shown": wording.text,
        "utc": utc,
    }
    values: dict[str, Any] = {"query": query, "since": since, "spark": spark, "many": many}
    made.globals.update(values)
    return made
