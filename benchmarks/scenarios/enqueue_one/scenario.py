"""One job per transaction."""

from benchmarks.figures import of_every_peer, of_system
from benchmarks.scenario import Throughput

SCENARIO = Throughput(
    title="Enqueue, one job per transaction",
    description="4 clients, each call commits by itself.",
    adds=1,
    bars=[of_system("floor", 0.85, name="the floor"), of_every_peer()],
)
