"""What `pgq top` shows: a frame of a given size, as the keys have chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.text import Text

from pgq._operate import obstacles, wording
from pgq._operate.finding import Facts, Finding, Limits

Row = dict[str, Any]

_LIMITS: Final = Limits(transaction_age=timedelta(minutes=1), ready_age=timedelta(minutes=10))
_MIN_NAME: Final = 12
_MIN_WORKERS: Final = 4  # lines, the heading among them
_GAP: Final = 2


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a list on the screen.

    Args:
        name: of the row's value.
        heading: what is above it.
        rank: of columns for which there is no room those with the largest rank go first.
        key: sorts the list by it.
        by: what is sorted by, of the row's value; the largest first.
    """

    name: str
    heading: str
    rank: int
    key: str = ""
    by: Callable[[Any], Any] | None = None


def _count(value: Any) -> float:
    return float(value or 0)


def _length(value: Any) -> float:
    return -1.0 if value is None else float(value.total_seconds())


QUEUES: Final = (
    Field("queue", "queue", 0, "n"),
    Field("ready", "ready", 1, "r", _count),
    Field("active", "active", 2, "a", _count),
    Field("oldest_ready_age", "oldest", 3, "o", _length),
    Field("done_per_second", "done/s", 4, "c", _count),
    Field("failed_per_second", "failed/s", 6, "f", _count),
    Field("dead", "dead", 5, "d", _count),
    Field("holding", "workers", 8, "w", _count),
    Field("scheduled", "scheduled", 9, "s", _count),
    Field("waiting", "waiting", 10, "b", _count),
    Field("paused", "paused", 7),
)
DATABASE: Final = Field("database", "database", 1)  # the second column, where there are several
WORKERS: Final = (
    Field("worker", "worker", 0),
    Field("queue", "queue", 1),
    Field("jobs", "jobs", 2),
    Field("oldest_claim", "claimed", 3),
    Field("last_heartbeat", "heartbeat", 5),
    Field("expired", "expired", 4),
    Field("pid", "pid", 6),
    Field("backend_gone", "gone", 7),
)
_NAMES: Final = frozenset({"queue", "worker", "database"})
_LEFT: Final = _NAMES | {"paused", "backend_gone"}

HELP: Final = f"""\
q  Ctrl-C     end
?             this help
up, down      scroll the queues; also k and j, PgUp and PgDn, Home and End
Tab           scroll the workers instead, and back

sort the queues, and once more: the other way round
{chr(10).join(f"{one.key}             by {one.heading}" for one in QUEUES if one.key)}

oldest is the age of the oldest ready job, workers are those that hold jobs.
done/s and failed/s are those of the last minute. What keeps jobs or rotation
from moving is counted by kind: pgq doctor says more."""


@dataclass(slots=True)
class View:
    """What the keys have chosen."""

    sort: str = "queue"
    is_reversed: bool = False
    shows_help: bool = False
    scrolls_workers: bool = False
    queue_offset: int = 0
    worker_offset: int = 0
    page: int = 10

    def press(self, key: str) -> None:
        """Obey a key; others do nothing."""
        if self.shows_help or key == "?":
            self.shows_help = not self.shows_help
            return
        if key == "\t":
            self.scrolls_workers = not self.scrolls_workers
        elif key in _MOVES:
            self._move(_MOVES[key])
        for one in QUEUES:
            if key and key == one.key:
                self.is_reversed = one.name == self.sort and not self.is_reversed
                self.sort, self.queue_offset = one.name, 0

    def shift(self, is_workers: bool, count: int, room: int) -> int:
        """Return the first of so many rows that is shown where there is room for some."""
        if is_workers:
            self.worker_offset = max(min(self.worker_offset, count - room), 0)
            return self.worker_offset
        self.page = room
        self.queue_offset = max(min(self.queue_offset, count - room), 0)
        return self.queue_offset

    def _move(self, pages: float) -> None:
        step = int(pages) if abs(pages) == 1 else int(pages * self.page / 2)
        if self.scrolls_workers:
            self.worker_offset = max(self.worker_offset + step, 0)
        else:
            self.queue_offset = max(self.queue_offset + step, 0)


