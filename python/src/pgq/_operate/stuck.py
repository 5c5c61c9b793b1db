"""Why the jobs of a queue do not move: one diagnosis for each state, see docs/operations.md."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Final

from pgq._operate import wording
from pgq._operate.finding import Facts, Finding, Limits, Row, jobs_wait, literal, some

_LIVE: Final = ("ready", "scheduled", "waiting", "active")
_OVER: Final = ("dead", "cancelled")  # of a job that others wait for
_RELEASE: Final = (
    "SELECT pgq_release(id, token) FROM pgq_jobs WHERE queue = {queue} AND state = 'active' AND "
    "worker = {worker}"
)


def diagnose(facts: Facts, limits: Limits) -> list[Finding]:
    """Return what keeps the jobs of each queue from moving."""
    return [
        finding for queue in facts.queues for finding in _Queue(facts, limits, queue).findings()
    ]


class _Queue:
    def __init__(self, facts: Facts, limits: Limits, row: Row) -> None:
        self.facts = facts
        self.limits = limits
        self.row = row
        self.name: str = row["queue"]
        self.quoted = shlex.quote(self.name)
        self.workers = [one for one in facts.workers if one["queue"] == self.name]
        rows = [one for one in facts.obstacles if one["queue"] == self.name]
        # Those of the two limits are about what is old; a dead job blocks for ever.
        self.transactions = [
            one
            for one in rows
            if one["cause"] == "transaction" and facts.age(one) > limits.transaction_age
        ]
        held = {(one["job_id"], None) for one in self.transactions}
        held |= {(None, one["pid"]) for one in self.transactions if one["pid"]}
        self.waits = [
            one
            for one in rows
            if one["cause"] in ("group", "after")
            and (one["state"] in _OVER or facts.age(one) > limits.ready_age)
            and not {(one["job_id"], None), (None, one["pid"])} & held
        ]
        self.rate = next((one for one in rows if one["cause"] == "rate_limit"), None)

    def findings(self) -> list[Finding]:
        """Return what is said of the queue, its dead jobs last."""
        row = self.row
        if row["paused"] and any(row[state] for state in _LIVE):
            detail = f"{self.name} is paused, {row['ready']} ready"
            found = [self._finding("paused", detail, f"pgq resume {self.quoted}")]
        else:
            found = [*self._waits(), *self._ready()]
            if not found and not self.transactions:
                found = [*self._full(), *self._scheduled()]
        return [*found, *self._dead()]

    def _finding(
        self, cause: str, detail: str, advice: str | None, holders: Iterable[str] = ()
    ) -> Finding:
        return Finding("queues", "warning", detail, advice, cause, some(list(holders)) or None)

    def _waits(self) -> list[Finding]:
        found: list[Finding] = []
        for cause in ("group", "after"):
            rows = [one for one in self.waits if one["cause"] == cause]
            over = [one for one in rows if one["state"] in _OVER]
            live = [one for one in rows if one["state"] not in _OVER]
            if over:
                what = "blocked group" if cause == "group" else "after a dead job"
                found.append(self._behind(what, over, self._unblock(over[0])))
            if live:
                what = "group" if cause == "group" else "after"
                found.append(self._behind(what, live, self._end(live[0])))
        return found

    def _behind(self, cause: str, rows: list[Row], advice: str) -> Finding:
        first, age = rows[0], max(self.facts.age(one) for one in rows)
        group = "" if first["group_key"] is None else f" in the group {first['group_key']}"
        detail = (
            f"{self.name}: {jobs_wait(sum(one['jobs'] for one in rows))} for job "
            f"{first['job_id']}{group}, which is {first['state']}"
        )
        if len(rows) > 1:
            detail += f", and for {wording.jobs(len(rows) - 1, 'other ')}"
        detail += f"; for {wording.age(age)}"
        if first["state"] == "scheduled":
            detail += f", due {wording.text(first['until'])}"
        holders = [
            f"job {one['job_id']}: "
            + self.facts.worker(one["worker"], one["pid"], one["since"])
            + f", until {wording.text(one['until'])} unless it is renewed"
            for one in rows
            if one["state"] == "active"
        ]
        return self._finding(cause, detail, advice, holders)

    def _unblock(self, row: Row) -> str:
        if row["cause"] == "group":
            group = "GROUP" if row["group_key"] is None else shlex.quote(row["group_key"])
            return (
                f"pgq retry {row['job_id']}, or pgq unblock {self.quoted} {group} to go on "
                "without it"
            )
        if row["state"] == "cancelled":
            return f"It never completes: pgq cancel what waits, see pgq jobs --queue {self.quoted}"
        return f"pgq retry {row['job_id']}"

    def _end(self, row: Row) -> str:
        if row["state"] == "active":
            return f"pgq cancel {row['job_id']}, with --force if its worker does not obey"
        return f"pgq cancel {row['job_id']}, or wait until it is due"

    def _ready(self) -> list[Finding]:
        """Return why jobs that could be claimed are not, or leases that are over stay."""
        row, limit = self.row, self.limits.ready_age
        over = [one for one in self.workers if one["expired"]]
        if self._is_held(sum(one["expired"] for one in over)):
            return []
        if over and over == [one for one in self.workers if one["expired"] == one["jobs"]]:
            since = self.facts.now - min(one["next_expiry_at"] for one in over)
            if since > limit:
                detail = (
                    f"{self.name}: the leases of {wording.jobs(row['active'])} have been over for "
                    f"{wording.age(since)}, and nobody claims"
                )
                return [self._finding("expired", detail, self._start(), map(self._holder, over))]
        if not row["ready"] or (row["oldest_ready_age"] or limit) <= limit:
            return []
        return [self._old()]

    def _is_held(self, expired: int) -> bool:
        """Tell whether an open transaction has all that could be claimed, or the permits for it."""
        held = sum(one["jobs"] for one in self.transactions)
        limits = self.row["max_active"] or self.facts.settings.get(self.name, {}).get("rate_limit")
        return bool(held and (limits or held >= self.row["ready"] + expired))

    def _old(self) -> Finding:
        """Return why the oldest job has been ready for long."""
        row = self.row
        detail = f"{self.name}: the oldest of {wording.jobs(row['ready'])} has been ready for "
        detail += wording.age(row["oldest_ready_age"])
        holders = [self._holder(one) for one in self.workers]
        gone = [one for one in self.workers if one["backend_gone"]]
        if self.rate is not None:
            until = wording.text(self.rate["until"])
            detail += f", and its rate limit lets none start until {until}"
            advice = f"Wait, or pgq queue configure {self.quoted} --rate-limit N"
            return self._finding("rate limit", detail, advice)
        if 0 < row["max_active"] <= row["active"] and not row["estimated"]:
            detail += f", and as many are active as its max-active allows, {row['max_active']}"
            if gone == self.workers:
                until = wording.text(max(one["next_expiry_at"] for one in gone))
                release = _RELEASE.format(
                    queue=literal(self.name), worker=literal(gone[0]["worker"] or "")
                )
                advice = f"Wait: what no worker renews is over by {until}. At once: {release}"
                return self._finding("max-active of the dead", detail, advice, holders)
            advice = (
                f"pgq workers shows who has them; pgq queue configure {self.quoted} --max-active N"
            )
            return self._finding("max-active", detail, advice, holders)
        if gone == self.workers:
            return self._finding(
                "no worker", f"{detail}, and nobody claims", self._start(), holders
            )
        return self._finding("busy", detail, "Are there enough workers? pgq workers", holders)

    def _start(self) -> str:
        return "Start a worker of this queue: pgq worker MODULE:WORKER"

    def _holder(self, row: Row) -> str:
        who = self.facts.worker(row["worker"], row["pid"], row["oldest_claimed_at"])
        until = wording.text(row["next_expiry_at"])
        return f"{who or 'somebody'}: {wording.jobs(row['jobs'])}, the first until {until}"

    def _full(self) -> list[Finding]:
        most = self.facts.settings.get(self.name, {}).get("max_ready", 0)
        if not 0 < most <= self.row["ready"]:
            return []
        detail = f"{self.name} is full: {self.row['ready']} ready, and enqueue fails"
        advice = f"More workers, or pgq queue configure {self.quoted} --max-ready N, now {most}"
        return [self._finding("full", detail, advice)]

    def _scheduled(self) -> list[Finding]:
        row = self.row
        if not row["scheduled"] or row["ready"] or row["active"]:
            return []
        due = wording.text(row["next_due"])
        detail = f"{self.name}: {wording.jobs_are(row['scheduled'])} scheduled, the next for {due}"
        return [Finding("queues", "ok", detail, None, "scheduled")]

    def _dead(self) -> list[Finding]:
        dead = self.row["dead"]
        blockers = [one for one in self.waits if one["state"] == "dead"]
        if dead <= len({one["job_id"] for one in blockers}):
            return []
        advice = (
            f"pgq jobs --queue {self.quoted} --state dead; pgq retry --queue {self.quoted} --all"
        )
        detail = f"{self.name}: {wording.jobs(dead, 'dead ')}"
        return [self._finding("dead", detail, advice)]
