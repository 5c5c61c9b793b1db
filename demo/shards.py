"""Shows three databases that share jobs, of which one is killed in the middle and comes back.

The jobs come through a front, in groups and with keys; some come twice, and what fails comes again.
`pgq worker` runs two times, each on all databases. When a quarter is done one server is killed
(SIGKILL); it is started again when the others have done another eighth. When all is enqueued, one
shard is drained. Each job leaves a row in the transaction that completes it. At the end these rows
tell what was lost or done twice.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode

import asyncpg
import pgq
import pgshards
from pgserver import Server

from demo.__main__ import say, show_progress, until

JOBS: Final = int(os.environ.get("PGQ_DEMO_JOBS", "10000"))
CHUNK: Final = 20
TWICE: Final = 10  # of so many chunks one is sent twice
GROUPS: Final = 97
WORKERS: Final = 2
KILLED: Final = 1  # a shard
DRAINED: Final = 2
PRODUCERS: Final = 3
FRONT: Final = "pgq_proxy"
PAUSE_SECONDS: Final = 0.1

# Without unique keys: work that was done twice would be seen twice.
TABLE: Final = """
    create table done (
        job_id bigint not null, number integer not null, dedupe_key text not null, group_key text,
        claimed_at timestamptz not null, ended_at timestamptz not null)"""
DONE: Final = "insert into done values ($1, $2, $3, $4, $5, clock_timestamp())"
MEETINGS: Final = """
    select count(*)
      from (select claimed_at < max(ended_at) over (
                       partition by group_key order by claimed_at
                       rows between unbounded preceding and 1 preceding) as meets
              from done where group_key is not null) one
     where meets"""

Pool: TypeAlias = "asyncpg.Pool[Any]"
Pools: TypeAlias = Sequence[Pool]
Disturb: TypeAlias = Callable[[Pools], Awaitable[int]]
worker = pgq.Worker()


@worker.handler(
    "default", concurrency=24, prefetch=60, timeout=timedelta(seconds=5), transaction=True
)
async def work(job: pgq.Job[int], connection: Any) -> None:
    """Leave a row in the shard of the job."""
    await connection.execute(
        DONE, job.id, job.payload, job.dedupe_key, job.group_key, job.claimed_at
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Jobs that are enqueued together: of one group, or each with a key alone."""

    numbers: range
    group: str | None

    async def enqueue(self, queue: pgq.Queue) -> None:
        """Enqueue them; a job that is there already is not enqueued again."""
        keys = [f"key {number}" for number in self.numbers]
        groups = None if self.group is None else [self.group] * len(keys)
        await queue.enqueue_many(list(self.numbers), dedupe_keys=keys, group_keys=groups)


def make_chunks() -> list[Chunk]:
    """Return all jobs; the shard of a group takes its chunk also while others are down."""
    return [
        Chunk(
            numbers=range(first, min(first + CHUNK, JOBS)),
            group=f"group {number % GROUPS}" if number % 2 else None,
        )
        for number, first in enumerate(range(0, JOBS, CHUNK))
    ]


async def produce(front: Pool, left: deque[Chunk]) -> None:
    """Enqueue chunks; one that fails, because its shard is down, is sent again later."""
    queue = pgq.Queue(front, schema=FRONT)
    while left:
        chunk = left.popleft()
        try:
            await chunk.enqueue(queue)
        except (pgq.Error, asyncpg.PostgresError):
            left.append(chunk)
            await asyncio.sleep(PAUSE_SECONDS)


async def count_done(pools: Pools) -> int:
    """Return how many rows the work has left in some shards."""
    return sum([await pool.fetchval("select count(*) from done") for pool in pools])


def have_done(pools: Pools, goal: int) -> Callable[[], Awaitable[bool]]:
    """Return a condition for `until`: so many rows are there."""

    async def condition() -> bool:
        done = await count_done(pools)
        show_progress(done, JOBS)
        return done >= goal

    return condition


