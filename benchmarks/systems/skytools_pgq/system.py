"""Skytools PgQ 3, by its functions in SQL, in its variant without libraries in C.

It is a log of events and not a queue of jobs: ticks cut the events into batches, and each
consumer reads all batches one after the other. So it can be compared in adding events only.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import bootstrap

from benchmarks.system import PAYLOAD, Database, Kind, System, UnavailableError


class _SkytoolsPgq:
    name = "Skytools PgQ (PL only)"
    url = "https://github.com/pgq/pgq"
    kind: Kind = "peer"
    lifecycle = False
    notes = (
        "In PL/pgSQL, without its libraries in C, which Debian has for PostgreSQL 15 only. Ticks "
        "cut batches, and one consumer takes them one by one, so there is no claim to compare; it "
        "has no call for many events."
    )

    def version(self) -> str:
        control = _file("pgq.control").read_text()
        return control.split("default_version = '")[1].split("'")[0]

    def install(self, database: Database) -> None:
        database.psql(_file("pgq_pl_only.sql").read_text())
        database.psql("select pgq.create_queue('bench'), pgq.register_consumer('bench', 'worker')")

    def statements(self, database: Database) -> Mapping[str, str]:
        del database
        return {}

    def fill(self, database: Database, jobs: int) -> None:
        database.psql(
            f"select count(pgq.insert_event('bench', 'job', '{PAYLOAD}'))"
            f" from generate_series(1, {jobs:d})"
        )

    def live(self, database: Database) -> int:
        """Return the events that are there: none is ever consumed here."""
        return int(database.psql("select count(*) from pgq.event_template"))

    def tables(self) -> Sequence[str]:
        return ("pgq.%",)


def _file(name: str) -> Path:
    try:
        return next(bootstrap.fetch_debian("postgresql-{}-pgq3").rglob(name))
    except bootstrap.BootstrapError as error:
        raise UnavailableError(str(error)) from error


SYSTEM: System = _SkytoolsPgq()
