"""Counts what scenarios have tried: which calls met in open transactions, which answers came."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

from .check import Blocked, Killed, Returned, Sent
from .plans import VARIANTS, generic
from .rules import Answer, Failure, rows
from .schedule import Run

ENDS = ("commit", "rollback", "commit_prepared", "rollback_prepared", "wake")


class Coverage:
    """What a number of runs have tried."""

    def __init__(self) -> None:
        self.schedules = 0
        self.statements = 0
        self.waits = 0
        self.planned: set[frozenset[str]] = set()
        self.met: Counter[frozenset[str]] = Counter()
        self.outcomes: Counter[tuple[str, str]] = Counter()

    def add(self, run: Run) -> None:
        """Count a run."""
        self.schedules += 1
        wanted = {
            who: {generic(call, who) for call in script} & {*VARIANTS}
            for who, script in run.scenario.scripts.items()
        }
        for one, other in itertools.combinations(wanted.values(), 2):
            self.planned |= {frozenset(pair) for pair in itertools.product(one, other)}
        open_: dict[str, list[str]] = {}
        last: dict[str, str] = {}
        inside: set[str] = set()
        for event in run.history:
            if isinstance(event, Sent):
                last[event.who] = event.call.kind
                self.statements += 1
                if event.call.kind.startswith("begin"):
                    inside.add(event.who)
                made = generic(event.call, event.who)
                if event.who in run.scenario.scripts and made in VARIANTS:
                    for who, calls in open_.items():
                        if who != event.who:
                            self.met.update(frozenset((made, other)) for other in calls)
                    open_.setdefault(event.who, []).append(made)
            elif isinstance(event, Blocked):
                self.waits += 1
            elif isinstance(event, Returned):
                kind = last[event.who]
                self.outcomes[kind, describe(event.answer)] += 1
                if kind in ENDS or (event.who not in inside and kind != "wait"):
                    open_.pop(event.who, None)
                    inside.discard(event.who)
            elif isinstance(event, Killed):
                open_.pop(event.who, None)
                inside.discard(event.who)

    def never_met(self) -> list[str]:
        """Return the pairs that were to be, and were never, open at the same time."""
        return sorted(" | ".join(sorted(pair)) for pair in self.planned - self.met.keys())

    def report(self) -> Iterable[str]:
        """Yield lines for the reader."""
        pairs = len(self.planned)
        never = self.never_met()
        yield f"{self.schedules:,} schedules, {self.statements:,} statements, {self.waits:,} waits"
        yield f"{pairs - len(never):,} of {pairs:,} pairs of calls met in open transactions"
        kinds = sorted({kind for kind, _ in self.outcomes})
        for kind in kinds:
            told = {what: n for (k, what), n in self.outcomes.items() if k == kind}
            yield f"  {kind}: " + ", ".join(f"{n:,} {what}" for what, n in sorted(told.items()))
        for pair in never:
            yield f"  never met: {pair}"


def describe(answer: Answer) -> str:
    """Return the kind of an answer."""
    if isinstance(answer, Failure):
        return answer.sqlstate
    if isinstance(answer, tuple):
        return "rows" if rows(answer) else "no rows"
    if isinstance(answer, int) and not isinstance(answer, bool):
        return "a number" if answer else "0"
    return str(answer)
