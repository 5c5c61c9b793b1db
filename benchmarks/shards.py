"""What several databases cost: CPU for each job, and calls of their front beside direct ones.

    PYTHONPATH=tools .venv/bin/python -m benchmarks.shards [--jobs 50000] [--calls 500] [--rounds 5]

The first table: a worker works off so many jobs, and a tenth of them, of one database, then of
three that share them, by turns; once with the same concurrency for each database, once with the
same in all, where claims take a third of the jobs. The CPU is that of all processes of the servers,
and that of the worker, this process. What the two runs differ by is the cost of jobs, without that
of a start. The second table: one client calls a shard, and the front, by turns. Calls that write
wait for the disk. Figures are medians over the rounds; the last column is the median of the ratios.
"""

import argparse
import asyncio
import operator
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pgq
import pgshards
from pgserver import Server

from benchmarks.watch import cpu_seconds

FRONT = "pgq_proxy"
STEP = 100
WIDTH = 30  # the concurrency
FIGURES = ("servers, us of CPU a job", "worker, us of CPU a job", "jobs a transaction")

Pools = Sequence["asyncpg.Pool[Any]"]


async def handle(job: pgq.Job[int]) -> None:
    """Do nothing."""


def pool_of(server: Server) -> "asyncpg.Pool[Any]":
    """Return a pool of the database of a server, to be opened."""
    return asyncpg.create_pool(
        host=server.host, port=server.port, user=server.user, database=server.database
    )


async def fill(pools: Pools, jobs: int) -> None:
    """Share jobs between the databases."""
    for number, first in enumerate(range(0, jobs, STEP)):
        pool = pools[number % len(pools)]
        await pgq.Queue(pool).enqueue_many(list(range(first, first + STEP)))


async def transactions(pools: Pools) -> int:
    """Return how many transactions have written in some databases."""
    query = "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
    return sum([await pool.fetchval(query) for pool in pools])


async def used(
    servers: Sequence[Server], pools: Pools, jobs: int, concurrency: int
) -> tuple[float, float, int]:
    """Return the seconds of CPU of servers and worker for so many jobs, and the transactions."""
    await fill(pools, jobs)
    worker = pgq.Worker()
    worker.handler("default", concurrency=concurrency, prefetch=10 * concurrency)(handle)
    first = await transactions(pools)
    before, own = sum(map(cpu_seconds, servers)), time.process_time()
    await worker.run_until_idle(pools=pools)
    own = time.process_time() - own
    return sum(map(cpu_seconds, servers)) - before, own, await transactions(pools) - first


async def cost(
    servers: Sequence[Server], pools: Pools, jobs: int, concurrency: int
) -> tuple[float, float, float]:
    """Return the figures of a round, in the order of `FIGURES`."""
    few = jobs // 10
    small = await used(servers, pools, few, concurrency)
    large = await used(servers, pools, jobs, concurrency)
    of_servers, of_worker, written = map(operator.sub, large, small)
    more = jobs - few
    return of_servers / more * 1e6, of_worker / more * 1e6, more / written


async def enqueue(queue: pgq.Queue) -> None:
    """Add one job."""
    await queue.enqueue(1)


async def enqueue_many(queue: pgq.Queue) -> None:
    """Add many jobs."""
    await queue.enqueue_many([1] * STEP)


async def claim_and_complete(queue: pgq.Queue) -> None:
    """Claim many jobs, and complete them."""
    await queue.complete_many(await queue.dequeue(STEP))


CALLS = {
    "enqueue one job": enqueue,
    f"enqueue {STEP} jobs": enqueue_many,
    f"claim and complete {STEP} jobs": claim_and_complete,
}


async def duration(call: Callable[[pgq.Queue], Awaitable[None]], queue: pgq.Queue, n: int) -> float:
    """Return how many milliseconds a call takes."""
    began = time.perf_counter()
    for _ in range(n):
        await call(queue)
    return (time.perf_counter() - began) / n * 1e3


async def run(servers: Sequence[Server], jobs: int, calls: int, rounds: int) -> None:
    """Measure, and print both tables."""
    *shards, _ = servers
    async with AsyncExitStack() as stack:
        pools: list[asyncpg.Pool[Any]] = [
            await stack.enter_async_context(pool_of(server)) for server in servers
        ]
        front = pools.pop()
        for title, width in (
            ("the same concurrency for each", WIDTH * len(shards)),
            ("the same in all", WIDTH),
        ):
            costs = [
                (
                    await cost(shards[:1], pools[:1], jobs, WIDTH),
                    await cost(shards, pools, jobs, width),
                )
                for _ in range(rounds)
            ]
            print(f"{title:36}{'one':>8}{'three':>8}{'ratio':>7}")
            for part, name in enumerate(FIGURES):
                show(name, [(one[part], three[part]) for one, three in costs])
        print(f"\n{'ms a call':36}{'direct':>8}{'front':>8}{'ratio':>7}")
        queues = pgq.Queue(pools[0]), pgq.Queue(front, schema=FRONT)
        for name, call in CALLS.items():
            for queue in queues:
                await duration(call, queue, 20)
            show(
                name,
                [
                    (
                        await duration(call, queues[0], calls),
                        await duration(call, queues[1], calls),
                    )
                    for _ in range(rounds)
                ],
            )


def show(name: str, pairs: Sequence[tuple[float, float]]) -> None:
    """Print a row."""
    first, second = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(other / one for one, other in pairs)
    print(f"{name:36}{first:8.2f}{second:8.2f}{ratio:7.2f}", flush=True)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with pgshards.serve({}) as servers:
        asyncio.run(run(servers, options.jobs, options.calls, options.rounds))


if __name__ == "__main__":
    main()
