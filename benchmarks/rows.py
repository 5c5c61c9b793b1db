"""What a worker's CPU for each job would be if jobs were made by the `__init__` of their class.

    PYTHONPATH=tools .venv/bin/python -m benchmarks.rows [--jobs 20000] [--rounds 7]

A worker of jobs that do nothing works off so many jobs, by turns with `jobs_of` and with
one that makes the same jobs anew by a call of the class. The CPU is that of this process. Figures
are medians.
"""

import argparse
import asyncio
from collections.abc import Sequence
from unittest.mock import patch

from pgq import _rows
from pgserver import Server

from benchmarks.shards import WIDTH, cost, pool_of, show


def called(
    kind: type[_rows.JobT], rows: Sequence[_rows.Row], loads: _rows.Loads
) -> list[_rows.JobT]:
    """Return a job of each row, made anew by a call of its class."""
    return [kind(**vars(job)) for job in _rows.jobs_of(kind, rows, loads)]


async def run(server: Server, jobs: int, rounds: int) -> None:
    """Measure, and print the row."""
    async with pool_of(server) as pool:
        pairs: list[tuple[float, float]] = []
        for _ in range(rounds):
            _, own, _ = await cost([server], [pool], jobs, WIDTH)
            with patch("pgq._queue.jobs_of", called):
                _, other, _ = await cost([server], [pool], jobs, WIDTH)
            pairs.append((own, other))
        print(f"{'us of CPU a job':36}{'pgq':>8}{'called':>8}{'ratio':>7}")
        show("worker", pairs)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with Server() as server:
        server.psql("create extension pgq")
        asyncio.run(run(server, options.jobs, options.rounds))


if __name__ == "__main__":
    main()
