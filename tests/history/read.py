"""Reads the files of a history for the judge: calls with their bounds in time and their outcomes.

Times are seconds of one monotonic clock. What a call did, it did between `begin` and `end`; what it
did was seen by others at a moment between `shown_from` and `shown_by`, those of its commit.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

NEVER: Final = float("inf")
Outcome = Literal["done", "not", "maybe"]

# After these nobody knows whether the transaction committed: the connection, the server's end.
_UNSURE: Final = re.compile("08|57P|58|XX|40003")
_CLAIMS: Final = ("dequeue", "pop", "claim", "complete_and_dequeue")
_ENDS: Final = ("complete", "complete_and_dequeue", "fail", "release")


@dataclass(slots=True, kw_only=True)
class Call:
    """A call, as its client knows it, and what became of its transaction."""

    name: str
    do: str
    args: dict[str, Any]
    session: str
    tx: int | None
    begin: float
    end: float = NEVER
    answered: bool = False
    answer: Any = None
    error: str | None = None
    outcome: Outcome = "maybe"
    shown_from: float = NEVER
    shown_by: float = NEVER
    over: float | None = None
    """When the end of its transaction block was sent, if that was answered: it lived until then."""
    over_by: float = NEVER
    """When that was answered."""

    def __str__(self) -> str:
        told = self.answer if self.answered else self.error or "no answer"
        until = "" if self.end == NEVER else f"{self.end:.6f}"
        block = "" if self.tx is None else f" transaction {self.tx}"
        where = f"[{self.begin:.6f}, {until}] {self.session}{block} ({self.name})"
        return f"{where} {self.do} {json.dumps(self.args)} -> {json.dumps(told)}, {self.outcome}"

    def block(self) -> tuple[str, int | None]:
        """Return its session and transaction block."""
        return self.session, self.tx

    def queues(self) -> list[str]:
        """Return the queues that it names."""
        queues = self.args.get("queues", self.args.get("queue"))
        return [] if queues is None else [queues] if isinstance(queues, str) else list(queues)

    def jobs(self) -> list[dict[str, Any]]:
        """Return the jobs that a claim has returned."""
        return list(self.answer or []) if self.answered and self.do in _CLAIMS else []

    def receipts(self) -> list[tuple[int, int]]:
        """Return the receipts that it used, of each job the newest: the answer names no token."""
        if "ids" not in self.args:  # the tokens of `release_unheld` are those to keep
            return []
        newest: dict[int, int] = {}
        for job_id, token in zip(self.args["ids"], self.args["tokens"], strict=True):
            newest[job_id] = max(token, newest.get(job_id, token))
        return list(newest.items())

    def accepted(self) -> set[int]:
        """Return the ids of the jobs whose receipts were accepted."""
        if not self.answered:
            return set()
        if self.do == "complete_and_dequeue":
            return set(self.args["ids"])
        if self.do == "fail":
            return set(self.args["ids"]) if self.answer else set()
        if self.do == "heartbeat":
            return {job_id for job_id, _ in self.answer}
        return set(self.answer) if self.do in _ENDS else set()

    def may_end(self) -> list[tuple[int, int]]:
        """Return the receipts whose leases it has ended, or perhaps has."""
        return [] if self.outcome == "not" else self.used_up()

    def used_up(self) -> list[tuple[int, int]]:
        """Return the receipts that are used up in its transaction, or perhaps are."""
        if self.do not in _ENDS:
            return []
        accepted = self.accepted() if self.answered else set(self.args["ids"])
        return [receipt for receipt in self.receipts() if receipt[0] in accepted]

    def may_finish(self) -> list[int]:
        """Return the ids of jobs that it has brought to a terminal state, or perhaps has."""
        if self.outcome == "not":
            return []
        if self.do == "pop":
            return [job["id"] for job in self.jobs()]
        if self.do == "cancel":  # or asked to cancel: then another call ends the job
            return [self.args["id"]]
        if self.do == "release" or (self.do == "fail" and self.answer == "scheduled"):
            return []
        return [job_id for job_id, _ in self.may_end()]

    def completes(self) -> list[int]:
        """Return the ids of jobs that it has completed, or perhaps has."""
        return self.may_finish() if self.do not in ("fail", "cancel") else []


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All that the files of a directory say."""

    calls: list[Call]
    final: list[dict[str, Any]]
    """The jobs that were left or kept in the end."""
    effects: list[int]
    """The jobs of all rows in the effect table."""
    sizes: list[dict[str, Any]]
    faults: list[Call]
    samples: list[Call]
    backends: dict[int, list[str]]
    """Process id of a backend -> the sessions that had it."""

    def did(self, *what: str) -> Iterator[Call]:
        """Yield the calls that do one of these, in the order in which they began."""
        return (call for call in self.calls if call.do in what)

    def claims(self) -> Iterator[Call]:
        """Yield the calls that claim or pop."""
        return self.did(*_CLAIMS)


