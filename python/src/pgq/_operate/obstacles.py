"""What keeps maintenance, rotation, vacuum and schedules from moving, see docs/operations.md."""

from __future__ import annotations

import re
import shlex
from datetime import timedelta
from typing import Final

from pgq._operate import stuck, wording
from pgq._operate.finding import Facts, Finding, Limits, Row, literal, some, terminate

_LATE: Final = timedelta(minutes=1)
# By the subject of a row of pgq_health. What has none is shown without.
_ADVICE: Final = {
    "maintenance": "SELECT pgq_maintain(), and let workers use READ COMMITTED",
    "rotation": "pgq health, pgq locks",
    "sessions": "GRANT pg_read_all_stats to that role",
}
_PREPARED: Final = re.compile(r'prepared transaction "(.*?)"(?:$|[;:,])')
_SLOT: Final = re.compile(r'replication slot "(.*?)"(?:$|[;:,])')


def diagnose(facts: Facts, limits: Limits) -> list[Finding]:
    """Return what keeps anything from moving, the queues first."""
    return [
        *stuck.diagnose(facts, limits),
        *in_the_way(facts, limits.transaction_age),
        *health(facts, limits.transaction_age),
        *schedules(facts),
    ]


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
            detail += f"; the last one was {wording.age(row['age']) or 'never'} ago"
            roles = ["{role} in {database} do not use it".format(**role) for role in facts.rigid]
            holder = some(roles) or None
        elif subject == "rotation":
            if in_the_way(facts, limit):
                continue  # they are why
            detail = f"behind for {wording.age(row['age'])}: {detail}"
        elif row["age"] is not None:
            detail += f", {wording.age(row['age'])}"
        found.append(Finding(subject, "warning", detail, advice, subject, holder))
    return found


def in_the_way(facts: Facts, limit: timedelta) -> list[Finding]:
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
            detail = (
                f"{wording.jobs(row['jobs'])} of {row['queue']}, job {row['job_id']} among them"
            )
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
        since = "" if age is None else f" for {wording.age(age)}"
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
    detail = f"pid {pid}, in a transaction for {wording.age(age)}: {uses}"
    detail += f": {query}" if query else ""
    session = facts.sessions.get(pid, {})
    advice = f"End it, if need be: {terminate(pid)}"
    cause = "transaction" if holds_jobs else "rotation"
    if session.get("application") == "pg_dump":
        advice = f"Wait until the backup has ended, or {terminate(pid)}"
        cause = "pg_dump"
    return Finding("obstacles", "warning", detail, advice, cause, facts.session(pid))


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
            detail = f"{name} should have fired {wording.age(late)} ago"
            advice, holder = "Nobody calls pgq: SELECT pgq_maintain(), or start a worker", None
            if pids:
                advice = f"End who has it locked: {terminate(pids[0])}"
                holder = some([facts.session(pid) or "" for pid in pids])
            found.append(Finding("schedules", "warning", detail, advice, "schedule late", holder))
    return found
