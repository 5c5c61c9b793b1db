"""Installing where no file can be put on the server: the script, and what pg_tle is given."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import portable
import pytest
import release
from pginstall import SCRIPTS
from pgserver import Server, ServerError

from . import catalog
from .conftest import serve
from .pages import read, snippets

pytestmark = pytest.mark.constant

VERSION = release.current()
RELEASED = release.path(VERSION)[:-1]
EXTENSION = "create extension pgq"

# Makes of what an extension has created what a script has.
FORGET = """
set allow_system_table_mods = on;
delete from pg_depend where refclassid = 'pg_extension'::regclass and deptype = 'e'
    and refobjid = (select oid from pg_extension where extname = 'pgq');
delete from pg_init_privs where privtype = 'e';
delete from pg_extension where extname = 'pgq';
"""

TLE = """
create schema pgtle;
create table pgtle.call (n serial, function text, version text, script text);
create function pgtle.available_extensions() returns table (name name) language sql
as $$ select 'pgq'::name from pgtle.call where function = 'install_extension' $$;
create function pgtle.available_extension_versions() returns table (name name, version text)
language sql as $$ select 'pgq'::name, version from pgtle.call where script is not null $$;
create function pgtle.install_extension(
    name text, version text, description text, ext text, requires text[] default null
) returns boolean language sql as $$
insert into pgtle.call (function, version, script) values ('install_extension', version, ext)
returning true $$;
create function pgtle.install_update_path(name text, fromvers text, tovers text, ext text)
returns boolean language sql as $$
insert into pgtle.call (function, version, script) values ('install_update_path', tovers, ext)
returning true $$;
create function pgtle.set_default_version(name text, version text) returns boolean language sql as
$$ insert into pgtle.call (function, version) values ('set_default_version', version)
returning true $$;
"""

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with an ordinary role that may own databases."""
    with serve() as server:
        server.psql("create role keeper login createdb; create role web")
        yield server


@pytest.fixture
def database(server: Server) -> str:
    """An empty database, the keeper's own."""
    return new(server)


def new(server: Server) -> str:
    name = f"installed_{next(_numbers)}"
    server.psql(f"create database {name} owner keeper")
    return name


def run(server: Server, database: str, *scripts: str) -> str:
    """Run scripts as the owner of the database, who is no superuser."""
    text = ["set session authorization keeper", *scripts]
    return server.psql(";\n".join(text), database=database)


def script(name: str) -> str:
    return (SCRIPTS / name).read_text(encoding="utf-8")


def schema_of(server: Server, database: str) -> str:
    """Return all definitions of a database, as pg_dump writes them."""
    lines = dump(server, database, "--schema-only").splitlines()
    return "\n".join(line for line in lines if not line.startswith("\\"))


def dump(server: Server, database: str, *options: str) -> str:
    """Return what pg_dump writes of a database."""
    command = ["pg_dump", *options, database]
    environment = server.environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def restore(server: Server, database: str) -> str:
    """Dump a database and restore it as another one."""
    restored = new(server)
    server.psql(dump(server, database), database=restored)
    return restored


def test_the_script_makes_what_the_extension_makes(server: Server, database: str) -> None:
    run(server, database, script("pgq.sql"), "select pgq_grant('*', 'web', '{observe}')")
    as_extension = new(server)
    run(server, as_extension, EXTENSION, "select pgq_grant('*', 'web', '{observe}')")
    server.psql(FORGET, database=as_extension)
    assert schema_of(server, database) == schema_of(server, as_extension)
    assert run(server, database, "select pgq_version()") == VERSION


@pytest.mark.parametrize("version", RELEASED)
def test_the_scripts_upgrade_what_a_script_has_installed(
    server: Server, database: str, version: str
) -> None:
    old = portable.plain(release.script(version).read_text(encoding="utf-8"), version)
    run(server, database, old, "select pgq_grant('*', 'web', '{observe}'), pgq_enqueue('1')")
    assert run(server, database, "select pgq_version()") == version
    for step in itertools.pairwise(release.path(VERSION)[RELEASED.index(version) :]):
        run(server, database, script(f"pgq--{'--'.join(step)}.sql"))
    fresh = new(server)
    run(server, fresh, script("pgq.sql"), "select pgq_grant('*', 'web', '{observe}')")
    assert schema_of(server, database) == schema_of(server, fresh)
    assert run(server, database, "select payload from pgq_pop()") == "1"


def test_the_functions_go_to_the_schema_that_is_named(server: Server, database: str) -> None:
    named = "set pgq.schema = 'My \"Jobs'"
    with pytest.raises(ServerError, match='schema "My "Jobs" does not exist'):
        run(server, database, named, script("pgq.sql"))
    run(server, database, 'create schema "My ""Jobs"', named, script("pgq.sql"))
    call = 'select "My ""Jobs".'
    run(server, database, f"{call}pgq_create_queue('q')", f"{call}pgq_enqueue('7', 'q')")
    assert run(server, database, f"{call}pgq_pop(1, 'q')").startswith("(1,,q,0,active,1,20,7,")
    run(server, database, named, script("pgq-uninstall.sql"))


def test_the_settings_of_the_session_stay(server: Server, database: str) -> None:
    settings = "select current_setting('search_path'), current_setting('lock_timeout')"
    before = run(server, database, "begin", settings)
    after = run(server, database, "begin", script("pgq.sql"), settings)
    assert before == after


