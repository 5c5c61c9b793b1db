"""Many queues."""

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from benchmarks import pgbench
from benchmarks.figures import Figure, of_variant
from benchmarks.pgbench import BenchmarkError
from benchmarks.scenario import Context, Found, Scenario, Variant
from benchmarks.stage import Stage
from benchmarks.system import Database

_P50 = "p50 ms"
_JOBS = 100_000
_CLAIMS = 500


@dataclass(frozen=True, kw_only=True)
class Queues(Scenario):
    """Claims from a queue that is drawn by lot."""

    def run(self, context: Context) -> Iterator[Found]:
        """Run the variants by turns, each on a database of its own."""
        for stage in context.stages:
            if context.script(stage, Variant(name="claim")) is None:
                continue
            with ExitStack() as stack:
                databases: list[Database] = []
                for variant in self.variants:
                    label = f"queues_{variant.name}"
                    databases.append(stack.enter_context(stage.database(label=label)))
                    prepare = partial(_prepare, context, stage, databases[-1], variant)
                    yield from context.attempt(stage, variant, prepare)
                for turn in range(context.rounds):
                    for variant, database in zip(self.variants, databases, strict=True):
                        measure = partial(_measure, context, stage, database, variant, turn)
                        yield from context.attempt(stage, variant, measure)


def _prepare(context: Context, stage: Stage, database: Database, variant: Variant) -> list[Found]:
    variables = {**variant.variables, "jobs": str(_JOBS // 10 // int(variant.name))}
    script = context.script(stage, Variant(name="fill", variables=variables))
    database.psql(script or "")
    database.psql(f"alter database {database.name} set synchronous_commit = off")
    database.psql("vacuum (analyze)")
    database.psql("checkpoint")
    return []


def _measure(
    context: Context, stage: Stage, database: Database, variant: Variant, turn: int
) -> list[Found]:
    run = pgbench.run(
        database,
        context.script(stage, Variant(name="claim")) or "",
        transactions=_CLAIMS,
        clients=1,
        variables=variant.variables,
        log=True,
    )
    claimed = int(database.psql(context.script(stage, Variant(name="claimed")) or ""))
    # By lot a queue may become empty.
    if claimed < 0.99 * 10 * _CLAIMS * (turn + 1):
        raise BenchmarkError(f"{claimed} jobs were claimed by {_CLAIMS * (turn + 1)} claims of 10")
    value = statistics.median(run.latencies())
    return [Figure(variant=variant.name, system=stage.short, round=turn, value=value, metric=_P50)]


SCENARIO = Queues(
    title="Queues",
    description=(
        "One client, synchronous_commit off, 500 claims of 10 a round from queues drawn by lot; "
        "100,000 jobs are ready in all."
    ),
    variants=[
        Variant(name="1", title="one queue", variables={"queues": "1"}),
        Variant(name="1000", title="1,000 queues", variables={"queues": "1000"}),
    ],
    matrix=True,
    most=5,
    bars=[
        of_variant(
            "1",
            1.5,
            text="1,000 queues: p50 <= 1.5 of one queue",
            variant="1000",
            metric=_P50,
            at_most=True,
        )
    ],
)
