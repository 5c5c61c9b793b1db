"""pg-boss, by its send, insert, fetch and complete, on a queue with its default options.

Jobs are completed as `fetch` hands them out, which fences them by their attempt. Completed jobs
stay in the table until its maintenance deletes them, days later.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import node
from benchmarks.capture import bound, gset, ids, only, recorded
from benchmarks.system import PAYLOAD, Database, Kind, System

_PROGRAM = Path(__file__).with_name("lead.mjs")
_JOB = f'{{"data":{PAYLOAD}}}'
_JOBS = f"('[' || repeat('{_JOB},', :batch::int - 1) || '{_JOB}]')"
_GROUPED = (
    f"(select json_agg(json_build_object('data', '{PAYLOAD}'::json,"
    " 'groupId', 'g' || ceil(:groups * random()))) from generate_series(1, :batch))"
)
_OUTPUTS = {"ids": ids(kind="uuid"), "attempts": ids("id || ':' || \"retryCount\"", "text")}


class _PgBoss:
    name = "pg-boss"
    url = "https://github.com/timgit/pg-boss"
    kind: Kind = "peer"
    lifecycle = True
    notes = (
        "Default options; cannot delete a job when it completes: maintenance does so days later. "
        "Where its worker runs, jobs notify it, which is an option."
    )

    def version(self) -> str:
        return node.version("pg-boss")

    def install(self, database: Database) -> None:
        node.run(_PROGRAM, database, ["install", PAYLOAD])

    def statements(self, database: Database) -> Mapping[str, str]:
        with recorded(database) as log:
            node.run(_PROGRAM, database, ["record", PAYLOAD])
        one, many, notified = only(log, "insert into .*json_to_recordset")
        claims = {
            f"claim_{size}": gset(bound(only(log, rf"limit {size}\s.*skip locked")[0]), _OUTPUTS)
            for size in (1, 10, 100)
        }
        complete = only(log, "set completed_on")[0]
        return {
            "enqueue_one": bound(one) + ";",
            "enqueue_notified": bound(notified) + ";",
            "enqueue_many": bound(many, {1: _JOBS}) + ";",
            "enqueue_grouped": bound(many, {1: _GROUPED}) + ";",
            **claims,
            "complete": bound(complete, {2: ":ids", 4: ":attempts"}) + ";",
        }

    def fill(self, database: Database, jobs: int) -> None:
        node.run(_PROGRAM, database, ["fill", PAYLOAD, str(jobs)])

    def live(self, database: Database) -> int:
        return int(
            database.psql(
                "select count(*) from pgboss.job where name = 'bench' and state < 'completed'"
            )
        )

    def tables(self) -> Sequence[str]:
        return ("pgboss.%",)


SYSTEM: System = _PgBoss()
