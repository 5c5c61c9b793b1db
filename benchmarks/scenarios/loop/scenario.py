"""Jobs that come and go."""

from benchmarks.scenario import Throughput, Variant

SCENARIO = Throughput(
    title="Closed loop",
    description=(
        "4 clients, each of which enqueues 10 jobs in one transaction, by one call if the system "
        "has one for many jobs, claims 10 and completes 10. There are 10,000 ready jobs before."
    ),
    variants=[Variant(name="", variables={"batch": "10"})],
    adds=10,
    takes="batch",
    ready=10_000,
)
