"""A thousand jobs per call."""

from benchmarks.figures import of_every_peer, of_system
from benchmarks.scenario import Throughput, Variant

SCENARIO = Throughput(
    title="Enqueue, 1,000 jobs per call",
    description=(
        "4 clients. The array is made by the server, which parses each payload as if a client had "
        "sent it, into whatever the system takes."
    ),
    variants=[Variant(name="", variables={"batch": "1000"})],
    adds=1000,
    bars=[of_system("floor", 0.8, name="the floor"), of_every_peer()],
)
