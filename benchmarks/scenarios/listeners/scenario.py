"""What it costs producers that somebody listens."""

import random
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import pgbench, workers
from benchmarks.figures import Bar, Figure, of_variant
from benchmarks.pgbench import BenchmarkError
from benchmarks.scenario import Context, Found, Scenario, Variant
from benchmarks.stage import Stage

_POLL, _LISTEN = "poll", "listen"
_RATE, _COMPLETED, _SLEEPS = "jobs/s enqueued", "jobs/s completed", "sleeps/s"
_PROGRAM = Path(__file__).with_name("consumers.py")
_SECONDS = 10
_WARM = 1

# Jobs that last for all seconds of a run, and of a quick one.
_BACKLOG, _QUICK_BACKLOG = 250_000, 50_000


@dataclass(frozen=True, kw_only=True)
class Listeners(Scenario):
    """pgq alone, its variants by turns."""

    def run(self, context: Context) -> Iterator[Found]:
        """Run all variants in each round, in another order."""
        for turn in range(context.rounds):
            for stage in context.stages:
                if stage.short != "pgq":
                    continue
                for variant in random.Random(turn).sample(self.variants, len(self.variants)):
                    measure = partial(_measure, context, stage, variant, turn)
                    yield from context.attempt(stage, variant, measure)


def _measure(context: Context, stage: Stage, variant: Variant, turn: int) -> list[Found]:
    seconds = context.seconds if context.quick else max(context.seconds, _SECONDS)
    mode = variant.variables.get("mode")
    backlog = 0
    if "backlog" in variant.variables:
        backlog = _QUICK_BACKLOG if context.quick else _BACKLOG
    with ExitStack() as stack:
        database = stack.enter_context(stage.database(backlog))
        consumers = None
        if mode is not None:
            running = workers.running(_PROGRAM, database, arguments=[mode])
            consumers = stack.enter_context(running)
        run = pgbench.run(
            database,
            workers.script(context, stage),
            seconds=_WARM + seconds + 2,
            clients=8,
            count=True,
        )
        told = _told(consumers)
    figures = {_RATE: run.per_second(_WARM, seconds), **told}
    return [
        Figure(variant=variant.name, system=stage.short, round=turn, value=value, metric=metric)
        for metric, value in figures.items()
    ]


def _variants(name: str = "") -> Iterator[Variant]:
    """Make the two variants of consumers, on a backlog if the name says so."""
    variables = {"backlog": ""} if name else {}
    poll = f"{_POLL}_{name}".rstrip("_")
    for mode, of in ((_POLL, ""), (_LISTEN, poll)):
        yield Variant(
            name=f"{mode}_{name}".rstrip("_"),
            title=f"consumers {mode}{', on a backlog' if name else ''}",
            variables={"mode": mode, **variables},
            of=of,
        )


def _bar(name: str, text: str) -> Bar:
    return of_variant(
        f"{_POLL}_{name}".rstrip("_"),
        0.9,
        text=f"{text} that listen: >= 0.9 of those that poll",
        variant=f"{_LISTEN}_{name}".rstrip("_"),
        metric=_RATE,
    )


def _told(consumers: workers.Workers | None) -> dict[str, float]:
    """Return what consumers have done in each second but the first; raises `BenchmarkError`."""
    if consumers is None:
        return {}
    consumers.check()
    rows = [[int(number) for number in line.split()] for line in consumers.lines()]
    completed, sleeps = (statistics.mean(column) for column in zip(*rows[_WARM:], strict=True))
    if completed == 0:
        raise BenchmarkError("the consumers completed no job")
    return {_COMPLETED: completed, _SLEEPS: sleeps}


SCENARIO = Listeners(
    title="Producers while consumers listen",
    description=(
        "8 clients enqueue one job per transaction, as fast as they can, while 4 sessions consume "
        "as pgq's worker does: they claim at most 10, complete them, and if there were fewer they "
        "sleep, by polling every 250 ms, or with pgq_wait until they are notified. They are one "
        "process that does nothing with the jobs. The machine is shared: consumers that keep up "
        "take processor time from the producers, so those that listen are compared with those "
        "that poll. On a backlog they are always busy; without one they may run out of jobs, and "
        "sleep. 10 s each, at most 3 rounds."
    ),
    variants=[
        Variant(name="alone", title="no consumers", of=_POLL),
        *_variants(),
        *_variants("backlog"),
    ],
    matrix=True,
    most=3,
    bars=[_bar("", "consumers"), _bar("backlog", "consumers on a backlog")],
)
