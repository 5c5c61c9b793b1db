"""pgq's worker in Python, over uvloop; draining with a prefetch, which is meant for short jobs."""

import asyncpg
import pgq

from benchmarks.begun import WIDTH, begun
from benchmarks.system import load


async def _main() -> None:
    async with asyncpg.create_pool(min_size=2) as pool:
        worker = pgq.Worker(pool)
        worker.configure("default", prefetch=WIDTH or 0)

        @worker.handler("default")
        async def bench(job: pgq.Job) -> None:
            begun()

        print("ready", flush=True)
        await worker.run()


load("uvloop").run(_main())
