"""What one process with the system's own worker can do."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import workers
from benchmarks.figures import Figure, of_system
from benchmarks.pgbench import BenchmarkError
from benchmarks.scenario import Context, Found, Scenario, Variant
from benchmarks.stage import Stage
from benchmarks.system import Database

_JOBS, _QUICK_JOBS = 50_000, 10_000
_SECONDS, _QUICK_SECONDS = 8.0, 4.0

# Seconds until what has begun is completed, at least by half.
_PATIENCE = 10.0

# The worker tells of every so many jobs that have begun.
_STEP = 100


@dataclass(frozen=True, kw_only=True)
class Drain(Scenario):
    """A backlog, and one worker; where the jobs are in groups, the system's script adds them."""

    def run(self, context: Context) -> Iterator[Found]:
        """Run all systems that bring a worker by turns."""
        for turn in range(context.rounds):
            for variant in context.chosen(self.variants):
                for stage in context.turn(turn):
                    if program := workers.program(stage.short):
                        measure = partial(self._measure, context, stage, program, variant, turn)
                        yield from context.attempt(stage, variant, measure)

    def _measure(
        self, context: Context, stage: Stage, program: Path, variant: Variant, turn: int
    ) -> list[Found]:
        jobs = _QUICK_JOBS if context.quick else _JOBS
        seconds = _QUICK_SECONDS if context.quick else _SECONDS
        groups = variant.variables.get("groups")
        arguments = [variant.variables["width"], str(_STEP), *([groups] if groups else [])]
        script = context.script(stage, variant) if groups else None
        starts: list[float] = []
        with stage.database(0 if script else jobs) as database:
            if script:
                database.psql(
                    f"\\set batch {jobs}\n\\set groups {groups}\n{script}\nvacuum (analyze);"
                )
            with workers.running(program, database, arguments=arguments) as running:
                end = time.monotonic() + seconds
                while len(starts) < jobs // _STEP and (not starts or time.monotonic() < end):
                    starts.append(running.next_start())
                if len(starts) < 2:
                    raise BenchmarkError(f"it began fewer than {2 * _STEP} jobs")
                _check_completions(stage, database, jobs, len(starts) * _STEP)
        rate = (len(starts) - 1) * _STEP / (starts[-1] - starts[0])
        return [Figure(variant=variant.name, system=stage.short, round=turn, value=rate)]


def _check_completions(stage: Stage, database: Database, jobs: int, begun: int) -> None:
    """Make sure that what has begun is completed soon after."""
    end = time.monotonic() + _PATIENCE
    while (done := jobs - stage.live(database)) < begun / 2:
        if time.monotonic() > end:
            raise BenchmarkError(f"of {begun} jobs that began {done} were completed")
        time.sleep(0.1)


def _variant(width: int) -> Variant:
    return Variant(name=str(width), title=f"width {width}", variables={"width": str(width)})


SCENARIO = Drain(
    title="One worker on a backlog",
    description=(
        f"The project's own worker, in one process, on {_JOBS:,} jobs with a handler that does "
        "nothing: how many jobs begin in a second, from the first hundred on, until all have "
        f"begun or {_SECONDS:.0f} s have passed. The width is how many jobs the worker may take at "
        f"once, by the setting that it has for that. 3 rounds. A quick run has "
        f"{_QUICK_JOBS:,} jobs."
    ),
    variants=[_variant(10), _variant(100), _variant(500)],
    matrix=True,
    most=3,
    bars=[
        of_system(short, 3, name=name, variant="500", label="width 500")
        for short, name in (("pgqueuer", "PgQueuer"), ("chancy", "Chancy"), ("awa", "awa"))
    ],
)
