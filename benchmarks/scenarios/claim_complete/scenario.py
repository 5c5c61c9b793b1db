"""A worker's two calls, on a backlog."""

from benchmarks.figures import Bar, of_every_peer, of_system
from benchmarks.scenario import Throughput, Variant


def _bars(batch: str, textbook: float) -> list[Bar]:
    label = f"batch {batch}"
    return [
        of_system("floor", 0.7, name="the floor", variant=batch, label=label),
        of_every_peer(lifecycle=True, variant=batch, label=label),
        of_system("textbook", textbook, name="the textbook table", variant=batch, label=label),
    ]


SCENARIO = Throughput(
    title="Claim and complete",
    description=(
        "4 clients claim a batch in one transaction and complete it in a second one, on a backlog "
        "that outlasts the run and is the same for all. Scripts take ids and receipts to "
        "the client, not the payloads."
    ),
    variants=[
        Variant(name=batch, title=f"batch {batch}", variables={"batch": batch, "backlog": backlog})
        for batch, backlog in (("1", "20000"), ("10", "60000"), ("100", "150000"))
    ],
    takes="batch",
    backlog="backlog",
    bars=[*_bars("1", 1.0), *_bars("10", 1.2), *_bars("100", 1.2)],
)
