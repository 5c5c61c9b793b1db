"""Scenarios over time: a closed loop that runs undisturbed for a while, and disturbed from then on.

The two parts are of one run, so that what is compared happened minutes apart at most.
"""

from abc import abstractmethod
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from benchmarks import pgbench
from benchmarks.figures import Figure, Series
from benchmarks.pgbench import Run
from benchmarks.scenario import Context, Found, Scenario, Variant
from benchmarks.stage import Stage
from benchmarks.system import Database
from benchmarks.watch import Sample, background, sampled

CLEAN, END, SHARE = "jobs/s, clean", "jobs/s, at the end", "of clean"
_BATCH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Seconds: undisturbed, disturbed, and at the end of the latter what counts.

    Of the undisturbed ones the last two thirds count. `backlog` jobs are there before.
    """

    clean: int
    disturbed: int
    last: int
    backlog: int = 1000


@dataclass(frozen=True, kw_only=True)
class Disturbed(Scenario):
    """The loop of 4 clients that enqueue 10 jobs, claim 10 and complete 10."""

    matrix: bool = True

    @abstractmethod
    def phases(self, context: Context, stage: Stage, variant: Variant) -> Phases | None:
        """Return how long a system runs; None if it does not."""

    @abstractmethod
    def disturb(
        self, context: Context, stage: Stage, variant: Variant, database: Database
    ) -> AbstractContextManager[None]:
        """Return what disturbs while its block runs."""

    def run(self, context: Context) -> Iterator[Found]:
        """Run all variants and systems once."""
        for variant in self.variants:
            for stage in context.stages:
                phases = self.phases(context, stage, variant)
                if phases is not None:
                    measure = partial(self._measure, context, stage, variant, phases)
                    yield from context.attempt(stage, variant, measure)

    def _measure(
        self, context: Context, stage: Stage, variant: Variant, phases: Phases
    ) -> list[Found]:
        loop = Variant(name="", variables={"batch": str(_BATCH)})
        script = context.script(stage, loop, scenario="loop")
        if script is None:
            return []
        seconds = phases.clean + phases.disturbed
        with stage.database(phases.backlog) as database:
            before = stage.ready(database)
            with sampled(database, stage.system.tables(), max(0.5, seconds / 150)) as samples:
                run = partial(
                    pgbench.run,
                    database,
                    script,
                    seconds=seconds,
                    variables=loop.variables,
                    count=True,
                )
                with background(database, run) as (running,):
                    if not wait([running], phases.clean).done:
                        with self.disturb(context, stage, variant, database):
                            wait([running])
                    done = running.result()
            left = before + _BATCH * done.transactions - stage.ready(database)
        share = left / (_BATCH * done.transactions)
        if share < 0.99:
            context.remark(
                f"{stage.system.name}, {variant.title}: {share:.2f} of its claims' jobs were there."
            )
        return list(_found(variant.name, stage.short, done, samples, phases))


def _found(
    variant: str, system: str, run: Run, samples: list[Sample], phases: Phases
) -> Iterator[Found]:
    start = min(run.counts)
    end = start + phases.clean + phases.disturbed
    clean = (start + phases.clean / 3, start + phases.clean)
    # The last second of a log may be a part of one.
    last = (max(end - 1 - phases.last, start + phases.clean + 1), end - 1)
    rates = [_BATCH * run.between(*window) / (window[1] - window[0]) for window in (clean, last)]
    size = max((s for s in samples if s.time <= phases.clean), key=lambda s: s.time).bytes
    for metric, value in (
        (CLEAN, rates[0]),
        (END, rates[1]),
        (SHARE, rates[1] / max(rates[0], 1e-9)),
        ("MB, clean", size / 1e6),
        ("MB, at the end", samples[-1].bytes / 1e6),
    ):
        yield Figure(variant=variant, system=system, round=0, value=value, metric=metric)
    rate = [(float(s - start), float(_BATCH * n)) for s, n in sorted(run.counts.items())[1:-1]]
    sizes = [(s.time, s.bytes / 1e6) for s in samples]
    dead = [(s.time, float(s.dead_tuples)) for s in samples]
    for metric, points in (("jobs/s", rate), ("MB", sizes), ("dead tuples", dead)):
        yield Series(variant=variant, system=system, metric=metric, points=points)
