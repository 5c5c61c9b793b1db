"""What a database may have of pgq, and what each script and command does there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import portable
import pytest
import release
from pginstall import SCRIPTS
from pgserver import Server, ServerError

from .cli_session import Cli, variables
from .conftest import serve
from .pages import read
from .sessions import dsn_of, sessions
from .test_install import EXTENSION, RELEASED, TLE, VERSION, new, schema_of, script

pytestmark = pytest.mark.constant

SCREEN = 50  # lines
UPGRADE = f"pgq--{RELEASED[-1]}--{VERSION}.sql"
OLD = release.script(RELEASED[-1]).read_text(encoding="utf-8")
OLDER = f"{EXTENSION} version '{RELEASED[-1]}'"
JOB = "select pgq_create_queue('q'), pgq_enqueue('1', 'q')"
IN_JOBS = ("create schema jobs", "set pgq.schema = jobs")

# How a database comes to be in the state that a row of the page names.
STATES = {
    "nothing": (),
    "an extension": (EXTENSION, JOB),
    "an extension of an older version": (OLDER, JOB),
    "an installation by script": (*IN_JOBS, script("pgq.sql")),
    "one of an older version": (portable.plain(OLD, RELEASED[-1]), JOB),
    "only its tables: the functions' schema was dropped": (
        *(*IN_JOBS, script("pgq.sql"), "select jobs.pgq_enqueue('1')"),
        "drop schema jobs cascade",
    ),
    "only its functions: the schema `pgq` was dropped": (
        *(*IN_JOBS, script("pgq.sql")),
        "drop schema pgq cascade",
    ),
    "Skytools' PgQ": ("create schema pgq; create table pgq.tick ()",),
    "another schema `pgq`": ("create schema pgq; create table pgq.mine as select 7 as value",),
}
WAYS = {
    "CREATE EXTENSION": EXTENSION,
    "pgq.sql": script("pgq.sql"),
    "pgq--A--B.sql": script(UPGRADE),
    "pgq-uninstall.sql": script("pgq-uninstall.sql"),
}
# What a message must say, and must not.
SAYS = {
    "an extension": f"pgq {VERSION} .*as an extension",
    "an extension of an older version": f"pgq {RELEASED[-1]} .*as an extension",
    "an installation by script": f"{VERSION}",
    "one of an older version": f"pgq {RELEASED[-1]} .*by script(.|\n)*pgq upgrade",
    "only its tables: the functions' schema was dropped": "half removed.*functions are gone(.|\n)*"
    "Copy the jobs(.|\n)*pgq-uninstall.sql",
    "only its functions: the schema `pgq` was dropped": "half removed.*tables are gone(.|\n)*"
    f"{VERSION}.* schema jobs(.|\n)*pgq-uninstall.sql",
    "Skytools' PgQ": "Skytools",
}
NEVER = re.compile("(drop|rename) (that|the) schema", re.IGNORECASE)


def rows() -> list[list[str]]:
    """Return the rows of the page's table, its head included."""
    lines = read("docs/install.md").partition("\n| found |")[2].partition("\n\n")[0].splitlines()
    table = [f"| found |{lines[0]}", *lines[2:]]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


