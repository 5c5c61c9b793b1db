"""What keeps pgq from emptying its tables."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

from benchmarks.disturb import idle_slot, open_transaction, overlapping_readers, running_dump
from benchmarks.figures import of_itself
from benchmarks.overtime import SHARE, Disturbed, Phases
from benchmarks.pgbench import BenchmarkError
from benchmarks.scenario import Context, Variant
from benchmarks.stage import Stage
from benchmarks.system import Database

_VARIANTS = {
    "dump": "pg_dump running",
    "readers": "4 overlapping readers",
    "enqueue": "open transaction that enqueued",
    "slot": "idle replication slot with xmin",
}


@dataclass(frozen=True, kw_only=True)
class Blocked(Disturbed):
    """The textbook table runs for a shorter time, for contrast."""

    def phases(self, context: Context, stage: Stage, variant: Variant) -> Phases | None:
        """Return 5 minutes for pg_dump, less for the others."""
        if context.quick:
            return Phases(clean=2, disturbed=2, last=1) if stage.short == "pgq" else None
        if stage.short == "pgq" and variant.name == "dump":
            return Phases(clean=20, disturbed=300, last=60)
        if stage.short == "pgq":
            return Phases(clean=20, disturbed=75, last=60, rounds=3)
        if stage.short == "textbook":
            return Phases(clean=10, disturbed=30, last=20)
        return None

    def disturb(
        self, context: Context, stage: Stage, variant: Variant, database: Database
    ) -> AbstractContextManager[None]:
        """Begin what the variant is named after."""
        if variant.name == "dump":
            return running_dump(database)
        if variant.name == "slot":
            return idle_slot(database)
        scenario = "" if variant.name == "readers" else "enqueue_one"
        script = context.script(stage, Variant(name="read"), scenario=scenario)
        if script is None:
            raise BenchmarkError("there is no script for it")
        if variant.name == "readers":
            seconds = 2 if context.quick else 20
            return overlapping_readers(database, script, seconds=seconds)
        return open_transaction(database, script)


SCENARIO = Blocked(
    title="Closed loop while emptying tables is blocked",
    description=(
        "The closed loop, first undisturbed, then with: pg_dump, which runs for 5 minutes; 4 "
        "readers that read the queue's table and keep their REPEATABLE READ transactions open for "
        "20 s, one beginning every 5 s; a transaction that has enqueued and stays open; a "
        "replication slot that keeps the xmin of a standby that is gone. 75 s each unless told "
        "otherwise, 30 s for the textbook table. What counts is the last minute, of the textbook "
        "table the last 20 s. 3 rounds, one with pg_dump and of the textbook table. A job counts "
        "when it is completed."
    ),
    variants=[Variant(name=name, title=title) for name, title in _VARIANTS.items()],
    bars=[
        of_itself(0.8, text=f"{title}: >= 0.8 of clean", metric=SHARE, variant=name)
        for name, title in _VARIANTS.items()
    ],
)