@dataclass(slots=True)
class _Reader:
    calls: list[Call] = field(default_factory=list[Call])
    notes: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def read(self, path: Path) -> None:
        open_calls: dict[int, Call] = {}
        lines = path.read_text(encoding="utf-8").split("\n")
        # A process that is killed may leave its last line in part.
        for line in lines[:-1]:
            entry = json.loads(line)
            at = entry.pop("at") / 1e9
            if "note" in entry:
                self.notes[entry.pop("note")].append({"at": at, **entry})
            elif "do" in entry:
                call = Call(
                    name=f"{path.name}:{entry['n']}",
                    do=entry["do"],
                    args=entry["args"],
                    session=entry["session"],
                    tx=entry.get("tx"),
                    begin=at,
                )
                open_calls[entry["n"]] = call
                self.calls.append(call)
            else:
                call = open_calls.pop(entry["n"])
                call.answered = "answer" in entry
                call.answer = entry.get("answer")
                call.error = entry.get("error")
                # The server may go on with a call whose client has given it up.
                call.end = NEVER if "lost" in entry else at


def read(directory: Path) -> History:
    """Read all files of a directory."""
    reader = _Reader()
    for path in sorted(directory.glob("*.jsonl")):
        reader.read(path)
    if len(ends := reader.notes["final"]) != 1:
        raise SystemExit(f"{directory}: the final state was read {len(ends)} times, not once")
    (counted,) = ends
    final = reader.notes["job"]
    effects = [note["job"] for note in reader.notes["effect"]]
    if (len(final), len(effects)) != (counted["jobs"], counted["effects"]):
        raise SystemExit(f"{directory}: the final state is there in part")
    calls = sorted(reader.calls, key=lambda call: call.begin)
    _decide(calls)
    backends: dict[int, list[str]] = defaultdict(list)
    for note in reader.notes["session"]:
        backends[note["backend"]].append(note["session"])
    return History(
        calls=[call for call in calls if call.do not in ("fault", "sample")],
        final=final,
        effects=effects,
        sizes=reader.notes["size"],
        faults=[call for call in calls if call.do == "fault"],
        samples=[call for call in calls if call.do == "sample"],
        backends=dict(backends),
    )


def _decide(calls: Iterable[Call]) -> None:
    """Decide of each call whether it was done."""
    blocks: dict[tuple[str, int], list[Call]] = defaultdict(list)
    for call in calls:
        if call.tx is None:
            call.outcome = _own(call)
            call.shown_from, call.shown_by = call.begin, call.end
        else:
            blocks[call.session, call.tx].append(call)
    for block in blocks.values():
        last = block[-1]
        ended = last.do in ("commit", "rollback")
        # Who has not sent COMMIT has not committed, and what failed within cannot be committed.
        failed = any(call.error is not None for call in block if call is not last)
        outcome = "not" if last.do != "commit" or failed else _own(last)
        if last.answer == "ROLLBACK":
            outcome = "not"
        for call in block:
            call.outcome = outcome if call.answered or outcome == "not" else "maybe"
            call.shown_from, call.shown_by = last.begin, last.end
            if ended and last.answered:
                call.over, call.over_by = last.begin, last.end


def _own(call: Call) -> Outcome:
    if call.answered:
        return "done"
    sure = call.error is not None and not _UNSURE.match(call.error)
    return "not" if sure else "maybe"
