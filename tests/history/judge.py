"""Judges a history: python -m tests.history.judge DIRECTORY [--expect RULE,...]

Prints for each rule how many facts it has looked at, and in full the first few that break it. The
exit status is 1 if one is broken, 2 if a rule that was expected to has looked at nothing.

No rule trusts an order that the history does not prove: a call happened at some moment between its
begin and its end, a lost answer may mean either, and what may have ended a lease has ended it. So a
violation is one for any order of what overlaps.
"""

from __future__ import annotations

import argparse
import bisect
import heapq
import itertools
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .read import NEVER, Call, History, read

SHOWN: Final = 3
LIVE: Final = ("ready", "scheduled", "waiting", "active")

PASSES: Final = 3  # short claims of a session that may pass by the same job

_EARLY: Final = -NEVER


@dataclass(slots=True)
class Finding:
    """What a rule has looked at, and what breaks it."""

    facts: int = 0
    broken: list[str] = field(default_factory=list[str])

    def check(self, holds: bool, what: str, *calls: object) -> None:
        """Count a fact; if it does not hold it is a violation, of which the calls tell."""
        self.facts += 1
        if not holds:
            self.broken.append("\n    ".join([what, *map(str, calls)]))


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which a job was certainly active, by one claim."""

    begin: float
    end: float
    job: int
    claim: Call


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job in the answer to a claim."""

    id: int
    token: int | None
    call: Call
    job: dict[str, Any]


