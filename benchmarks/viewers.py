"""What the viewers of the dashboard cost the server: statements, and milliseconds of CPU, a second.

    PYTHONPATH=tools .venv/bin/python -m benchmarks.viewers [--jobs 1000000] [--seconds 20]

A private server gets so many jobs that are ready, and a worker's load beside them. A viewer has a
stream of events, and loads its page anew at each event, as the script of the pages does. Viewers
are at the overview, or each at a page of jobs with a filter of its own. The CPU is that of the
sessions of the dashboard, as Linux counts it.
"""

import argparse
import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pgq
import uvicorn
from pginstall import install
from pgq import dashboard
from pgserver import Server

STEP = 10_000


@dataclass
class Cost:
    """The statements that the dashboard has sent, and the sessions that ran them."""

    statements: int = 0
    pids: set[int] = field(default_factory=set[int])

    async def watch(self, connection: "asyncpg.Connection[Any]") -> None:
        """Note a connection, and count its statements."""
        self.pids.add(connection.get_server_pid())
        connection.add_query_logger(self._count)

    def _count(self, record: Any) -> None:
        del record
        self.statements += 1

    def cpu(self) -> float:
        """Return how many milliseconds the sessions have been at work."""
        stats = (Path(f"/proc/{pid}/schedstat").read_text().split()[0] for pid in self.pids)
        return sum(int(nanoseconds) for nanoseconds in stats) / 1e6


async def view(base: str, path: str, ended: asyncio.Event) -> int:
    """Look at a page until the end; return how often it was loaded."""
    loads = 0
    async with (
        httpx.AsyncClient(base_url=base, timeout=60) as client,
        client.stream("GET", "/events") as stream,
    ):
        async for line in stream.aiter_lines():
            if line.startswith("event:"):
                (await client.get(path)).raise_for_status()
                loads += 1
            if ended.is_set():
                break
    return loads


async def work(pool: "asyncpg.Pool[Any]", ended: asyncio.Event) -> None:
    """Complete and add jobs, as a worker and its producer do."""
    queue = pgq.Queue(pool)
    while not ended.is_set():
        jobs = await queue.dequeue(10)
        await queue.complete_many(jobs)
        await queue.enqueue_many([{"n": job.id} for job in jobs])
        await asyncio.sleep(0.1)


async def measure(
    pool: "asyncpg.Pool[Any]", arguments: dict[str, Any], paths: Sequence[str], seconds: float
) -> tuple[float, float, float]:
    """Return statements a second, milliseconds of CPU a second, and loads a second."""
    cost, ended = Cost(), asyncio.Event()
    async with asyncpg.create_pool(**arguments, min_size=0, max_size=4, init=cost.watch) as own:
        app = dashboard.app(own, authenticate=dashboard.anybody, interval=timedelta(seconds=2))
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        working = asyncio.create_task(work(pool, ended))
        viewing = [
            asyncio.create_task(view(f"http://127.0.0.1:{port}", path, ended)) for path in paths
        ]
        await asyncio.sleep(5)
        statements, cpu = cost.statements, cost.cpu()
        began = time.monotonic()
        await asyncio.sleep(seconds)
        passed = time.monotonic() - began
        statements, cpu = cost.statements - statements, cost.cpu() - cpu
        ended.set()
        loads = sum(await asyncio.gather(*viewing))
        await working
        await app.state.close()
        server.should_exit = True
        await serving
    return statements / passed, cpu / passed, loads / (passed + 5)


async def run(server: Server, jobs: int, seconds: float) -> None:
    """Measure, and print a table."""
    arguments: dict[str, Any] = {
        "host": server.host,
        "port": server.port,
        "user": server.user,
        "password": server.password,
        "database": server.database,
    }
    async with asyncpg.create_pool(**arguments, min_size=0, max_size=4) as pool:
        queue = pgq.Queue(pool)
        for start in range(0, jobs, STEP):
            payloads = [{"n": n} for n in range(start, min(start + STEP, jobs))]
            await queue.enqueue_many(payloads, headers={"task": f"task {start % 7}"})
        print(f"{jobs} jobs are ready; a look every 2 s\n")
        print(f"{'viewers':32}{'statements/s':>14}{'CPU ms/s':>10}{'loads/s':>9}")
        same: Callable[[int], list[str]] = lambda count: ["/"] * count  # noqa: E731
        cases = {
            "none": [],
            "1 at the overview": same(1),
            "10 at the overview": same(10),
            "10 at the newest jobs": ["/jobs"] * 10,
            "10 at a filter that finds": [f"/jobs?task=task+{n}" for n in range(10)],
            "10 at one that finds nothing": [f"/jobs?text=none{n}" for n in range(10)],
        }
        for name, paths in cases.items():
            statements, milliseconds, loads = await measure(pool, arguments, paths, seconds)
            print(f"{name:32}{statements:14.1f}{milliseconds:10.1f}{loads:9.1f}", flush=True)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    with Server(settings={"fsync": "off"}) as server:
        install(server)
        asyncio.run(run(server, options.jobs, options.seconds))


if __name__ == "__main__":
    main()
