"""What a system under test has to be able to do, and the database that it is given.

Each directory of `benchmarks/systems` is one system: its module `system.py` has an object
`SYSTEM` that fulfils the protocol. The name of the directory is the system's short name, by
which scenarios call their scripts.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from urllib.parse import quote

from pgserver import Server

Kind = Literal["own", "yardstick", "peer"]

PAYLOAD = '{"order_id":42,"note":"hello world payload"}'

# A batch of payloads as an array of jsonb, each of which the server parses, as it would if a
# client had sent them.
PAYLOADS = (
    f"array(select p::jsonb from unnest(array_fill('{PAYLOAD}'::text, array[:batch::int])) p)"
)


class UnavailableError(Exception):
    """The system is not installed or does not run here; the text is the reason, for the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """A database of the private server."""

    server: Server
    name: str

    @property
    def dsn(self) -> str:
        """The address of the database as a URL of libpq."""
        server = self.server
        user = f"{quote(server.user)}:{quote(server.password)}"
        host = quote(server.host, safe="")
        return f"postgresql://{user}@/{quote(self.name)}?host={host}&port={server.port}"

    def environment(self) -> dict[str, str]:
        """Return the environment that leads libpq's clients to the database."""
        return {**self.server.environment(), "PGDATABASE": self.name}

    def psql(self, sql: str) -> str:
        """Run SQL and return what it prints, unaligned, rows only; raises `ServerError`."""
        return self.server.psql(sql, database=self.name)


class System(Protocol):
    """A job queue as the benchmarks see it."""

    @property
    def name(self) -> str:
        """The name in the report."""
        ...

    @property
    def url(self) -> str:
        """The project's page, empty for a yardstick."""
        ...

    @property
    def kind(self) -> Kind:
        """Whether it is pgq, a yardstick, or somebody else's queue."""
        ...

    @property
    def lifecycle(self) -> bool:
        """Whether each job is claimed, completed and failed by itself."""
        ...

    @property
    def notes(self) -> str:
        """What a reader of the report must know, such as settings and what happens to done jobs."""
        ...

    def version(self) -> str:
        """Return the version that is installed; raises `UnavailableError`."""
        ...

    def install(self, database: Database) -> None:
        """Set the queue up in an empty database, as its project recommends.

        The database is copied afterwards, which needs that no connection to it is left open.
        """
        ...

    def statements(self, database: Database) -> Mapping[str, str]:
        """Return what stands for the placeholders in scripts, by name, in pgbench's syntax.

        Asked for once, on the database that `install` has seen.
        """
        ...

    def fill(self, database: Database, jobs: int) -> None:
        """Add that many ready jobs, by the fastest way there is; leaves no connection open."""
        ...

    def live(self, database: Database) -> int:
        """Return how many jobs are not finished, the claimed ones included.

        So a run is checked to have done real work: a completion that matched nothing shows.
        """
        ...

    def tables(self) -> Sequence[str]:
        """Return LIKE patterns for the schema-qualified names of its tables."""
        ...


def load(module: str) -> Any:
    """Import a module of a package that the benchmarks alone need; raises `UnavailableError`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UnavailableError(f"{error.name or module} is not installed: {error}") from error
