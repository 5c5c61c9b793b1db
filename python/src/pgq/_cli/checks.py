"""What `pgq doctor` looks at."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from pgq._cli.base import Settings, connect
from pgq._cli.errors import Failure
from pgq._cli.extension import FILES_HINT, Extension
from pgq._operate import obstacles, sql, stuck, wording
from pgq._operate.client import Client
from pgq._operate.finding import (
    Facts,
    Finding,
    Limits,
    Status,
    gather,
)
from pgq._sql import NOTIFY
from pgq._version import PACKAGE, is_supported, remedy
from pgq._worker.listen import DeafError, prove

_FIRST_VERSION: Final = 140000
_NEXT_VERSION: Final = 190000
_HEARING_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Case:
    """What the checks are about."""

    options: Settings
    client: Client
    extension: Extension
    limits: Limits
    found: list[Facts] = field(default_factory=list[Facts])

    async def facts(self) -> Facts:
        """Return what the views show, all at one time, wherever the extension is."""
        if not self.found:
            schema = self.client.schema or self.extension.schema
            self.found.append(await gather(Client(self.client.connection, schema)))
        return self.found[0]


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
    if not is_supported(found.installed):
        what += f"; this is {PACKAGE}, which is not for {found.installed}"
        advice = remedy(found.installed)
        yield Finding("package", "problem", what, advice, "version")
    elif found.installed == found.available:
        yield Finding("extension", "ok", what)
    elif found.available is None:
        yield Finding("extension", "warning", f"{what}; the server has no files of it", FILES_HINT)
    else:
        what = f"{what}; version {found.available} is available"
        yield Finding("extension", "warning", what, "pgq upgrade", "version")


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
    """Maintenance runs, and nobody holds up rotation, vacuum or jobs."""
    facts = await case.facts()
    for finding in obstacles.health(facts, case.limits.transaction_age):
        yield finding
    held_up = obstacles.in_the_way(facts, case.limits.transaction_age)
    for finding in held_up:
        yield finding
    if not facts.health:
        advice = "Have pgq_grant('*', role, '{observe}') called"
        detail = "the role may not observe all queues: it cannot see them"
        yield Finding("obstacles", "warning", detail, advice)
    elif not held_up and any(
        row["subject"] == "sessions" and row["status"] != "ok" for row in facts.health
    ):
        advice = "Grant pg_read_all_stats to the owner of pgq"
        detail = "it cannot be known whether anybody is in the way of rotation or vacuum"
        yield Finding("obstacles", "warning", detail, advice)
    elif not held_up:
        oldest = wording.age(case.limits.transaction_age)
        detail = f"nobody is in the way of rotation or vacuum for more than {oldest}"
        yield Finding("obstacles", "ok", detail)


async def check_queues(case: Case) -> AsyncGenerator[Finding]:
    """Jobs are being worked off."""
    facts = await case.facts()
    found = stuck.diagnose(facts, case.limits)
    for finding in found:
        yield finding
    if all(finding.status == "ok" for finding in found):
        yield Finding("queues", "ok", f"{len(facts.queues)}, none of them stuck")


async def check_schedules(case: Case) -> AsyncGenerator[Finding]:
    """Schedules fire."""
    for finding in obstacles.schedules(await case.facts()):
        yield finding


async def check_notifications(case: Case) -> AsyncGenerator[Finding]:
    """Sleeping workers hear of jobs, if they connect as this command does."""
    try:
        async with connect(case.options, "pgq doctor") as other:

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
        yield Finding("notifications", "warning", detail, advice, "notifications")
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
    check_schedules,
)
