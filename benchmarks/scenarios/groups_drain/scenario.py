"""What one worker can do where the jobs are in groups."""

from collections.abc import Iterator

from benchmarks.figures import Bar, of_variant
from benchmarks.scenario import Variant
from benchmarks.scenarios.drain.scenario import Drain
from benchmarks.system import PAYLOAD, Database

_WIDTHS = (10, 100, 500)


def _fill(database: Database, variant: Variant, jobs: int) -> None:
    payloads = f"array_fill('{PAYLOAD}'::jsonb, array[{jobs}])"
    keys = variant.variables["keys"].format(jobs=jobs)
    database.psql(f"select count(*) from pgq_enqueue_many({payloads}, group_keys => {keys})")
    database.psql("vacuum (analyze)")


def _pair(width: int) -> Iterator[Variant]:
    yield Variant(
        name=str(width),
        title=f"width {width}, no groups",
        variables={"width": str(width), "keys": "null"},
    )
    drawn = "array(select 'g' || ceil(1000 * random()) from generate_series(1, {jobs}))"
    yield Variant(
        name=f"{width}_grouped",
        title=f"width {width}, 1,000 groups",
        variables={"width": str(width), "keys": drawn},
        of=str(width),
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