def test_it_refuses_what_it_cannot_be_beside(server: Server, database: str) -> None:
    install, last = script("pgq.sql"), f"pgq--{RELEASED[-1]}--{VERSION}.sql"
    for name in (last, "pgq-uninstall.sql"):
        with pytest.raises(ServerError, match="pgq is not installed in this database"):
            run(server, database, script(name))
    run(server, database, install)
    for again in (install, EXTENSION):
        with pytest.raises(ServerError, match="installed in this database already, by script"):
            run(server, database, again)
    with pytest.raises(ServerError, match=f"of version {VERSION}, not {RELEASED[-1]}"):
        run(server, database, script(last))
    as_extension = new(server)
    run(server, as_extension, EXTENSION)
    for name in ("pgq.sql", last, "pgq-uninstall.sql"):
        with pytest.raises(ServerError, match=f"pgq {VERSION} is installed .*as an extension"):
            run(server, as_extension, script(name))


def test_it_can_be_removed_and_leaves_nothing(server: Server, database: str) -> None:
    before = schema_of(server, database)
    run(server, database, script("pgq.sql"), "select pgq_enqueue('1')")
    run(server, database, "create view mine as select * from pgq_queues")
    with pytest.raises(ServerError, match="other objects depend on it"):
        run(server, database, script("pgq-uninstall.sql"))
    run(server, database, "drop view mine", script("pgq-uninstall.sql"))
    assert schema_of(server, database) == before


def test_a_dump_of_it_carries_all(server: Server, database: str) -> None:
    run(server, database, script("pgq.sql"), "select pgq_create_queue('q')")
    run(server, database, "select pgq_enqueue('1', 'q'), pgq_enqueue('2', 'q', 5)")
    run(server, database, "select pgq_grant('q', 'web', '{consume}')")
    restored = restore(server, database)
    assert schema_of(server, restored) == schema_of(server, database)
    server.psql("set role web; select pgq_dequeue(1, '1 hour', 'q')", database=restored)
    took = "select payload, state from pgq_jobs order by id"
    assert run(server, restored, took) == "1|ready\n2|active"


def test_tokens_drawn_after_a_dump_of_it_are_not_drawn_in_the_restored_database(
    server: Server, database: str
) -> None:
    run(server, database, script("pgq.sql"), "select pgq_enqueue_many('{1,2,3}')")
    run(server, database, "select pgq_dequeue(1, '1 hour')")
    restored = restore(server, database)
    # Databases look whether they are what they were when maintenance is due.
    due = "select extract(epoch from clock_timestamp()) * 1000 > last_value from pgq.next_tick"
    while run(server, restored, due) != "t":
        pass
    claim = "select token >> 20 from pgq_dequeue(1, '1 hour')"
    after, elsewhere = (int(run(server, each, claim)) for each in (database, restored))
    again = int(run(server, restored, claim))
    assert after + 16_000_000 < elsewhere < again < elsewhere + 100


def test_pg_tle_is_given_each_release_once(server: Server, database: str) -> None:
    server.psql(TLE, database=database)
    calls = "select function || ' ' || version from pgtle.call order by n"
    steps = [f"install_update_path {version}" for version in [*RELEASED[1:], VERSION]]
    first = [f"install_extension {RELEASED[0]}", *steps, f"set_default_version {VERSION}"]
    server.psql(script("pgq-tle.sql"), database=database)
    assert server.psql(calls, database=database).splitlines() == first
    server.psql(script("pgq-tle.sql"), database=database)
    assert server.psql(calls, database=database).splitlines() == [*first, first[-1]]


def test_what_pg_tle_is_given_makes_the_extension_that_dumps_carry_along() -> None:
    with serve() as server:
        server.psql("create role keeper login createdb")
        usual = new(server)
        run(server, usual, EXTENSION)
        server.psql(TLE + script("pgq-tle.sql"))
        [control] = server.directory.glob("**/extension/pgq.control")
        for path in control.parent.glob("pgq--*.sql"):
            path.unlink()
        released = [*RELEASED, VERSION]
        for number, step in enumerate([(RELEASED[0],), *itertools.pairwise(released)]):
            given = "select script from pgtle.call where script <> '' order by n"
            text = server.psql(f"{given} offset {number} limit 1")
            control.with_name(f"pgq--{'--'.join(step)}.sql").write_text(text, encoding="utf-8")
        database, restored = new(server), new(server)
        run(server, database, EXTENSION)
        described = catalog.describe(server, database)
        assert catalog.differences(catalog.describe(server, usual), described) == []
        run(server, database, "select pgq_create_queue('q'), pgq_enqueue('1', 'q')")
        server.psql(dump(server, database), database=restored)
        took = "select payload from pgq_pop(1, 'q')"
        assert server.psql(took, database=restored) == "1"


def test_the_examples_of_the_page_run(server: Server, database: str, tmp_path: Path) -> None:
    (tmp_path / "dist").symlink_to(SCRIPTS)
    first, *rest = snippets(read("docs/install.md"), "sh")
    environment = {**server.environment(), "PGUSER": "keeper"}
    for name, commands in ((new(server), first), (database, "".join(rest))):
        path = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
        subprocess.run(
            ["bash", "-e", "-c", commands],
            cwd=tmp_path,
            env={**environment, "PGDATABASE": name, "PATH": path},
            check=True,
        )
    assert run(server, "other", "select jobs.pgq_version()") == VERSION
    assert run(server, database, "select to_regnamespace('pgq') is null") == "t"
