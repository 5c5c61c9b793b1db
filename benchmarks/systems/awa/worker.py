"""awa's worker: on one of the partitions, draining on all of them."""

import asyncio
import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from benchmarks.begun import WIDTH, begun
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
    queues = awa.PartitionedQueue("bench", 4).physical_queues[: 4 if WIDTH else 1]
    client = awa.AsyncClient(f"postgresql://{user}:{password}@{host}:{port}/{database}")

    async def bench(job: Any) -> None:
        del job
        begun()

    for queue in queues:
        client.task(Bench, queue=queue)(bench)
    await client.start([(queue, WIDTH or 10) for queue in queues])
    print("ready", flush=True)
    await asyncio.Event().wait()


asyncio.run(_main())
