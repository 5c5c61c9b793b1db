"""Jobs that come and go, in groups."""

from collections.abc import Iterator

from benchmarks.figures import Bar, of_variant
from benchmarks.scenario import Throughput, Variant
from benchmarks.system import PAYLOAD

_READY = 10_000
_KEYS = ", group_keys => array(select 'g' || floor(1000 * random()) from generate_series(1, {}))"
_KEPT = "select pgq_configure_queue('default', keep_completed => '1 day');"

# Name, title, jobs per call, what is set up before.
_LOOPS = (
    ("ten", "10 per call", "10", ""),
    ("one", "1 per call", "1", ""),
    ("kept", "10 per call, kept for a day", "10", _KEPT),
)


def _pair(name: str, title: str, batch: str, setup: str) -> Iterator[Variant]:
    fill = (
        f"{setup} select count(*)"
        f" from pgq_enqueue_many(array_fill('{PAYLOAD}'::jsonb, array[{_READY}])%s);"
        " vacuum (analyze);"
    )
    yield Variant(
        name=name,
        title=f"{title}, no groups",
        variables={"batch": batch, "keys": ", group_keys => null"},
        setup=fill % "",
    )
    yield Variant(
        name=f"{name}_grouped",
        title=f"{title}, 1,000 groups",
        variables={"batch": batch, "keys": _KEYS.format(":batch::int")},
        setup=fill % _KEYS.format(_READY),
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
        "with the default settings; elsewhere none are kept."
    ),
    variants=[variant for loop in _LOOPS for variant in _pair(*loop)],
    matrix=True,
    adds="batch",
    takes="batch",
    systems=("pgq",),
    bars=[_bar(name, title) for name, title, _, _ in _LOOPS],
)
