"""Graphile Worker, by its worker and its functions in the database.

Batches are those of its local queue with batched completion, the settings that its documentation
gives for a high throughput; completed jobs are deleted. Adding jobs notifies workers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import node
from benchmarks.capture import bound, gset, ids, only, recorded
from benchmarks.system import PAYLOAD, Database, Kind, System

_PROGRAM = Path(__file__).with_name("lead.mjs")
_JOB = f'{{"identifier":"bench","payload":{PAYLOAD}}}'
_JOBS = f"('[' || repeat('{_JOB},', :batch::int - 1) || '{_JOB}]')::json"


class _GraphileWorker:
    name = "Graphile Worker"
    url = "https://github.com/graphile/worker"
    kind: Kind = "peer"
    lifecycle = True
    notes = "Batches by its local queue and batched completion; deletes completed jobs."

    def version(self) -> str:
        return node.version("graphile-worker")

    def install(self, database: Database) -> None:
        node.run(_PROGRAM, database, ["install", PAYLOAD])

    def statements(self, database: Database) -> Mapping[str, str]:
        with recorded(database) as log:
            node.run(_PROGRAM, database, ["record", PAYLOAD])
        (one,) = only(log, r"\.add_job\(")
        many = only(log, r"\.add_jobs\(")[0]
        claims = {
            f"claim_{size}": gset(
                bound(only(log, rf"limit {size}\s.*skip locked")[0]),
                {"ids": ids("job")},
                names="job",
            )
            for size in (1, 10, 100)
        }
        complete_one = only(log, r"delete from .*where id = \$1::bigint")[0]
        complete_many = only(log, r"delete from .*where id = n$")[0]
        return {
            "enqueue_one": bound(one) + ";",
            "enqueue_many": bound(many, {1: _JOBS}) + ";",
            **claims,
            "complete_one": bound(complete_one, {1: "(:ids::bigint[])[1]"}) + ";",
            "complete_many": bound(complete_many, {1: ":ids"}) + ";",
        }

    def fill(self, database: Database, jobs: int) -> None:
        node.run(_PROGRAM, database, ["fill", PAYLOAD, str(jobs)])

    def live(self, database: Database) -> int:
        return int(database.psql("select count(*) from graphile_worker.jobs"))

    def tables(self) -> Sequence[str]:
        return ("graphile_worker.%",)


SYSTEM: System = _GraphileWorker()
