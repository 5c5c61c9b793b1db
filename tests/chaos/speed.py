"""The speed of a server that a fault has hit, measured beside one that no fault has hit."""

from __future__ import annotations

import statistics
import time
from typing import Final

from tests.python.sessions import Connection

ROUNDS: Final = 150
"""How many jobs go through on each server."""
WARM: Final = 20
"""How many of the first are not counted: sessions plan their statements then."""
QUEUE: Final = "speed"


async def measure(hit: Connection, spared: Connection) -> float:
    """Return how many jobs one session gets through on the first server for one on the second.

    The two take turns with each job, so that both have the same share of a machine that others
    use, too.
    """
    times: list[list[float]] = [[], []]
    for connection in (hit, spared):
        await connection.execute("set synchronous_commit = off")
    for _ in range(ROUNDS):
        for connection, seconds in zip((hit, spared), times, strict=True):
            seconds.append(await _round(connection))
    ours, theirs = (statistics.median(seconds[WARM:]) for seconds in times)
    return theirs / ours


async def _round(connection: Connection) -> float:
    """Return the seconds in which a job comes and goes."""
    start = time.perf_counter()
    await connection.fetchval("select pgq_enqueue('1', queue => $1)", QUEUE)
    row = await connection.fetchrow(
        "select id, token from pgq_dequeue(1, '1 hour', queue => $1)", QUEUE
    )
    assert row is not None
    assert await connection.fetchval("select pgq_complete($1::bigint, $2::bigint)", *row)
    return time.perf_counter() - start
