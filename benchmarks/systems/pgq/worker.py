"""pgq's worker in Python, as it is without arguments."""

import asyncio
import time

import asyncpg
import pgq


async def _main() -> None:
    async with asyncpg.create_pool(min_size=2) as pool:
        worker = pgq.Worker(pool)

        @worker.handler("default")
        async def bench(job: pgq.Job) -> None:
            print(time.monotonic(), flush=True)

        print("ready", flush=True)
        await worker.run()


asyncio.run(_main())
