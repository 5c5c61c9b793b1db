"""How soon an idle worker begins a job."""

import random
import re
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import pgbench, workers
from benchmarks.figures import Bar, Figure, number, of_every_peer, of_itself, percentile
from benchmarks.pgbench import BenchmarkError
from benchmarks.scenario import Context, Found, Scenario, Variant
from benchmarks.stage import Stage
from benchmarks.system import Database, load

_LISTENER = Path(__file__).with_name("listener.py")
_P50, _P99 = "p50 ms", "p99 ms"
_JOBS, _QUICK_JOBS = 200, 50

# Transactions that tell what a commit takes.
_COMMITS = 200

# Jobs before those that count, and seconds after them.
_WARM, _REST = 20, 2.0

# Who takes longer than this many milliseconds polls, and is measured once.
_POLLS = 200.0


@dataclass(frozen=True, kw_only=True)
class Wake(Scenario):
    """One worker, and one job at a time."""

    def run(self, context: Context) -> Iterator[Found]:
        """Run all systems that bring a worker by turns."""
        for turn in range(context.rounds):
            _remark_commit(context, turn)
            for stage in context.turn(turn):
                program = _LISTENER if stage.short == "floor" else workers.program(stage.short)
                if program is None or _polls(context, stage):
                    continue
                measure = partial(_measure, context, stage, program, turn)
                yield from context.attempt(stage, self.variants[0], measure)


def _remark_commit(context: Context, turn: int) -> None:
    """Tell what a commit takes now: of a wake-up it is at least a part, and hardware's."""
    for stage in context.stages:
        insert = context.script(stage, Variant(name=""), scenario="enqueue_one")
        if stage.short == "floor" and insert is not None:
            with stage.database() as database:
                run = pgbench.run(database, insert, transactions=_COMMITS, clients=1, log=True)
            p50, p99 = (number(percentile(run.latencies(), percent)) for percent in (50, 99))
            context.remark(
                f"Before round {turn + 1} an INSERT of one row took {p50} ms (p50) and {p99} ms "
                "(p99), by one client, its commit included."
            )


def _polls(context: Context, stage: Stage) -> bool:
    return any(wait > _POLLS for wait in context.results.rounds("", stage.short, _P50).values())


def _measure(context: Context, stage: Stage, program: Path, turn: int) -> list[Found]:
    jobs = _QUICK_JOBS if context.quick else _JOBS
    lots = random.Random(turn)
    enqueue = workers.script(context, stage)
    with (
        stage.database() as database,
        workers.running(program, database) as worker,
        _producer(database, enqueue) as produce,
    ):

        def wait_for_start() -> float:
            begin = time.monotonic()
            produce()
            return 1e3 * (worker.next_start() - begin)

        for _ in range(_WARM):
            wait_for_start()
        time.sleep(_REST)
        waits: list[float] = []
        for _ in range(jobs):
            time.sleep(lots.uniform(0.05, 0.15))
            waits.append(wait_for_start())
        if worker.lines():
            raise BenchmarkError("its worker did more jobs than were enqueued")
    return [
        Figure(variant="", system=stage.short, round=turn, value=value, metric=metric)
        for metric, value in ((_P50, percentile(waits, 50)), (_P99, percentile(waits, 99)))
    ]


@contextmanager
def _producer(database: Database, enqueue: str) -> Generator[Callable[[], None], None, None]:
    """Open a connection, and yield what enqueues one job by it; raises `UnavailableError`."""
    pq = load("psycopg.pq")
    # A variable that pgbench has, and others have not.
    statements = re.split(r";\s*\n", enqueue.replace(":client_id", "0").strip())
    connection = pq.PGconn.connect(database.dsn.encode())

    def check(result: Any) -> None:
        if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
            raise BenchmarkError(f"cannot enqueue: {result.error_message.decode().strip()}")

    def produce() -> None:
        for name in names:
            check(connection.exec_prepared(name, []))

    try:
        names = [b"%d" % number for number in range(len(statements))]
        for name, statement in zip(names, statements, strict=True):
            check(connection.prepare(name, statement.encode()))
        yield produce
    finally:
        connection.finish()


def _bars() -> Iterator[Bar]:
    for metric, limit in ((_P50, 2), (_P99, 10)):
        yield of_itself(limit, text=f"{metric}: <= {limit}", metric=metric, at_most=True)
        yield of_every_peer(label=metric, metric=metric, at_most=True)


SCENARIO = Wake(
    title="Waking an idle worker",
    description=(
        "The project's own worker, in a process of its own, with the settings that the project "
        "recommends and a handler that does nothing; one connection of libpq enqueues a job 50 to "
        "150 ms after the last one began, 200 in all, by a prepared statement. The time is from "
        "just before the enqueue is sent until the handler begins, by the clock that all processes "
        "share; 20 jobs before those do not count. The floor is an INSERT with NOTIFY, and a "
        "program that deletes the row when it hears of it, in Python over asyncpg and uvloop, as "
        "pgq's worker is. At most 3 rounds, and one of a worker that takes more than 200 ms. A "
        "quick run has 50 jobs."
    ),
    matrix=True,
    most=3,
    bars=list(_bars()),
)
