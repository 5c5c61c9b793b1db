"""Chancy's worker with its default plugins and its executor for coroutines; draining eagerly."""

import asyncio
import logging
import sys
from types import ModuleType

from benchmarks.begun import WIDTH, begun
from benchmarks.system import load


async def _job(**payload: object) -> None:
    del payload
    begun()


async def _main() -> None:
    chancy, workers = load("chancy"), load("chancy.worker")
    # Jobs name their function: bench.job.
    module = sys.modules["bench"] = ModuleType("bench")
    vars(module)["job"] = _job
    async with chancy.Chancy(sys.argv[1], log=logging.getLogger("benchmarks")) as app:
        executor = chancy.Chancy.Executor.Async
        drains = {"concurrency": WIDTH, "eager_polling": True} if WIDTH else {}
        queue = chancy.Queue("default", executor=executor, **drains)
        await app.declare(queue, upsert=True)
        async with workers.Worker(app) as worker:
            print("ready", flush=True)
            await worker.wait_for_shutdown()


asyncio.run(_main())
