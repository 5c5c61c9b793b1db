"""PgQueuer's worker over asyncpg and uvloop, as its command line runs it."""

from typing import Any

from benchmarks.begun import WIDTH, begun
from benchmarks.system import load


async def _main() -> None:
    connection = await load("asyncpg").connect()
    worker = load("pgqueuer").PgQueuer.from_asyncpg_connection(connection)

    async def bench(job: Any) -> None:
        del job
        begun()

    worker.entrypoint("bench")(bench)
    print("ready", flush=True)
    await (worker.run(batch_size=WIDTH) if WIDTH else worker.run())


load("uvloop").run(_main())
