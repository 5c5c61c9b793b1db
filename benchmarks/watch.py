"""What scenarios over time need: runs in the background, and samples of a queue's size."""

import os
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pgserver import Server, ServerError

from benchmarks.pgbench import BenchmarkError, Run
from benchmarks.system import Database

_SAMPLE = """
select coalesce(sum(pg_total_relation_size(c.oid)), 0),
       coalesce(sum(pg_stat_get_dead_tuples(c.oid)), 0)
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
 where c.relkind in ('r', 'm')
   and n.nspname || '.' || c.relname like any (array[{}])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How many jobs were live at a time, in seconds since the Unix epoch."""

    at: float
    live: int


def completed(run: Run, jobs: int, first: Look, last: Look) -> float:
    """Return how many jobs were completed between two looks at the queue.

    They are those that the run enqueued, so many `jobs` by each transaction, and that are gone.
    """
    return jobs * run.between(first.at, last.at) - (last.live - first.live)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What a queue's tables took at a time, in seconds since the start, indexes included."""

    time: float
    bytes: int
    dead_tuples: int


def sample(database: Database, tables: Sequence[str], start: float) -> Sample:
    """Look at the tables whose names are like one of the patterns; `start` is monotonic time."""
    patterns = ", ".join("'" + pattern.replace("'", "''") + "'" for pattern in tables)
    size, dead = database.psql(_SAMPLE.format(patterns)).split("|")
    return Sample(time=time.monotonic() - start, bytes=int(size), dead_tuples=int(dead))


@contextmanager
def sampled(
    database: Database, tables: Sequence[str], seconds: float = 1.0
) -> Generator[list[Sample], None, None]:
    """Take samples at an interval while the block runs, into the list that it gets."""
    samples: list[Sample] = []
    start, ended = time.monotonic(), threading.Event()
    errors: list[ServerError] = []

    def take() -> None:
        try:
            while not ended.wait(seconds * len(samples) - (time.monotonic() - start)):
                samples.append(sample(database, tables, start))
        except ServerError as error:
            errors.append(error)

    thread = threading.Thread(target=take, name="samples")
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
    if errors:
        raise BenchmarkError(f"samples: {errors[0]}")


@contextmanager
def background(
    database: Database, *runs: Callable[[], Run]
) -> Generator[list[Future[Run]], None, None]:
    """Run pgbench on the side while the block runs; an error in the block ends it."""
    with ThreadPoolExecutor(len(runs), thread_name_prefix="pgbench") as executor:
        try:
            yield [executor.submit(run) for run in runs]
        except BaseException:
            database.server.psql(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                f" where datname = '{database.name}'"
            )
            raise


def cpu_seconds(server: Server) -> float:
    """Return the processor time that the server's processes have used, the ended ones, too."""
    seconds = 0.0
    for place in Path("/proc").iterdir():
        if not place.name.isdigit():
            continue
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            if int(place.name) == server.pid:
                seconds += _of_ticks(fields[13:15]) + _run_time(place, fields)
            elif int(fields[1]) == server.pid:
                seconds += _run_time(place, fields)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return seconds


def _run_time(place: Path, fields: Sequence[str]) -> float:
    """Return the seconds of one process: of its scheduler, or in ticks where it does not tell."""
    schedule = place / "schedstat"
    if schedule.exists():
        return int(schedule.read_text().split()[0]) / 1e9
    return _of_ticks(fields[11:13])


def _of_ticks(fields: Sequence[str]) -> float:
    return sum(map(int, fields)) / os.sysconf("SC_CLK_TCK")
