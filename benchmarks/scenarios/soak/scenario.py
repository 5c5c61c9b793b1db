"""Hours of everything."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks.figures import Figure, Series, of_itself
from benchmarks.offered import Observed, observe
from benchmarks.scenario import Context, Found, Scenario, Variant
from benchmarks.stage import Stage

_RATE = 500
_QUARTERS = ("first quarter", "last quarter")


@dataclass(frozen=True, kw_only=True)
class Soak(Scenario):
    """Two hours, or as many minutes as the command line says."""

    def run(self, context: Context) -> Iterator[Found]:
        """Run the systems that have scripts once."""
        for stage in context.stages:
            measure = partial(self._measure, context, stage)
            yield from context.attempt(stage, self.variants[0], measure)

    def _measure(self, context: Context, stage: Stage) -> list[Found]:
        produce = context.script(stage, Variant(name="produce"))
        consume = context.script(stage, Variant(name="consume"))
        if produce is None or consume is None:
            return []
        seconds = round(60 * (context.minutes or (1 if context.quick else 120)))
        context.remark(f"It ran for {seconds / 60:g} minutes.")
        step = max(1.0, seconds / 120)
        with stage.database() as database:
            seen = observe(
                stage,
                database,
                produce=produce,
                consume=consume,
                rate=_RATE,
                seconds=seconds,
                interval=step,
            )
        return list(_found(context, stage, seen, step))


def _found(context: Context, stage: Stage, seen: Observed, step: float) -> Iterator[Found]:
    end = seen.ticks[-1].at - seen.start
    steps = [(step * number, step * (number + 1)) for number in range(int(end / step) - 1)]
    waits = [(b, wait) for a, b in steps if (wait := seen.wait(a, b)) is not None]
    if len(waits) < len(steps):
        context.remark(
            f"Of {len(steps)} times {step:.0f} s, {len(steps) - len(waits)} have no wait of a job."
        )
    lines = {
        "p99 ms": waits,
        "MB": [(b, seen.tick(b).bytes / 1e6) for _, b in steps],
        "server CPU µs/job": [(b, seen.cpu(a, b)) for a, b in steps],
        "max lag ms": [(b, seen.lag(a, b)) for a, b in steps],
    }
    live = [(t.at - seen.start, float(t.live)) for t in seen.ticks]
    for metric, points in (*lines.items(), ("live jobs", live)):
        yield Series(variant="", system=stage.short, metric=metric, points=points)
    quarters = ((0.0, end / 4), (end * 3 / 4, end))
    for metric, points in lines.items():
        parts = [[value for at, value in points if a < at <= b] for a, b in quarters]
        if not all(parts):
            context.remark(f"{metric}: nothing was seen in the first or the last quarter.")
            continue
        # A lag is the producers', and told only to show that they kept up.
        lag = metric.startswith("max lag")
        first, last = ((max if lag else statistics.median)(part) for part in parts)
        labels = {f"{metric}, {name}": v for name, v in zip(_QUARTERS, (first, last), strict=True)}
        if not lag:
            labels[f"{metric}, drift"] = last / first
        for label, value in labels.items():
            yield Figure(variant="", system=stage.short, round=0, value=value, metric=label)


SCENARIO = Soak(
    title="Hours of everything",
    description=(
        "500 jobs/s, one per transaction, every tenth scheduled for the next half minute; 4 "
        "workers claim 10 jobs, send a heartbeat for one batch in 20, and fail one job of one "
        "batch in 20, which is tried again 5 s later. p99 is of the time from when a job was due, "
        "or the transaction that enqueued it began, to the end of the claim; it does not have what "
        "a producer itself was late, of which the lag is the most. A figure of a quarter is the "
        "median of its samples, of the lag the greatest. Checkpoints come as by default."
    ),
    matrix=True,
    settings={"checkpoint_timeout": "5min"},
    standard=False,
    bars=[
        of_itself(
            1.2,
            text=f"{metric}: last quarter <= 1.2 of the first",
            metric=f"{metric}, drift",
            at_most=True,
        )
        for metric in ("p99 ms", "MB", "server CPU µs/job")
    ],
)
