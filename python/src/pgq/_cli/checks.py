"""What `pgq doctor` looks at."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeAlias

from pgq._cli import output, sql, stuck
from pgq._cli.base import Client, connect, settings
from pgq._cli.errors import Failure
from pgq._cli.extension import FILES_HINT, Extension
from pgq._cli.finding import (
    Facts,
    Finding,
    Limits,
    Row,
    Status,
    gather,
    literal,
    some,
    terminate,
)
from pgq._sql import NOTIFY
from pgq._version import PACKAGE, is_supported, remedy
from pgq._worker.listen import DeafError, prove

_FIRST_VERSION: Final = 140000
_NEXT_VERSION: Final = 190000
_LATE: Final = timedelta(minutes=1)
# By the subject of a row of pgq_health. What has none is shown without.
_ADVICE: Final = {
    "maintenance": "SELECT pgq_maintain(), and let workers use READ COMMITTED",
    "rotation": "pgq health, pgq locks",
    "sessions": "GRANT pg_read_all_stats to that role",
}
_PREPARED: Final = re.compile(r'prepared transaction "(.*?)"(?:$|[;:,])')
_SLOT: Final = re.compile(r'replication slot "(.*?)"(?:$|[;:,])')
_HEARING_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Case:
    """What the checks are about."""

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
    for finding in health(facts, case.limits.transaction_age):
        yield finding
    found = obstacles(facts, case.limits.transaction_age)
    for finding in found:
        yield finding
    if not facts.health:
        advice = "Have pgq_grant('*', role, '{observe}') called"
        detail = "the role may not observe all queues: it cannot see them"
        yield Finding("obstacles", "warning", detail, advice)
    elif not found:
        oldest = output.age(case.limits.transaction_age)
        detail = f"nobody is in the way of rotation or vacuum for more than {oldest}"
        yield Finding("obstacles", "ok", detail)


def health(facts: Facts, limit: timedelta) -> list[Finding]:
    """Return a finding for each row of pgq_health that is not ok, nor about who is in the way."""
    found: list[Finding] = []
    for row in facts.health:
        subject, detail = row["subject"], row["detail"]
        if row["status"] == "ok" or subject in ("slot in use", "xmin held"):
            continue
        advice = _ADVICE.get(subject)
        holder = facts.session(row["pid"])
        if subject == "sessions":
            detail = f"the owner, {detail}"
        elif subject == "maintenance":
            detail += f"; the last one was {output.age(row['age']) or 'never'} ago"
            roles = ["{role} in {database} do not use it".format(**role) for role in facts.rigid]
            holder = some(roles) or None
        elif subject == "rotation":
            if obstacles(facts, limit):
                continue  # they are why
            detail = f"behind for {output.age(row['age'])}: {detail}"
        elif row["age"] is not None:
            detail += f", {output.age(row['age'])}"
        found.append(Finding(subject, "warning", detail, advice, subject, holder))
    return found


def obstacles(facts: Facts, limit: timedelta) -> list[Finding]:
    """Return a finding for each session, prepared transaction or idle slot that is in the way.

    Args:
        facts: what the views show.
        limit: how old a transaction may be.
    """
    what: dict[object, list[Row]] = {}
    for row in facts.obstacles:
        if row["cause"] == "transaction" and (age := facts.age(row)) > limit:
            gid = row["transaction"]
            who = f'by the prepared transaction "{gid}"' if gid else None
            detail = f"{output.jobs(row['jobs'])} of {row['queue']}, job {row['job_id']} among them"
            held = {"subject": "holds", "detail": detail, "age": age, "pid": row["pid"]}
            what.setdefault(row["pid"] or who or "an open transaction", []).append(held)
    for row in facts.health:
        if row["subject"] not in ("slot in use", "xmin held"):
            continue
        if row["age"] is None and row["pid"] is not None and row["status"] != "warning":
            continue  # a replication slot that is in use, or a session that is not to be seen
        if row["age"] is None or row["age"] > limit:
            what.setdefault(row["pid"] or row["detail"], []).append(row)
    return [_held_up(who, held, facts) for who, held in what.items()]


def _held_up(who: object, held: list[Row], facts: Facts) -> Finding:
    first = held[-1]  # a row of pgq_health, if there is one
    pid, age = first["pid"], first["age"]
    query = first.get("query")
    holds_jobs = held[0]["subject"] == "holds"
    uses = "; ".join(
        f"{row['subject']} {row['detail']}"
        if row["subject"] == "holds"
        else f"{row['subject']}, {row['detail']}"
        for row in held
    )
    if pid is None or age is None:
        since = "" if age is None else f" for {output.age(age)}"
        who = f"{who}: " if holds_jobs and len(held) == 1 else ""
        if match := _PREPARED.search(f"{who}{uses}"):
            gid = literal(match[1])
            advice = f"Commit or roll it back: COMMIT PREPARED {gid}, or ROLLBACK PREPARED {gid}"
            cause = "prepared transaction"
        elif match := _SLOT.search(uses):
            advice = (
                "If nobody needs it, drop the replication slot: "
                f"SELECT pg_drop_replication_slot({literal(match[1])})"
            )
            cause = "replication slot"
        else:
            advice, cause = "pgq health shows who writes to the slots; end that one", "transaction"
        return Finding("obstacles", "warning", f"{who}{uses}{since}", advice, cause)
    detail = f"pid {pid}, in a transaction for {output.age(age)}: {uses}"
    detail += f": {query}" if query else ""
    session = facts.sessions.get(pid, {})
    advice = f"End it, if need be: {terminate(pid)}"
    cause = "transaction" if holds_jobs else "rotation"
    if session.get("application") == "pg_dump":
        advice = f"Wait until the backup has ended, or {terminate(pid)}"
        cause = "pg_dump"
    return Finding("obstacles", "warning", detail, advice, cause, facts.session(pid))


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
    for finding in schedules(await case.facts()):
        yield finding


def schedules(facts: Facts) -> list[Finding]:
    """Return a finding for each schedule that is paused, or late while maintenance runs."""
    has_ticks = all(
        row["status"] == "ok" for row in facts.health if row["subject"] == "maintenance"
    )
    found: list[Finding] = []
    for row in facts.schedules:
        name, late, pids = row["name"], facts.now - row["next_at"], facts.schedule_writers
        if row["paused"]:
            advice = f"pgq schedule resume {shlex.quote(name)}"
            detail = f"{name} is paused"
            found.append(Finding("schedules", "warning", detail, advice, "schedule paused"))
        elif late > _LATE and has_ticks:
            detail = f"{name} should have fired {output.age(late)} ago"
            advice, holder = "Nobody calls pgq: SELECT pgq_maintain(), or start a worker", None
            if pids:
                advice = f"End who has it locked: {terminate(pids[0])}"
                holder = some([facts.session(pid) or "" for pid in pids])
            found.append(Finding("schedules", "warning", detail, advice, "schedule late", holder))
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
