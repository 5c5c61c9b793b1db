"""Procrastinate, by its job manager over psycopg.

It claims one job per call and completes one per call. Row triggers write an event for each change
of a job and notify workers; job and events are deleted when it is done.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from benchmarks.capture import bound, gset, only, recorded
from benchmarks.system import PAYLOAD, PAYLOADS, Database, Kind, System, load

_CHUNK = 10_000
_JOBS = (
    "array(select row('default', 'bench', 0, null, null, payload, null)"
    f"::procrastinate_job_to_defer_v1 from unnest({PAYLOADS}) payload)"
)


class _Procrastinate:
    name = "Procrastinate"
    url = "https://github.com/procrastinate-org/procrastinate"
    kind: Kind = "peer"
    lifecycle = True
    notes = (
        "delete_jobs: completed jobs are deleted, with the events that it logs. Claims one job per "
        "call: batches of 1 only, and the closed loop claims and completes ten times."
    )

    def version(self) -> str:
        load("procrastinate")
        return version("procrastinate")

    def install(self, database: Database) -> None:
        async def work(app: Any) -> None:
            await app.schema_manager.apply_schema_async()

        _with_app(database, work)

    def statements(self, database: Database) -> Mapping[str, str]:
        status = load("procrastinate.jobs").Status.SUCCEEDED

        async def work(app: Any) -> None:
            manager = app.job_manager
            await manager.defer_job_async(_job())
            await manager.batch_defer_jobs_async([_job()] * 2)
            worker = await manager.register_worker()
            for _ in range(3):
                job = await manager.fetch_job(queues=None, worker_id=worker)
                await manager.finish_job(job=job, status=status, delete_job=True)

        with recorded(database) as log:
            _with_app(database, work)
        one, many = only(log, "procrastinate_defer_jobs")
        claim = only(log, "procrastinate_fetch_job")[-1]
        complete = only(log, "procrastinate_finish_job")[-1]
        return {
            "enqueue_one": bound(one) + ";",
            "enqueue_many": bound(many, {1: _JOBS}) + ";",
            "claim": gset(bound(claim), {"id": "max(id)"}),
            "complete": bound(complete, {1: ":id"}) + ";",
        }

    def fill(self, database: Database, jobs: int) -> None:
        async def work(app: Any) -> None:
            for start in range(0, jobs, _CHUNK):
                size = min(_CHUNK, jobs - start)
                await app.job_manager.batch_defer_jobs_async([_job()] * size)

        _with_app(database, work)

    def live(self, database: Database) -> int:
        return int(
            database.psql(
                "select count(*) from procrastinate_jobs where status in ('todo', 'doing')"
            )
        )

    def tables(self) -> Sequence[str]:
        return ("public.procrastinate_%",)


def _job() -> Any:
    return load("procrastinate.jobs").Job(
        id=None,
        queue="default",
        lock=None,
        queueing_lock=None,
        task_name="bench",
        task_kwargs=json.loads(PAYLOAD),
    )


def _with_app(database: Database, work: Callable[[Any], Awaitable[None]]) -> None:
    procrastinate = load("procrastinate")

    async def run() -> None:
        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=database.dsn))
        async with app.open_async():
            await work(app)

    asyncio.run(run())


SYSTEM: System = _Procrastinate()
