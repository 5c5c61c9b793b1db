"""What one worker can do where the jobs are in groups."""

from collections.abc import Iterator

from benchmarks.figures import Bar, of_every_peer, of_variant
from benchmarks.scenario import Variant
from benchmarks.scenarios.drain.scenario import Drain

_WIDTHS = (10, 100, 500)


def _pair(width: int) -> Iterator[Variant]:
    variables = {"width": str(width)}
    grouped = {**variables, "groups": "1000"}
    name, title = str(width), f"width {width}"
    yield Variant(name=name, title=f"{title}, no groups", variables=variables)
    yield Variant(
        name=f"{name}_grouped", title=f"{title}, 1,000 groups", variables=grouped, of=name
    )


def _bars(width: int) -> Iterator[Bar]:
    variant, label = f"{width}_grouped", f"width {width}, 1,000 groups"
    text = f"{label}: >= 0.5 of no groups"
    yield of_variant(str(width), 0.5, text=text, variant=variant)
    yield of_every_peer(variant=variant, label=label)


SCENARIO = Drain(
    title="One worker on a backlog in groups",
    description=(
        "The workers on a backlog of jobs that have no group, and where each has one of 1,000 "
        "group keys, drawn by lot; of a group one job is active at a time. Those take part that "
        "have the like: Graphile Worker by its named queues and Procrastinate by its locks, both "
        "in order as pgq; pg-boss by groupConcurrency, which keeps no order; its batches are "
        "rarely full then, for which it polls twice a second, as often as it can. 3 rounds."
    ),
    variants=[variant for width in _WIDTHS for variant in _pair(width)],
    matrix=True,
    most=3,
    systems=("pgq", "graphile_worker", "pg_boss", "procrastinate"),
    bars=[bar for width in _WIDTHS for bar in _bars(width)],
)
