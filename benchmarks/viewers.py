"""What the viewers of the dashboard cost the server: statements, and milliseconds of CPU, a look.

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


async def view(base: str, path: str, ended: asyncio.Event, loaded: Callable[[], None]) -> None:
    """Look at a page until the end, and tell how often it is loaded."""
    limits = httpx.Limits(max_keepalive_connections=0)
    async with (
        httpx.AsyncClient(base_url=base, timeout=60, limits=limits) as client,
        client.stream("GET", "/events") as stream,
    ):
        async for line in stream.aiter_lines():
            if line.startswith("event:"):
                (await client.get(path)).raise_for_status()
                loaded()
            if ended.is_set():
                break


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
) -> tuple[float, float, float, float]:
    """Return looks a second, and of each look the statements, the milliseconds, and the loads."""
    cost, ended, loads = Cost(), asyncio.Event(), list[float]()
    async with asyncpg.create_pool(**arguments, min_size=0, max_size=4, init=cost.watch) as own:
        app = dashboard.app(own, authenticate=dashboard.anybody, interval=timedelta(seconds=2))
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        working = asyncio.create_task(work(pool, ended))
        base = f"http://127.0.0.1:{port}"
        viewing = [
            asyncio.create_task(view(base, path, ended, lambda: loads.append(time.monotonic())))
            for path in paths
        ]
        while len(loads) < 2 * len(paths):  # noqa: ASYNC110 -- pages are loaded many times
            await asyncio.sleep(0.1)
        live = app.state.live
        statements, cpu, first, revision = (
            cost.statements,
            cost.cpu(),
            len(loads),
            live.snapshot.revision,
        )
        began = time.monotonic()
        await asyncio.sleep(seconds)
        passed = time.monotonic() - began
        looks = max(live.snapshot.revision - revision, 1)
        statements, cpu = (cost.statements - statements) / looks, (cost.cpu() - cpu) / looks
        count = (len(loads) - first) / looks
        ended.set()
        await asyncio.gather(*viewing)
        await working
        await app.state.close()
        server.should_exit = True
        await serving
    return looks / passed, statements, cpu, count


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
        print(f"{jobs} jobs are ready; a look every 2 s, if it takes no longer than 0.2 s\n")
        print(f"{'viewers':32}{'looks/s':>9}{'statements':>12}{'CPU ms':>8}{'loads':>7}")
        same: Callable[[int], list[str]] = lambda count: ["/"] * count  # noqa: E731
        cases = {
            "1 at the overview": same(1),
            "10 at the overview": same(10),
            "10 at the newest jobs": ["/jobs"] * 10,
            "10 at a filter that finds": [f"/jobs?task=task+{n}" for n in range(10)],
            "10 at one that finds nothing": [f"/jobs?text=none{n}" for n in range(10)],
        }
        for name, paths in cases.items():
            row = await measure(pool, arguments, paths, seconds)
            print("{:32}{:9.2f}{:12.1f}{:8.1f}{:7.1f}".format(name, *row), flush=True)


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
