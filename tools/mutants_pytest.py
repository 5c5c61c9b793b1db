"""A plugin of pytest for run_mutants.py, `-p mutants_pytest`: a hang ends soon, as it is likely.

With PGQ_MUTANT_FUNCTIONS it appends the functions that the tests execute to that file. The server
counts them where track_functions is on.
"""

import os
import re
from pathlib import Path

import pgserver
from pgserver import Server

_FUNCTIONS = """
    select pg_terminate_backend(a.pid, 10000) from pg_stat_activity a
     where a.datname = current_database() and a.pid <> pg_backend_pid() \\g /dev/null
    select distinct format('%s.%s', s.schemaname, s.funcname) from pg_stat_user_functions s
"""

setattr(pgserver, "PATIENCE", 60.0)  # noqa: B010 -- it is Final for all others


def _note(server: Server, database: str) -> None:
    with Path(os.environ["PGQ_MUTANT_FUNCTIONS"]).open("a", encoding="utf-8") as file:
        file.write(server.psql(_FUNCTIONS, database=database) + "\n")


def _watch_drops() -> None:
    """Note the functions of each database before a test drops it."""
    psql = Server.psql

    def noting(server: Server, sql: str, database: str | None = None) -> str:
        if dropped := re.match(r"drop database (\w+)", sql):
            _note(server, dropped[1])
        return psql(server, sql, database)

    setattr(Server, "psql", noting)  # noqa: B010 -- no checker knows such a method


if "PGQ_MUTANT_FUNCTIONS" in os.environ:
    _watch_drops()
