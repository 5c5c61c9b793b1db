"""Scenarios over time: a closed loop that runs undisturbed for a while, and disturbed from then on.

The two parts are of one run, so that what is compared happened minutes apart at most.
"""

import time
from abc import abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from benchmarks import pgbench
from benchmarks.figures import Figure, Series
from benchmarks.pgbench import BenchmarkError, Run
from benchmarks.scenario import Context, Found, Scenario, Variant
from benchmarks.stage import Stage
from benchmarks.system import Database
from benchmarks.watch import Look, Sample, background, completed, sampled

CLEAN, END, SHARE = "jobs/s, clean", "jobs/s, at the end", "of clean"
_BATCH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Seconds: undisturbed, disturbed, and at the end of the latter what counts.

    Of the undisturbed ones the last two thirds count. `backlog` jobs are there before. `rounds`
    are at most those of the run.
    """

    clean: int
    disturbed: int
    last: int
    backlog: int = 1000
    rounds: int = 1


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
        """Run all variants by turns, each with all systems."""
        for turn in range(context.rounds):
            for variant in self.variants:
                for stage in context.turn(turn):
                    phases = self.phases(context, stage, variant)
                    if phases is not None and turn < phases.rounds:
                        measure = partial(self._measure, context, stage, variant, phases, turn)
                        yield from context.attempt(stage, variant, measure)

    def _measure(
        self, context: Context, stage: Stage, variant: Variant, phases: Phases, turn: int
    ) -> list[Found]:
        loop = Variant(name="", variables={"batch": str(_BATCH)})
        script = context.script(stage, loop, scenario="loop")
        if script is None:
            return []
        end = phases.clean + phases.disturbed
        with (
            stage.database(phases.backlog) as database,
            sampled(database, stage.system.tables(), max(0.5, end / 150)) as samples,
            background(
                database,
                partial(
                    pgbench.run,
                    database,
                    script,
                    seconds=end + pgbench.SPARE,
                    variables=loop.variables,
                    count=True,
                ),
            ) as (running,),
        ):
            look = partial(_look, stage, database, running, time.time())
            clean = look(phases.clean / 3), look(phases.clean)
            with self.disturb(context, stage, variant, database):
                disturbed = look(end - phases.last), look(end)
                wait([running])
            done = running.result()
        spans = (clean, disturbed)
        jobs = [completed(done, _BATCH, *span) for span in spans]
        if jobs[1] < 0.99 * _BATCH * done.between(disturbed[0].at, disturbed[1].at):
            context.remark(
                f"{stage.system.name}, {variant.title}: at the end it completed fewer jobs than "
                "were enqueued."
            )
        rates = [n / (last.at - first.at) for n, (first, last) in zip(jobs, spans, strict=True)]
        size = max((s for s in samples if s.time <= phases.clean), key=lambda s: s.time).bytes
        figures = (
            (CLEAN, rates[0]),
            (END, rates[1]),
            (SHARE, rates[1] / max(rates[0], 1e-9)),
            ("MB, clean", size / 1e6),
            ("MB, at the end", samples[-1].bytes / 1e6),
        )
        return [
            *(
                Figure(
                    variant=variant.name, system=stage.short, round=turn, value=value, metric=metric
                )
                for metric, value in figures
            ),
            *(_series(variant.name, stage.short, done, samples) if turn == 0 else []),
        ]


def _look(
    stage: Stage, database: Database, running: Future[Run], start: float, second: float
) -> Look:
    """Wait until a second of the run and count the live jobs; raises what the run failed with."""
    if wait([running], start + second - time.time()).done:
        running.result()
        raise BenchmarkError("pgbench has ended early")
    return Look(at=time.time(), live=stage.live(database))


def _series(variant: str, system: str, run: Run, samples: list[Sample]) -> Iterator[Series]:
    """Return the first round over time."""
    start = min(run.counts)
    rate = [(float(s - start), float(_BATCH * n)) for s, n in sorted(run.counts.items())[1:]]
    sizes = [(s.time, s.bytes / 1e6) for s in samples]
    dead = [(s.time, float(s.dead_tuples)) for s in samples]
    for metric, points in (("jobs/s enqueued", rate), ("MB", sizes), ("dead tuples", dead)):
        yield Series(variant=variant, system=system, metric=metric, points=points)
