"""Many consumers."""

import statistics

from benchmarks.figures import Bar, Reading, Results
from benchmarks.scenario import Throughput, Variant

# The seconds until all sessions have planned their statements.
_CLIENTS = {"16": "1", "64": "3", "256": "9"}


def _of_the_best(results: Results) -> Reading:
    rounds = {clients: results.rounds(clients, "pgq") for clients in _CLIENTS}
    if not all(rounds.values()):
        return Reading(value=None)
    shares = [
        value / max(found[number] for found in rounds.values() if number in found)
        for number, value in rounds["256"].items()
    ]
    return Reading(value=statistics.median(shares))


SCENARIO = Throughput(
    title="Connections",
    description=(
        "Claim and complete in batches of 10, two calls, on a backlog, by many clients. What they "
        "do at first, when all plan their statements, does not count. At most 3 rounds."
    ),
    variants=[
        Variant(
            name=number,
            title=f"{number} clients",
            variables={"batch": "10", "clients": number, "warm": warm},
        )
        for number, warm in _CLIENTS.items()
    ],
    matrix=True,
    takes="batch",
    clients="clients",
    warm="warm",
    most=3,
    backlog=40_000,
    scripts="claim_complete",
    systems=("pgq", "textbook"),
    bars=[
        Bar(
            text="256: >= 0.8 of the best",
            measure=_of_the_best,
            limit=0.8,
            variants=list(_CLIENTS),
        )
    ],
)
