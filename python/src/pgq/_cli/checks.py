"""What `pgq doctor` looks at."""

from __future__ import annotations

import shlex
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

from pgq._cli import output, sql
from pgq._cli.base import Client, connect, settings
from pgq._cli.errors import Failure
from pgq._cli.extension import FILES_HINT, Extension
from pgq._listen import DeafError, prove
from pgq._sql import NOTIFY
from pgq._version import PACKAGE, is_supported, remedy

Status: TypeAlias = Literal["ok", "warning", "problem"]

_FIRST_VERSION: Final = 140000
_NEXT_VERSION: Final = 190000
_HEARING_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of a check.

    Args:
        check: what was looked at.
        status: "problem": pgq does not work, or not as promised.
        detail: what was found.
        advice: what to do.
    """

    check: str
    status: Status
    detail: str
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """How old something may be without a warning."""

    transaction_age: timedelta
    ready_age: timedelta


@dataclass(frozen=True, slots=True)
class Case:
    """What the checks are about."""

    client: Client
    extension: Extension
    limits: Limits

    async def view(self, statement: str) -> list[dict[str, Any]]:
        """Read a view, wherever the extension is."""
        schema = self.client.schema or self.extension.schema
        return await Client(self.client.connection, schema).fetch(statement)


Check: TypeAlias = Callable[[Case], AsyncGenerator[Finding]]


async def check_server(case: Case) -> AsyncGenerator[Finding]:
    """The server is of a version that is supported, and can be written to."""
    [server] = await case.client.fetch(sql.SERVER)
    where = "PostgreSQL {version}, database {database}, role {role}".format(**server)
    if server["version_num"] < _FIRST_VERSION:
        yield Finding("server", "problem", where, "pgq needs PostgreSQL 14 or newer")
    elif server["version_num"] >= _NEXT_VERSION:
        yield Finding("server", "warning", where, "pgq is tested with PostgreSQL 14 to 18")
    else:
        yield Finding("server", "ok", where)
    if server["in_recovery"]:
        yield Finding("server", "problem", "it is a standby", "Connect to the primary")


async def check_extension(case: Case) -> AsyncGenerator[Finding]:
    """The extension is there, of the server's version and of one that fits this package."""
    found = case.extension
    if found.problem is not None:
        yield Finding("extension", "problem", *found.problem)
        return
    if found.installed is None:
        yield Finding("extension", "problem", "it is not installed in this database", "pgq install")
        return
    what = f"{found.installed}, in the schema {found.schema}, by {found.way}"
    if found.installed == found.available:
        yield Finding("extension", "ok", what)
    elif found.available is None:
        yield Finding("extension", "warning", f"{what}; the server has no files of it", FILES_HINT)
    else:
        what = f"{what}; version {found.available} is available"
        yield Finding("extension", "warning", what, "pgq upgrade")
    if not is_supported(found.installed):
        what = f"this is {PACKAGE}, which is not for {found.installed}"
        yield Finding("package", "problem", what, remedy(found.installed))


async def check_settings(case: Case) -> AsyncGenerator[Finding]:
    """The settings are such that jobs are kept, and that space is used again."""
    rows = await case.client.fetch(sql.SETTINGS)
    values: dict[str, str] = {row["name"]: row["setting"] for row in rows}
    wrong = [
        Finding("settings", status, f"{name} is {values[name]}", advice)
        for name, right, status, advice in _SETTINGS
        if values[name] not in right
    ]
    for finding in wrong:
        yield finding
    if not wrong:
        yield Finding("settings", "ok", ", ".join(f"{n} {v}" for n, v in sorted(values.items())))


_SETTINGS: Final[tuple[tuple[str, tuple[str, ...], Status, str], ...]] = (
    (
        "default_transaction_isolation",
        ("read committed",),
        "problem",
        "Maintenance runs under READ COMMITTED only: make it the default of database and role",
    ),
    ("default_transaction_read_only", ("off",), "problem", "Jobs cannot be written: set it off"),
    ("autovacuum", ("on",), "warning", "Tables are not cleaned up: set it on"),
    ("track_counts", ("on",), "warning", "Autovacuum needs it: set it on"),
    ("fsync", ("on",), "warning", "A crash may lose all data: set it on"),
    (
        "synchronous_commit",
        ("on", "local", "remote_write", "remote_apply"),
        "warning",
        "A crash may lose jobs whose enqueue has committed: set it on",
    ),
)


async def check_connections(case: Case) -> AsyncGenerator[Finding]:
    """Workers can still connect."""
    [row] = await case.client.fetch(sql.CONNECTIONS)
    used, most = row["used"], row["most"]
    detail = f"{used} of max_connections {most} are in use"
    if used < 0.8 * most:
        yield Finding("connections", "ok", detail)
    else:
        advice = "Raise max_connections, use smaller pools, or a pooler"
        yield Finding("connections", "warning", detail, advice)


async def check_functions(case: Case) -> AsyncGenerator[Finding]:
    """The functions are found without their schema."""
    schema = case.extension.schema
    [row] = await case.client.fetch(sql.SEARCH_PATH, schema)
    if row["is_in_it"]:
        yield Finding("search_path", "ok", f"{schema} is in search_path")
    else:
        detail = f"{schema} is not in search_path, {row['search_path']}"
        advice = f"Add it, or say --schema {schema}, in Python Queue(..., schema={schema!r})"
        status: Status = "ok" if case.client.schema == schema else "warning"
        yield Finding("search_path", status, detail, advice)


