"""Databases for the runs: each run has a fresh copy, so that none inherits another's garbage."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from pgserver import Server

from benchmarks.figures import Participant
from benchmarks.pgbench import BenchmarkError
from benchmarks.system import Database, System, UnavailableError


@contextmanager
def altered(server: Server, settings: Mapping[str, str]) -> Generator[None, None, None]:
    """Let the server run with other settings within the block."""
    try:
        for name, value in settings.items():
            server.psql(f"alter system set {name} = '{value}'")
        server.psql("select pg_reload_conf()")
        yield
    finally:
        for name in settings:
            server.psql(f"alter system reset {name}")
        server.psql("select pg_reload_conf()")


class Stage:
    """One system on the server: a database with its queue, and some with backlogs, to copy."""

    def __init__(self, server: Server, short: str, system: System) -> None:
        self.short = short
        self.system = system
        self.server = server
        self._empty = Database(server=server, name=f"bench_{short}")
        self._filled: dict[int, Database] = {0: self._empty}
        self.statements: Mapping[str, str] = {}

    def participant(self) -> Participant:
        """Return what the report tells of the system; raises `UnavailableError`."""
        system = self.system
        with self._blamed("version"):
            version = system.version()
        return Participant(
            short=self.short,
            name=system.name,
            kind=system.kind,
            lifecycle=system.lifecycle,
            url=system.url,
            version=version,
            notes=system.notes,
        )

    def install(self) -> None:
        """Set the queue up in its database."""
        self.server.psql(f'create database "{self._empty.name}"')
        with self._blamed("install"):
            self.system.install(self._empty)
            self.statements = dict(self.system.statements(self._empty))
            self._empty.psql("vacuum (analyze)")

    @contextmanager
    def database(self, backlog: int = 0, *, label: str = "run") -> Generator[Database, None, None]:
        """Lend a fresh copy of the queue with that many ready jobs, checkpointed.

        Copies of different labels can be lent together.
        """
        copy = Database(server=self.server, name=f"bench_{self.short}_{label}")
        self._copy(self._fill(backlog), copy)
        try:
            copy.psql("checkpoint")
            yield copy
        finally:
            self._drop(copy)

    def live(self, database: Database) -> int:
        """Return how many jobs are not finished."""
        with self._blamed("live"):
            return self.system.live(database)

    def drop_backlogs(self) -> None:
        """Drop the databases that copies with jobs were made of."""
        while len(self._filled) > 1:
            self._drop(self._filled.popitem()[1])

    def fill(self, database: Database, jobs: int) -> None:
        """Add ready jobs to a lent database."""
        with self._blamed("fill"):
            self.system.fill(database, jobs)

    def _fill(self, jobs: int) -> Database:
        """Return a database with that many jobs, which is kept; it grows from a smaller one."""
        if jobs not in self._filled:
            smaller = max(size for size in self._filled if size < jobs)
            database = Database(server=self.server, name=f"bench_{self.short}_{jobs}")
            self._copy(self._filled[smaller], database)
            self.fill(database, jobs - smaller)
            database.psql("vacuum (analyze)")
            if (live := self.live(database)) != jobs:
                raise BenchmarkError(f"{live} jobs are there after {jobs} were added")
            self._filled[jobs] = database
        return self._filled[jobs]

    def _copy(self, source: Database, target: Database) -> None:
        self._drop(target)
        self.server.psql(
            f"select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            f" where datname = '{source.name}'"
        )
        self.server.psql(
            f'create database "{target.name}" template "{source.name}" strategy file_copy'
        )
        # A copy is made without what ALTER DATABASE ... SET has said of the source.
        self.server.psql(
            "insert into pg_db_role_setting"
            " select t.oid, s.setrole, s.setconfig"
            " from pg_db_role_setting s, pg_database d, pg_database t"
            f" where s.setdatabase = d.oid and d.datname = '{source.name}'"
            f" and t.datname = '{target.name}'"
        )

    def _drop(self, database: Database) -> None:
        self.server.psql(f'drop database if exists "{database.name}" with (force)')

    @contextmanager
    def _blamed(self, verb: str) -> Generator[None, None, None]:
        """Turn whatever a system's own code raises into a failure of this system alone."""
        try:
            yield
        except (BenchmarkError, UnavailableError):
            raise
        except Exception as error:
            raise BenchmarkError(f"{verb}: {type(error).__name__}: {error}") from error
