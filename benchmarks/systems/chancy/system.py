"""Chancy, by its application's push and its worker's fetch and flush, over psycopg.

Pushing many jobs is one transaction with an INSERT for each job; completing them is one with an
UPDATE for each, sent as a pipeline. Done jobs stay in the table until its pruner deletes them.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from benchmarks.capture import Statement, bound, gset, only, recorded
from benchmarks.system import PAYLOAD, Database, Kind, System, load

_SIZES = (1, 10, 100)


class _Chancy:
    name = "Chancy"
    url = "https://github.com/TkTech/chancy"
    kind: Kind = "peer"
    lifecycle = True
    notes = (
        "Adds and completes many jobs by one statement each, within one transaction; a claim reads "
        "and sorts the whole backlog; completed jobs wait for its pruner."
    )

    def __init__(self) -> None:
        self._push = ""

    def version(self) -> str:
        load("chancy.worker")
        return version("chancy")

    def install(self, database: Database) -> None:
        async def work(app: Any) -> None:
            await app.migrate()
            await app.declare(load("chancy").Queue("default"))

        _with_app(database, work)

    def statements(self, database: Database) -> Mapping[str, str]:
        chancy, workers = load("chancy"), load("chancy.worker")

        async def work(app: Any) -> None:
            await app.push(chancy.Job(func="bench.job", kwargs=json.loads(PAYLOAD)))
            worker = workers.Worker(app, register_signal_handlers=False)
            async with app.pool.connection() as connection:
                (job,) = await worker.fetch_jobs(chancy.Queue("default"), connection, up_to=1)
            done = datetime.now(UTC)
            state = chancy.QueuedJob.State.SUCCEEDED
            await worker.queue_update(replace(job, state=state, completed_at=done, attempts=1))
            await worker.flush()

        with recorded(database) as log:
            _with_app(database, work)
        (push,) = only(log, r'insert into\s+"chancy_jobs"')
        (notify,) = only(log, "pg_notify")
        (claim,) = only(log, "skip locked")
        (update,) = only(log, r'update\s+"chancy_jobs"\s+set\s+state')
        # The first parameter is the id, a UUID in the order of time; the ninth the scheduled time.
        self._push = bound(push, {1: "uuidv7()", 9: "now()"})
        return {
            **{
                f"enqueue_{size}": _in_transaction([self._push] * size + [bound(notify)])
                for size in (1, 10, 1000)
            },
            **{f"claim_{size}": _claim(claim, size) for size in _SIZES},
            **{f"complete_{size}": _updates(update, size) for size in _SIZES},
        }

    def fill(self, database: Database, jobs: int) -> None:
        """Run the library's INSERT in a loop on the server: the library itself takes minutes."""
        database.psql(
            "do $fill$ declare v_id uuid; begin"
            f" for i in 1..{jobs:d} loop {self._push} into v_id; end loop; end $fill$"
        )

    def live(self, database: Database) -> int:
        states = "('pending', 'running', 'retrying')"
        return int(database.psql(f"select count(*) from chancy_jobs where state in {states}"))

    def tables(self) -> Sequence[str]:
        return ("public.chancy_%",)


def _claim(claim: Statement, size: int) -> str:
    outputs = {"started": "max(started_at)", "scheduled": "max(scheduled_at)"}
    for number in range(1, size + 1):
        outputs[f"id_{number}"] = f"(array_agg(id))[{number}]"
        outputs[f"claim_{number}"] = f"(array_agg(claim_id))[{number}]"
    return gset(bound(claim, {2: ":batch"}), outputs)


def _updates(update: Statement, size: int) -> str:
    """Return the transaction that completes jobs, those that were not there being nulls."""
    updates = [
        bound(
            update,
            {
                2: "nullif(:started, '')::timestamptz",
                3: "now()",
                4: "nullif(:scheduled, '')::timestamptz",
                9: f"nullif(:id_{number}, '')::uuid",
                10: f"nullif(:claim_{number}, '')::uuid",
            },
        )
        for number in range(1, size + 1)
    ]
    return _in_transaction(updates, pipeline=True)


def _in_transaction(statements: Sequence[str], *, pipeline: bool = False) -> str:
    lines = [statement + ";" for statement in statements]
    if pipeline:
        lines = ["\\startpipeline", *lines, "\\endpipeline"]
    return "\n".join(["begin;", *lines, "commit;"])


def _with_app(database: Database, work: Callable[[Any], Awaitable[None]]) -> None:
    chancy = load("chancy")

    async def run() -> None:
        async with chancy.Chancy(database.dsn, log=logging.getLogger("benchmarks")) as app:
            await work(app)

    asyncio.run(run())


SYSTEM: System = _Chancy()