# By so many lines, or halves of a page.
_MOVES: Final = {
    "k": -1.0,
    "j": 1.0,
    "\x1b[A": -1.0,
    "\x1b[B": 1.0,
    "\x1bOA": -1.0,
    "\x1bOB": 1.0,
    "\x1b[5~": -2.0,
    "\x1b[6~": 2.0,
    "\x1b[H": -1e9,
    "\x1b[F": 1e9,
    "\x1b[1~": -1e9,
    "\x1b[4~": 1e9,
}


@dataclass(frozen=True, slots=True)
class Frame:
    """One look at a server.

    Args:
        facts: what the views show.
        server: which one it is.
        name: of the database, where there are several.
    """

    facts: Facts
    server: Row
    name: str = ""
    queues: list[Row] = field(init=False, default_factory=list[Row])
    workers: list[Row] = field(init=False, default_factory=list[Row])

    def __post_init__(self) -> None:
        """Compute what is shown beside what the views tell."""
        for row in self.facts.queues:
            holding = {one["worker"] for one in self.facts.workers if one["queue"] == row["queue"]}
            self.queues.append(
                {
                    **row,
                    "database": self.name,
                    "done_per_second": _rate(row["completed_last_minute"]),
                    "failed_per_second": _rate(row["failed_last_minute"]),
                    "holding": len(holding),
                }
            )
        for row in self.facts.workers:
            claimed, heartbeat = row["oldest_claimed_at"], row["last_heartbeat_at"]
            # A worker may have claimed after the server was asked for the time.
            ages = {
                "oldest_claim": max(self.facts.now - claimed, timedelta(0)),
                "last_heartbeat": max(self.facts.now - heartbeat, timedelta(0)),
            }
            self.workers.append({**row, **ages, "database": self.name})

    def render(self, view: View, width: int, height: int | None) -> Group:
        """Return what is shown on a screen of a size; height None: all."""
        return render([self], {}, view, width, height)

    def found(self) -> list[Finding]:
        """Return what keeps jobs or rotation from moving."""
        where = f"{self.name}: " if self.name else ""
        return [
            replace(one, detail=where + one.detail)
            for one in obstacles.diagnose(self.facts, _LIMITS)
            if one.status != "ok"
        ]


