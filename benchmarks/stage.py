"""Databases for the runs: each run has a fresh copy, so that none inherits another's garbage."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from pgserver import Server

from benchmarks.figures import Participant
from benchmarks.pgbench import BenchmarkError
from benchmarks.system import Database, System, UnavailableError


class Stage:
    """One system on the server: a database with its queue, and one with a backlog, to copy."""

    def __init__(self, server: Server, short: str, system: System) -> None:
        self.short = short
        self.system = system
        self.server = server
        self._empty = Database(server=server, name=f"bench_{short}")
        self._filled = Database(server=server, name=f"bench_{short}_filled")
        self._jobs = 0
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

    @contextmanager
    def database(self, backlog: int = 0, *, label: str = "run") -> Generator[Database, None, None]:
        """Lend a fresh copy of the queue with about that many ready jobs, checkpointed.

        There may be up to twice as many. Copies of different labels can be lent together.
        """
        if backlog > 0:
            self._fill(backlog)
        source = self._filled if backlog > 0 else self._empty
        copy = Database(server=self.server, name=f"bench_{self.short}_{label}")
        self._copy(source, copy)
        try:
            copy.psql("checkpoint")
            yield copy
        finally:
            self._drop(copy)

    def ready(self, database: Database) -> int:
        """Return how many jobs are to be done."""
        with self._blamed("ready"):
            return self.system.ready(database)

    def close(self) -> None:
        """Drop the databases."""
        for database in (self._filled, self._empty):
            self._drop(database)

    def fill(self, database: Database, jobs: int) -> None:
        """Add ready jobs to a lent database."""
        with self._blamed("fill"):
            self.system.fill(database, jobs)

    def _fill(self, jobs: int) -> None:
        if jobs <= self._jobs <= 2 * jobs:
            return
        if self._jobs == 0 or self._jobs > jobs:
            self._jobs = 0
            self._copy(self._empty, self._filled)
        self.fill(self._filled, jobs - self._jobs)
        self._filled.psql("vacuum (analyze)")
        self._jobs = jobs
        if (ready := self.ready(self._filled)) != jobs:
            raise BenchmarkError(f"{ready} jobs are ready after {jobs} were added")

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
