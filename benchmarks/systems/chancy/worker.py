"""Chancy's worker with its default plugins, and its executor for coroutine functions."""

import asyncio
import logging
import sys
import time
from types import ModuleType

from benchmarks.system import load


async def _job(**payload: object) -> None:
    del payload
    print(time.monotonic(), flush=True)


async def _main() -> None:
    chancy, workers = load("chancy"), load("chancy.worker")
    # Jobs name their function: bench.job.
    module = sys.modules["bench"] = ModuleType("bench")
    vars(module)["job"] = _job
    async with chancy.Chancy(sys.argv[1], log=logging.getLogger("benchmarks")) as app:
        queue = chancy.Queue("default", executor=chancy.Chancy.Executor.Async)
        await app.declare(queue, upsert=True)
        async with workers.Worker(app) as worker:
            print("ready", flush=True)
            await worker.wait_for_shutdown()


asyncio.run(_main())
