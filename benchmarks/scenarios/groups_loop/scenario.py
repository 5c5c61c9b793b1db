"""Jobs that come and go, in groups."""

from collections.abc import Iterator

from benchmarks.figures import Bar, of_variant
from benchmarks.scenario import Throughput, Variant
from benchmarks.system import PAYLOAD

_READY = 10_000
_KEPT = "select pgq_configure_queue('default', keep_completed => '1 day');"

# Name, title, jobs per call, what is set up before.
_LOOPS = (
    ("ten", "10 per call", 10, ""),
    ("one", "1 per call", 1, ""),
    ("kept", "10 per call, kept for a day", 10, _KEPT),
    ("one_kept", "1 per call, kept for a day", 1, _KEPT),
)


def _backlog(jobs: int, *, grouped: bool) -> str:
    """Return SQL that enqueues so many jobs, and has statistics taken."""
    drawn = f"array(select 'g' || ceil(1000 * random()) from generate_series(1, {jobs}))"
    return (
        f"select count(*) from pgq_enqueue_many(array_fill('{PAYLOAD}'::jsonb, array[{jobs}]),"
        f" group_keys => {drawn if grouped else 'null'}); vacuum (analyze);"
    )


def _pair(name: str, title: str, batch: int, setup: str) -> Iterator[Variant]:
    # By pgbench, and without groups, too: to draw them must not count as a cost of groups.
    draw = "\n".join(rf"\set group_{n} random(1, 1000)" for n in range(batch))
    drawn = ", ".join(f"'g' || :group_{n}" for n in range(batch))
    yield Variant(
        name=name,
        title=f"{title}, no groups",
        variables={"batch": str(batch), "draw": draw, "keys": "null"},
        setup=f"{setup} {_backlog(_READY, grouped=False)}",
    )
    yield Variant(
        name=f"{name}_grouped",
        title=f"{title}, 1,000 groups",
        variables={"batch": str(batch), "draw": draw, "keys": f"array[{drawn}]"},
        setup=f"{setup} {_backlog(_READY, grouped=True)}",
        of=name,
    )


def _bar(name: str, title: str) -> Bar:
    text = f"{title}, 1,000 groups: >= 0.5 of the plain loop"
    return of_variant(name, 0.5, text=text, variant=f"{name}_grouped")


SCENARIO = Throughput(
    title="Closed loop with groups",
    description=(
        "The closed loop of pgq, where each job has one of 1,000 group keys, drawn by lot; of a "
        "group one job is active at a time, in order. 10,000 such jobs are there before; the plain "
        "loop begins with as many that have no group. Kept for a day are completed jobs of a queue "
        "with the default settings; elsewhere none are kept. 10 s, in which the parked slots turn."
    ),
    variants=[variant for loop in _LOOPS for variant in _pair(*loop)],
    matrix=True,
    adds="batch",
    takes="batch",
    seconds=10,
    systems=("pgq",),
    bars=[_bar(name, title) for name, title, _, _ in _LOOPS],
)
