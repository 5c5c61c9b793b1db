"""What a job costs in write-ahead log."""

import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks import pgbench
from benchmarks.figures import Figure, of_itself, of_system
from benchmarks.pgbench import BenchmarkError
from benchmarks.scenario import Context, Found, Scenario, Variant
from benchmarks.stage import Stage
from benchmarks.system import Database

_LIFE = "WAL bytes/job"
_CLIENTS = 4
_BATCH = 10


@dataclass(frozen=True, kw_only=True)
class Wal(Scenario):
    """Enqueues a number of jobs, then works them off, and reads the log of both."""

    def run(self, context: Context) -> Iterator[Found]:
        """Run all systems that have both scripts by turns."""
        for turn in range(context.rounds):
            for stage in context.turn(turn):
                measure = partial(self._measure, context, stage, turn)
                yield from context.attempt(stage, self.variants[0], measure)

    def _measure(self, context: Context, stage: Stage, turn: int) -> list[Found]:
        one = context.script(stage, Variant(name="1"), scenario="enqueue_one")
        batch = Variant(name=str(_BATCH), variables={"batch": str(_BATCH)})
        work = context.script(stage, batch, scenario="claim_complete")
        if one is None or work is None:
            return []
        jobs = 2_000 if context.quick else 20_000
        with stage.database() as database:
            # It changes when the log is written, not what is written.
            database.psql(f"alter database {database.name} set synchronous_commit = off")
            start = _position(database)
            pgbench.run(database, one, transactions=jobs // _CLIENTS, clients=_CLIENTS)
            middle = _position(database)
            if (live := stage.live(database)) != jobs:
                raise BenchmarkError(f"{live} jobs are there of {jobs} enqueued")
            pgbench.run(
                database,
                work,
                transactions=math.ceil(jobs / _CLIENTS / _BATCH),
                clients=_CLIENTS,
                variables=batch.variables,
            )
            end = _position(database)
            done = jobs - stage.live(database)
            if done < 0.9 * jobs:
                raise BenchmarkError(f"{done} jobs were completed of {jobs}")
            enqueue = _bytes(database, start, middle) / jobs
            rest = _bytes(database, middle, end) / done
        return [
            Figure(variant="", system=stage.short, round=turn, value=value, metric=metric)
            for metric, value in (
                ("enqueue", enqueue),
                ("claim and complete", rest),
                (_LIFE, enqueue + rest),
            )
        ]


def _position(database: Database) -> str:
    """Return the end of the log, which is on disk up to there."""
    sql = "select pg_current_wal_insert_lsn(); select pg_logical_emit_message(true, '', '');"
    return database.psql(f"set synchronous_commit = on; {sql}").splitlines()[0]


def _bytes(database: Database, start: str, end: str) -> int:
    """Return the length of the records between two positions, without images of pages."""
    program = shutil.which("pg_waldump", path=database.environment()["PATH"])
    if program is None:
        raise BenchmarkError("no pg_waldump found")
    place = database.server.data / "pg_wal"
    done = subprocess.run(
        [program, "--stats", "--path", place, "--start", start, "--end", end],
        capture_output=True,
        text=True,
        check=False,
    )
    total = re.search(r"^Total\s+\d+\s+(\d+) ", done.stdout, re.MULTILINE)
    if total is None:
        raise BenchmarkError(f"pg_waldump: {done.stderr.strip()}")
    return int(total[1])


SCENARIO = Wal(
    title="WAL per job",
    description=(
        "Enqueue one job per transaction, then claim and complete in batches of 10, two calls; "
        "nothing is archived. The length of the records that pg_waldump finds, with "
        "synchronous_commit off. 20,000 jobs, 3 rounds. What vacuum would write later is not in "
        "it; what pgq does instead is."
    ),
    matrix=True,
    most=3,
    settings={"full_page_writes": "off", "autovacuum": "off"},
    bars=[
        of_itself(620, text="<= 620 bytes", metric=_LIFE, at_most=True),
        of_system("textbook", 0.95, name="the textbook table", metric=_LIFE, at_most=True),
    ],
)
