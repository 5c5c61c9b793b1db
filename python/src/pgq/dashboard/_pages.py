"""What the pages show: each function returns the variables of its template."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from pgq._admin import Admin
from pgq._operate import sql, stuck
from pgq._operate.finding import Facts, Row
from pgq._operate.search import Filter, Search
from pgq.dashboard._actions import PURGEABLE, number_of, signature
from pgq.dashboard._live import LIMITS, MOST_DEAD, Live
from pgq.dashboard._visit import STATES, Visit, asked

JOBS: Final = 50  # on a page
_SECONDS: Final = 1.0  # that a page looks for jobs; then it says how far it came
_DEAD: Final = 20_000  # that are grouped
VERBS: Final = ("retry", "run", "move", "cancel")  # for jobs of a page
_TIMED: Final = 1000  # whose times are shown
_BUCKETS: Final = 60
_COUNTED: Final = ("ready", "scheduled", "waiting", "active", "dead")


class NotFoundError(Exception):
    """There is nothing of that name that the role may observe."""


@dataclass(frozen=True, slots=True)
class Found:
    """Jobs that were found.

    Args:
        jobs: the newest first.
        older: the jobs below this id have not been looked at; None: all have.
    """

    jobs: list[Row]
    older: int | None


async def find(
    live: Live, statement: str, wanted: Filter, *, limit: int, before: int | None = None
) -> Found:
    """Look for jobs from the newest on, for about a second."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _SECONDS
    found: list[Row] = []
    async with live.call() as client:
        search = Search(client, wanted, known=live.known_id)
        pages = search.pages(statement, limit=limit, before=before)
        async with contextlib.aclosing(pages):
            async for page in pages:
                found += page
                if loop.time() > until:
                    break
        live.known_id = max(live.known_id, search.known)
    older = search.low + 1 if search.low > 0 else None
    return Found(found, found[-1]["id"] if len(found) == limit else older)


def overview(visit: Visit) -> dict[str, Any]:
    """All queues, and what is in their way."""
    facts, history = visit.snapshot.facts, visit.live.history
    totals: dict[str, int] = {state: sum(row[state] for row in facts.queues) for state in _COUNTED}
    # None where the queue keeps no completed jobs.
    completed = [row["completed_last_minute"] for row in facts.queues]
    kept = [one for one in completed if one is not None]
    holding = Counter(row["queue"] for row in facts.workers)
    return {
        "totals": totals,
        "completed": sum(kept) if kept else None,
        "failed": sum(row["failed_last_minute"] for row in facts.queues),
        "is_estimated": any(row["estimated"] for row in facts.queues),
        "histories": {row["queue"]: history.of(row["queue"]) for row in facts.queues},
        "holding": holding,
    }


async def queue(visit: Visit) -> dict[str, Any]:
    """One queue: its numbers, limits, settings and obstacles."""
    name = visit.request.query_params.get("name", "")
    facts = visit.snapshot.facts
    row = visit.snapshot.queue(name)
    if row is None:
        raise NotFoundError(f"There is no queue {name!r} that the role may observe.")
    alone = replace(facts, queues=[row])
    settings = facts.settings.get(name, {})
    arguments = inspect.signature(Admin.create_queue).parameters.values()
    defaults = {one.name: one.default for one in arguments if one.default is not one.empty}
    return {
        "row": row,
        "settings": {one: value for one, value in settings.items() if one in defaults},
        "created_at": settings.get("created_at"),
        "defaults": defaults,
        "max_ready": settings.get("max_ready") or 0,
        "rate_limit": settings.get("rate_limit") or 0,
        "rate_interval": settings.get("rate_interval"),
        "findings": [one for one in stuck.diagnose(alone, LIMITS) if one.status != "ok"],
        "obstacles": sorted(
            (one for one in facts.obstacles if one["queue"] == name),
            key=lambda one: one["state"] != "dead",
        ),
        "workers": [one for one in facts.workers if one["queue"] == name],
        "times": await _times(visit.live, name),
        "history": visit.live.history.of(name),
        "purgeable": PURGEABLE,
    }


@dataclass(frozen=True, slots=True)
class Times:
    """How long the last completed jobs of a queue waited and ran, in seconds.

    Args:
        jobs: their times, the oldest first.
        is_cut: older jobs were not looked at, for there are too many newer ones.
    """

    jobs: list[Row]
    is_cut: bool

    def quantile(self, name: str, part: float) -> float | None:
        """Return a quantile of what the jobs waited or ran."""
        return quantile([row[name] for row in self.jobs], part)


def quantile(values: Sequence[float], part: float) -> float | None:
    """Return a quantile, None of nothing."""
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[round(part * 100) - 1]


