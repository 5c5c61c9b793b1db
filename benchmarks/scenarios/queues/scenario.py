"""Many queues."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from benchmarks import pgbench
from benchmarks.figures import Figure, median, of_variant
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
            if context.script(stage, Variant(name="claim")) is not None:
                yield from context.attempt(
                    stage, Variant(name=""), partial(self._measure, context, stage)
                )

    def _measure(self, context: Context, stage: Stage) -> Iterator[Found]:
        with ExitStack() as stack:
            databases = [self._prepare(context, stage, variant, stack) for variant in self.variants]
            for number in range(min(context.rounds, 5)):
                for variant, database in zip(self.variants, databases, strict=True):
                    run = pgbench.run(
                        database,
                        context.script(stage, Variant(name="claim")) or "",
                        transactions=_CLAIMS,
                        clients=1,
                        variables=variant.variables,
                        log=True,
                    )
                    yield Figure(
                        variant=variant.name,
                        system=stage.short,
                        round=number,
                        value=median(run.latencies()),
                        metric=_P50,
                    )

    def _prepare(
        self, context: Context, stage: Stage, variant: Variant, stack: ExitStack
    ) -> Database:
        database = stack.enter_context(stage.database(label=f"queues_{variant.name}"))
        variables = {**variant.variables, "jobs": str(_JOBS // 10 // int(variant.name))}
        script = context.script(stage, Variant(name="fill", variables=variables))
        database.psql(script or "")
        database.psql(f"alter database {database.name} set synchronous_commit = off")
        database.psql("vacuum (analyze)")
        database.psql("checkpoint")
        return database


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
