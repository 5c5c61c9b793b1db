"""The floor of a wake-up: a session listens, and when it is notified another one deletes the row.

`listener.py DSN`: like the workers it writes "ready", and when it has a row the monotonic clock.
"""

import asyncio
import time
from typing import Any

from benchmarks.system import load

_CLAIM = """
delete from floor.job
 where id = (select id from floor.job order by id limit 1 for update skip locked)
returning id, payload
"""


async def _main() -> None:
    asyncpg = load("asyncpg")
    listening, claiming = await asyncpg.connect(), await asyncpg.connect()
    notified = asyncio.Event()

    def wake(*_: Any) -> None:
        notified.set()

    await listening.add_listener("floor", wake)
    claim = await claiming.prepare(_CLAIM)
    print("ready", flush=True)
    while True:
        await notified.wait()
        notified.clear()
        while await claim.fetch():
            print(time.monotonic(), flush=True)


load("uvloop").run(_main())