async def check_privileges(case: Case) -> AsyncGenerator[Finding]:
    """The role may do something."""
    rows = await case.client.fetch(sql.PRIVILEGES, case.extension.schema)
    names = [row["privilege"] for row in rows]
    if names:
        yield Finding("privileges", "ok", f"the role may {', '.join(names)}")
    else:
        advice = "Have somebody who manages a queue call pgq_grant"
        yield Finding("privileges", "problem", "the role may do nothing", advice)


async def check_obstacles(case: Case) -> AsyncGenerator[Finding]:
    """Nobody holds up rotation or vacuum."""
    rows = await case.view(sql.HEALTH)
    if not rows:
        advice = "Have pgq_grant('*', role, '{observe}') called"
        detail = "the role may not observe all queues: it cannot see them"
        yield Finding("obstacles", "warning", detail, advice)
        return
    for row in rows:
        if row["subject"] == "rotation" and row["status"] != "ok":
            detail = f"behind for {output.age(row['age'])}: {row['detail']}"
            yield Finding("rotation", "warning", detail, "End what is in its way, see below")
        if row["subject"] == "sessions" and row["status"] != "ok":
            advice = "GRANT pg_read_all_stats to that role"
            yield Finding("sessions", "warning", f"the owner, {row['detail']}", advice)
    found = obstacles(rows, case.limits.transaction_age)
    for finding in found:
        yield finding
    if not found:
        oldest = output.age(case.limits.transaction_age)
        detail = f"nobody is in the way of rotation or vacuum for more than {oldest}"
        yield Finding("obstacles", "ok", detail)


def obstacles(rows: list[dict[str, Any]], limit: timedelta) -> list[Finding]:
    """Return a finding for each session, prepared transaction or idle slot that is in the way.

    Args:
        rows: of pgq_health.
        limit: how old a transaction may be.
    """
    what: dict[object, list[dict[str, Any]]] = {}
    for row in rows:
        if row["subject"] not in ("slot in use", "xmin held"):
            continue
        if row["age"] is None and row["pid"] is not None and row["status"] != "warning":
            continue  # a replication slot that is in use, or a session that is not to be seen
        if row["age"] is None or row["age"] > limit:
            what.setdefault(row["pid"] or row["detail"], []).append(row)
    found: list[Finding] = []
    for held in what.values():
        pid, age, query = held[0]["pid"], held[0]["age"], held[0]["query"]
        uses = "; ".join(f"{row['subject']}, {row['detail']}" for row in held)
        if pid is None or age is None:
            since = "" if age is None else f" for {output.age(age)}"
            advice = "Commit or roll it back; drop the replication slot if nobody needs it"
            found.append(Finding("obstacles", "warning", f"{uses}{since}", advice))
        else:
            detail = f"pid {pid}, in a transaction for {output.age(age)}: {uses}: {query}"
            advice = f"End it, if need be: SELECT pg_terminate_backend({pid})"
            found.append(Finding("obstacles", "warning", detail, advice))
    return found


async def check_queues(case: Case) -> AsyncGenerator[Finding]:
    """Jobs are being worked off."""
    rows = await case.view(sql.QUEUES)
    found = [finding for row in rows for finding in _stuck(row, case.limits.ready_age)]
    for finding in found:
        yield finding
    if not found:
        yield Finding("queues", "ok", f"{len(rows)}, none of them stuck")


def _stuck(queue: dict[str, Any], limit: timedelta) -> list[Finding]:
    name, ready, dead, age = (
        queue[column] for column in ("queue", "ready", "dead", "oldest_ready_age")
    )
    quoted = shlex.quote(name)
    found: list[Finding] = []
    if queue["paused"] and ready:
        found.append(
            Finding("queues", "warning", f"{name} is paused, {ready} ready", f"pgq resume {quoted}")
        )
    elif age is not None and age > limit:
        detail = f"{name}: the oldest of {output.jobs(ready)} has been ready for {output.age(age)}"
        advice = "Are there enough workers? pgq workers"
        if 0 < queue["max_active"] <= queue["active"] and not queue["estimated"]:
            detail += f", and as many are active as its max-active allows, {queue['max_active']}"
            advice = f"pgq workers shows who has them; pgq queue configure {quoted} --max-active"
        found.append(Finding("queues", "warning", detail, advice))
    if dead:
        advice = f"pgq jobs --queue {quoted} --state dead; pgq retry --queue {quoted} --all"
        found.append(Finding("queues", "warning", f"{name}: {output.jobs(dead, 'dead ')}", advice))
    return found


async def check_notifications(case: Case) -> AsyncGenerator[Finding]:
    """Sleeping workers hear of jobs, if they connect as this command does."""
    try:
        async with connect(settings(), "pgq doctor") as other:

            async def notify(channel: str) -> None:
                await other.connection.execute(NOTIFY, channel)

            await prove(case.client.connection, notify, _HEARING_SECONDS)
    except Failure as exc:
        yield Finding("notifications", "warning", f"could not look: {exc.message}")
    except DeafError:
        detail = "they do not arrive: a pooler gives each transaction another session"
        advice = (
            "Workers here need listen=False, or connect= to go past the pooler; pools need"
            " statement_cache_size=0, unless it keeps prepared statements"
        )
        yield Finding("notifications", "warning", detail, advice)
    else:
        yield Finding("notifications", "ok", "they arrive")


EVERYWHERE: Final[tuple[Check, ...]] = (
    check_server,
    check_extension,
    check_settings,
    check_connections,
)
INSTALLED: Final[tuple[Check, ...]] = (
    check_functions,
    check_privileges,
    check_notifications,
    check_obstacles,
    check_queues,
)
