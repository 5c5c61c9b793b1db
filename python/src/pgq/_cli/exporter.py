"""Metrics from the views, for Prometheus; `prometheus_client` comes with the extra "metrics"."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pgq._cli import extension
from pgq._cli.base import Settings, connect, databases
from pgq._cli.errors import Failure, explain
from pgq._cli.web import Answer, Pages
from pgq._operate import sql
from pgq._operate.client import SERVER_ERRORS

_CALL_SECONDS: Final = 10.0
_FRESH_SECONDS: Final = 1.0
_STATES: Final = ("ready", "scheduled", "waiting", "active", "dead")
_OBSTACLES: Final = ("rotation", "slot in use", "xmin held")

Rows: TypeAlias = Sequence[dict[str, Any]]
_Samples: TypeAlias = Iterable[tuple[Sequence[str], Any]]
_Metric: TypeAlias = tuple[str, str, Sequence[str], _Samples]  # name, help, names of labels


def pages(options: Settings) -> Pages:
    """Return /metrics and /health of one database or more."""
    views = _Databases(options)
    registry = _registry(views)

    def metrics() -> Answer:
        return Answer(body=generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

    def health() -> Answer:
        problems = views.problems()
        is_up = len(problems) < len(views.each)
        return Answer(
            body=("\n".join(problems) or "ok").encode() + b"\n",
            content_type="text/plain; charset=utf-8",
            status=HTTPStatus.OK if is_up else HTTPStatus.SERVICE_UNAVAILABLE,
        )

    return {"/metrics": metrics, "/health": health}


def exposition(options: Settings) -> bytes:
    """Return the metrics as text."""
    return generate_latest(_registry(_Databases(options)))


def _registry(views: Collector) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(views)
    return registry


class _Views:
    """Reads the views when it is asked; requests that come meanwhile, or soon after, share it.

    So there is at most one connection, and nobody waits for longer than a call may take.
    """

    def __init__(self, options: Settings) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._last: futures.Future[dict[str, Rows]] | None = None
        self._fresh_until = 0.0

    def read(self) -> dict[str, Rows]:
        with self._lock:
            reading = self._last
            is_mine = reading is None or self._is_over(reading)
            if reading is None or is_mine:
                reading = self._last = futures.Future()
        if is_mine:
            try:
                rows = asyncio.run(asyncio.wait_for(_read(self._options), _CALL_SECONDS))
            except SERVER_ERRORS as exc:
                reading.set_exception(explain(exc))
            except BaseException as exc:
                reading.set_exception(exc)
                raise
            else:
                self._fresh_until = time.monotonic() + _FRESH_SECONDS
                reading.set_result(rows)
        try:
            return reading.result(timeout=_CALL_SECONDS)
        except TimeoutError as exc:
            raise explain(TimeoutError()) from exc

    def _is_over(self, reading: futures.Future[dict[str, Rows]]) -> bool:
        """Tell whether a reading has failed, or is too old."""
        if not reading.done():
            return False
        return reading.exception() is not None or time.monotonic() >= self._fresh_until


class _Databases(Collector):
    """The views of one database or more; those of several have a label with its name.

    They are read at the same time. One that does not answer soon is down: a scrape does not wait
    as long as the only database may take.
    """

    def __init__(self, options: Settings) -> None:
        self.each = {name: _Views(one) for name, one in databases(options).items()}
        self._patience = None if len(self.each) == 1 else _CALL_SECONDS / 2

    def _read(self) -> dict[str, dict[str, Rows] | Failure]:
        """Return what each database shows, or why it cannot be read."""
        readings = {name: _in_thread(views.read) for name, views in self.each.items()}
        futures.wait(readings.values(), self._patience)
        found: dict[str, dict[str, Rows] | Failure] = {}
        for name, reading in readings.items():
            try:
                found[name] = reading.result(timeout=0)
            except (Failure, TimeoutError) as exc:
                problem = explain(exc)
                found[name] = Failure(f"{name}: {problem.message}") if name else problem
        return found

    def problems(self) -> list[str]:
        """Return why databases cannot be read."""
        return [one.message for one in self._read().values() if isinstance(one, Failure)]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        has_label = len(self.each) > 1
        families: dict[str, GaugeMetricFamily] = {}

        for database, views in self._read().items():
            first = [database] if has_label else []
            metrics: list[_Metric] = [("pgq_up", _UP, (), [((), not isinstance(views, Failure))])]
            if isinstance(views, Failure):
                views.show()
            else:
                metrics += _metrics(views)
            for name, text, labels, samples in metrics:
                names = [*(["database"] if has_label else []), *labels]
                family = families.setdefault(name, GaugeMetricFamily(name, text, labels=names))
                for values, value in samples:
                    if value is not None:
                        family.add_metric([*first, *values], _number(value))
        yield from families.values()


def _in_thread(function: Callable[[], dict[str, Rows]]) -> futures.Future[dict[str, Rows]]:
    """Return what a function will return in a thread that nobody waits for at the end."""
    promised: futures.Future[dict[str, Rows]] = futures.Future()

    def run() -> None:
        try:
            promised.set_result(function())
        except BaseException as exc:  # noqa: BLE001 -- raised again where it is asked for
            promised.set_exception(exc)

    threading.Thread(target=run, daemon=True).start()
    return promised


_UP: Final = "Whether the server was reached and the views could be read."


async def _read(options: Settings) -> dict[str, Rows]:
    async with connect(options, "pgq metrics", command_timeout=_CALL_SECONDS) as client:
        found = await extension.look(client)
        [server] = await client.fetch(sql.SERVER)
        return {
            "server": [{**server, "extension": found.installed or ""}],
            "queues": await client.fetch(sql.QUEUES),
            "workers": await client.fetch(sql.WORKERS),
            "health": await client.fetch(sql.HEALTH),
            "sizes": await client.fetch(sql.SIZES),
        }


def _number(value: Any) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        return value.timestamp()
    return float(value)


def _metrics(views: dict[str, Rows]) -> Iterator[_Metric]:
    """Yield name, help, names of labels and samples of each metric."""
    [server] = views["server"]
    yield (
        "pgq_info",
        "The versions of extension and server.",
        ("extension", "server"),
        [((server["extension"], server["version"]), 1)],
    )
    queues = views["queues"]
    yield (
        "pgq_queue_jobs",
        "Jobs by queue and state.",
        ("queue", "state"),
        [((row["queue"], state), row[state]) for row in queues for state in _STATES],
    )
    for name, text, value in _OF_QUEUE:
        yield name, text, ("queue",), [((row["queue"],), value(row)) for row in queues]
    now = server["now"]
    for name, text, combine in _OF_WORKERS:
        yield (
            name,
            text,
            ("queue",),
            [
                (
                    (row["queue"],),
                    combine(now, [one for one in views["workers"] if one["queue"] == row["queue"]]),
                )
                for row in queues
            ],
        )
    yield from _health_metrics(views["health"])
    yield (
        "pgq_storage_bytes",
        "Bytes of the tables of live jobs and of the archive, with their indexes.",
        ("part",),
        [((row["part"],), row["bytes"]) for row in views["sizes"]],
    )


def _health_metrics(
    health: Rows,
) -> Iterator[_Metric]:
    """Yield the metrics of pgq_health; there are none for who may not observe all queues."""
    if not health:
        return
    for subject in ("maintenance", "rotation"):
        yield (
            f"pgq_{subject}_age_seconds",
            f"Since the last {subject}.",
            (),
            [
                ((), row["age"])
                for row in health
                if row["subject"] == subject and row["age"] is not None
            ],
        )
    yield (
        "pgq_health_warnings",
        "Warnings of pgq_health.",
        ("subject",),
        [
            (
                (subject,),
                sum(row["status"] == "warning" for row in health if row["subject"] == subject),
            )
            for subject in _OBSTACLES
        ],
    )
    yield (
        "pgq_health_unknown",
        "1: the owner of pgq may not see what other sessions do.",
        (),
        [((), any(row["subject"] == "sessions" and row["status"] != "ok" for row in health))],
    )
    yield (
        "pgq_obstacle_age_seconds",
        "The oldest transaction that uses a slot, or holds the xmin horizon.",
        ("subject",),
        [
            ((subject,), max((row["age"] for row in health if _is_old(row, subject)), default=0))
            for subject in _OBSTACLES[1:]
        ],
    )


def _is_old(row: dict[str, Any], subject: str) -> bool:
    return row["subject"] == subject and row["age"] is not None


_OF_QUEUE: Final[tuple[tuple[str, str, Callable[[dict[str, Any]], Any]], ...]] = (
    (
        "pgq_queue_jobs_estimated",
        "1: the numbers of jobs are estimated.",
        lambda row: row["estimated"],
    ),
    (
        "pgq_queue_oldest_ready_age_seconds",
        "How long ago the oldest job that can be claimed was to run; 0 if there is none.",
        lambda row: row["oldest_ready_age"] or 0,
    ),
    (
        "pgq_queue_next_due_timestamp_seconds",
        "When the next scheduled job is due.",
        lambda row: row["next_due"],
    ),
    (
        "pgq_queue_completed_last_minute",
        "Jobs completed in the last minute.",
        lambda row: row["completed_last_minute"],
    ),
    (
        "pgq_queue_failed_last_minute",
        "Attempts failed in the last minute.",
        lambda row: row["failed_last_minute"],
    ),
    (
        "pgq_queue_completed_last_hour",
        "Jobs completed in the last hour.",
        lambda row: row["completed_last_hour"],
    ),
    (
        "pgq_queue_failed_last_hour",
        "Attempts failed in the last hour.",
        lambda row: row["failed_last_hour"],
    ),
    (
        "pgq_queue_max_active",
        "The most active jobs at a time; 0 for no limit.",
        lambda row: row["max_active"],
    ),
    ("pgq_queue_paused", "1: the queue is paused.", lambda row: row["paused"]),
)

_OF_WORKERS: Final[tuple[tuple[str, str, Callable[[datetime, Rows], Any]], ...]] = (
    (
        "pgq_workers",
        "Workers that hold jobs.",
        lambda _, rows: len({row["worker"] for row in rows}),
    ),
    (
        "pgq_workers_leases",
        "Leases that they hold.",
        lambda _, rows: sum(row["jobs"] for row in rows),
    ),
    (
        "pgq_workers_leases_expired",
        "Of those, how many have expired.",
        lambda _, rows: sum(row["expired"] for row in rows),
    ),
    (
        "pgq_workers_leases_orphaned",
        "Of those, how many were claimed by a backend that is gone.",
        lambda _, rows: sum(row["jobs"] for row in rows if row["backend_gone"]),
    ),
    (
        "pgq_workers_oldest_claim_age_seconds",
        "Since the oldest of their jobs was claimed; 0 if there is none.",
        lambda now, rows: max((now - row["oldest_claimed_at"] for row in rows), default=0),
    ),
    (
        "pgq_workers_last_heartbeat_age_seconds",
        "Since the last heartbeat of the worker that has been silent for longest.",
        lambda now, rows: max((now - row["last_heartbeat_at"] for row in rows), default=0),
    ),
)
