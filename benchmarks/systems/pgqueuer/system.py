"""PgQueuer, by its own queries over asyncpg, with its recommended autovacuum settings.

Each call is one statement that also writes what happened to each job to a log table; a
completed job is deleted from the queue and stays in the log. Statement triggers notify workers.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from importlib.metadata import version
from typing import Any, TypeVar

from benchmarks.capture import bound, gset, ids, only, recorded
from benchmarks.system import PAYLOAD, Database, Kind, System, load

_CHUNK = 10_000
_T = TypeVar("_T")


class _PgQueuer:
    name = "PgQueuer"
    url = "https://github.com/janbjorge/pgqueuer"
    kind: Kind = "peer"
    lifecycle = True
    notes = (
        "Its autovacuum settings; deletes completed jobs, but logs when each is queued, picked "
        "and done, and keeps that log."
    )

    def version(self) -> str:
        load("pgqueuer.queries")
        return version("pgqueuer")

    def install(self, database: Database) -> None:
        async def work(queries: Any) -> None:
            await queries.install()
            await queries.optimize_autovacuum()

        _with_queries(database, work)

    def statements(self, database: Database) -> Mapping[str, str]:
        parameters = load("pgqueuer.ports.repository").EntrypointExecutionParameter

        async def work(queries: Any) -> None:
            await queries.enqueue("bench", PAYLOAD.encode(), 0)
            await queries.enqueue(["bench"] * 2, [PAYLOAD.encode()] * 2, [0] * 2)
            jobs = await queries.dequeue(
                batch_size=10,
                entrypoints={"bench": parameters(concurrency_limit=0)},
                queue_manager_id=uuid.uuid4(),
                global_concurrency_limit=None,
                heartbeat_timeout=timedelta(seconds=30),
            )
            await queries.log_jobs([(job, "successful", None) for job in jobs])

        with recorded(database) as log:
            _with_queries(database, work)
        one, many = only(log, "unnest.*with ordinality")
        (claim,) = only(log, "skip locked")
        (complete,) = only(log, "job_status")
        filled = [
            "array_fill(0, array[:batch::int])",
            "array_fill('bench'::text, array[:batch::int])",
            f"array_fill(convert_to('{PAYLOAD}', 'UTF8'), array[:batch::int])",
            "array_fill('0'::interval, array[:batch::int])",
            "array_fill(null::text, array[:batch::int])",
            "array_fill('null'::jsonb, array[:batch::int])",
        ]
        return {
            "enqueue_one": bound(one) + ";",
            "enqueue_many": bound(many, dict(enumerate(filled, 1))) + ";",
            "claim": gset(bound(claim, {1: ":batch"}), {"ids": ids(), "claimed": "count(*)"}),
            "complete": bound(
                complete,
                {
                    1: ":ids",
                    2: "array_fill('successful'::text, array[:claimed::int])",
                    3: "array_fill(null::jsonb, array[:claimed::int])",
                },
            )
            + ";",
        }

    def fill(self, database: Database, jobs: int) -> None:
        async def work(queries: Any) -> None:
            for start in range(0, jobs, _CHUNK):
                size = min(_CHUNK, jobs - start)
                await queries.enqueue(["bench"] * size, [PAYLOAD.encode()] * size, [0] * size)

        _with_queries(database, work)

    def live(self, database: Database) -> int:
        async def work(queries: Any) -> int:
            return sum(size.count for size in await queries.queue_size())

        return _with_queries(database, work)

    def tables(self) -> Sequence[str]:
        return ("public.pgqueuer%",)


def _with_queries(database: Database, work: Callable[[Any], Awaitable[_T]]) -> _T:
    asyncpg, module = load("asyncpg"), load("pgqueuer.queries")

    async def run() -> _T:
        connection = await asyncpg.connect(database.dsn)
        try:
            return await work(module.Queries.from_asyncpg_connection(connection))
        finally:
            await connection.close()

    return asyncio.run(run())


SYSTEM: System = _PgQueuer()
