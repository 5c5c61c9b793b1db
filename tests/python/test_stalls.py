"""A worker that stands still loses its leases, and its late outcomes change nothing."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Final

import pgq
import pytest
from pgserver import Server

from .sessions import Connection, until
from .workers import child, ended

pytestmark = pytest.mark.once

LEASE: Final = timedelta(seconds=1)

# Job 1 stands still: in a C call that keeps the GIL for longer than its lease lasts, or until
# there is a line on standard input. It then says so. What the worker logs goes there, too.
WORKER: Final = r"""
import asyncio, logging, re, sys, time
from datetime import timedelta
import asyncpg, pgq

def match():
    "Match a pattern against longer and longer texts, until that has taken twice the lease."
    for length in range(20, 60):
        start = time.monotonic()
        re.match("(a+)+$", "a" * length + "b")
        if time.monotonic() - start > 2 * lease:
            return
    raise AssertionError("matching is too fast")

async def main():
    async with asyncpg.create_pool(min_size=0) as pool:
        worker = pgq.Worker(pool)

        @worker.handler("default", concurrency=1, timeout=timedelta(seconds=lease))
        async def handle(job):
            print("begun", job.payload, job.token, flush=True)
            if job.payload == 1:
                match() if stall == "match" else await asyncio.to_thread(sys.stdin.readline)
                print("done", job.payload, flush=True)

        await worker.run()

stall, lease = sys.argv[1], float(sys.argv[2])
logging.basicConfig(stream=sys.stdout, format="%(message)s")
asyncio.run(main())
"""


@pytest.mark.parametrize("stall", ["match", "stop"])
async def test_who_stands_still_loses_its_leases_and_goes_on(
    server: Server, connection: Connection, queue: pgq.Queue, stall: str
) -> None:
    first = await queue.enqueue(1)
    lease = str(LEASE.total_seconds())
    async with child(server, connection, WORKER, stall, lease) as worker:
        token = int((await worker.says("begun 1")).split()[2])
        if stall == "stop":
            os.kill(worker.pid, signal.SIGSTOP)

        async def claimed() -> list[pgq.Job]:
            return await queue.dequeue()

        (job,) = await until(claimed)
        assert (job.id, job.attempt) == (first, 2)
        assert not await queue.complete((first, token))
        if stall == "stop":
            os.kill(worker.pid, signal.SIGCONT)
            worker.send_line()
        await worker.says("lost the lease of job 1")
        second = await queue.enqueue(2)
        await worker.says("begun 2")
        assert await queue.complete(job)
        assert await ended(connection, 2) == [(first, "completed", 2), (second, "completed", 1)]
