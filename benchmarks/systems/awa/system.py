"""awa, by its client and its worker, which are Rust: with its queue storage, as when set up afresh.

One worker at a time claims from a queue, so each client of pgbench has one of four partitions, as
awa advises for a hot queue. Its leader, which rotates and empties its tables, does not run here.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from benchmarks.capture import bound, gset, only, recorded
from benchmarks.system import Database, Kind, System, UnavailableError, load

_PARTITIONS = 4
_CHUNK = 20_000
_PATIENCE = 10.0

# The parameters of a completion, which are columns of the claim, and their types.
_COMPLETED = (
    ("claim_slot", "int"),
    ("ready_slot", "int"),
    ("ready_generation", "bigint"),
    ("job_id", "bigint"),
    ("queue", "text"),
    ("lane_priority", "smallint"),
    ("attempt", "smallint"),
    ("run_lease", "bigint"),
    ("receipt_id", "bigint"),
    ("claim_batch_id", "bigint"),
    ("claim_batch_index", "int"),
    ("lane_seq", "bigint"),
    ("enqueue_shard", "smallint"),
    ("attempted_at", "timestamptz"),
)


@dataclass
class Bench:
    """The arguments of a job: the payload of the benchmarks."""

    order_id: int = 42
    note: str = "hello world payload"


class _Awa:
    name = "awa"
    url = "https://github.com/hardbyte/awa"
    kind: Kind = "peer"
    lifecycle = True
    notes = (
        "Four partitions, one for each client; its leader, which rotates its tables, does not run. "
        "Its call for many jobs is COPY, which pgbench cannot send."
    )

    def version(self) -> str:
        load("awa")
        return version("awa-pg")

    def install(self, database: Database) -> None:
        async def work(client: Any) -> None:
            await client.migrate()
            # A worker that finds no jobs switches a fresh database to the queue storage.
            await _work(client, jobs=0)

        _with_client(database, work)

    def statements(self, database: Database) -> Mapping[str, str]:
        queues = _queues()

        async def work(client: Any) -> None:
            for queue in queues:
                await client.insert(Bench(), queue=queue)
            transaction = await client.transaction()
            async with transaction:
                await transaction.insert_many([Bench()] * 4, queue=queues[0])
            await _work(client, jobs=len(queues) + 4)

        with recorded(database) as log:
            _with_client(database, work)
        queue = f"('{{{','.join(queues)}}}'::text[])[:client_id::int % {_PARTITIONS} + 1]"
        insert = bound(only(log, "insert_job_compat")[0], {2: queue}) + ";"
        claim = only(log, r"from awa\.claim_ready_runtime\(")[0]
        head = only(log, r"set_sequence_next")[0]
        if head.parameters[4] is not None:
            raise UnavailableError("its worker expects the head of a queue to be somewhere")
        lock = only(log, r"awa\.receipt\.complete")[0]
        complete = only(log, r"completed\(\s*claim_slot")[0]
        slot = database.psql("select current_slot from awa.claim_ring_state")
        if f"awa.lease_claims_{slot} " not in complete.text:
            raise UnavailableError("its leader rotated the claims while its worker was recorded")
        outputs = {
            "claimed": "count(*)",
            "next": "max(lane_seq) + 1",
            "priority": "max(lane_priority)",
            "shard": "max(enqueue_shard)",
            **{f"a_{name}": f"array_agg({name})" for name, _ in _COMPLETED},
        }
        arrays = {
            number: f":a_{name}::{kind}[]" for number, (name, kind) in enumerate(_COMPLETED, 1)
        }
        finalized = len(_COMPLETED) + 1
        arrays[finalized] = "array_fill(clock_timestamp(), array[:claimed::int])"
        return {
            "enqueue_1": insert,
            "enqueue_10": "\n".join(["begin;", *[insert] * 10, "commit;"]),
            "claim": "\n".join(
                [
                    gset(bound(claim, {1: queue, 2: ":batch"}), outputs),
                    "\\if :claimed > 0",
                    bound(head, {1: queue, 2: ":priority", 3: ":shard", 4: ":next"}) + ";",
                    "\\endif",
                ]
            ),
            "complete": "\n".join(
                [
                    "\\if :claimed > 0",
                    "begin;",
                    bound(lock, {1: ":a_job_id", 2: ":a_run_lease"}) + ";",
                    bound(complete, arrays) + ";",
                    "commit;",
                    "\\endif",
                ]
            ),
        }

    def fill(self, database: Database, jobs: int) -> None:
        async def work(client: Any) -> None:
            routes = itertools.cycle({"queue": queue} for queue in _queues())
            for start in range(0, jobs, _CHUNK):
                size = min(_CHUNK, jobs - start)
                opts = list(itertools.islice(routes, size))
                await client.enqueue_many_copy([Bench()] * size, opts=opts)

        _with_client(database, work)

    def live(self, database: Database) -> int:
        """Return its entries less the finished ones: its own count leaves the claimed ones out."""
        return int(
            database.psql(
                "select (select count(*) from awa.ready_entries)"
                " - (select count(*) from awa.terminal_jobs)"
            )
        )

    def tables(self) -> Sequence[str]:
        return ("awa.%",)


def _queues() -> list[str]:
    return list(load("awa").PartitionedQueue("bench", _PARTITIONS).physical_queues)


async def _work(client: Any, jobs: int) -> None:
    """Run a worker until it has done that many jobs."""
    done: list[int] = []
    queues = _queues()

    async def bench(job: Any) -> None:
        done.append(job.id)

    client.task(Bench, queue=queues[0])(bench)
    await client.start([(queue, 10) for queue in queues])
    waited = 0.0
    while len(done) < jobs and waited < _PATIENCE:
        await asyncio.sleep(0.05)
        waited += 0.05
    await asyncio.sleep(0.5)
    await client.shutdown()
    if len(done) < jobs:
        raise UnavailableError(f"its worker did {len(done)} of {jobs} jobs")


def _with_client(database: Database, work: Callable[[Any], Awaitable[Any]]) -> Any:
    client_class = load("awa").AsyncClient
    server = database.server
    user = f"{quote(server.user)}:{quote(server.password)}"
    address = f"{quote(server.host, safe='')}:{server.port}"

    async def run() -> Any:
        client = client_class(f"postgresql://{user}@{address}/{quote(database.name)}")
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(run())


SYSTEM: System = _Awa()
