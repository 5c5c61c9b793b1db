"""A closed loop while somebody keeps a snapshot."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

from benchmarks.disturb import held_snapshot
from benchmarks.figures import of_itself
from benchmarks.overtime import SHARE, Disturbed, Phases
from benchmarks.scenario import Context, Variant
from benchmarks.stage import Stage
from benchmarks.system import Database

_SHORT, _LONG = "short", "backlog"
_PEERS = ("pgqueuer", "graphile_worker", "pg_boss", "procrastinate")


@dataclass(frozen=True, kw_only=True)
class HeldLoop(Disturbed):
    """The others run for a shorter time, and on a short queue only."""

    def phases(self, context: Context, stage: Stage, variant: Variant) -> Phases | None:
        """Return 2 minutes for pgq, less for the others."""
        backlog = 1000
        if variant.name == _LONG:
            backlog = 200_000 if context.quick else 1_000_000
        if context.quick:
            phases = Phases(clean=2, disturbed=2, last=1, backlog=backlog)
            contrast = stage.short == "textbook" and variant.name == _SHORT
            return phases if stage.short == "pgq" or contrast else None
        if stage.short == "pgq":
            return Phases(clean=20, disturbed=120, last=20, backlog=backlog, rounds=3)
        phases = Phases(clean=15, disturbed=60, last=20, backlog=backlog)
        peer = stage.short in _PEERS and variant.name == _SHORT
        return phases if peer or stage.short == "textbook" else None

    def disturb(
        self, context: Context, stage: Stage, variant: Variant, database: Database
    ) -> AbstractContextManager[None]:
        """Hold a snapshot in the queue's own database."""
        del context, stage, variant
        return held_snapshot(database)


SCENARIO = HeldLoop(
    title="Closed loop while xmin is held",
    description=(
        "4 clients enqueue 10, claim 10 and complete 10 jobs, first undisturbed, then while a "
        "REPEATABLE READ transaction is open: 2 minutes for pgq, 1 for the others. What counts are "
        "the last two thirds of the first part and the last 20 s of the second; a job counts when "
        "it is completed. A quick run has a backlog of 200 k. Left out are awa and Chancy, which "
        "keep completed jobs until a leader that does not run here empties or prunes their tables. "
        "3 rounds of pgq, one of the others."
    ),
    variants=[
        Variant(name=_SHORT, title="short queue"),
        Variant(name=_LONG, title="backlog of 1 M"),
    ],
    bars=[
        of_itself(0.9, text="short queue: >= 0.9 of clean", metric=SHARE, variant=_SHORT),
        of_itself(0.9, text="backlog of 1 M: >= 0.9 of clean", metric=SHARE, variant=_LONG),
    ],
)