def render(
    frames: Sequence[Frame], down: Mapping[str, str], view: View, width: int, height: int | None
) -> Group:
    """Return what is shown of one database or more.

    Args:
        frames: of those that answer.
        down: what is wrong with the others, by their names.
        view: what the keys have chosen.
        width: of the screen.
        height: of the screen; None for all lines.
    """
    if view.shows_help:
        return Group(*(Text(_cut(line, width)) for line in HELP.splitlines()[:height]))
    lines = [Text(_cut(f"{_head(frames, down)}   ? help", width), style="bold"), Text()]
    in_the_way = [Text(_cut(f"{name}: {text}", width), "red") for name, text in down.items()]
    in_the_way += _in_the_way(frames, width)
    if height is not None and len(in_the_way) > height // 4:
        more = len(in_the_way) - height // 4 + 1
        text = _cut(f"and {more} more kinds: pgq doctor", width)
        in_the_way[max(height // 4 - 1, 0) :] = [Text(text, "yellow")]
    room = None if height is None else height - len(lines) - len(in_the_way) - 2
    workers = [row for frame in frames for row in frame.workers]
    few = min(len(workers) + 1, _MIN_WORKERS)
    for_queues = None if room is None else max(room - few, 2)
    is_one = len(frames) + len(down) == 1
    rows = _sorted([row for frame in frames for row in frame.queues], view)
    queues = _Table(_columns(QUEUES, is_one=is_one), rows, width).lines(for_queues, view)
    for_workers = None if room is None else room - len(queues)
    lines += [*queues, Text(), *in_the_way]
    if workers:
        columns = _columns(WORKERS, is_one=is_one)
        lines += [Text(), *_Table(columns, workers, width).lines(for_workers, view)]
    return Group(*lines[:height])


def _head(frames: Sequence[Frame], down: Mapping[str, str]) -> str:
    if len(frames) == 1 and not down:
        what = "{database}, PostgreSQL {version}".format(**frames[0].server)
    else:
        what = f"{len(frames) + len(down)} databases, {len(down)} of them down"
    times = [wording.text(max(frame.facts.now for frame in frames))] if frames else []
    return ", ".join([what, *times])


def _columns(columns: Sequence[Field], *, is_one: bool) -> Sequence[Field]:
    return columns if is_one else [columns[0], DATABASE, *columns[1:]]


def _sorted(rows: list[Row], view: View) -> list[Row]:
    one = next(one for one in QUEUES if one.name == view.sort)
    if one.by is None:
        return sorted(rows, key=lambda row: str(row[one.name]), reverse=view.is_reversed)
    by = one.by
    return sorted(rows, key=lambda row: by(row[one.name]), reverse=not view.is_reversed)


def _in_the_way(frames: Sequence[Frame], width: int) -> list[Text]:
    """Return one line for each kind of diagnosis."""
    kinds: dict[str, list[Finding]] = {}
    for frame in frames:
        for one in frame.found():
            kinds.setdefault(one.cause or one.check, []).append(one)
    if not kinds:
        text = "Nothing is in the way of jobs, rotation or vacuum."
        is_seen = all(frame.facts.health for frame in frames)
        return [Text(_cut(text if is_seen else "", width), style="green")]
    return [
        Text(_cut(f"{len(found):3} x {kind}: {wording.line(found[0].detail)}", width), "yellow")
        for kind, found in sorted(kinds.items(), key=lambda item: -len(item[1]))
    ]


def _rate(per_minute: int | None) -> float | None:
    return None if per_minute is None else per_minute / 60


def _shown(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else wording.line(value)


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{set_cell_size(text, max(width - 1, 0))}…"


@dataclass(frozen=True, slots=True)
class _Table:
    """A list of rows: the columns for which there is room, and the lines from an offset on."""

    columns: Sequence[Field]
    rows: list[Row]
    width: int

    def lines(self, height: int | None, view: View) -> list[Text]:
        """Return a heading, and the rows for which there is room; None: all."""
        shown = self.rows
        heading = [one.heading for one in self.columns]
        if height is not None:
            room = max(height - 1, 1)
            first = view.shift(self.columns[0] is WORKERS[0], len(self.rows), room)
            shown = self.rows[first : first + room]
            if len(shown) < len(self.rows):
                heading[0] += f" {first + 1}-{first + len(shown)}/{len(self.rows)}"
        cells = [[_shown(row[one.name]) for one in self.columns] for row in shown]
        widths = self._widths([heading, *cells])
        lines = [self._line(heading, widths, "bold")]
        for row, texts in zip(shown, cells, strict=True):
            style = "red" if row.get("paused") or row.get("backend_gone") else ""
            lines.append(self._line(texts, widths, style))
        return lines

    def _widths(self, lines: list[list[str]]) -> list[int]:
        """Return how wide each column is, 0 for those that are left out; names share the rest."""
        wanted = [max(map(cell_len, texts)) for texts in zip(*lines, strict=True)]
        widths = [0] * len(wanted)
        left = self.width + _GAP
        for index in sorted(range(len(wanted)), key=lambda index: self.columns[index].rank):
            is_name = self.columns[index].name in _NAMES
            least = min(wanted[index], _MIN_NAME) if is_name else wanted[index]
            if least + _GAP > left:
                break
            widths[index] = least
            left -= least + _GAP
        for index, width in enumerate(widths):
            if width and self.columns[index].name in _NAMES:
                widths[index] = min(wanted[index], width + left)
                left -= widths[index] - width
        return widths

    def _line(self, texts: list[str], widths: list[int], style: str) -> Text:
        parts: list[str] = []
        for one, text, width in zip(self.columns, texts, widths, strict=True):
            cut = _cut(text, width)
            blanks = " " * (width - cell_len(cut))
            if width:
                parts.append(cut + blanks if one.name in _LEFT else blanks + cut)
        return Text((" " * _GAP).join(parts).rstrip(), style)
