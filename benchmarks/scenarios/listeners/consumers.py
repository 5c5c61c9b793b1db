"""Some consumers that do what pgq's worker does, over uvloop as it, but nothing with the jobs.

`consumers.py DSN listen|poll`: after "ready" it writes, each second, how many jobs they completed
in it, and how often they went to sleep.
"""

import asyncio
import random
import sys
from collections import Counter
from contextlib import suppress
from typing import Any

from benchmarks.system import load

_SESSIONS, _BATCH, _POLL_SECONDS = 4, 10, 0.25
_DEQUEUE = """
select coalesce(array_agg(id), '{}'), coalesce(array_agg(token), '{}') from pgq_dequeue($1)
"""
_COMPLETE = "select count(*) from pgq_complete($1::bigint[], $2::bigint[])"


async def _consume(connection: Any, listens: bool, done: "Counter[str]") -> None:
    woken = asyncio.Event()

    def wake(*_: object) -> None:
        woken.set()

    if listens:
        channel = await connection.fetchval("select pgq_channel('default')")
        await connection.add_listener(channel, wake)
    while True:
        ids, tokens = await connection.fetchrow(_DEQUEUE, _BATCH)
        if ids:
            completed = await connection.fetchval(_COMPLETE, ids, tokens)
            done["jobs"] += completed
        if len(ids) < _BATCH:
            done["sleeps"] += 1
            if listens:
                await _sleep(connection, woken)
            else:
                await asyncio.sleep(_POLL_SECONDS * random.uniform(0.75, 1.25))


async def _sleep(connection: Any, woken: asyncio.Event) -> None:
    """Sleep until there may be a job; the notifications are those since the last sleep."""
    woken.clear()
    while (seconds := await _wait(connection)) > 0 and not woken.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(woken.wait(), seconds)
    await connection.execute("select pgq_wake()")


async def _wait(connection: Any) -> float:
    wait = await connection.fetchval("select pgq_wait('{default}')")
    return float(wait.total_seconds())


async def _tell(done: "Counter[str]") -> None:
    print("ready", flush=True)
    while True:
        before = done.copy()
        await asyncio.sleep(1)
        print(done["jobs"] - before["jobs"], done["sleeps"] - before["sleeps"], flush=True)


async def _main() -> None:
    connections = [await load("asyncpg").connect() for _ in range(_SESSIONS)]
    done = Counter[str]()
    listens = sys.argv[2] == "listen"
    consumers = [_consume(connection, listens, done) for connection in connections]
    await asyncio.gather(*consumers, _tell(done))


load("uvloop").run(_main())
