"""Procrastinate's worker over psycopg; done jobs are deleted."""

import asyncio
import time

from benchmarks.system import load


async def _main() -> None:
    procrastinate = load("procrastinate")
    app = procrastinate.App(connector=procrastinate.PsycopgConnector())

    async def bench(**payload: object) -> None:
        del payload
        print(time.monotonic(), flush=True)

    app.task(name="bench")(bench)
    async with app.open_async():
        print("ready", flush=True)
        await app.run_worker_async(delete_jobs="always")


asyncio.run(_main())
