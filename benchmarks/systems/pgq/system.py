"""pgq itself: the extension, called by its SQL functions."""

from collections.abc import Mapping, Sequence

import bootstrap

from benchmarks.system import PAYLOAD, Database, Kind, System


class Pgq:
    """The queue "default", which keeps nothing of completed jobs."""

    name = "pgq"
    url = ""
    kind: Kind = "own"
    lifecycle = True
    notes = "keep_completed => '0': completed jobs are deleted, as most others do"

    def version(self) -> str:
        """Return the version in the control file."""
        control = (bootstrap.ROOT / "extension" / "pgq.control").read_text()
        return control.split("default_version = '")[1].split("'")[0]

    def install(self, database: Database) -> None:
        """Create the extension and set its queue to keep nothing."""
        database.psql("create extension pgq")
        database.psql("select pgq_configure_queue('default', keep_completed => '0')")

    def statements(self, database: Database) -> Mapping[str, str]:
        """Return nothing: the scripts call functions."""
        del database
        return {}

    def fill(self, database: Database, jobs: int) -> None:
        """Enqueue 10,000 per call and transaction."""
        call = "select count(*) from pgq_enqueue_many(array_fill($${}$$::jsonb, array[{:d}]));"
        rest = range(jobs, 0, -10_000)
        database.psql("\n".join(call.format(PAYLOAD, min(left, 10_000)) for left in rest))

    def live(self, database: Database) -> int:
        """Return how many jobs are live; one of a group may have a copy in the ring."""
        return int(database.psql("select count(distinct id) from pgq.job"))

    def tables(self) -> Sequence[str]:
        """Return all tables of its schema."""
        return ["pgq.%"]


SYSTEM: System = Pgq()
