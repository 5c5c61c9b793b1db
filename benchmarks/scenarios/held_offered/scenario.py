"""Jobs that come at a rate while somebody keeps a snapshot."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks.disturb import held_snapshot
from benchmarks.figures import Figure, of_itself
from benchmarks.offered import observe
from benchmarks.pgbench import BenchmarkError
from benchmarks.scenario import Context, Found, Scenario, Variant
from benchmarks.stage import Stage

_RATE = 2000
_PAYLOAD = '{"order_id":42,"note":"' + "hello world payload " * 12 + '"}'
_DONE = "share of the offer, at the end"
_SLOWER = "p99 of clean"
_GREW = "size of early"


@dataclass(frozen=True, kw_only=True)
class HeldOffered(Scenario):
    """`held` seconds for pgq after a clean minute, 90 s for the others after 30 clean ones."""

    held: int = 600

    def run(self, context: Context) -> Iterator[Found]:
        """Run all systems once."""
        for stage in context.stages:
            measure = partial(self._measure, context, stage)
            yield from context.attempt(stage, self.variants[0], measure)

    def _measure(self, context: Context, stage: Stage) -> list[Found]:
        consume = context.script(stage, Variant(name="1"), scenario="held_offered")
        produce = context.script(stage, Variant(name="1"), _PAYLOAD, scenario="enqueue_one")
        own = stage.short == "pgq"
        if consume is None or produce is None or (context.quick and not own):
            return []
        clean, held = (60, self.held) if own else (30, 90)
        if context.quick:
            clean, held = 4, 8
        last = min(60, held // 3)
        with stage.database() as database:
            seen = observe(
                stage,
                database,
                produce=produce,
                consume=consume,
                rate=_RATE,
                seconds=clean + held,
                interval=(clean + held) / 132,
                clean=clean,
                disturb=lambda: held_snapshot(database),
            )
        end = clean + held - 1
        windows = ((clean / 3, clean), (end - last, end))
        shares: list[float] = []
        for window in windows:
            done, seconds = seen.completed(*window)
            shares.append(done / (_RATE * seconds))
        waits = seen.wait(clean / 3, clean), seen.wait(clean, end)
        if waits[0] is None or waits[1] is None:
            raise BenchmarkError("no job was claimed while it was looked at")
        early = seen.tick(clean + last).bytes
        size = seen.tick(end).bytes
        figures = (
            ("share of the offer, clean", shares[0]),
            (_DONE, shares[1]),
            ("p99 ms, clean", waits[0]),
            ("p99 ms, held", waits[1]),
            (_SLOWER, waits[1] / waits[0]),
            ("max lag ms, clean", seen.lag(*windows[0])),
            ("max lag ms, at the end", seen.lag(*windows[1])),
            ("MB, early", early / 1e6),
            ("MB, at the end", size / 1e6),
            (_GREW, size / max(early, 32e6)),
        )
        return [
            *(
                Figure(variant="", system=stage.short, round=0, value=value, metric=metric)
                for metric, value in figures
            ),
            *seen.series("", stage.short, (clean + held) / 66),
        ]


SCENARIO = HeldOffered(
    title="2,000 jobs/s offered while xmin is held",
    description=(
        "One job per transaction with a payload of 256 bytes, at 2,000 per second, and 4 workers "
        "that claim and complete batches of 10, and pause for 5 ms when nothing came: first "
        "undisturbed for a minute, then while a REPEATABLE READ transaction is open for 10 "
        "minutes; for the textbook table 30 and 90 s. p99 is of the time from when the transaction "
        "that enqueued a job began to the end of the claim, in one batch of 20; it does not have "
        "what a producer itself was late, of which the lag is the most. Sizes are those a minute "
        "after the snapshot was taken and at the end. Checkpoints come as by default. One round, "
        "the systems one after the other."
    ),
    matrix=True,
    settings={"checkpoint_timeout": "5min"},
    bars=[
        of_itself(0.99, text="last minute completes 100 % of the offer", metric=_DONE),
        of_itself(2, text="p99 <= 2 times clean", metric=_SLOWER, at_most=True),
        of_itself(
            2,
            text="size at the end <= 2 times that after a minute, or 64 MB",
            metric=_GREW,
            at_most=True,
        ),
    ],
)
