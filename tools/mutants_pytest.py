"""A plugin of pytest for run_mutants.py, `-p mutants_pytest`: a hang ends soon, as it is likely.

With PGQ_MUTANT_TESTS it writes to that file a line of JSON for each test: its name, how long it
takes, and which functions it executes in databases that are dropped. The server counts them where
track_functions is on.
"""

import json
import os
import re
from collections import defaultdict
from pathlib import Path

import pgserver
import pytest
from pgserver import Server

_FUNCTIONS = """
    select pg_terminate_backend(a.pid, 10000) from pg_stat_activity a
     where a.datname = current_database() and a.pid <> pg_backend_pid() \\g /dev/null
    select distinct format('%s.%s', s.schemaname, s.funcname) from pg_stat_user_functions s
"""

setattr(pgserver, "PATIENCE", 100.0)  # noqa: B010 -- it is Final for all others


class Recorder:
    """What each test executes, and how long it takes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._functions: dict[str, set[str]] = defaultdict(set)
        self._seconds: dict[str, float] = defaultdict(float)
        self._watch_drops()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add what a phase of a test has taken."""
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write what there is."""
        lines = [
            {"name": name, "seconds": seconds, "functions": sorted(self._functions[name])}
            for name, seconds in self._seconds.items()
        ]
        self._path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")

    def _watch_drops(self) -> None:
        psql = Server.psql

        def noting(server: Server, sql: str, database: str | None = None) -> str:
            if dropped := re.match(r"drop database (\w+)", sql):
                test = os.environ["PYTEST_CURRENT_TEST"].rsplit(" ", 1)[0]
                self._functions[test] |= {*psql(server, _FUNCTIONS, dropped[1]).split()}
            return psql(server, sql, database)

        setattr(Server, "psql", noting)  # noqa: B010 -- no checker knows such a method


def pytest_configure(config: pytest.Config) -> None:
    """Record, if that is asked for."""
    if path := os.environ.get("PGQ_MUTANT_TESTS"):
        config.pluginmanager.register(Recorder(Path(path)))
