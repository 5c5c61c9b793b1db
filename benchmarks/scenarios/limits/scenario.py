"""Jobs that come and go, in a queue with limits."""

from collections.abc import Iterator

from benchmarks.scenario import Throughput, Variant

_RATE = "rate_limit => 100000, rate_interval => '1 second', rate_burst => "

# None is ever reached.
_LIMITS = {
    "max_active 100": "max_active => 100",
    "max_active 1,000": "max_active => 1000",
    "rate_burst 1,000": f"{_RATE}1000",
    "rate_burst 10,000": f"{_RATE}10000",
    "max_active 100 and rate_burst 1,000": f"max_active => 100, {_RATE}1000",
}


def _loops(batch: int) -> Iterator[Variant]:
    variables = {"batch": str(batch)}
    yield Variant(name=f"{batch}", title=f"{batch} per call, no limits", variables=variables)
    for number, (title, settings) in enumerate(_LIMITS.items()):
        yield Variant(
            name=f"{batch}_{number}",
            title=f"{batch} per call, {title}",
            variables=variables,
            setup=f"select pgq_configure_queue('default', {settings})",
            of=f"{batch}",
        )


SCENARIO = Throughput(
    title="Closed loop with limits",
    description=(
        "The closed loop of pgq in a queue that has a max_active, or a rate_limit of 100,000 per "
        "second with a rate_burst, or both, none of which is ever reached: what it costs to have "
        "them. There are 10,000 ready jobs before."
    ),
    variants=[*_loops(10), *_loops(1)],
    matrix=True,
    scripts="loop",
    adds="batch",
    takes="batch",
    ready=10_000,
    seconds=4,
    systems=("pgq",),
    standard=False,
)
