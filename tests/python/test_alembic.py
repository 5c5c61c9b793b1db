"""Migrations with Alembic install pgq, and autogenerate leaves it alone."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import asyncpg
import pgq.alembic
import pytest
from pginstall import SCRIPTS
from pgserver import Server

from .cli_session import variables
from .pages import read
from .programs import run_program
from .sessions import dsn_of

pytestmark = [pytest.mark.once, pytest.mark.extension]

PAGE = read("docs/drivers.md")
MAKO = """
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
upgrades = '''
${upgrades}
'''
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory of migrations with the files of the page."""
    files = dict(
        re.findall(r"^```python title=\"(\S+)\"\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    )
    (tmp_path / "versions").mkdir()
    for name in ("env.py", "versions/0001_pgq.py"):
        (tmp_path / name).write_text(files[name], encoding="utf-8")
    (tmp_path / "script.py.mako").write_text(MAKO, encoding="utf-8")
    (tmp_path / "alembic.ini").write_text(
        "[alembic]\nscript_location = %(here)s\npath_separator = os\n", encoding="utf-8"
    )
    return tmp_path


def alembic(place: Path, dsn: dict[str, Any], *arguments: str) -> str:
    environment = {**os.environ, **variables(dsn)}
    command = (sys.executable, "-m", "alembic", *arguments)
    return run_program(*command, cwd=place, env=environment)


@pytest.fixture
def empty(server: Server) -> Generator[dict[str, Any]]:
    """A database without pgq."""
    server.psql("create database empty")
    yield dsn_of(server, "empty")
    server.psql("drop database empty with (force); drop role if exists guest")


async def test_a_migration_installs_pgq_and_may_run_where_it_is(
    place: Path, empty: dict[str, Any], dsn: dict[str, Any]
) -> None:
    for where in (empty, dsn):
        alembic(place, where, "upgrade", "head")
        connection = await asyncpg.connect(**where)
        assert await connection.fetchval("select pgq_enqueue('1')") == 1
        await connection.close()


def test_a_migration_upgrades_an_older_version(
    place: Path, empty: dict[str, Any], server: Server
) -> None:
    server.psql("create extension pgq version '0.1.0'", database="empty")
    alembic(place, empty, "upgrade", "head")
    is_newest = (
        "select installed_version = default_version from pg_available_extensions where name = 'pgq'"
    )
    assert server.psql(is_newest, database="empty").strip() == "t"


@pytest.mark.parametrize(("way", "schema"), [("extension", "jobs"), ("script", "My Jobs")])
def test_a_migration_of_a_role_that_owns_nothing_leaves_alone_what_is_there(
    place: Path, server: Server, empty: dict[str, Any], way: str, schema: str
) -> None:
    script = f"set pgq.schema = '{schema}'; {(SCRIPTS / 'pgq.sql').read_text(encoding='utf-8')}"
    for statement in (
        f'create schema "{schema}"',
        f'create extension pgq schema "{schema}"' if way == "extension" else script,
        f'create role guest login; grant usage on schema "{schema}" to guest',
        "grant create on schema public to guest",
    ):
        server.psql(statement, database="empty")
    migration = place / "versions" / "0001_pgq.py"
    migration.write_text(migration.read_text().replace("install()", f"install({schema!r})"))
    alembic(place, {**empty, "user": "guest"}, "upgrade", "head")
    assert server.psql("select version_num from alembic_version", database="empty") == "0001"


def test_the_schema_is_quoted(place: Path, dsn: dict[str, Any]) -> None:
    migration = place / "versions" / "0001_pgq.py"
    text = migration.read_text().replace("install()", "install('my \"jobs')")
    migration.write_text(text)
    (place / "env.py").write_text(
        "from alembic import context\n"
        "context.configure(dialect_name='postgresql')\n"
        "context.run_migrations()\n"
    )
    output = alembic(place, dsn, "upgrade", "head", "--sql")
    assert 'create extension if not exists pgq schema "my ""jobs";' in output
    assert "alter extension pgq update;" in output


def test_autogenerate_wants_to_drop_nothing_of_pgq(place: Path, dsn: dict[str, Any]) -> None:
    def generated() -> str:
        alembic(place, dsn, "revision", "--autogenerate", "--rev-id", "0002")
        [file] = (place / "versions").glob("0002*")
        text = file.read_text()
        file.unlink()
        return text.split("'''")[1].strip()

    alembic(place, dsn, "upgrade", "head")
    assert "pgq" not in generated()
    env = place / "env.py"
    env.write_text(env.read_text().replace("include_name=include_name,", ""))
    assert "drop_table('queue', schema='pgq')" in generated()


def test_other_schemas_and_what_is_in_them_are_seen() -> None:
    assert pgq.alembic.include_name("public", "schema", {})
    assert pgq.alembic.include_name(None, "schema", {})
    assert not pgq.alembic.include_name("pgq", "schema", {})
    assert pgq.alembic.include_name("pgq", "table", {"schema_name": None})
    assert not pgq.alembic.include_name("queue", "table", {"schema_name": "pgq"})