async def kill(server: Server, others: Pools) -> int:
    """Kill a server and start it again; return what the others have done meanwhile."""
    before = await count_done(others)
    server.stop("kill")
    began = time.monotonic()
    say(f"the server of shard {KILLED} is killed (SIGKILL)")
    await until(have_done(others, before + JOBS // 8))
    done = await count_done(others) - before
    await asyncio.to_thread(server.start)
    say(f"it is back after {time.monotonic() - began:.1f} s")
    return done


@asynccontextmanager
async def working(urls: Sequence[str]) -> AsyncGenerator[list[Process]]:
    """Run workers, each on all databases, for as long as the block lasts."""
    command = [sys.executable, "-m", "pgq", "worker", "demo.shards:worker"]
    command += ["--log-level", "error", *(part for url in urls for part in ("--dsn", url))]
    processes = [await asyncio.create_subprocess_exec(*command) for _ in range(WORKERS)]
    try:
        yield processes
    finally:
        for process in processes:
            if process.returncode is None:
                process.terminate()
        for process in processes:
            await process.wait()


def url_of(server: Server) -> str:
    """Return where a server's database is."""
    place = urlencode({"host": server.host, "port": server.port, "user": server.user})
    return f"postgresql:///{server.database}?{place}"


async def drain(front: Server, shard: int) -> None:
    """Send a shard no new jobs, and wait until it has none."""
    say(f"shard {shard} is drained")
    began = time.monotonic()
    await asyncio.to_thread(front.psql, f"call {FRONT}.drain({shard})")
    say(f"it is empty after {time.monotonic() - began:.1f} s")


async def show(
    urls: Sequence[str], front: Server, disturb: Disturb, drained: int | None = None
) -> int:
    """Run the demo; return the exit status.

    Args:
        urls: where the shards are.
        front: the front of them.
        disturb: disturbs one of them; it gets the others, and returns what they do meanwhile.
        drained: the shard that is drained when all is enqueued.
    """
    front.psql(f"select {FRONT}.pgq_configure_queue('default', dedupe_for => '1 hour')")
    async with AsyncExitStack() as stack:
        pools: list[Pool] = [
            await stack.enter_async_context(asyncpg.create_pool(url, min_size=0)) for url in urls
        ]
        for pool in pools:
            await pool.execute(TABLE)
        at_front = await stack.enter_async_context(asyncpg.create_pool(url_of(front), min_size=0))
        processes = await stack.enter_async_context(working(urls))
        chunks = make_chunks()
        again = chunks[::TWICE]
        left = deque([*chunks, *again])
        print(f"{JOBS} jobs, {len(urls)} shards, {WORKERS} workers, each on all shards")
        began = time.monotonic()
        producers = [asyncio.create_task(produce(at_front, left)) for _ in range(PRODUCERS)]
        meanwhile, failure = 0, None
        try:
            await until(have_done(pools, JOBS // 4))
            others = [pool for shard, pool in enumerate(pools) if shard != KILLED]
            meanwhile = await disturb(others)
            await asyncio.gather(*producers)
            if drained is not None:
                await drain(front, drained)
            await until(have_done(pools, JOBS))
        except TimeoutError as error:
            failure = str(error)
        finally:
            for producer in producers:
                producer.cancel()
        say(f"all is done after {time.monotonic() - began:.1f} s")
        ended = [process.returncode for process in processes if process.returncode is not None]
        if ended:
            failure = f"workers ended with {ended}"
        faults = await report(pools, sum(len(chunk.numbers) for chunk in again), meanwhile)
    if failure is not None:
        print(f"FAILED: {failure}")
    return 1 if faults or failure else 0


async def report(pools: Pools, sent_twice: int, meanwhile: int) -> int:
    """Print the table, and return the number of faults."""
    query = "select job_id, number, dedupe_key, group_key from done"
    rows = [await pool.fetch(query) for pool in pools]
    times = Counter(row["number"] for shard in rows for row in shard)
    places: dict[str, set[int]] = {}
    for number, shard in enumerate(rows):
        for row in shard:
            for key in filter(None, (row["dedupe_key"], row["group_key"])):
                places.setdefault(key, set()).add(number)
    facts = {"jobs": JOBS, "sent twice": sent_twice}
    facts |= {f"done on shard {number}": len(shard) for number, shard in enumerate(rows)}
    facts["done by the others meanwhile"] = meanwhile
    faults = {
        "lost": JOBS - len(times),
        "done twice": sum(times.values()) - len(times),
        "two of a group at a time": sum([await pool.fetchval(MEETINGS) for pool in pools]),
        "keys on two shards": sum(len(found) > 1 for found in places.values()),
        "ids that name another shard": sum(
            row["job_id"] >> 48 != number for number, shard in enumerate(rows) for row in shard
        ),
    }
    print("\n".join(f"{name:40}{value:>8}" for name, value in (facts | faults).items()))
    return sum(faults.values())


def main() -> int:
    """Run the demo on servers of its own; return the exit status."""
    # Servers and workers end with this, however it ends.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with pgshards.serve({"fsync": "off"}) as servers:
        *shards, front = servers
        urls = [url_of(shard) for shard in shards]
        return asyncio.run(show(urls, front, partial(kill, shards[KILLED]), DRAINED))


if __name__ == "__main__":
    raise SystemExit(main())
