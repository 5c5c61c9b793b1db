"""awa's worker, on one of the partitions."""

import asyncio
import os
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from benchmarks.system import load


@dataclass
class Bench:
    """The arguments of a job."""

    order_id: int
    note: str


async def _main() -> None:
    awa = load("awa")
    user, password, host, port, database = (
        quote(os.environ[f"PG{name}"], safe="")
        for name in ("USER", "PASSWORD", "HOST", "PORT", "DATABASE")
    )
    queue = awa.PartitionedQueue("bench", 4).physical_queues[0]
    client = awa.AsyncClient(f"postgresql://{user}:{password}@{host}:{port}/{database}")

    async def bench(job: Any) -> None:
        del job
        print(time.monotonic(), flush=True)

    client.task(Bench, queue=queue)(bench)
    await client.start([(queue, 10)])
    print("ready", flush=True)
    await asyncio.Event().wait()


asyncio.run(_main())