async def _times(live: Live, name: str) -> Times:
    async def look() -> Times:
        wanted = Filter(queue=name, states=("completed",))
        found = await find(live, sql.TIMES_BETWEEN, wanted, limit=_TIMED)
        jobs = [row for row in found.jobs if row["ran"] is not None]
        in_order = sorted(jobs, key=lambda row: row["finished_at"])
        return Times(in_order, is_cut=found.older is not None)

    return await live.once(("times", name), look)


async def series(visit: Visit) -> dict[str, Any]:
    """What the charts of a queue draw: columns of numbers, the first of them seconds."""
    name = visit.request.query_params.get("name", "")
    if visit.snapshot.queue(name) is None:
        raise NotFoundError(f"There is no queue {name!r} that the role may observe.")
    history = visit.live.history.of(name)
    at = [time for time, _ in history]
    samples = [sample for _, sample in history]
    return {
        "flow": [at, [one.completed for one in samples], [one.failed for one in samples]],
        "backlog": [at, [one.ready for one in samples], [one.active for one in samples]],
        "times": _bucketed((await _times(visit.live, name)).jobs),
    }


def _bucketed(jobs: Sequence[Row]) -> list[list[float | None]]:
    """Return, for steps of time, quantiles of how long jobs waited and ran."""
    columns: list[list[float | None]] = [[], [], [], [], []]
    if not jobs:
        return columns
    ends = [row["finished_at"].timestamp() for row in jobs]
    width = max((ends[-1] - ends[0]) / _BUCKETS, 0.05)
    buckets: dict[int, list[Row]] = {}
    for end, row in zip(ends, jobs, strict=True):
        buckets.setdefault(int((end - ends[0]) / width), []).append(row)
    for bucket, rows in sorted(buckets.items()):
        waited, ran = [row["waited"] for row in rows], [row["ran"] for row in rows]
        values = (quantile(waited, 0.5), quantile(waited, 0.95), quantile(ran, 0.5))
        for column, value in zip(
            columns, (ends[0] + bucket * width, *values, quantile(ran, 0.95)), strict=True
        ):
            column.append(value)
    return columns


async def jobs(visit: Visit) -> dict[str, Any]:
    """A page of jobs that match a filter."""
    params = visit.request.query_params
    wanted = asked(params.multi_items())
    before = number_of(params.get("before", ""))
    found = Found([], None)
    if not wanted.problems:
        key = ("jobs", wanted.wanted, before)
        found = await visit.live.once(
            key,
            lambda: find(visit.live, sql.LINES_BETWEEN, wanted.wanted, limit=JOBS, before=before),
        )
    verbs = [one for one in VERBS if visit.may_somewhere(one, wanted.given["queue"])]
    queues = {row["queue"] for row in found.jobs}
    return {
        "verbs": verbs,
        "managed": {name for name in queues if any(visit.may(one, name) for one in verbs)},
        "asked": wanted,
        "before": before,
        "found": found.jobs,
        "older": found.older,
        "is_full": len(found.jobs) == JOBS,
        "states": STATES,
        "jobs_of_a_page": JOBS,
    }


async def job(visit: Visit) -> dict[str, Any]:
    """One job, what it waits for, and who waits for it."""
    job_id = number_of(visit.request.path_params["id"])
    found: tuple[Row, dict[int, str]] | None = None
    if job_id is not None:

        async def look() -> tuple[Row, dict[int, str]] | None:
            async with visit.live.call() as client:
                rows = await client.fetch(sql.JOB, job_id)
                if not rows:
                    return None
                ids = [*_first(rows[0]["after"]), *_first(rows[0]["before"])]
                beside = await client.fetch(sql.IDS_OF, ids) if ids else []
                return rows[0], {one["id"]: one["state"] for one in beside}

        found = await visit.live.once(("job", job_id), look)
    if found is None:
        raise NotFoundError(
            "There is no such job that the role may observe: it never was, or it is no longer kept."
        )
    row, states = found
    settings = visit.snapshot.facts.settings.get(row["queue"], {})
    return {
        "job": row,
        "blocks": (
            row["state"] == "dead"
            and row["group_key"] is not None
            and settings.get("group_on_dead") == "block"
        ),
        "steps": _steps(row),
        "attempts": _attempts(row["history"]),
        "graph": _graph(visit.snapshot.facts, row, states),
    }


def _attempts(history: str | None) -> list[Row]:
    """Return the attempts that failed, as far as they are kept, the newest first."""
    attempts: list[Row] = json.loads(history or "[]")
    for one in attempts:
        one["ended_at"] = datetime.fromisoformat(one["ended_at"])
        one["took"] = one["ended_at"] - datetime.fromisoformat(one["claimed_at"])
    return attempts[::-1]


def _steps(row: Row) -> list[tuple[str, datetime]]:
    """Return what has happened to a job, and will, in the order of the times."""
    named = [("enqueued", row["enqueued_at"])]
    if row["run_at"] != row["enqueued_at"]:
        named.append(("due", row["run_at"]))
    named += [
        ("claimed", row["claimed_at"]),
        ("lease ends", row["lease_expires_at"]),
        ("has to start", row["expires_at"]),
        (row["state"], row["finished_at"]),
    ]
    return sorted(((name, at) for name, at in named if at is not None), key=lambda step: step[1])


