"""Jobs that come at a rate, and workers that keep up with it or do not.

The script of the workers puts into `bench_wait`, for one batch in 20, how many milliseconds
after they were enqueued, or due, its jobs were claimed.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial

from benchmarks import pgbench
from benchmarks.figures import Series, percentile
from benchmarks.pgbench import Run
from benchmarks.stage import Stage
from benchmarks.system import Database
from benchmarks.watch import Look, background, completed, cpu_seconds, sample

_WAITS = """
create unlogged table bench_wait (
    at timestamptz not null default clock_timestamp(),
    waits double precision[] not null
)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Look):
    """What else was seen then."""

    bytes: int
    dead_tuples: int
    cpu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What happened: the producers' run, what was seen, waits as time and milliseconds."""

    start: float
    produced: Run
    ticks: Sequence[Tick]
    waits: Sequence[tuple[float, float]]

    def completed(self, begin: float, end: float) -> tuple[float, float]:
        """Return how many jobs were completed between two seconds of the run, and in what time."""
        first, last = self.tick(begin), self.tick(end)
        return completed(self.produced, 1, first, last), last.at - first.at

    def wait(self, begin: float, end: float, percent: float = 99) -> float | None:
        """Return a percentile of the waits between two seconds of the run."""
        found = [wait for at, wait in self.waits if begin <= at - self.start < end]
        return percentile(found, percent) if found else None

    def lag(self, begin: float, end: float) -> float:
        """Return the most milliseconds that producers were late between two seconds of the run."""
        return self.produced.lag(self.start + begin, self.start + end)

    def tick(self, second: float) -> Tick:
        """Return what was seen nearest to a second of the run."""
        return min(self.ticks, key=lambda tick: abs(tick.at - self.start - second))

    def cpu(self, begin: float, end: float) -> float:
        """Return the server's processor time in microseconds for each job that was completed."""
        done, _ = self.completed(begin, end)
        return 1e6 * (self.tick(end).cpu - self.tick(begin).cpu) / max(done, 1)

    def series(self, variant: str, system: str, step: float) -> list[Series]:
        """Return all of it over time."""
        end = self.ticks[-1].at - self.start
        edges = [step * number for number in range(int(end / step) + 1)]
        spans = list(itertools.pairwise(edges))
        waits = [(b, w) for a, b in spans if (w := self.wait(a, b)) is not None]
        rates = [(b, self.completed(a, b)) for a, b in spans]
        return [
            Series(variant=variant, system=system, metric=metric, points=points)
            for metric, points in (
                ("jobs/s completed", [(at, done / max(time, 1e-9)) for at, (done, time) in rates]),
                ("p99 ms", waits),
                ("MB", [(t.at - self.start, t.bytes / 1e6) for t in self.ticks]),
                ("dead tuples", [(t.at - self.start, float(t.dead_tuples)) for t in self.ticks]),
                ("live jobs", [(t.at - self.start, float(t.live)) for t in self.ticks]),
            )
        ]


def observe(
    stage: Stage,
    database: Database,
    *,
    produce: str,
    consume: str,
    rate: int,
    seconds: int,
    interval: float,
    clean: int = 0,
    disturb: Callable[[], AbstractContextManager[None]] | None = None,
) -> Observed:
    """Let 8 clients produce and 4 consume; after so many `clean` seconds they are disturbed."""
    database.psql(_WAITS)
    runs = [
        partial(
            pgbench.run,
            database,
            produce,
            seconds=seconds + pgbench.SPARE,
            clients=8,
            threads=1,
            rate=rate,
            count=True,
        ),
        partial(pgbench.run, database, consume, seconds=seconds + pgbench.SPARE, threads=1),
    ]
    ticks: list[Tick] = []
    start = time.time()
    with background(database, *runs) as running, ExitStack() as disturbance:
        while len(ticks) * interval <= seconds:
            ticks.append(_tick(stage, database))
            if disturb and ticks[-1].at - start >= clean:
                disturbance.enter_context(disturb())
                disturb = None
            pause = start + len(ticks) * interval - time.time()
            if not wait(running, max(0.0, pause)).not_done:
                break
            if any(future.done() and future.exception() for future in running):
                break
        produced, _ = (future.result() for future in running)
    waits = database.psql("select extract(epoch from at), unnest(waits) from bench_wait")
    return Observed(
        start=start,
        produced=produced,
        ticks=ticks,
        waits=[_pair(line) for line in waits.splitlines()],
    )


def _tick(stage: Stage, database: Database) -> Tick:
    at = time.time()
    live = stage.live(database)
    size = sample(database, stage.system.tables(), 0.0)
    return Tick(
        at=at,
        live=live,
        bytes=size.bytes,
        dead_tuples=size.dead_tuples,
        cpu=cpu_seconds(database.server),
    )


def _pair(line: str) -> tuple[float, float]:
    at, _, milliseconds = line.partition("|")
    return float(at), float(milliseconds)
