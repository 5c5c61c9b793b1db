"""What one worker can do where the jobs are in groups."""

from collections.abc import Iterator

from benchmarks.figures import Bar, of_variant
from benchmarks.scenario import Variant
from benchmarks.scenarios.drain.scenario import Drain
from benchmarks.scenarios.groups_loop.scenario import backlog
from benchmarks.system import Database

_WIDTHS = (10, 100, 500)


def _fill(database: Database, variant: Variant, jobs: int) -> None:
    database.psql(backlog(jobs, grouped=bool(variant.of)))


def _pair(width: int) -> Iterator[Variant]:
    variables = {"width": str(width)}
    name, title = str(width), f"width {width}"
    yield Variant(name=name, title=f"{title}, no groups", variables=variables)
    yield Variant(
        name=f"{name}_grouped", title=f"{title}, 1,000 groups", variables=variables, of=name
    )


def _bar(width: int) -> Bar:
    text = f"width {width}, 1,000 groups: >= 0.5 of no groups"
    return of_variant(str(width), 0.5, text=text, variant=f"{width}_grouped")


SCENARIO = Drain(
    title="One worker on a backlog in groups",
    description=(
        "pgq's worker as on a backlog of jobs that have no group, and where each has one of 1,000 "
        "group keys, drawn by lot; of a group one job is active at a time, in order."
    ),
    variants=[variant for width in _WIDTHS for variant in _pair(width)],
    matrix=True,
    systems=("pgq",),
    fill=_fill,
    bars=[_bar(width) for width in _WIDTHS],
)
