"""The commands that print something and end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import click
import pytest
from bootstrap import ROOT
from pgq._cli.base import Command
from pgq._cli.errors import COMMANDS, explain
from pgq._cli.main import cli
from pgq._errors import Error
from pgq._version import PACKAGE
from pgserver import Server

from .cli_session import SCRIPT, Cli, variables
from .pages import read, snippets
from .test_install import TLE

DOCS = read("docs/cli.md")


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            assert isinstance(command, Command)
            yield (*path, name), command


Sql: TypeAlias = Callable[[str], str]
ALL = dict(commands(cli))


@pytest.fixture(name="pgq")
def command_line(dsn: dict[str, Any]) -> Cli:
    """The command line on a database with the extension."""
    return Cli({**variables(dsn), "TZ": "UTC"})


@pytest.fixture
def sql(server: Server, dsn: dict[str, Any]) -> Sql:
    """A function that runs SQL in that database, and returns what it prints."""
    return partial(server.psql, database=dsn["database"])


@pytest.fixture
def empty(server: Server) -> Iterator[Cli]:
    """The command line on a database without the extension."""
    server.psql("create database empty")
    dsn = {"host": server.host, "port": server.port, "user": server.user}
    yield Cli(variables({**dsn, "password": server.password, "database": "empty"}))
    server.psql("drop database empty with (force)")


# Help


@pytest.mark.once
@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_the_help_of_a_command_has_examples_that_are_right(path: tuple[str, ...]) -> None:
    text = Cli({}).ok(*path, "--help")
    assert "Examples:" in text
    for example in ALL[path].examples:
        assert example in text
        words = shlex.split(example.partition(" < ")[0])
        assert words[: len(path) + 1] == ["pgq", *path]
        ALL[path].make_context(path[-1], words[len(path) + 1 :], parent=click.Context(cli))


@pytest.mark.constant
@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_the_documentation_mentions_a_command(path: tuple[str, ...]) -> None:
    assert f"pgq {' '.join(path)}" in DOCS


@pytest.mark.once
def test_the_help_lists_all_commands_and_the_exit_statuses() -> None:
    for text in (Cli({}).ok(), Cli({}).ok("--help")):
        assert {path[0] for path in ALL} <= set(text.split())
        assert "3 the server" in " ".join(text.split())
    assert "configure" in Cli({}).ok("queue")


def test_the_examples_of_the_documentation_run(empty: Cli) -> None:
    for line in "".join(snippets(DOCS, "sh")).splitlines():
        source, pipe, command = line.rpartition(" | ")
        stdin = subprocess.check_output(["sh", "-c", source], text=True) if pipe else None
        name, *args = shlex.split(command)
        assert name == "pgq"
        empty.ok(*args, stdin=stdin)


# The console script, and what it does without its extras


def test_the_console_script_and_the_module_are_the_same(dsn: dict[str, Any]) -> None:
    environment = {**os.environ, **variables(dsn)}
    for command in ([str(SCRIPT)], [sys.executable, "-m", "pgq"]):
        done = subprocess.run(
            [*command, "queues", "--json"], env=environment, capture_output=True, check=True
        )
        assert [row["queue"] for row in json.loads(done.stdout)] == ["default"]


@pytest.mark.once
def test_without_its_extra_it_says_how_to_install_it() -> None:
    script = "import sys; sys.modules['click'] = None; from pgq._cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "pgq: the command line is an extra: pip install 'pgq-asyncpg[cli]'\n"


def test_reload_and_metrics_say_how_to_install_their_extras(
    pgq: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "pgq._cli.exporter", raising=False)
    monkeypatch.delattr("pgq._cli.exporter", raising=False)
    assert "'pgq-asyncpg[cli,reload]'" in pgq.fails(1, "worker", "shop:worker", "--reload")
    assert "'pgq-asyncpg[cli,metrics]'" in pgq.fails(1, "metrics", "--once")


# Errors


def test_an_error_is_one_line_with_the_hint_of_the_server(pgq: Cli) -> None:
    line = pgq.fails(1, "enqueue", "nope", "{}")
    assert line == (
        'pgq: queue "nope" does not exist. Hint: Create it first: pgq queue create nope.\n'
    )
    result = pgq.run("--debug", "enqueue", "nope", "{}")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr


@pytest.mark.parametrize("name", ["it's", "a b", "back\\\\slash", "täglich"])
def test_a_hint_that_names_a_function_names_its_command(pgq: Cli, name: str) -> None:
    line = pgq.fails(1, "enqueue", name, "{}")
    advice = line.partition("Create it first: ")[2].removesuffix(".\n")
    pgq.ok(*shlex.split(advice)[1:])
    pgq.ok("enqueue", name, "{}")


HINT = re.compile(r"""\bhint\s*=\s*(?:format\()?((?:'(?:[^']|'')*'\s*)+)""")
# They have no command.
FUNCTIONS_ONLY = {
    "pgq_complete",
    "pgq_grant",
    "pgq_heartbeat",
    "pgq_maintain",
    "pgq_reclaim",
    "pgq_unwatch",
    "pgq_watch",
}


@pytest.mark.constant
def test_no_hint_of_the_extension_names_a_function_that_has_a_command() -> None:
    source = "".join(
        path.read_text() for path in sorted((ROOT / "extension/sql/src").rglob("*.sql"))
    )
    hints = ["".join(re.findall(r"'((?:[^']|'')*)'", match)) for match in HINT.findall(source)]
    assert len(hints) == len(re.findall(r"\bhint = ", source))
    named = {name for hint in hints for name in re.findall(r"\bpgq_\w+", hint)}
    assert {"pgq_create_queue", "pgq_resume", "pgq_retry"} <= named
    for hint in hints:
        error = Error("m", sqlstate="22023", hint=hint)
        left = set(re.findall(r"\bpgq_\w+", explain(error).message))
        assert left <= FUNCTIONS_ONLY, hint
    for command in COMMANDS.values():
        path = tuple(word for word in command.split()[1:] if not word.startswith("--"))
        options = [word for word in command.split() if word.startswith("--")]
        assert {option for one in ALL[path].params for option in one.opts} >= set(options)
    words = {word for path in ALL for word in path}
    assert not {name.removeprefix("pgq_") for name in FUNCTIONS_ONLY} & words


def test_a_server_that_is_away_and_one_without_pgq_are_told_apart(empty: Cli) -> None:
    away = empty.fails(3, "--dsn", "postgresql://nobody@127.0.0.1:1/none", "queues")
    assert away.startswith("pgq: cannot connect: ")
    assert away.count("\n") == 1
    for args in (["queues"], ["enqueue", "default", "1"], ["schedules"], ["upgrade"]):
        assert "pgq install" in empty.fails(3, *args)
    assert "cannot connect" in empty.fails(3, "--dsn", "what is this", "queues")


def test_the_environment_names_the_database_and_options_go_before_it(
    server: Server, dsn: dict[str, Any]
) -> None:
    url = (
        f"postgresql://{dsn['user']}:{dsn['password']}@/{dsn['database']}"
        f"?host={dsn['host']}&port={dsn['port']}"
    )
    wrong = {"PGHOST": "/nonexistent", "PGQ_DSN": url}
    assert Cli(wrong).json("queues")
    assert Cli({**wrong, "PGQ_DSN": "postgresql://x@127.0.0.1:1/x"}).json("queues", "--dsn", url)
    assert "cannot connect" in Cli({"PGHOST": "/nonexistent"}).fails(3, "queues")
    several = Cli({"PGQ_DSN": f"{url} {url}"})
    assert "choose it by --dsn" in several.fails(2, "queues")
    assert several.json("queues", "--dsn", url)


def test_somebody_without_privileges_is_told_who_can_give_them(
    pgq: Cli, server: Server, dsn: dict[str, Any]
) -> None:
    server.psql("create role guest login")
    guest = Cli({**pgq.environment, "PGUSER": "guest"})
    try:
        assert "pgq_grant" in guest.fails(1, "queues")
        assert "pgq_grant" in guest.fails(1, "schedules")
        server.psql(
            "select pgq_grant('default', 'guest', '{observe}'); select pgq_create_queue('other');"
            "select pgq_schedule('of ' || q, '@daily', queue => q)"
            "  from unnest('{default,other}'::text[]) q",
            database=dsn["database"],
        )
        assert [row["queue"] for row in guest.json("queues")] == ["default"]
        assert [row["name"] for row in guest.json("schedules")] == ["of default"]
        assert guest.json("health") == []
        server.psql("select pgq_revoke('default', 'guest')", database=dsn["database"])
    finally:
        server.psql("drop role guest")


# The extension


def test_install_is_done_once_and_says_the_versions(empty: Cli) -> None:
    assert "is installed now, in the schema public, by CREATE EXTENSION" in empty.ok("install")
    assert "is installed already" in empty.ok("install")
    assert "up to date" in empty.ok("upgrade")
    facts = empty.json("install")
    assert facts["installed"] == facts["available"]
    assert "in the schema public" in empty.fails(1, "install", "--schema", "jobs")


def test_there_is_no_age_of_maintenance_before_the_first(empty: Cli) -> None:
    empty.ok("install")
    [before] = [row for row in empty.json("health") if row["subject"] == "maintenance"]
    assert (before["age"], before["detail"]) == (None, "no tick yet: nobody has claimed")
    assert "\npgq_maintenance_age_seconds " not in empty.ok("metrics", "--once")


def test_the_functions_may_be_in_a_schema_that_is_named(empty: Cli, server: Server) -> None:
    assert "CREATE SCHEMA" in empty.fails(1, "install", "--schema", "My Jobs")
    server.psql('create schema "My Jobs"', database="empty")
    assert empty.json("install", "--schema", "My Jobs")["schema"] == "My Jobs"
    assert "--schema" in empty.fails(3, "queues")
    assert empty.json("queues", "--schema", "My Jobs") == empty.json(
        "--schema", "My Jobs", "queues"
    )
    [finding] = [one for one in empty.json("doctor") if one["check"] == "search_path"]
    assert finding["status"] == "warning"
    assert "not in search_path" in finding["detail"]


@contextlib.contextmanager
def without_files(server: Server) -> Generator[None]:
    """Hide the files of the extension from the server."""
    [control] = server.directory.glob("**/extension/pgq.control")
    hidden = control.rename(control.with_suffix(".hidden"))
    try:
        yield
    finally:
        hidden.rename(control)


def test_without_files_the_script_installs_and_upgrades(empty: Cli, server: Server) -> None:
    with without_files(server):
        assert "by script" in empty.ok("install")
        assert empty.json("install")["way"] == "script"
        assert empty.json("queues")
        assert "up to date" in empty.ok("upgrade")
        assert {one["status"] for one in empty.json("doctor") if one["check"] == "extension"} == {
            "ok"
        }
    assert empty.json("install")["way"] == "script"


def test_a_package_without_scripts_says_so(
    empty: Cli, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with without_files(server), monkeypatch.context() as patch:
        patch.setattr("pgq._cli.extension.SCRIPTS", tmp_path / "_scripts")
        assert "without the scripts. Hint: Install a released" in empty.fails(1, "install")
    assert "is installed now" in empty.ok("install")


def test_where_pg_tle_is_it_is_given_the_extension(empty: Cli, server: Server) -> None:
    [control] = server.directory.glob("**/extension/pgq.control")
    stub = control.with_name("pg_tle.control")
    script = control.with_name("pg_tle--1.sql")
    stub.write_text("default_version = '1'\n", encoding="utf-8")
    script.write_text(TLE, encoding="utf-8")
    try:
        server.psql("create extension pg_tle", database="empty")
        with without_files(server):
            # The stub makes nothing available.
            assert "pgq" in empty.fails(3, "install")
            given = server.psql("select version from pgtle.call", database="empty").splitlines()
            assert given[-1] == PACKAGE
    finally:
        stub.unlink()
        script.unlink()


@pytest.mark.extension
def test_an_extension_without_its_files_cannot_be_upgraded(pgq: Cli, server: Server) -> None:
    with without_files(server):
        assert "make install PG_CONFIG" in pgq.fails(3, "upgrade")
        [finding] = [one for one in findings(pgq, 0) if one["check"] == "extension"]
        assert "make install PG_CONFIG" in finding["advice"]


def findings(pgq: Cli, status: int, *args: str) -> list[dict[str, Any]]:
    result = pgq.run("doctor", "--json", *args)
    assert result.exit_code == status, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def test_upgrade_updates_to_the_version_of_the_files(empty: Cli, server: Server) -> None:
    server.psql("create extension pgq version '0.1.0'", database=empty.environment["PGDATABASE"])
    [finding] = [one for one in empty.json("doctor") if one["check"] == "extension"]
    assert (finding["status"], finding["advice"]) == ("warning", "pgq upgrade")
    assert re.match(r"pgq \S+ was 0\.1\.0 before", empty.ok("upgrade"))
    assert "is up to date" in empty.ok("upgrade")


# Enqueue


def test_enqueue_passes_all_options(pgq: Cli) -> None:
    before = datetime.now(UTC)
    job_id = pgq.json(
        *("enqueue", "default", '{"n": 1.5}', "--priority", "3", "--in", "1h30m"),
        *("--dedupe-key", "k", "--group-key", "g", "--max-attempts", "4", "--task", "send"),
        *("--header", "a=1", "--header", "b=text", "--expires-at", "2100-01-01T00:00:00Z"),
    )["id"]
    job = pgq.json("job", str(job_id))
    assert job["payload"] == {"n": 1.5}
    assert job["headers"] == {"a": 1, "b": "text", "task": "send"}
    assert (job["priority"], job["max_attempts"], job["state"]) == (3, 4, "scheduled")
    assert (job["dedupe_key"], job["group_key"]) == ("k", "g")
    assert job["expires_at"] == "2100-01-01T00:00:00+00:00"
    due = datetime.fromisoformat(job["run_at"])
    assert abs(due - before - timedelta(minutes=90)) < timedelta(minutes=1)
    assert pgq.ok("enqueue", "default", "null", "--dedupe-key", "k") == f"{job_id}\n"
    message = pgq.fails(
        1, "enqueue", "default", "1", "--dedupe-key", "k", "--on-duplicate", "error"
    )
    assert "dedupe key" in message
    later = pgq.json("enqueue", "default", "1", "--after", str(job_id))["id"]
    waiting = pgq.json("job", str(later))
    assert (waiting["state"], waiting["after"]) == ("waiting", [job_id])
    assert f"[{later}]" in re.findall(r"^before +(.*)$", pgq.ok("job", str(job_id)), re.MULTILINE)
    anyhow, never = (
        pgq.json("enqueue", "default", "1", "--after", str(job_id), "--after-on-dead", what)["id"]
        for what in ("run", "die")
    )
    pgq.ok("cancel", str(job_id))
    states = {name: pgq.json("job", str(name))["state"] for name in (later, anyhow, never)}
    assert states == {later: "dead", anyhow: "ready", never: "dead"}


def test_a_job_shows_the_history_of_its_attempts(pgq: Cli, sql: Sql) -> None:
    job_id = sql("select pgq_enqueue('1')").strip()
    claim = f"(select j.token from pgq_claim({job_id}, worker => 'ada') j)"
    for error in ("first line\nsecond line", None):
        text = "null" if error is None else f"e'{error}'"
        sql(f"select pgq_fail({job_id}, {claim}, {text}, retry_in => '0')")
    first, second = pgq.json("job", job_id)["history"]
    assert (first["attempt"], first["worker"]) == (1, "ada")
    assert (first["error"], second["error"]) == ("first line\nsecond line", None)
    assert first["claimed_at"] <= first["ended_at"] <= second["claimed_at"]
    shown = pgq.ok("job", job_id)
    assert '"error": "first line\\nsecond line"' in shown
    assert [line[:7] for line in shown.splitlines() if '"attempt"' in line] == [" " * 7] * 2


def test_a_time_without_a_zone_is_local(pgq: Cli) -> None:
    time.tzset()
    job_id = pgq.json("enqueue", "default", "1", "--run-at", "2100-06-01T08:00:00")["id"]
    expected = datetime(2100, 6, 1, 8).astimezone()
    assert datetime.fromisoformat(pgq.json("job", str(job_id))["run_at"]) == expected


@pytest.mark.parametrize(
    ("zone", "shown"),
    [
        ("UTC", "2100-06-01 08:00:00+00"),
        ("Europe/Berlin", "2100-06-01 10:00:00+02"),
        ("Asia/Kolkata", "2100-06-01 13:30:00+05:30"),
    ],
)
def test_times_are_shown_with_their_offset(
    pgq: Cli, monkeypatch: pytest.MonkeyPatch, zone: str, shown: str
) -> None:
    job_id = pgq.ok("enqueue", "default", "1", "--run-at", "2100-06-01T08:00:00Z").strip()
    pgq.ok("schedule", "add", "once", "0 8 1 6 *", "default")
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        local = Cli({**pgq.environment, "TZ": zone})
        time.tzset()
        assert f"  {shown}\n" in local.ok("job", job_id)
        assert f"-06-01 {shown.split()[1]} " in local.ok("schedules")
        assert re.search(r" \d\d:\d\d:\d\d\+\d\d", local.ok("jobs"))
    time.tzset()


def test_lines_that_the_server_refuses_are_told_with_what_was_added(pgq: Cli, sql: Sql) -> None:
    args = ("enqueue", "default", "--lines", "--batch", "2")
    message = pgq.fails(1, *args, stdin='1\n2\n{"x": NaN}\n')
    assert message == "pgq: line 3 is not JSON; 2 jobs are added\n"
    sql("select pgq_configure_queue('default', max_ready => 4)")
    message = pgq.fails(1, *args, stdin="3\n4\n5\n6\n")
    assert 'queue "default" is full' in message
    assert message.endswith("(2 jobs are added)\n")
    assert sql("select count(*) from pgq_jobs") == "4"


def test_a_payload_may_come_from_stdin_as_it_is(pgq: Cli, sql: Sql) -> None:
    pgq.ok("enqueue", "default", "-", stdin='{"price":\n1.10}')
    assert sql("select payload from pgq_jobs") == '{"price": 1.10}'


def test_lines_are_jobs_in_batches_up_to_a_line_that_is_not_json(pgq: Cli, sql: Sql) -> None:
    lines = "".join(f'{{"n": {n}}}\n\n' for n in range(25))
    args = ("enqueue", "default", "--lines", "--batch", "10")
    assert pgq.json(*args, "--group-key", "g", stdin=lines) == {"jobs": 25}
    assert sql("select count(distinct payload), min(group_key) from pgq_jobs") == "25|g"
    message = pgq.fails(1, *args, stdin=lines + "no\n")
    assert message == "pgq: line 51 is not JSON; 25 jobs are added\n"


@pytest.mark.parametrize("line", [b'"caf\xe9"', b"[" * 100_000], ids=["no UTF-8", "too deep"])
def test_a_line_that_cannot_be_read_is_told_with_what_was_added(pgq: Cli, line: bytes) -> None:
    args = ("enqueue", "default", "--lines", "--batch", "2")
    message = pgq.fails(1, *args, stdin=b"1\n2\n" + line + b"\n3\n")
    assert message == "pgq: line 3 is not JSON; 2 jobs are added\n"


def test_numbers_that_no_float_keeps_are_shown_as_they_are(pgq: Cli) -> None:
    payload = "[" + "9" * 400 + ".5, 9007199254740993.25, 1.10]"
    job_id = pgq.ok("enqueue", "default", payload, "--header", "commit=12e4567").strip()
    [listed] = pgq.json("jobs")
    shown = pgq.json("job", job_id)
    assert listed["payload"] == shown["payload"] == payload
    assert shown["headers"] == {"commit": "12e4567"}
    job_id = pgq.ok("enqueue", "default", "[1.10, 1e3, 0.1]").strip()
    assert pgq.json("job", job_id)["payload"] == [1.1, 1000.0, 0.1]


def test_an_argument_that_the_server_refuses_does_not_mean_that_it_is_away(pgq: Cli) -> None:
    assert "out of int64 range" in pgq.fails(1, "job", "9" * 20)


@pytest.mark.once
@pytest.mark.parametrize(
    "args",
    [
        ["enqueue", "default"],
        ["enqueue", "default", "1", "--lines"],
        ["enqueue", "default", "--lines", "--dedupe-key", "k"],
        ["enqueue", "default", "{"],
        ["enqueue", "default", "1", "--in", "soon"],
        ["enqueue", "default", "1", "--in", "99999999999w"],
        ["enqueue", "default", "1", "--in", "1s", "--run-at", "2100-01-01"],
        ["enqueue", "default", "1", "--run-at", "tomorrow"],
        ["enqueue", "default", "1", "--header", "x"],
        ["queue", "configure", "default"],
        ["retry"],
        ["retry", "1", "--queue", "default"],
        ["retry", "--queue", "default"],
        ["retry", "--queue", "default", "--yes"],
        ["retry", "1", "--task", "send"],
        ["retry", "--queue", "default", "--all", "--task", "send"],
        ["retry", "--payload", "{"],
        ["jobs", "--since", "yesterday"],
        ["cancel", "--queue", "default", "--key", "k", "--task", "send"],
        ["cancel"],
        ["cancel", "--all"],
        ["cancel", "1", "--queue", "default", "--all"],
        ["cancel", "--queue", "default", "--key", "k", "--all"],
        ["move", "1"],
        ["move", "--priority", "1"],
        ["move", "1", "--queue", "default", "--priority", "1"],
        ["move", "--queue", "default", "--state", "active", "--priority", "1"],
        ["purge", "default", "--state", "active"],
        ["schedule", "add", "a", "@hourly", "default", "{"],
        ["metrics", "--listen", "nowhere"],
        ["top"],
        ["frobnicate"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_status_2_without_a_server(args: list[str]) -> None:
    assert "Error: " in Cli({"PGHOST": "/nonexistent"}).fails(2, *args)


@pytest.mark.once
@pytest.mark.parametrize(
    ("payload", "shown", "advice"),
    [
        ("gone", "'gone'", """ On a command line, that text is '"gone"'."""),
        ("it's", '"it\'s"', """ On a command line, that text is '"it'"'"'s"'."""),
        ("{to: ada}", "'{to: ada}'", " On a command line it goes between single quotes, as"),
        (100 * "x", f"'{60 * 'x'}...'", ""),
    ],
)
def test_a_payload_that_is_not_json_is_shown_with_its_likely_quotes(
    payload: str, shown: str, advice: str
) -> None:
    for args in (["enqueue", "default"], ["schedule", "add", "a", "@hourly", "default"]):
        message = Cli({}).fails(2, *args, payload)
        assert f"The payload {shown} is not JSON: Expecting " in message
        assert f").{advice}" in message


@pytest.mark.once
def test_a_port_that_cannot_be_is_named() -> None:
    message = Cli({}).fails(2, "metrics", "--listen", "127.0.0.1:99999")
    assert "The port of '127.0.0.1:99999' is above 65535." in message


# Queues


def test_a_queue_is_created_configured_and_dropped(pgq: Cli, sql: Sql) -> None:
    pgq.ok("queue", "create", "api", "--max-attempts", "5", "--backoff-base", "1m30s")
    pgq.ok("queue", "configure", "api", "--keep-completed", "0", "--group-on-dead", "block")
    settings = sql(
        "select max_attempts, backoff_base, keep_completed, group_on_dead from pgq.queue"
        " where name = 'api'"
    )
    assert settings == "5|00:01:30|00:00:00|block"
    assert "exists already" in pgq.fails(1, "queue", "create", "api")
    kept = pgq.json("queue", "create", "api", "--max-attempts", "9", "--if-not-exists")
    assert kept == {"queue": "api", "created": False}
    pgq.ok("enqueue", "api", "1")
    assert pgq.fails(1, "queue", "drop", "api") == (
        'pgq: queue "api" holds jobs. '
        "Hint: Drop it with --force to delete its live and dead jobs, too.\n"
    )
    assert pgq.json("queue", "drop", "api", "--force") == {"queue": "api", "dropped": True}
    assert "does not exist" in pgq.fails(1, "queue", "configure", "api", "--max-active", "1")


def test_the_settings_of_a_queue_are_shown_as_they_are_given(pgq: Cli) -> None:
    durations = {"backoff-base": "1m30.25s", "keep-completed": "0s", "keep-dead": "1d12h"}
    options = [word for name, value in durations.items() for word in (f"--{name}", value)]
    pgq.ok("queue", "create", "api", *options)
    assert pgq.ok("queue", "configure", "api", "--max-active", "5", "--rate-interval", "2h") == (
        "queue api is configured: max-active 5, rate-interval 2h\n"
    )
    assert pgq.json("queue", "configure", "api", "--keep-dead", "1d12h") == {
        "queue": "api",
        "configured": True,
        "keep_dead": 129600,
    }
    head, *lines = pgq.ok("queue", "show", "api").splitlines()
    assert head.split() == ["setting", "value", "default"]
    marked = [line.split() for line in lines if line.startswith("*")]
    assert marked == [
        ["*", "backoff-base", "1m30.25s", "1s"],
        ["*", "keep-completed", "0s", "1d"],
        ["*", "keep-dead", "1d12h", "30d"],
        ["*", "max-active", "5", "0"],
        ["*", "rate-interval", "2h", "1s"],
    ]
    others = [line.split() for line in lines if not line.startswith("*")]
    assert ["group-on-dead", "continue", "continue"] in others
    assert ["backoff-factor", "2", "2"] in others
    shown = {line[1:].split()[0] for line in lines}
    given = {option for one in ALL["queue", "configure"].params for option in one.opts}
    assert {f"--{name}" for name in shown} <= given
    facts = pgq.json("queue", "show", "api")
    unshown = {"name", "paused", "created_at"}
    assert {name.replace("_", "-") for name in facts.keys() - unshown} == shown


def test_the_settings_of_a_queue_tell_that_it_is_paused(pgq: Cli) -> None:
    assert "paused" not in pgq.ok("queue", "show", "default")
    pgq.ok("pause", "default")
    assert pgq.ok("queue", "show", "default").endswith("\ndefault is paused: pgq resume default\n")
    assert pgq.json("queue", "show", "default")["paused"] is True
    assert pgq.fails(1, "queue", "show", "nope") == (
        'pgq: queue "nope" does not exist. Hint: pgq queues lists those that you may observe.\n'
    )


def test_queues_shows_what_the_view_shows(pgq: Cli) -> None:
    pgq.ok("enqueue", "default", "1")
    pgq.ok("pause", "default")
    [row] = pgq.json("queues")
    assert (row["queue"], row["ready"], row["paused"]) == ("default", 1, True)
    assert 0 <= row["oldest_ready_age"] < 60
    head, line = pgq.ok("queues").splitlines()
    assert head.split()[:2] == ["queue", "ready"]
    assert line.split()[:2] == ["default", "1"]
    assert line.split()[-1] == "yes"
    assert pgq.ok("resume", "default") == "queue default is resumed\n"
    assert pgq.json("queues")[0]["paused"] is False
    assert pgq.ok("resume", "default") == "queue default was not paused\n"
    assert 'queue "nope" does not exist' in pgq.fails(1, "resume", "nope")


def test_who_may_not_observe_a_queue_resumes_it(pgq: Cli, server: Server, sql: Sql) -> None:
    server.psql("create role keeper login")
    keeper = Cli({**pgq.environment, "PGUSER": "keeper"})
    try:
        sql("select pgq_grant('default', 'keeper', '{manage}')")
        for _ in range(2):
            assert keeper.ok("resume", "default") == "queue default is resumed\n"
        sql("select pgq_create_queue('other'), pgq_grant('other', 'keeper', '{observe}')")
        assert keeper.ok("resume", "default") == "queue default is resumed\n"
        sql("select pgq_revoke('default', 'keeper'), pgq_revoke('other', 'keeper')")
    finally:
        server.psql("drop role keeper")


def test_purge_asks_unless_told_not_to(pgq: Cli) -> None:
    pgq.ok("enqueue", "default", "1")
    pgq.fails(1, "purge", "default", stdin="n\n")
    pgq.fails(1, "purge", "default", stdin="")
    assert pgq.json("queues")[0]["ready"] == 1
    assert pgq.json("purge", "default", "--state", "dead", "--yes")["deleted"] == 0
    assert pgq.json("purge", "default", stdin="y\n") == {"queue": "default", "deleted": 1}
    pgq.ok("enqueue", "default", "1")
    pgq.ok("cancel", "--queue", "default", "--all")
    pgq.ok("enqueue", "default", "1")
    assert pgq.ok("purge", "default", "--yes") == "1 job is deleted\n"
    purge = ("purge", "default", "--state", "completed", "--state", "cancelled", "--yes")
    assert pgq.json(*purge)["deleted"] == 1


# Jobs


def test_jobs_are_listed_newest_first_by_state_and_in_pages(pgq: Cli, sql: Sql) -> None:
    assert pgq.json("jobs") == []
    assert "no such job" in pgq.run("jobs").stderr
    assert "no such job" in pgq.run("jobs", "--queue", "default").stderr
    for args in (["--queue", "nope"], ["--queue", "nope", "--before", "9"]):
        assert pgq.fails(1, "jobs", *args) == (
            'pgq: queue "nope" does not exist. Hint: pgq queues lists those that you may observe.\n'
        )
    sql("select pgq_create_queue('other'), pgq_enqueue('0', 'other')")
    sql("select pgq_enqueue_many(array(select to_jsonb(n) from generate_series(1, 3000) n))")
    sql("select pgq_fail(id, token, 'boom', retryable => false) from pgq_dequeue(2)")
    ids = [job["id"] for job in pgq.json("jobs", "--limit", "3")]
    assert ids == [3001, 3000, 2999]
    page = pgq.json("jobs", "--before", "2999", "--limit", "2", "--queue", "default")
    assert [job["id"] for job in page] == [2998, 2997]
    dead = pgq.json("jobs", "--state", "dead", "--state", "completed")
    assert [(job["id"], job["last_error"]) for job in dead] == [(3, "boom"), (2, "boom")]
    assert [job["payload"] for job in pgq.json("jobs", "--queue", "other")] == [0]
    near = pgq.run("jobs", "--state", "dead", "--depth", "100")
    assert near.stdout == ""
    assert near.stderr == "Looked at ids above 2901 only: go on with --before 2902.\n"


def fill(sql: Sql) -> None:
    """Add jobs of two tasks and one without, three of them dead."""
    send = 'headers => \'{"task": "send"}\''
    sql("select pgq_create_queue('other')")
    sql(f"""
        select pgq_enqueue('{{"to": "ada", "n": 1}}', {send}, group_key => 'g'),
               pgq_enqueue('{{"to": "bob"}}', {send}),
               pgq_enqueue('[1]', headers => '{{"task": "crawl"}}'),
               pgq_enqueue('{{"to": "ada"}}', 'other')
    """)
    sql(r"""
        select pgq_fail(id, token, case id when 1 then 'Timeout: 100%_'
                                           else E'boom\nKeyError: 1' end, retryable => false)
          from pgq_dequeue(3, worker => 'w1')
    """)
    sql("update pgq.archive set finished_at = now() - interval '3 hours' where id = 2")


@pytest.mark.parametrize(
    ("args", "ids"),
    [
        (["--task", "send"], [2, 1]),
        (["--error", "timeout"], [1]),
        (["--error", "%"], [1]),
        (["--error", "keyerror"], [3, 2]),
        (["--payload", '{"to": "ada"}'], [4, 1]),
        (["--payload", "1"], [3]),
        (["--payload", '{"to": "ada"}', "--queue", "other"], [4]),
        (["--group", "g"], [1]),
        (["--worker", "w1"], [3, 2, 1]),
        (["--since", "1h"], [4, 3, 1]),
        (["--until", "2h"], [2]),
        (["--since", "2100-01-01T00:00:00Z"], []),
        (["--task", "send", "--state", "dead", "--error", "boom"], [2]),
        (["--task", "none"], []),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_jobs_are_selected(pgq: Cli, sql: Sql, args: list[str], ids: list[int]) -> None:
    fill(sql)
    assert [job["id"] for job in pgq.json("jobs", *args)] == ids


def test_a_list_of_jobs_shows_their_tasks(pgq: Cli, sql: Sql) -> None:
    fill(sql)
    assert [job["task"] for job in pgq.json("jobs")] == [None, "crawl", "send", "send"]
    head, _, line, *_ = pgq.ok("jobs").splitlines()
    assert "task" in head.split()
    assert "crawl" in line.split()


def test_dead_jobs_are_retried_by_what_they_are_like_after_a_look(pgq: Cli, sql: Sql) -> None:
    fill(sql)
    args = ("retry", "--queue", "default", "--worker", "w1")
    shown = pgq.ok(*args).splitlines()
    assert shown[0].split() == ["jobs", "queue", "state", "task", "ids", "last", "error"]
    assert shown[1].split() == ["2", "default", "dead", "send", "1,", "2", "Timeout:", "100%_"]
    assert shown[2].split() == ["1", "default", "dead", "crawl", "3", "KeyError:", "1"]
    assert shown[-1] == "3 jobs: add --yes to retry them."
    assert pgq.json(*args) == {"matching": [1, 2, 3]}
    assert sql("select count(*) from pgq_jobs where state = 'dead'") == "3", "nothing is done yet"
    assert pgq.json("retry", "--task", "send", "--yes") == {"retried": [1, 2], "refused": []}
    assert pgq.ok(*args, "--yes") == "1 job is ready again\n"
    assert "no such job" in pgq.run(*args).stderr
    assert "does not exist" in pgq.fails(1, "retry", "--queue", "nope", "--task", "send")


def test_a_bulk_retry_goes_in_steps_and_round_what_it_may_not(
    pgq: Cli, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgq._operate.bulk.STEP", 2)
    monkeypatch.setattr("pgq._operate.search._PAGE", 2)
    sql("select pgq_enqueue(to_jsonb(n), dedupe_key => 'k' || n) from generate_series(1, 5) n")
    sql("select pgq_fail(id, token, 'x', retryable => false) from pgq_dequeue(10)")
    sql("select pgq_enqueue('6', dedupe_key => 'k4')")
    result = pgq.run("retry", "--error", "X", "--yes", "--json")
    assert json.loads(result.stdout) == {"retried": [1, 2, 3, 5], "refused": [4]}
    assert result.stderr == "2 of 5\n4 of 5\n5 of 5\n"


def test_jobs_are_moved_by_what_they_are_like_after_a_look(pgq: Cli, sql: Sql) -> None:
    sql("select pgq_create_queue('bulk'), pgq_enqueue('0', 'bulk', dedupe_key => 'k')")
    add = "select pgq_enqueue('{}', headers => '{\"task\": \"send\"}'%s)"
    first, second, key, group = (
        int(sql(add % option))
        for option in (
            "",
            ", run_at => now() + '1 hour'",
            ", dedupe_key => 'k'",
            ", group_key => 'g'",
        )
    )
    args = ("move", "--task", "send", "--to", "bulk", "--priority", "-5")
    assert pgq.ok(*args).splitlines()[-1] == "4 jobs: add --yes to move them."
    assert pgq.json(*args) == {"matching": [first, second, key, group]}
    result = pgq.run(*args, "--yes", "--json")
    assert json.loads(result.stdout) == {"moved": [first, second], "refused": [key, group]}
    assert result.stderr == (
        f'job {key}: queue "bulk" has a job with the dedupe key "k"\n'
        f"job {group}: job {group} of a group cannot be moved\n"
    )
    assert sql("select id, priority from pgq_jobs where queue = 'bulk' order by id").splitlines()[
        1:
    ] == [f"{first}|-5", f"{second}|-5"]
    assert pgq.ok("move", str(first), "--priority", "9") == f"job {first} is moved\n"
    assert "no such job, or it is active" in pgq.fails(1, "move", "999", "--to", "bulk")
    assert "does not exist" in pgq.fails(1, "move", str(first), "--to", "nope")
    assert pgq.ok("move", "--queue", "bulk", "--to", "default", "--yes") == "2 jobs are moved\n"


def test_a_job_that_the_new_queue_refuses_keeps_no_other_back(pgq: Cli, sql: Sql) -> None:
    sql("select pgq_create_queue('small', max_payload => 10, max_ready => 1)")
    long, first, second = (
        int(sql(f"select pgq_enqueue('{payload}')")) for payload in ('"too long a text"', "1", "2")
    )
    result = pgq.run("move", "--queue", "default", "--to", "small", "--yes", "--json")
    assert json.loads(result.stdout) == {"moved": [first], "refused": [long, second]}
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == [
        f"job {long}",
        f"job {second}",
    ]


def test_live_jobs_are_cancelled_by_what_they_are_like_after_a_look(pgq: Cli, sql: Sql) -> None:
    fill(sql)
    added = sql(
        "select pgq_enqueue('{}', headers => '{\"task\": \"send\"}') from generate_series(1, 3)"
    )
    first, *others = map(int, added.split())
    sql(f"select pgq_claim({first}, '1 hour')")
    args = ("cancel", "--task", "send")
    assert pgq.ok(*args).splitlines()[-1] == "3 jobs: add --yes to cancel them."
    assert pgq.json(*args, "--state", "ready") == {"matching": others}
    assert pgq.json(*args, "--yes") == {"cancelled": others, "asked": [first], "refused": []}
    assert pgq.json(*args, "--force", "--yes")["cancelled"] == [first]


def test_the_newest_jobs_of_a_long_queue_cost_no_scan(pgq: Cli, sql: Sql) -> None:
    sql("select pgq_enqueue_many(array(select to_jsonb(n) from generate_series(1, 20000) n))")
    read = """
        select sum(seq_scan), sum(idx_tup_read)
          from pg_stat_user_tables join pg_stat_user_indexes using (relid)
         where pg_stat_user_tables.relname ~ '^(job|archive)_[0-9]+$'
    """
    scans, rows = (int(number) for number in sql(read).split("|"))
    assert len(pgq.json("jobs", "--queue", "default", "--limit", "5")) == 5
    scans_after, rows_after = (int(number) for number in sql(read).split("|"))
    assert scans_after == scans
    assert rows_after - rows < 2000


def test_a_job_is_shown_whole_and_its_control_characters_are_not_obeyed(pgq: Cli, sql: Sql) -> None:
    job_id = pgq.ok("enqueue", "default", '{"text": "ä"}').strip()
    sql(
        "select pgq_fail(id, token, E'\\x1b[31mfirst\\nlast', retryable => false)"
        " from pgq_dequeue()"
    )
    shown = pgq.ok("job", job_id)
    assert '"text": "ä"' in shown
    assert "\\x1b[31mfirst" in shown
    assert "\x1b" not in shown
    assert "last" in pgq.ok("jobs", "--state", "dead")
    assert pgq.json("job", job_id)["state"] == "dead"
    assert "no job 99" in pgq.fails(1, "job", "99")


def test_a_list_of_jobs_shows_the_error_not_its_hint(pgq: Cli, sql: Sql) -> None:
    errors = {
        'ValueError: no such task\nDETAIL:  It is "thumbnial".\nHINT:  There is one.\n\n': (
            "ValueError: no such task"
        ),
        "Traceback\nKeyError: 1\nCONTEXT:  a line of it\n": "KeyError: 1",
        "HINT:  all that there is": "HINT:  all that there is",
    }
    for error, shown in errors.items():
        sql(
            "select pgq_enqueue('1');"
            f"select pgq_fail(id, token, $error${error}$error$, retryable => false)"
            "  from pgq_dequeue()"
        )
        line = pgq.ok("jobs", "--limit", "1").splitlines()[-1]
        assert line.endswith(f"  {shown}")


def test_dead_jobs_are_retried_by_id_and_by_queue(pgq: Cli, sql: Sql) -> None:
    sql("select pgq_enqueue('1', dedupe_key => 'k')")
    sql("select pgq_enqueue_many('{2, 3, 4}')")
    sql("select pgq_fail(id, token, 'x', retryable => false) from pgq_dequeue(10)")
    sql("select pgq_enqueue('5', dedupe_key => 'k')")
    result = pgq.run("retry", "2", "1", "99", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {"retried": [2], "refused": [1, 99]}
    assert "dedupe key" in result.stderr
    assert pgq.ok("retry", "3") == "job 3 is ready again\n"
    assert pgq.json("retry", "--queue", "default", "--all") == {"retried": [4], "refused": []}


def test_jobs_are_cancelled_by_id_by_key_and_by_queue(pgq: Cli, sql: Sql) -> None:
    sql("select pgq_enqueue_many('{1, 2, 3, 4}'), pgq_enqueue('5', dedupe_key => 'k')")
    sql("select pgq_claim(1, '1 hour')")
    result = pgq.run("cancel", "1", "2", "99", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {"cancelled": [2], "asked": [1], "refused": [99]}
    assert "its worker is told" in result.stderr
    assert pgq.ok("cancel", "1", "--force") == "job 1 is cancelled\n"
    assert pgq.json("cancel", "--queue", "default", "--key", "k")["cancelled"] == 1
    assert "no live job" in pgq.fails(1, "cancel", "--queue", "default", "--key", "k")
    assert pgq.json("cancel", "--queue", "default", "--all")["cancelled"] == 2
    sql("select pgq_enqueue('6')")
    assert pgq.ok("cancel", "--queue", "default", "--all") == "1 job is cancelled\n"
    assert pgq.ok("cancel", "--queue", "default", "--all") == "0 jobs are cancelled\n"


# Schedules


def test_a_schedule_is_added_paused_resumed_and_removed(pgq: Cli) -> None:
    assert pgq.json("schedules") == []
    first = pgq.json(
        *("schedule", "add", "nightly", "30 2 * * *", "default", '{"n": 1}'),
        *("--timezone", "Europe/Berlin", "--missed", "skip", "--task", "report"),
    )["next_at"]
    [row] = pgq.json("schedules")
    assert (row["name"], row["queue"], row["cron"]) == ("nightly", "default", "30 2 * * *")
    assert (row["payload"], row["headers"]) == ({"n": 1}, {"task": "report"})
    assert (row["missed"], row["next_at"]) == ("skip", first)
    pgq.ok("schedule", "pause", "nightly")
    assert pgq.json("schedules")[0]["paused"] is True
    assert pgq.ok("schedule", "resume", "nightly") == "schedule nightly is resumed\n"
    assert "nightly" in pgq.ok("schedules")
    pgq.ok("schedule", "remove", "nightly")
    for verb in ("pause", "resume", "remove"):
        assert "no schedule nightly" in pgq.fails(1, "schedule", verb, "nightly")
    assert 'In the field "hour"' in pgq.fails(1, "schedule", "add", "x", "0 99 * * *", "default")


# Views


def test_workers_health_and_locks_show_their_views(pgq: Cli, sql: Sql) -> None:
    assert pgq.json("workers") == []
    assert pgq.run("workers").stderr == "No jobs are leased now. Idle workers are not listed.\n"
    sql("select pgq_enqueue('1')")
    sql("select pgq_dequeue(1, '1 hour', worker => 'ada')")
    [row] = pgq.json("workers")
    assert (row["worker"], row["queue"], row["jobs"]) == ("ada", "default", 1)
    assert "ada" in pgq.ok("workers")
    assert {"maintenance", "rotation"} <= {row["subject"] for row in pgq.json("health")}
    assert "rotation" in pgq.ok("health")
    assert pgq.json("locks") == []
    assert "Nobody waits" in pgq.run("locks").stderr


def test_what_is_long_leaves_room_for_the_rest_on_a_terminal(pgq: Cli, sql: Sql) -> None:
    job_id = sql(f"select pgq_enqueue(to_jsonb('{'x' * 300}'::text))")
    terminal = replace(pgq, environment={**pgq.environment, "FORCE_COLOR": "1", "COLUMNS": "120"})
    assert {job_id, "default", "ready"} <= set(re.findall(r"\w+", terminal.ok("jobs")))
    assert max(map(len, pgq.ok("jobs").splitlines())) < 500
    sql(f"select pgq_enqueue(to_jsonb('{'x' * 20_000}'::text))")
    assert {job_id, "default", "ready"} <= set(re.findall(r"\w+", pgq.ok("jobs")))


@pytest.mark.once
def test_output_that_cannot_be_written(pgq: Cli, sql: Sql) -> None:
    sql("select pgq_enqueue(to_jsonb('\u20ac'::text))")
    environment = {**os.environ, **pgq.environment, "PYTHONIOENCODING": "latin-1"}
    environment.pop("PYTHONUNBUFFERED", None)
    command = partial(subprocess.run, env=environment, stderr=subprocess.PIPE, text=True)
    shown = command([SCRIPT, "jobs"], stdout=subprocess.PIPE)
    assert "\\u20ac" in shown.stdout, shown.stderr
    for arguments in (["queues"], ["--help"], ["--version"], ["jobs", "--help"]):
        with Path("/dev/full").open("w", encoding="ascii") as full:
            failed = command([SCRIPT, *arguments], stdout=full)
        assert failed.returncode == 1, failed.stderr
        assert "cannot be written" in failed.stderr
        assert failed.stderr.count("\n") == 1, failed.stderr


def test_an_error_without_an_output() -> None:
    failed = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" queues --dsn postgresql:///?host=/nowhere >&-', SCRIPT],
        check=False,
        capture_output=True,
        text=True,
    )
    assert failed.returncode == 3, failed.stderr
    assert failed.stderr.startswith("pgq: cannot connect")
    assert failed.stderr.count("\n") == 1, failed.stderr


def test_what_cannot_be_read_is_shown_as_it_is(pgq: Cli, sql: Sql) -> None:
    payload = "1" * 5000  # int() takes 4300 digits
    job_id = sql(f"select pgq_enqueue('{payload}')")
    assert [row["payload"] for row in pgq.json("jobs")] == [payload]
    assert pgq.json("job", job_id)["payload"] == payload
    assert payload in pgq.ok("job", job_id)
