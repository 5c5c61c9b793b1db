"""A claim of 10, whatever else there is."""

import json
import shutil
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from benchmarks import pgbench
from benchmarks.figures import Bar, Figure, of_variant
from benchmarks.pgbench import BenchmarkError
from benchmarks.scenario import Context, Found, Scenario, Variant
from benchmarks.stage import Stage
from benchmarks.system import Database

_P50, _BUFFERS = "p50 ms", "buffers"
_BASE = "ready_1k"
_READY = 1000
_CLAIMS = 90
_EXPLAINED = 20
_SPACE = 25e9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """`state` names the script that makes what is not plain, `ready` jobs are added after it.

    `limit` is the most that a claim may take, as a multiple of what it takes with 1 k ready.
    """

    name: str
    title: str
    ready: int = _READY
    state: str = ""
    quick: bool = True
    limit: float = 1.3

    @property
    def variant(self) -> Variant:
        return Variant(name=self.name, title=self.title, quick=self.quick)


_CASES = (
    _Case(name=_BASE, title="1 k ready"),
    _Case(name="ready_100k", title="100 k ready", ready=100_000),
    _Case(name="ready_1m", title="1 M ready", ready=1_000_000),
    _Case(name="ready_10m", title="10 M ready", ready=10_000_000, quick=False),
    _Case(name="scheduled", title="1 M scheduled, 1 k ready", state="scheduled"),
    _Case(name="leased", title="100 k leased, 1 k ready", state="leased"),
    _Case(name="archived", title="1 M archived, 1 k ready", state="archived"),
    _Case(name="waiting", title="1 M waiting in one group, 1 k ready", state="waiting", limit=1.5),
    _Case(name="groups", title="1 M ready, each in a group", ready=0, state="groups", limit=1.5),
)


@dataclass(frozen=True, kw_only=True)
class Flat(Scenario):
    """Makes a database for each case, and measures them by turns."""

    def run(self, context: Context) -> Iterator[Found]:
        """Run all systems that have a script for a claim; each has its databases for itself."""
        for stage in context.stages:
            if context.script(stage, Variant(name="claim")) is not None:
                yield from self._run(context, stage)

    def _run(self, context: Context, stage: Stage) -> Iterator[Found]:
        with ExitStack() as stack:
            databases: dict[_Case, Database] = {}
            for case in _CASES:
                if not _takes_part(context, stage, case):
                    continue
                databases[case] = stack.enter_context(stage.database(label=case.name))
                prepare = partial(_prepare, context, stage, case, databases[case])
                yield from context.attempt(stage, case.variant, prepare)
            for turn in range(context.rounds):
                for case, database in databases.items():
                    measure = partial(_measure, context, stage, database, case.name, turn)
                    yield from context.attempt(stage, case.variant, measure)


def _takes_part(context: Context, stage: Stage, case: _Case) -> bool:
    if context.quick and not case.quick:
        return False
    if case.ready >= 10_000_000 and shutil.disk_usage(stage.server.data).free < _SPACE:
        context.remark(f"{case.title} left out: the disk has less than 25 GB to spare.")
        return False
    return not case.state or context.script(stage, Variant(name=case.state)) is not None


def _prepare(context: Context, stage: Stage, case: _Case, database: Database) -> list[Found]:
    """Put the jobs into the database."""
    if case.state:
        script = context.script(stage, Variant(name=case.state)) or ""
        # A script makes a tenth of the jobs.
        for _ in range(1 if context.quick else 10):
            database.psql(script)
    stage.fill(database, case.ready)
    database.psql("vacuum (analyze)")
    database.psql("checkpoint")
    database.psql(f"alter database {database.name} set synchronous_commit = off")
    context.say(f"{case.title}, {stage.short}: filled")
    return []


def _measure(
    context: Context, stage: Stage, database: Database, variant: str, turn: int
) -> list[Found]:
    claim = context.script(stage, Variant(name="claim")) or ""
    run = pgbench.run(database, claim, transactions=_CLAIMS, clients=1, log=True)
    _restore(context, stage, database, 10 * _CLAIMS)
    buffers = _buffers(database, claim)
    _restore(context, stage, database, 10 * _EXPLAINED)
    return [
        Figure(variant=variant, system=stage.short, round=turn, value=value, metric=metric)
        for metric, value in ((_P50, statistics.median(run.latencies())), (_BUFFERS, buffers))
    ]


def _restore(context: Context, stage: Stage, database: Database, jobs: int) -> None:
    """Complete what was claimed and add as many."""
    script = context.script(stage, Variant(name="restore"))
    if script is None:
        raise BenchmarkError("there is no script that completes what was claimed")
    if (done := int(database.psql(script))) != jobs:
        raise BenchmarkError(f"{done} jobs were claimed, not {jobs}")
    stage.fill(database, jobs)


def _buffers(database: Database, claim: str) -> float:
    """Return the median of the pages that claims touch, those of a new session left out."""
    explained = f"explain (analyze, buffers, format json) {claim.strip()}\n"
    output = database.psql(explained * _EXPLAINED)
    decoder, plans, position = json.JSONDecoder(), list[float](), 0
    while position < len(output):
        (plan,), end = decoder.raw_decode(output, position)
        top = plan["Plan"]
        plans.append(top["Shared Hit Blocks"] + top["Shared Read Blocks"])
        position = end + len(output[end:]) - len(output[end:].lstrip())
    return statistics.median(plans[_EXPLAINED // 2 :])


def _bars() -> Iterator[Bar]:
    for case in _CASES[1:]:
        for metric in (_P50, _BUFFERS):
            yield of_variant(
                _BASE,
                case.limit,
                text=f"{case.title}, {metric}: <= {case.limit} of 1 k ready",
                variant=case.name,
                metric=metric,
                at_most=True,
            )


SCENARIO = Flat(
    title="A claim of 10, whatever else there is",
    description=(
        "One client, synchronous_commit off, 90 claims a round, one system after the other and its "
        "cases by turns; what was claimed is completed and as many jobs added after each round. "
        "Buffers are the pages that EXPLAIN (ANALYZE, BUFFERS) counts for a claim, nested "
        "statements included. A quick run has a tenth of the scheduled, leased and archived jobs, "
        "and no case of 10 M."
    ),
    variants=[case.variant for case in _CASES],
    matrix=True,
    bars=list(_bars()),
)
