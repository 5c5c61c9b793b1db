"""Procrastinate's worker over psycopg; done jobs are deleted."""

import asyncio

from benchmarks.begun import WIDTH, begun
from benchmarks.system import load


async def _main() -> None:
    procrastinate = load("procrastinate")
    app = procrastinate.App(connector=procrastinate.PsycopgConnector())

    async def bench(**payload: object) -> None:
        del payload
        begun()

    app.task(name="bench")(bench)
    async with app.open_async():
        print("ready", flush=True)
        await app.run_worker_async(delete_jobs="always", concurrency=WIDTH or 1)


asyncio.run(_main())
