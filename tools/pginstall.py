"""Installs pgq in a database, in the way that the environment variable PGQ_TEST_INSTALL names.

"extension" (the default) is CREATE EXTENSION; "upgraded" the same of the first release, updated to
this version; "script" runs the script that needs no files on the server. PGQ_TEST_CHANGE may name a
script that changes what was installed, see run_mutants.py.
"""

import os
from pathlib import Path

import bootstrap
from pgserver import Server

INSTALL = "PGQ_TEST_INSTALL"
CHANGE = "PGQ_TEST_CHANGE"
WAYS = ("extension", "upgraded", "script")

SCRIPTS = bootstrap.ROOT / "python" / "src" / "pgq" / "_scripts"

_OLDEST = """
    select version from pg_available_extension_versions where name = 'pgq'
     order by string_to_array(version, '.')::integer[] limit 1
"""


def install(server: Server, database: str | None = None, way: str | None = None) -> None:
    """Install pgq in a database of a running server, in the given way rather than the named one."""
    way = way or os.environ.get(INSTALL, WAYS[0])
    if way == "script":
        server.psql((SCRIPTS / "pgq.sql").read_text(encoding="utf-8"), database=database)
    elif way == "upgraded":
        oldest = server.psql(_OLDEST, database=database)
        server.psql(f"create extension pgq version '{oldest}'", database=database)
        server.psql("alter extension pgq update", database=database)
    else:
        server.psql("create extension pgq", database=database)
    if change := os.environ.get(CHANGE):
        server.psql(Path(change).read_text(encoding="utf-8"), database=database)


def uninstall(server: Server, database: str) -> None:
    """Remove pgq from a database again, however it was installed."""
    if os.environ.get(INSTALL) == "script":
        server.psql((SCRIPTS / "pgq-uninstall.sql").read_text(encoding="utf-8"), database=database)
    else:
        server.psql("drop extension pgq", database=database)
