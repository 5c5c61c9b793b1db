"""A worker's two calls in one."""

from benchmarks.figures import Bar, of_variant
from benchmarks.scenario import Throughput, Variant


def _variants(batch: str) -> list[Variant]:
    variables = {"batch": batch, "ids": "{}", "tokens": "{}"}
    return [
        Variant(name=f"two_{batch}", title=f"two calls, batch {batch}", variables=variables),
        Variant(
            name=f"one_{batch}",
            title=f"one call, batch {batch}",
            variables=variables,
            of=f"two_{batch}",
        ),
    ]


def _bar(batch: str, limit: float) -> Bar:
    return of_variant(
        f"two_{batch}",
        limit,
        variant=f"one_{batch}",
        text=f"batch {batch}: >= {limit} of two calls",
    )


SCENARIO = Throughput(
    title="Complete and claim in one call",
    description=(
        "4 clients, on a backlog that outlasts the run: one call, and so one transaction, "
        "completes the last batch and claims the next; against two calls. With batches of 1 these "
        "are the forms without arrays."
    ),
    variants=[*_variants("1"), *_variants("10")],
    matrix=True,
    takes="batch",
    backlog=40_000,
    bars=[_bar("1", 1.5)],
)
