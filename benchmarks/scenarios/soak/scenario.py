"""Hours of everything."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks.figures import Figure, Series, median, of_itself
from benchmarks.offered import observe
from benchmarks.pgbench import BenchmarkError
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
        steps = [(step * number, step * (number + 1)) for number in range(int(seconds / step) - 1)]
        if any(seen.wait(*span) is None for span in steps):
            raise BenchmarkError("for some time no job was claimed")
        lines = {
            "p99 ms": [(b, seen.wait(a, b) or 0.0) for a, b in steps],
            "MB": [(b, seen.tick(b).bytes / 1e6) for _, b in steps],
            "server CPU µs/job": [(b, seen.cpu(a, b)) for a, b in steps],
        }
        found: list[Found] = [
            Series(variant="", system=stage.short, metric="jobs waiting or leased", points=points)
            for points in [[(t.at - seen.start, float(t.ready)) for t in seen.ticks]]
        ]
        quarter = len(steps) // 4
        for metric, points in lines.items():
            found.append(Series(variant="", system=stage.short, metric=metric, points=points))
            ends = [
                median(value for _, value in part) for part in (points[:quarter], points[-quarter:])
            ]
            labels = [f"{metric}, {name}" for name in _QUARTERS]
            values = [*zip(labels, ends, strict=True), (f"{metric}, drift", ends[1] / ends[0])]
            found += [
                Figure(variant="", system=stage.short, round=0, value=value, metric=label)
                for label, value in values
            ]
        return found


SCENARIO = Soak(
    title="Two hours of everything",
    description=(
        "500 jobs/s, one per transaction, every tenth scheduled for the next half minute; 4 "
        "workers claim 10 jobs, send a heartbeat for one batch in 20, and fail one job of one "
        "batch in 20, which is tried again 5 s later. p99 is of the time from when a job was due "
        "to the end of the claim. A figure of a quarter is the median of its samples."
    ),
    matrix=True,
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
