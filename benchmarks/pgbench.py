"""Runs pgbench, which is the client of all systems, so that its cost is the same for all."""

import re
import shutil
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.system import Database

# Seconds that a run has to last beyond those that count: pgbench does not log the last one.
SPARE = 2

_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


class BenchmarkError(Exception):
    """A run that did not do what it was to measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One line of pgbench's log: when it ended, in seconds since the run began, and its time."""

    client: int
    end: float
    milliseconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What pgbench reported; `log`, `counts` and `lags` are empty unless they were asked for.

    `counts` are the transactions that ended in each second, which is one since the Unix epoch,
    `lags` the most milliseconds that one of them began behind the rate's schedule.
    """

    transactions: int
    seconds: float
    log: tuple[Transaction, ...] = ()
    counts: Mapping[int, int] = field(default_factory=dict[int, int])
    lags: Mapping[int, float] = field(default_factory=dict[int, float])

    def latencies(self) -> list[float]:
        """Return the milliseconds of all transactions."""
        return [transaction.milliseconds for transaction in self.log]

    def between(self, begin: float, end: float) -> float:
        """Return how many transactions ended between two times since the Unix epoch."""
        return sum(
            count * max(0.0, min(end, second + 1) - max(begin, second))
            for second, count in self.counts.items()
        )

    def per_second(self, warm: int, seconds: int) -> float:
        """Return how many transactions ended in each of so many seconds, after `warm` others.

        The first second of a log is not a whole one and does not count. The last one is not
        written: raises `BenchmarkError` if the log does not have all that count.
        """
        begin = min(self.counts, default=0) + 1 + warm
        if max(self.counts, default=0) < begin + seconds - 1:
            raise BenchmarkError("pgbench began too late for the seconds that count")
        return self.between(begin, begin + seconds) / seconds

    def lag(self, begin: float, end: float) -> float:
        """Return the greatest lag of the seconds that begin between two times."""
        return max((lag for at, lag in self.lags.items() if begin <= at < end), default=0.0)


def render(script: str, statements: Mapping[str, str]) -> str:
    """Put the statements in the place of a script's {{placeholders}}."""

    def replace(match: re.Match[str]) -> str:
        if match[1] not in statements:
            known = ", ".join(sorted(statements)) or "none"
            raise BenchmarkError(f"unknown placeholder {match[0]}, there are: {known}")
        return statements[match[1]]

    return _PLACEHOLDER.sub(replace, script)


def run(
    database: Database,
    script: str,
    *,
    seconds: int = 0,
    transactions: int = 0,
    clients: int = 4,
    threads: int = 2,
    rate: float | None = None,
    variables: Mapping[str, str] | None = None,
    log: bool = False,
    count: bool = False,
) -> Run:
    """Run a script for a time, or so many times by each client; raises `BenchmarkError`.

    `rate` is the number of transactions offered per second, as many as possible without it;
    `variables` are pgbench's, `log` keeps each transaction, `count` their number and lag by second.
    """
    environment = database.environment()
    program = shutil.which("pgbench", path=environment["PATH"])
    if program is None:
        raise BenchmarkError("no pgbench found")
    options = ["-n", "-M", "prepared"]
    options += ["-t", str(transactions)] if transactions else ["-T", str(seconds)]
    options += ["-c", str(clients), "-j", str(min(threads, clients))]
    options += [] if rate is None else ["-R", str(rate)]
    options += [f"-D{name}={value}" for name, value in (variables or {}).items()]
    with tempfile.TemporaryDirectory(prefix="pgbench-", dir=database.server.directory) as scratch:
        file = Path(scratch, "script.sql")
        file.write_text(script, encoding="utf-8")
        options += ["-l", f"--log-prefix={scratch}/log"] if log or count else []
        options += ["--aggregate-interval=1"] if count else []
        try:
            done = subprocess.run(
                [program, *options, "-f", file],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds + 120,
            )
        except subprocess.TimeoutExpired as error:
            raise BenchmarkError(f"pgbench did not end within {seconds + 120} s") from error
        if done.returncode != 0:
            raise BenchmarkError(_first_error(done.stderr))
        lines = [
            line for name in Path(scratch).glob("log.*") for line in name.read_text().splitlines()
        ]
        counts, lags = read_seconds(lines) if count else ({}, {})
        transactions, length = _read_summary(done.stdout)
        return Run(
            transactions=transactions,
            seconds=length,
            log=_read_log(lines) if log else (),
            counts=counts,
            lags=lags,
        )


def _first_error(text: str) -> str:
    lines = [line for line in text.splitlines() if "error" in line.lower()]
    return (lines or text.strip().splitlines() or ["failed without a word"])[0]


def _read_summary(output: str) -> tuple[int, float]:
    """Return the transactions and the seconds that pgbench tells of."""
    done = re.search(r"actually processed: (\d+)", output)
    failed = re.search(r"number of failed transactions: (\d+)", output)
    rate = re.search(r"tps = ([\d.]+) \(without initial connection time\)", output)
    if done is None or failed is None or rate is None:
        raise BenchmarkError(f"pgbench did not tell what it did: {output.strip()[-500:]}")
    if int(failed[1]) > 0:
        raise BenchmarkError(f"{failed[1]} transactions failed (serialization or deadlock)")
    if int(done[1]) == 0:
        raise BenchmarkError("no transaction ended in time")
    return int(done[1]), int(done[1]) / float(rate[1])


def read_seconds(lines: Iterable[str]) -> tuple[dict[int, int], dict[int, float]]:
    """Read the aggregated logs of all threads: transactions and milliseconds of lag by second.

    A line has the second, the number, four columns on latencies, and four on lags in microseconds,
    of which the last is the greatest; before PostgreSQL 15 the latter need a rate.
    """
    counts: Counter[int] = Counter()
    lags: defaultdict[int, float] = defaultdict(float)
    for line in lines:
        columns = line.split()
        second = int(columns[0])
        counts[second] += int(columns[1])
        if len(columns) > 9:
            lags[second] = max(lags[second], float(columns[9]) / 1e3)
    return dict(counts), dict(lags)


def _read_log(lines: Iterable[str]) -> tuple[Transaction, ...]:
    """Read pgbench's log: client, number, microseconds, script, and the end as seconds and µs."""
    rows = [line.split() for line in lines]
    ends = [int(row[4]) + int(row[5]) / 1e6 for row in rows]
    begin = min((end - int(row[2]) / 1e6 for end, row in zip(ends, rows, strict=True)), default=0)
    return tuple(
        Transaction(client=int(row[0]), end=end - begin, milliseconds=int(row[2]) / 1e3)
        for end, row in sorted(zip(ends, rows, strict=True), key=lambda pair: pair[0])
    )
