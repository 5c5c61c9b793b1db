"""Jobs that come and go, in groups."""

from benchmarks.figures import of_variant
from benchmarks.scenario import Throughput, Variant
from benchmarks.system import PAYLOAD

_PLAIN, _GROUPS = "plain", "groups"
_READY = 10_000
_KEYS = f"array(select 'g' || floor(1000 * random()) from generate_series(1, {_READY}))"


def _backlog(arguments: str = "") -> str:
    payloads = f"array_fill('{PAYLOAD}'::jsonb, array[{_READY}])"
    return f"select count(*) from pgq_enqueue_many({payloads}{arguments}); vacuum (analyze);"


SCENARIO = Throughput(
    title="Closed loop with groups",
    description=(
        "The closed loop of pgq, where each job has one of 1,000 group keys, drawn by lot; of a "
        "group one job is active at a time, in order. 10,000 such jobs are there before; the plain "
        "loop begins with as many that have no group."
    ),
    variants=[
        Variant(name=_PLAIN, title="no groups", variables={"batch": "10"}, setup=_backlog()),
        Variant(
            name=_GROUPS,
            title="1,000 groups",
            variables={"batch": "10"},
            setup=_backlog(f", group_keys => {_KEYS}"),
            of=_PLAIN,
        ),
    ],
    matrix=True,
    adds=10,
    takes="batch",
    scripts="loop",
    systems=("pgq",),
    bars=[of_variant(_PLAIN, 0.5, text="1,000 groups: >= 0.5 of the plain loop", variant=_GROUPS)],
)
