"""What `pgq doctor` finds, and what it knows of sessions."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

import asyncpg

from pgq._operate import sql, wording
from pgq._operate.client import Client

Status: TypeAlias = Literal["ok", "warning", "problem"]
Row: TypeAlias = dict[str, Any]

_TERMINATE: Final = "SELECT pg_terminate_backend({})"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of a check.

    Args:
        check: what was looked at.
        status: "problem": pgq does not work, or not as promised.
        detail: what was found.
        advice: what to do.
        cause: the name of the diagnosis, as in docs/operations.md.
        holder: the worker, session or transaction that jobs wait for.
    """

    check: str
    status: Status
    detail: str
    advice: str | None = None
    cause: str | None = None
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """How old something may be without a warning."""

    transaction_age: timedelta
    ready_age: timedelta


@dataclass(frozen=True, slots=True)
class Facts:
    """What the views show at one time.

    Args:
        now: the server's time.
        queues: pgq_queues.
        settings: pgq_queue_settings, by queue.
        obstacles: pgq_obstacles.
        workers: pgq_workers.
        schedules: pgq_schedules.
        health: pgq_health.
        rigid: which roles begin with an isolation level in which maintenance does not run, where.
        schedule_writers: the backends that have changed schedules in an open transaction.
        sessions: pg_stat_activity, by pid.
    """

    now: datetime
    queues: list[Row]
    settings: dict[str, Row]
    obstacles: list[Row]
    workers: list[Row]
    schedules: list[Row]
    health: list[Row]
    rigid: list[Row]
    schedule_writers: list[int]
    sessions: dict[int, Row]

    def age(self, row: Row) -> timedelta:
        """Return for how long an obstacle has been there."""
        return timedelta(0) if row["since"] is None else self.now - row["since"]

    def session(self, pid: int | None, since: datetime | None = None) -> str | None:
        """Return who is at the other end of a session.

        Args:
            pid: of its backend.
            since: when it did something; a younger backend only has the same number.
        """
        if pid is None:
            return None
        row = self.sessions.get(pid)
        if row is None or (since is not None and (row["backend_start"] or since) > since):
            return f"pid {pid}, which has ended"
        parts = [f"application {row['application']}"] if row["application"] else []
        parts += [f"user {row['role']}"] if row["role"] else []
        parts += [f"client {row['client']}"] if row["client"] else []
        return ", ".join([f"pid {pid}", *parts])

    def worker(self, name: str | None, pid: int | None, since: datetime | None) -> str:
        """Return who holds a job."""
        return ", ".join(
            part for part in (f"worker {name}" if name else None, self.session(pid, since)) if part
        )


async def gather(client: Client) -> Facts:
    """Ask the views."""
    [server] = await client.fetch(sql.SERVER)
    queues = await client.fetch(sql.QUEUES)
    obstacles = await _fetch_newer(client, sql.OBSTACLES)
    settings = await _fetch_newer(client, sql.ALL_SETTINGS)
    workers = await client.fetch(sql.WORKERS)
    health = await client.fetch(sql.HEALTH)
    writers = [row["pid"] for row in await client.fetch(sql.SCHEDULE_WRITERS)]
    pids = {row["pid"] for row in (*obstacles, *workers, *health)} | {*writers}
    sessions = await client.fetch(sql.SESSIONS, sorted(pids - {None}))
    return Facts(
        now=server["now"],
        queues=queues,
        settings={row["name"]: row for row in settings},
        obstacles=obstacles,
        workers=workers,
        schedules=await _fetch_newer(client, sql.SCHEDULES),
        health=health,
        rigid=await client.fetch(sql.ISOLATION),
        schedule_writers=writers,
        sessions={row["pid"]: row for row in sessions},
    )


async def _fetch_newer(client: Client, statement: str) -> list[Row]:
    """Ask a view that pgq 0.1 does not have."""
    with suppress(asyncpg.UndefinedTableError):
        return await client.fetch(statement)
    return []


def terminate(pid: int) -> str:
    """Return the statement that ends a session."""
    return _TERMINATE.format(pid)


def literal(value: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + value.replace("'", "''") + "'"


def some(items: list[str], most: int = 3) -> str:
    """Return the first items of a list, and how many more there are."""
    more = len(items) - most
    return "; ".join(items[:most]) + (f"; and {more} more" if more > 0 else "")


def jobs_wait(count: int) -> str:
    """Return the beginning of a sentence on jobs that wait."""
    return f"{wording.jobs(count)} {'waits' if count == 1 else 'wait'}"