@dataclass(frozen=True, slots=True)
class Node:
    """A job beside another one, or several of its group.

    Args:
        job_id: the job; None: there are several.
        state: None for a job that the role may not observe.
        jobs: how many there are.
    """

    job_id: int | None
    state: str | None
    jobs: int = 1


@dataclass(frozen=True, slots=True)
class Graph:
    """What a job waits for, and who waits for it, as far as that is sure.

    Args:
        before: the jobs that have to end first.
        behind: those that wait for it.
        more_before: how many of them are not drawn, in words.
        more_behind: the same of those behind.
        blocking: the dead job that blocks its group.
    """

    before: list[Node]
    behind: list[Node]
    more_before: str = ""
    more_behind: str = ""
    blocking: int | None = None

    def __bool__(self) -> bool:
        """Tell whether there is something to draw."""
        return bool(self.before or self.behind)


_DRAWN: Final = 6
_TOLD: Final = 100  # of which pgq_get has the ids


def _first(ids: Sequence[int] | None) -> Sequence[int]:
    return (ids or ())[:_DRAWN]


def _more(ids: Sequence[int] | None) -> str:
    """Tell how many of these jobs are not drawn."""
    left = len(ids or ()) - _DRAWN
    if left <= 0:
        return ""
    return f"{left} more" if left + _DRAWN < _TOLD else f"{left} or more others"


def _graph(facts: Facts, row: Row, states: Mapping[int, str]) -> Graph:
    """Return what is sure: those named in `after`, and in groups of one job at a time."""
    before = [Node(one, states.get(one)) for one in _first(row["after"])]
    behind = [Node(one, states.get(one)) for one in _first(row["before"])]
    blocking: int | None = None
    if facts.settings.get(row["queue"], {}).get("group_concurrency") == 1:
        # Where several jobs of a group run at a time, the others wait for any of them.
        place = (row["queue"], row["group_key"])
        for one in facts.obstacles:
            if one["cause"] != "group" or (one["queue"], one["group_key"]) != place:
                continue
            if one["job_id"] == row["id"]:
                behind.append(Node(None, "waiting", one["jobs"]))
            elif row["state"] == "waiting":
                before.append(Node(one["job_id"], one["state"]))
                blocking = one["job_id"] if one["state"] == "dead" else None
    return Graph(before, behind, _more(row["after"]), _more(row["before"]), blocking)


def workers(visit: Visit) -> dict[str, Any]:
    """Who holds jobs."""
    facts = visit.snapshot.facts
    return {
        "rows": [
            {
                **row,
                "session": facts.session(row["pid"], row["oldest_claimed_at"]),
                "is_lost": bool(row["backend_gone"]),
                "is_silent": row["expired"] > 0,
            }
            for row in facts.workers
        ]
    }


def schedules(visit: Visit) -> dict[str, Any]:
    """What is enqueued when."""
    late = [one for one in visit.snapshot.findings if one.check == "schedules"]
    return {"rows": visit.snapshot.facts.schedules, "findings": late}


@dataclass(slots=True)
class DeadGroup:
    """Dead jobs of the same queue, task and error."""

    queue: str
    task: str | None
    error: str
    count: int
    newest_id: int
    newest: datetime
    oldest: datetime


async def dead(visit: Visit) -> dict[str, Any]:
    """Dead jobs, those with the same queue, task and error together."""
    name = visit.param("queue") or None
    before = number_of(visit.param("before"))

    async def look() -> Found:
        wanted = Filter(queue=name, states=("dead",))
        return await find(visit.live, sql.IDS_BETWEEN, wanted, limit=_DEAD, before=before)

    found = await visit.live.once(("dead", name, before), look)
    counts = [row["dead"] for row in visit.queues if name in (None, row["queue"])]
    return {
        "groups": _grouped(found.jobs),
        "count": len(found.jobs),
        "before": before,
        "older": found.older,
        "queue": name,
        "total": sum(counts),
        "is_least": any(count >= MOST_DEAD for count in counts),
    }


def _grouped(rows: Iterable[Row]) -> list[DeadGroup]:
    groups: dict[tuple[str, str | None, str], DeadGroup] = {}
    for row in rows:
        error, at = signature(row["last_error"]), row["finished_at"]
        key = (row["queue"], row["task"], error)
        group = groups.get(key)
        if group is None:
            groups[key] = DeadGroup(*key, 1, row["id"], at, at)
        else:
            group.count += 1
            group.newest, group.oldest = max(group.newest, at), min(group.oldest, at)
    return sorted(groups.values(), key=lambda group: -group.count)