HEAD, *ROWS = rows()
CELLS = [
    pytest.param(state, way.strip("`"), answer, id=f"{state}, {way}")
    for state, *answers in ROWS
    for way, answer in zip(HEAD[1:], answers, strict=True)
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with a role that owns databases."""
    with serve() as server:
        server.psql(f"create role keeper login createdb password '{server.password}'")
        yield server


@pytest.fixture(scope="module")
def databases(server: Server) -> dict[str, str]:
    """A database in each state, none of which is changed."""
    return {state: made(server, state) for state in STATES}


def made(server: Server, state: str) -> str:
    """Return a new database in a state."""
    name = new(server)
    run(server, name, *STATES[state])
    return name


def run(server: Server, database: str, *scripts: str) -> str:
    """Run scripts as the owner of the database; errors show their SQLSTATE."""
    text = ["set session authorization keeper", *scripts]
    return server.psql("\\set VERBOSITY verbose\n" + ";\n".join(text), database=database)


def command_line(server: Server, database: str) -> Cli:
    return Cli(variables({**dsn_of(server, database), "user": "keeper"}))


def test_the_page_has_all_states_and_ways() -> None:
    assert [row[0] for row in ROWS] == list(STATES)
    assert HEAD[1:] == [*WAYS, "`pgq install`", "`pgq upgrade`"]


def refused(server: Server, database: str, text: str) -> str:
    """Return the error of a script that must fail, shortly, and change nothing."""
    before = schema_of(server, database)
    logged = server.log.stat().st_size
    with pytest.raises(ServerError) as caught:
        run(server, database, text)
    message = str(caught.value)
    log = server.log.read_bytes()[logged:].decode()
    assert message.count("\n") < SCREEN, message
    assert log.count("\n") < SCREEN, log
    assert "ERROR:" in log
    assert schema_of(server, database) == before
    assert not NEVER.search(message), message
    return message


@pytest.mark.parametrize(("state", "way", "answer"), CELLS)
def test_each_way_does_what_the_page_says(
    server: Server, databases: dict[str, str], state: str, way: str, answer: str
) -> None:
    if way.startswith("pgq "):
        check_command(server, databases[state], state, way.removeprefix("pgq "), answer)
    elif re.fullmatch(r"\w{5}", answer):
        message = refused(server, databases[state], WAYS[way])
        assert f"ERROR:  {answer}: " in message
        if answer == "42704":
            assert "pgq is not installed in this database" in message
        elif state in SAYS and "already exists" not in message:  # the server's own words
            assert re.search(SAYS[state], message), message
    else:
        name = made(server, state)
        run(server, name, WAYS[way])
        if answer == "removes":
            left = schema_of(server, name)
            assert "pgq" not in left, left
        else:
            assert run(server, name, "select pgq_version()") == VERSION


def check_command(server: Server, database: str, state: str, command: str, answer: str) -> None:
    cli = command_line(server, database)
    if answer in ("not installed", "half removed", "Skytools", "another schema"):
        message = cli.fails(3, command)
        assert answer in message
        assert "Hint: " in message
        assert not NEVER.search(message), message
        for path in re.findall(r"psql --file ('[^']+'|\S+?)[.]?(?:\s|$)", message):
            assert Path(shlex.split(path)[0]).is_file()
        found = json.loads(cli.run("doctor", "--json").stdout)
        [finding] = [one for one in found if one["check"] == "extension"]
        if answer != "not installed":
            assert finding["detail"] in message
            assert finding["advice"] in message
    elif answer == "is there":
        facts = cli.json(command)
        older = "older" in state
        assert facts["installed"] == (RELEASED[-1] if older else VERSION)
        assert facts["way"] == ("CREATE EXTENSION" if "extension" in state else "script")
        assert ("pgq upgrade" in cli.ok(command)) == older
    else:
        cli = command_line(server, made(server, state))
        older = "older" in state
        said = {"installs": "is installed now", "upgrades": f"was {RELEASED[-1]} before"}[answer]
        assert (said if answer == "installs" or older else "is up to date") in cli.ok(command)
        assert cli.json("install")["installed"] == VERSION


# Errors that no guard foresees, and clients

# Refuses the longest function.
VETO = """
    create function veto() returns event_trigger language plpgsql as $$
    begin
        if exists (
            select from pg_event_trigger_ddl_commands() c
             where c.object_identity like '%.pgq_dequeue(%'
        ) then
            raise exception 'not here' using errcode = '42501';
        end if;
    end
    $$;
    create event trigger veto on ddl_command_end execute function veto();
"""


@pytest.mark.parametrize(
    ("state", "name"), [("nothing", "pgq.sql"), ("one of an older version", UPGRADE)]
)
def test_any_error_of_a_script_is_one_screen(server: Server, state: str, name: str) -> None:
    database = made(server, state)
    server.psql(VETO, database=database)
    message = refused(server, database, script(name))
    assert "ERROR:  42501: not here" in message
    assert "function public.pgq_dequeue(" in message
    assert "Nothing has been changed" in message


def test_so_is_one_of_what_pg_tle_is_given(server: Server) -> None:
    database = new(server)
    assert "ERROR:  42704: pg_tle is not" in refused(server, database, script("pgq-tle.sql"))
    run(server, database, TLE, "drop table pgtle.call")
    assert '"pgtle.call" does not exist' in refused(server, database, script("pgq-tle.sql"))


def test_a_statement_of_a_script_fails_where_the_one_before_did_not_run(server: Server) -> None:
    database = new(server)
    statements = script("pgq.sql").split("$pgq_script$;\n")
    assert len(statements) == 2
    message = refused(server, database, statements[1])
    assert "ERROR:  55000: the statement before this one" in message
    run(server, database, "begin", statements[0] + "$pgq_script$", statements[1], "commit")
    assert run(server, database, "select pgq_version()") == VERSION


@pytest.mark.parametrize("options", [(), ("--single-transaction",), ("--echo-all",)])
def test_psql_runs_a_file_whatever_its_options(server: Server, options: tuple[str, ...]) -> None:
    database = new(server)
    for name in ("pgq.sql", "pgq-uninstall.sql"):
        done = subprocess.run(
            ["psql", "-X", "-q", *options, "--file", SCRIPTS / name, database],
            env={**server.environment(), "PGUSER": "keeper"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
    assert "pgq" not in schema_of(server, database)


async def test_a_client_may_send_a_script_as_one_message(server: Server) -> None:
    database = new(server)
    async with sessions({**dsn_of(server, database), "user": "keeper"}, 1) as [session]:
        await session.execute(script("pgq.sql"))
        assert await session.fetchval("select pgq_version()") == VERSION
        with pytest.raises(asyncpg.DuplicateObjectError) as caught:
            await session.execute(script("pgq.sql"))
        assert str(caught.value).count("\n") < SCREEN
        assert (caught.value.as_dict()["context"] or "").count("\n") < SCREEN
        await session.execute(script("pgq-uninstall.sql"))
        kept = "select sum(length(setting)) from pg_settings where name like 'pgq.script%'"
        assert not await session.fetchval(kept), "no text is left in the session"
    assert "pgq" not in schema_of(server, database)


# What is left of an installation


def test_what_is_left_is_removed_from_whichever_schema_and_nothing_else(server: Server) -> None:
    database = new(server)
    run(server, database, *IN_JOBS, script("pgq.sql"))
    mine = [
        "create function jobs.pgq_mine() returns integer language sql as 'select 1'",
        "create function jobs.pgq_pause(mine integer) returns integer language sql as 'select 2'",
        "create table jobs.pgq_queue_settings_of_mine as select 3 as value",
    ]
    run(server, database, *mine, "drop function jobs.pgq_version()")
    assert "functions are gone" in refused(server, database, script("pgq.sql"))
    run(server, database, script("pgq-uninstall.sql"))
    kept = new(server)
    run(server, kept, "create schema jobs", *mine)
    assert schema_of(server, database) == schema_of(server, kept)
    assert "ERROR:  42704: " in refused(server, database, script("pgq-uninstall.sql"))
    run(server, database, script("pgq.sql"))
    assert run(server, database, "select pgq_version()") == VERSION


def test_a_function_of_another_role_is_not_taken_for_an_installation(server: Server) -> None:
    database = new(server)
    server.psql(
        "create schema theirs; create function theirs.pgq_version() returns text language sql "
        "as $$ select '9.9.9'::text $$",
        database=database,
    )
    run(server, database, script("pgq.sql"))
    run(server, database, script("pgq-uninstall.sql"))
    assert server.psql("select theirs.pgq_version()", database=database) == "9.9.9"