class Facts:
    """What several rules need to know of a history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.final: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in history.final:
            self.final[row["id"]].append(row)
        self.enqueued: dict[int, Call] = {}
        """The first call that returned the id."""
        self.plain: dict[int, tuple[int, Call]] = {}
        """Jobs that were ready from their commit on: their priority and call."""
        self.group: dict[int, tuple[str, str]] = {}
        for call in history.did("enqueue"):
            self._take_enqueue(call)
        self.claimed: dict[int, list[Claimed]] = defaultdict(list)
        for call in history.claims():
            for job in call.jobs():
                self.claimed[job["id"]].append(Claimed(job["id"], job.get("token"), call, job))
        self.uses: dict[tuple[int, int], list[Call]] = defaultdict(list)
        self.finishes: dict[int, list[Call]] = defaultdict(list)
        for call in history.calls:
            for receipt in call.receipts():
                self.uses[receipt].append(call)
            for job_id in call.may_finish():
                self.finishes[job_id].append(call)
        self.enders: dict[int | None, list[Call]] = defaultdict(list)
        """What may end a lease without its receipt, by job; None for what may end any."""
        for call in history.did("cancel", "cancel_all", "release_unheld", "drop_queue"):
            forced = call.args.get("force") or not call.do.startswith("cancel")
            if call.outcome != "not" and forced:
                self._take_ender(call)
        self.revived = {call.args["id"] for call in history.did("retry")}
        self.revived |= {
            job_id for call in history.did("retry_dead") for job_id in call.answer or ()
        }
        self.limits: dict[str, set[int]] = defaultdict(set)
        self.concurrent: set[str] = set()
        """Queues whose groups may have several active jobs."""
        self.forgetful: set[str] = set()
        """Queues whose ended jobs are not kept for the whole run."""
        self.stopped: set[str] = set()
        """Queues that were paused or had a limit: a claim need not find what is ready there."""
        for call in history.did("configure", "pause"):
            self._take_settings(call)
        self.windows: dict[int, list[Window]] = {
            job_id: list(self._windows_of(claims)) for job_id, claims in self.claimed.items()
        }

    def _take_enqueue(self, call: Call) -> None:
        if call.outcome != "done":
            return
        args = call.args
        keys = args.get("keys") or [None] * len(call.answer)
        groups = args.get("groups") or [None] * len(call.answer)
        for job_id, key, group in zip(call.answer, keys, groups, strict=True):
            if job_id in self.enqueued:
                continue
            self.enqueued[job_id] = call
            held = key is not None or args.get("delay") is not None or args.get("after")
            if group is not None and not held:
                self.group[job_id] = (args["queue"], group)
            elif not held:
                self.plain[job_id] = (args["priority"], call)

    def _take_ender(self, call: Call) -> None:
        if call.do == "cancel":
            self.enders[call.args["id"]].append(call)
        elif call.do == "release_unheld" and call.answered:
            for job_id in call.answer:
                self.enders[job_id].append(call)
        else:
            self.enders[None].append(call)

    def _take_settings(self, call: Call) -> None:
        (queue,) = call.queues()
        if call.do == "pause" or any(call.args.get(name) for name in ("max_active", "rate_limit")):
            self.stopped.add(queue)
        if (limit := call.args.get("max_active")) is not None:
            self.limits[queue].add(limit)
        if (call.args.get("group_concurrency") or 1) > 1:
            self.concurrent.add(queue)
        if any(call.args.get(name) is not None for name in ("keep_completed", "keep_dead")):
            self.forgetful.add(queue)

    def finish_begin(self, job_id: int) -> float:
        """Return the first moment at which a job may have come to its end."""
        calls = self.finishes.get(job_id, ())
        dead = any(row["state"] == "dead" for row in self.final.get(job_id, ()))
        live = any(row["state"] in LIVE for row in self.final.get(job_id, ()))
        # Purged, cancelled with all others, or dead as its last lease was lost.
        if job_id in self.revived or not (live or calls):
            return _EARLY
        if dead and not any(call.do == "fail" and call.outcome == "done" for call in calls):
            return _EARLY
        return min((call.begin for call in calls), default=NEVER)

    def _windows_of(self, claims: list[Claimed]) -> Iterator[Window]:
        for claimed in claims:
            call = claimed.call
            uses = [] if claimed.token is None else self.uses[claimed.id, claimed.token]
            over = self._may_be_over(claimed, uses)
            spans: list[tuple[float, float]] = []
            if call.over is not None:
                spans.append((call.end, min(call.over, over)))
            if call.outcome == "done" and claimed.token is not None:
                spans += [(begin, min(end, over)) for begin, end in self._leases(claimed, uses)]
            for begin, end in _without_undone(spans, claimed, uses):
                yield Window(begin, end, claimed.id, call)

    def _may_be_over(self, claimed: Claimed, uses: Iterable[Call]) -> float:
        """Return the first moment at which a claim may have ended otherwise than by time."""
        receipt, call = (claimed.id, claimed.token), claimed.call
        ends = [use.begin for use in uses if receipt in use.may_end()]
        enders = (*self.enders.get(claimed.id, ()), *self.enders.get(None, ()))
        ends += [other.begin for other in enders if other.end >= call.begin]
        for fault in self.history.faults:
            undone = fault.args["what"] == "crash" and call.args.get("durable") is False
            if (undone or fault.args["what"] == "clock") and fault.end >= call.begin:
                ends.append(fault.begin)
        return min(ends, default=NEVER)

    def _leases(self, claimed: Claimed, uses: Iterable[Call]) -> Iterator[tuple[float, float]]:
        """Yield the times for which the claim and its heartbeats certainly leased the job."""
        lasts = claimed.call.args["timeout"]
        spans = [(claimed.call.begin, claimed.call.end, claimed.call.begin + lasts)]
        known = {claimed.job.get("expires")}
        beats = [use for use in uses if use.do == "heartbeat" and use.outcome != "not"]
        for beat in beats:
            for job_id, expires in beat.answer if beat.answered else ():
                # A job that another transaction has locked comes with the expiry that it had.
                if job_id == claimed.id and expires not in known and beat.outcome == "done":
                    known.add(expires)
                    until = beat.begin + (beat.args.get("timeout") or lasts)
                    spans.append((beat.begin, beat.end, until))
        for sent, begin, end in spans:
            # A heartbeat may shorten a lease.
            shortest = [
                beat.begin + (beat.args.get("timeout") or lasts)
                for beat in beats
                if beat.end >= sent
            ]
            yield begin, min([end, *shortest])


def _without_undone(
    spans: list[tuple[float, float]], claimed: Claimed, uses: Iterable[Call]
) -> list[tuple[float, float]]:
    """Leave out of the spans those in which a transaction, later undone, had used the receipt up.

    There the same transaction may claim the job again.
    """
    for use in uses:
        if use.outcome == "not" and (claimed.id, claimed.token) in use.used_up():
            spans = [
                part
                for begin, end in spans
                for part in ((begin, min(end, use.begin)), (max(begin, use.over_by), end))
                if part[0] < part[1]
            ]
    return spans


def judge_accounting(facts: Facts) -> Finding:
    """Acknowledged enqueues are live, completed, dead or cancelled, or were purged."""
    found = Finding()
    purges = list(facts.history.did("purge", "drop_queue"))
    purged: dict[str, float] = defaultdict(float)
    for call in purges:
        if call.outcome != "not":
            (queue,) = call.queues()
            purged[queue] += call.answer if call.outcome == "done" and call.do == "purge" else NEVER
    missing: dict[str, list[int]] = defaultdict(list)
    for job_id, call in facts.enqueued.items():
        queue = call.args["queue"]
        if not facts.final.get(job_id, []) and queue not in facts.forgetful:
            missing[queue].append(job_id)
        else:
            gone_well = bool(facts.final.get(job_id, [])) or job_id in facts.finishes
            found.check(gone_well, f"job {job_id} is lost", call, *told_of(facts, job_id))
    for queue, ids in missing.items():
        for job_id in ids:
            found.check(
                len(ids) <= purged[queue],
                f"{len(ids)} jobs of {queue!r} are gone, {purged[queue]:g} were purged: {job_id}",
                facts.enqueued[job_id],
                *told_of(facts, job_id),
            )
    _judge_unsure(facts, found, bool(purges))
    return found


def _judge_unsure(facts: Facts, found: Finding, purges: bool) -> None:
    """Check that transactions whose outcome nobody knows are there as a whole, or not at all."""
    seen = _marks_seen(facts)
    blocks: dict[object, list[Call]] = defaultdict(list)
    for call in facts.history.did("enqueue"):
        if call.outcome == "maybe" and not any(call.args.get("keys") or ()):
            blocks[call.name if call.tx is None else (call.session, call.tx)].append(call)
    for calls in blocks.values():
        marks = [mark for call in calls for mark in call.args["marks"]]
        there = sum(mark in seen for mark in marks)
        held = purges or there in (0, len(marks))
        found.check(held, f"{there} of {len(marks)} jobs of one transaction are there", *calls)


def _marks_seen(facts: Facts) -> dict[str | None, object]:
    seen: dict[str | None, object] = {row["mark"]: row for row in facts.history.final}
    for claims in facts.claimed.values():
        for claimed in claims:
            seen.setdefault(claimed.job["mark"], claimed.call)
    return seen


def judge_ends(facts: Facts) -> Finding:
    """A job ends once, and as the calls that ended it were told; then nobody gets it again."""
    found = Finding()
    causes = facts.history.did("cancel", "cancel_all", "fail", "drop_queue", "enqueue")
    cancels = any(call.do != "enqueue" or call.args.get("after") for call in causes)
    for job_id, rows in facts.final.items():
        found.check(len(rows) == 1, f"job {job_id} is there {len(rows)} times", *rows)
        state = rows[0]["state"]
        completers = [call for call in facts.finishes.get(job_id, []) if job_id in call.completes()]
        done = [call for call in completers if call.outcome == "done"]
        if done:
            found.check(state == "completed", f"completed job {job_id} is {state}", *rows, *done)
        if state == "completed":
            found.check(bool(completers), f"nobody has completed job {job_id}", *rows)
        if state == "cancelled":
            found.check(cancels, f"nobody has cancelled job {job_id}", *rows)
    for job_id, calls in facts.finishes.items():
        done = [call for call in calls if call.outcome == "done" and job_id in call.completes()]
        if done:
            found.check(len(done) == 1, f"job {job_id} was completed {len(done)} times", *done)
            since = min(call.shown_by for call in done)
            for claimed in facts.claimed.get(job_id, []):
                again = claimed.call.begin > since
                found.check(not again, f"completed job {job_id} came again", *done, claimed.call)
    return found


def judge_leases(facts: Facts) -> Finding:
    """Nobody gets a job, nor takes it back, while another claim of it certainly holds."""
    found = Finding()
    reclaims: dict[int, list[Call]] = defaultdict(list)
    for call in facts.history.did("reclaim"):
        for job_id in call.answer or ():
            reclaims[job_id].append(call)
    for job_id, claims in facts.claimed.items():
        windows = facts.windows[job_id]
        for claimed in claims:
            call = claimed.call
            within = [
                window.claim
                for window in windows
                if window.claim is not call and window.begin < call.begin and call.end < window.end
            ]
            found.check(not within, f"two have job {job_id}", *within[:1], call)
        for call in reclaims.get(job_id, ()):
            within = [w.claim for w in windows if w.begin < call.begin and call.end < w.end]
            found.check(not within, f"job {job_id} was taken back", *within[:1], call)
        for one in windows:
            for other in windows:
                if one.claim is not other.claim and one.begin <= other.begin < one.end:
                    overlap = other.begin < other.end
                    found.check(not overlap, f"two have job {job_id}", one.claim, other.claim)
    return found


def judge_tokens(facts: Facts) -> Finding:
    """Each claim of a job has a token of its own, greater than those of earlier claims."""
    found = Finding()
    for job_id, claims in facts.claimed.items():
        given: dict[int, Call] = {}
        finished: list[tuple[float, int, Call]] = []
        for claimed in claims:
            call, token = claimed.call, claimed.token
            if token is None:
                continue
            twice = given.get(token)
            found.check(twice is None, f"token {token} of job {job_id} twice", twice, call)
            given[token] = call
            earlier = [(last, by) for end, last, by in finished if end < call.begin]
            last, by = max(earlier, key=lambda pair: pair[0], default=(token - 1, None))
            found.check(last < token, f"a token of job {job_id} went back", by, call)
            if call.outcome == "done":
                finished.append((call.shown_by, token, call))
    return found


def judge_receipts(facts: Facts) -> Finding:
    """A stale receipt is refused, and a good one accepted."""
    found = Finding()
    crashes = [fault for fault in facts.history.faults if fault.args["what"] == "crash"]

    def lasting(call: Call, until: float) -> bool:
        """Tell whether what a call did was not undone by a crash."""
        undone = any(call.begin < crash.end and crash.begin < until for crash in crashes)
        return call.outcome == "done" and not (undone and call.args.get("durable") is False)

    for (job_id, token), uses in facts.uses.items():
        newer = [
            claimed.call
            for claimed in facts.claimed.get(job_id, [])
            if claimed.token is None or claimed.token > token
        ]
        ended = [use for use in uses if (job_id, token) in use.may_end()]
        good = [
            window
            for window in facts.windows.get(job_id, ())
            if any(job["id"] == job_id and job["token"] == token for job in window.claim.jobs())
        ]
        for use in uses:
            if not use.answered:
                continue
            accepted = job_id in use.accepted()
            reasons = [
                call
                for call in (*newer, *ended)
                if call is not use and call.shown_by < use.begin and lasting(call, use.end)
            ]
            if reasons:
                found.check(not accepted, f"stale ({job_id}, {token}) accepted", reasons[0], use)
            holds = [w for w in good if w.begin < use.begin and use.end < w.end]
            again = any(
                other is not use and other.begin < use.begin and other.block() == use.block()
                for other in uses
            )
            if holds and not (again and use.tx is not None):
                found.check(accepted, f"good ({job_id}, {token}) refused", holds[0].claim, use)
    return found


def judge_effects(facts: Facts) -> Finding:
    """What a transaction wrote with a completion is there once, and only if it committed."""
    found = Finding()
    rows = Counter(facts.history.effects)
    by_block: dict[tuple[str, int | None], set[int]] = defaultdict(set)
    writers: dict[int, list[Call]] = defaultdict(list)
    for call in facts.history.calls:
        if call.tx is not None:
            by_block[call.block()].update(call.completes())
        if call.do == "effect" and call.outcome != "not":
            writers[call.args["job"]].append(call)
    for job_id, number in rows.items():
        by = writers[job_id]
        found.check(bool(by), f"the effect of job {job_id} was rolled back, and is there")
        found.check(number == 1, f"job {job_id} has its effect {number} times", *by)
        states = {row["state"] for row in facts.final.get(job_id, [])}
        complete = states <= {"completed"}
        found.check(complete, f"job {job_id} has its effect, and is {states}", *by)
    for job_id, calls in writers.items():
        completed = any(row["state"] == "completed" for row in facts.final.get(job_id, []))
        completers = [c for c in facts.finishes.get(job_id, []) if job_id in c.completes()]
        for call in calls:
            if job_id not in by_block[call.block()]:
                continue
            # Of an unknown outcome the job tells, if nobody else has completed it.
            alone = completed and all(other.block() == call.block() for other in completers)
            if call.outcome == "done" or alone:
                found.check(rows[job_id] > 0, f"the effect of job {job_id} is lost", call)
    return found


def judge_rollbacks(facts: Facts) -> Finding:
    """Nobody sees a job whose enqueue was rolled back, nor one that nobody has enqueued."""
    found = Finding()
    seen = _marks_seen(facts)
    asked: set[str] = set()
    for call in facts.history.did("enqueue"):
        asked.update(call.args["marks"])
        if call.outcome == "not":
            for mark in call.args["marks"]:
                there = seen.get(mark)
                found.check(there is None, f"{mark} was rolled back, and is there", call, there)
    for mark, where in seen.items():
        if mark is not None:
            found.check(mark in asked, f"nobody has enqueued {mark}", where)
    return found


def judge_order(facts: Facts) -> Finding:
    """The only consumer of a queue gets jobs by priority, then by id, among those it could see."""
    found = Finding()
    moved = {call.args["id"] for call in facts.history.did("cancel") if call.outcome != "not"}
    purged = {queue for call in facts.history.did("purge", "cancel_all") for queue in call.queues()}
    for queue, calls in _claims_by_queue(facts).items():
        alone = all(one.end < after.begin for one, after in itertools.pairwise(calls))
        if queue in purged or not alone or any(not call.answered for call in calls):
            continue
        coming = sorted(
            (call.shown_by, -priority, job_id)
            for job_id, (priority, call) in facts.plain.items()
            if call.args["queue"] == queue and job_id not in moved
        )
        ready: list[tuple[int, int]] = []
        given: set[int] = set()
        place = 0
        for call in calls:
            while place < len(coming) and coming[place][0] < call.begin:
                heapq.heappush(ready, coming[place][1:])
                place += 1
            for job in call.jobs():
                first = job["id"] not in given
                given.add(job["id"])
                while ready and ready[0][1] in given:
                    heapq.heappop(ready)
                if not ready:
                    continue
                before, waiting = ready[0]
                plain = first and job["id"] in facts.plain
                late = before < -job["priority"] or (
                    plain and before == -job["priority"] and waiting < job["id"]
                )
                text = f"job {job['id']} came before job {waiting}"
                found.check(not late, text, facts.enqueued[waiting], call)
    return found


def _claims_by_queue(facts: Facts) -> dict[str, list[Call]]:
    by_queue: dict[str, list[Call]] = defaultdict(list)
    for call in facts.history.claims():
        for queue in call.queues():
            by_queue[queue].append(call)
    return by_queue


def judge_finding(facts: Facts) -> Finding:
    """A session whose claims come back short finds at last what is ready all the while.

    Not at once: a job may just be moved by maintenance, which has it locked until its commit.
    """
    found = Finding()
    touched = {
        job_id: min(claimed.call.begin for claimed in claims)
        for job_id, claims in facts.claimed.items()
    }
    for call in facts.history.did("cancel"):
        job_id = call.args["id"]
        touched[job_id] = min(touched.get(job_id, NEVER), call.begin)
    removed: dict[str, float] = defaultdict(lambda: NEVER)
    for call in facts.history.did("purge", "cancel_all", "drop_queue"):
        for queue in call.queues():
            removed[queue] = min(removed[queue], call.begin)
    for queue, calls in _claims_by_queue(facts).items():
        if queue in facts.stopped:
            continue
        # What a claim without an answer holds nobody knows.
        lost = min((call.begin for call in calls if not call.answered), default=NEVER)
        short: dict[str, list[Call]] = defaultdict(list)
        for call in calls:
            if call.answered and len(call.jobs()) < call.args.get("batch", 1):
                short[call.session].append(call)
        ready = [
            (call.shown_by, min(touched.get(job_id, NEVER), removed[queue], lost), job_id)
            for job_id, (_, call) in facts.plain.items()
            if call.args["queue"] == queue
        ]
        for by_one in short.values():
            for since, until, job_id in ready:
                first = bisect.bisect_right(by_one, since, key=lambda call: call.begin)
                last = bisect.bisect_left(by_one, until, key=lambda call: call.end)
                passed = by_one[first:last]
                text = f"claims came back short, and job {job_id} was ready"
                found.check(len(passed) < PASSES, text, facts.enqueued[job_id], *passed[:PASSES])
    return found


def judge_groups(facts: Facts) -> Finding:
    """At most one job of a group is active, and none starts before an earlier one has ended."""
    found = Finding()
    members: dict[tuple[str, str], list[int]] = defaultdict(list)
    for job_id, key in facts.group.items():
        if key[0] not in facts.concurrent:
            members[key].append(job_id)
    for key, ids in members.items():
        windows = sorted(
            (window for job_id in ids for window in facts.windows.get(job_id, ())),
            key=lambda window: window.begin,
        )
        _judge_overlaps(found, windows, f"two jobs of group {key} are active", 1)
        ends = sorted((facts.enqueued[job_id].shown_by, job_id) for job_id in ids)
        place, last = 0, (_EARLY, 0)
        for job_id in sorted(ids, key=lambda job_id: facts.enqueued[job_id].begin):
            while place < len(ends) and ends[place][0] < facts.enqueued[job_id].begin:
                last = max(last, (facts.finish_begin(ends[place][1]), ends[place][1]))
                place += 1
            for claimed in facts.claimed.get(job_id, ())[:1]:
                text = f"job {job_id} of group {key} came before job {last[1]}"
                earlier = facts.enqueued.get(last[1])
                found.check(last[0] <= claimed.call.end, text, earlier, claimed.call)
    return found


def judge_limits(facts: Facts) -> Finding:
    """Never are more jobs of a queue active than its max_active."""
    found = Finding()
    by_queue: dict[str, list[Window]] = defaultdict(list)
    for job_id, windows in facts.windows.items():
        if job_id in facts.enqueued:
            queue = facts.enqueued[job_id].args["queue"]
            by_queue[queue] += [window for window in windows if window.claim.do != "pop"]
    for queue, limits in facts.limits.items():
        if 0 not in limits:
            windows = sorted(by_queue[queue], key=lambda window: window.begin)
            text = f"more than {max(limits)} jobs of {queue!r} are active"
            _judge_overlaps(found, windows, text, max(limits))
    return found


def _judge_overlaps(found: Finding, windows: Iterable[Window], text: str, most: int) -> None:
    """Check that at no time windows of more than so many jobs overlap."""
    open_windows: list[tuple[float, int, int, Window]] = []
    for number, window in enumerate(windows):
        while open_windows and open_windows[0][0] <= window.begin:
            heapq.heappop(open_windows)
        if window.begin < window.end:
            heapq.heappush(open_windows, (window.end, number, window.job, window))
            jobs = {entry[2] for entry in open_windows}
            found.check(len(jobs) <= most, text, *(entry[3].claim for entry in open_windows))


def judge_keys(facts: Facts) -> Finding:
    """Of the live jobs of a queue at most one has a dedupe key."""
    found = Finding()
    left = Counter(
        (row["queue"], row["key"])
        for row in facts.history.final
        if row["key"] is not None and row["state"] in LIVE
    )
    for key, number in left.items():
        found.check(number == 1, f"{number} live jobs have the key {key}")
    newest: dict[tuple[str, str], tuple[float, int]] = {}
    for call in facts.history.did("enqueue"):
        if call.outcome != "done":
            continue
        for job_id, key in zip(call.answer, call.args.get("keys") or (), strict=False):
            if key is None:
                continue
            known = newest.get((call.args["queue"], key))
            if known is not None and known[1] != job_id and known[0] < call.begin:
                first = facts.enqueued[known[1]]
                live = facts.finish_begin(known[1]) > call.end
                text = f"jobs {known[1]} and {job_id} have the key {key!r}"
                found.check(not live, text, first, call)
            newest[call.args["queue"], key] = (call.shown_by, job_id)
    return found


def judge_waits(facts: Facts) -> Finding:
    """No claim waits for another session of the history."""
    found = Finding()
    sessions: dict[str, list[Call]] = defaultdict(list)
    for call in facts.history.claims():
        sessions[call.session].append(call)
    for sample in facts.history.samples:
        found.check(True, "")
        for blocked in sample.answer or ():
            if not any(backend in facts.history.backends for backend in blocked["by"]):
                continue
            for session in facts.history.backends.get(blocked["backend"], ()):
                for call in sessions[session]:
                    waits = call.begin < sample.begin and sample.end < call.end
                    found.check(not waits, f"a claim waits for backend {blocked['by']}", call)
    return found


def judge_size(facts: Facts) -> Finding:
    """The tables take at most twice what the same live jobs take in fresh ones, and the slack."""
    found = Finding()
    for size in facts.history.sizes:
        most = 2 * size["fresh"] + size["slack"]
        text = f"{size['bytes']:,} bytes, at most {most:,}"
        found.check(size["bytes"] <= most, text, size)
    return found


RULES: Final[dict[str, Callable[[Facts], Finding]]] = {
    "accounting": judge_accounting,
    "ends": judge_ends,
    "leases": judge_leases,
    "tokens": judge_tokens,
    "receipts": judge_receipts,
    "effects": judge_effects,
    "rollbacks": judge_rollbacks,
    "order": judge_order,
    "finding": judge_finding,
    "groups": judge_groups,
    "limits": judge_limits,
    "keys": judge_keys,
    "waits": judge_waits,
    "size": judge_size,
}


def told_of(facts: Facts, job_id: int) -> list[Call]:
    """Return the calls in which a job occurs, besides its enqueue."""
    claims = [claimed.call for claimed in facts.claimed.get(job_id, ())]
    return [*claims, *(call for call in facts.finishes.get(job_id, ()) if call not in claims)]


def judge(history: History) -> dict[str, Finding]:
    """Judge a history by all rules."""
    facts = Facts(history)
    return {name: rule(facts) for name, rule in RULES.items()}


def report(findings: dict[str, Finding]) -> str:
    """Tell what was looked at, and the first violations."""
    lines = [
        f"{name:<12}{found.facts:>10,}  "
        + (f"{len(found.broken)} BROKEN" if found.broken else "ok")
        for name, found in findings.items()
        if found.facts
    ]
    if unseen := [name for name, found in findings.items() if not found.facts]:
        lines.append(f"NOTHING SEEN by {', '.join(unseen)}")
    for name, found in findings.items():
        lines += [f"\n{name}: {text}" for text in found.broken[:SHOWN]]
    return "\n".join(lines)


def main() -> int:
    """Judge the directory on the command line."""
    parser = argparse.ArgumentParser(description="Judge a history.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--expect", default="", help="rules that must have something to look at")
    options = parser.parse_args()
    history = read(options.directory)
    findings = judge(history)
    print(f"{len(history.calls):,} calls, {len(history.final):,} jobs in the end")
    print(report(findings), flush=True)
    if any(found.broken for found in findings.values()):
        return 1
    expected = filter(None, options.expect.split(","))
    return 2 if any(not findings[name].facts for name in expected) else 0


if __name__ == "__main__":
    sys.exit(main())
