"""Yardsticks: a table of our own writing that the scripts use directly."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.system import PAYLOAD, Database, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """A schema with a table `job` that has at least an id and a payload."""

    name: str
    lifecycle: bool
    notes: str
    schema: str
    tables_sql: str
    url: str = ""
    kind: Kind = "yardstick"

    def version(self) -> str:
        """Return nothing: it is a few lines of SQL."""
        return ""

    def install(self, database: Database) -> None:
        """Create the table."""
        database.psql(f"create schema {self.schema}; {self.tables_sql}")

    def statements(self, database: Database) -> Mapping[str, str]:
        """Return nothing: the scripts are complete."""
        del database
        return {}

    def fill(self, database: Database, jobs: int) -> None:
        """Insert all in one statement."""
        database.psql(
            f"insert into {self.schema}.job (payload)"
            f" select $${PAYLOAD}$$::jsonb from generate_series(1, {jobs:d})"
        )

    def live(self, database: Database) -> int:
        """Return how many jobs there are: they go when they are completed."""
        return int(database.psql(f"select count(*) from {self.schema}.job"))

    def tables(self) -> Sequence[str]:
        """Return the one table."""
        return [f"{self.schema}.%"]
