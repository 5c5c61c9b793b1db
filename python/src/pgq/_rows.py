"""Makes jobs of rows, without the __init__ of a frozen dataclass.

With it, a worker of short jobs would take 1.2 times the CPU (benchmarks/rows.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import msgspec

from pgq._models import Job, Unreadable

JobT = TypeVar("JobT", bound=Job[Any])
Loads: TypeAlias = Callable[[str], Any]


class Row(Protocol):
    """A row of a result, as every driver has it; its columns are in the statement's order."""

    def keys(self) -> Iterable[str]:
        """Return the names of the columns."""
        ...

    def values(self) -> Iterable[Any]:
        """Return what is in them."""
        ...

    def __getitem__(self, name: str, /) -> Any:
        """Return what is in one of them."""
        ...


_JSON: Final = {"payload", "headers", "checkpoint", "result", "history"}
_TIMES: Final = {
    "enqueued_at",
    "run_at",
    "claimed_at",
    "lease_expires_at",
    "expires_at",
    "finished_at",
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def read_json(text: str) -> Any:
    """Return what JSON text holds, as `json.loads` does, in a fraction of its time."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:  # jsonb has numbers that are too large for a float
        return json.loads(text)


class _Times(dict[int | None, datetime | None]):
    """Times by their microseconds since 1970; the jobs of a claim share most of them."""

    def __missing__(self, microseconds: int) -> datetime:
        time = self[microseconds] = _EPOCH + timedelta(microseconds=microseconds)
        return time


def jobs_of(kind: type[JobT], rows: Sequence[Row], loads: Loads) -> list[JobT]:
    """Return a job, or what is derived from it, of each row of a statement that returns jobs.

    Args:
        kind: the class.
        rows: JSON comes as text in them, times as microseconds since 1970.
        loads: reads JSON text; what it cannot read is an `Unreadable`.
    """
    if not rows:
        return []
    names = tuple(rows[0].keys())
    texts = [name for name in names if name in _JSON]
    sent = [name for name in names if name in _TIMES]
    times = _Times({None: None})
    made: list[JobT] = []
    for row in rows:
        job = object.__new__(kind)
        columns = vars(job)
        columns.update(zip(names, row.values(), strict=True))
        for name in texts:
            if (text := columns[name]) is not None:
                try:
                    columns[name] = loads(text)
                except Exception as exc:  # noqa: BLE001 it must not cost the other jobs
                    columns[name] = Unreadable(text=text, error=exc)
        for name in sent:
            columns[name] = times[columns[name]]
        made.append(job)
    return made


def with_payload(job: JobT, payload: Any) -> JobT:
    """Return a job like another one, but with this payload; see `dataclasses.replace`."""
    made = object.__new__(type(job))
    vars(made).update(vars(job), payload=payload)
    return made
