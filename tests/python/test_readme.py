"""Every snippet of the READMEs is run, in their order."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import bootstrap
import pytest
from bootstrap import ROOT
from pgserver import PATIENCE, Server

from .pages import read, snippets
from .programs import run_program
from .sessions import within

README = read("README.md")
FEATURES = read("docs/features.md")
PLAYGROUND = read("docs/playground.md")
PYTHON = read("docs/python.md")
PACKAGE_README = read("python/README.md")

# Runs a file that may use await at its top level, as the asyncio REPL does.
RUN_TOP_LEVEL = """
import ast, asyncio, inspect, sys
code = compile(sys.stdin.read(), "README", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
async def main():
    outcome = eval(code, {"__name__": "__main__"})
    if inspect.isawaitable(outcome):
        await outcome
asyncio.run(main())
"""


@pytest.fixture
def environment(server: Server) -> dict[str, str]:
    """An empty database, and the environment that leads to it."""
    server.psql("drop database if exists readme with (force)")
    server.psql("create database readme")
    return {**os.environ, **server.environment(), "PGDATABASE": "readme", "PYTHONUNBUFFERED": "1"}


def run_sql(environment: dict[str, str], *parts: str) -> str:
    process = subprocess.run(
        ["psql", "-X", "-v", "ON_ERROR_STOP=1", "-At"],
        input="\n".join(parts),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_the_quick_starts_do_what_they_say(environment: dict[str, str]) -> None:
    output = run_sql(environment, *snippets(README, "sql"))
    assert '"to": "bob@example.org"' in output.split('"to": "ada@example.org"')[0], (
        "the higher priority is claimed first"
    )
    shown, printed = snippets(README, "text")
    statements = "\\pset footer off\n" + "\n".join(snippets(README, "sql"))
    quiet = {**environment, "PGOPTIONS": "-c client_min_messages=warning"}
    output = run_program("psql", "-Xq", env=quiet, stdin=statements)
    assert re.sub(r" +$", "", output, flags=re.MULTILINE).strip() == shown.strip(), "again"
    [script] = snippets(README, "python")
    output = run_program(sys.executable, "-c", script, env=environment)
    assert output == printed
    left = run_sql(environment, "select count(*) from pgq.job j where j.payload->>'to' ~ 'zoe'")
    assert left == "0\n", "the worker has completed the job before it stopped"


@pytest.mark.constant
def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


@pytest.mark.constant
def test_the_home_page_has_the_figures_of_the_readme() -> None:
    """Its first two columns are those of the README, with the units in the cells."""

    def figures(page: str) -> dict[str, list[str]]:
        rows = [
            row.strip("|").split("|") for row in re.findall(r"^\|.*\d.*\|$", page, re.MULTILINE)
        ]
        return {row[0].strip(): re.findall(r"\d[\d.,]*", "|".join(row[1:3])) for row in rows}

    home = figures(read("docs/index.md").partition("## Three numbers")[2])
    readme = figures(README.partition("## Performance")[2])
    assert len(home) == 3
    assert {name: readme[name] for name in home} == home


@pytest.mark.once
def test_the_shell_with_a_private_server_has_all_that_is_promised() -> None:
    [shell] = [code for code in snippets(README, "sh") if "pgserver" in code]
    typed = "psql -Xqc 'create extension pgq' && pgq queues && python -c 'import pgq'"
    output = run_program("sh", "-ec", shell, cwd=ROOT, stdin=typed)
    assert "default " in output


def test_the_examples_of_the_features_run(environment: dict[str, str]) -> None:
    output = run_sql(environment, "create extension pgq;", *snippets(FEATURES, "sql"))
    assert '"table": "public.post"' in output
    left = run_sql(environment, "select count(*) from pgq.privilege")
    assert left == "0\n", "what was granted is taken back"


def test_the_statements_of_the_playground_do_what_they_say(environment: dict[str, str]) -> None:
    output = run_sql(environment, "create extension pgq;", *snippets(PLAYGROUND, "sql"))
    [_, enqueued, _, _, heartbeat, stale, completed, failed, *jobs] = output.splitlines()
    assert enqueued == "1|2"
    assert heartbeat
    assert (stale, completed, failed) == ("f", "t", "scheduled")
    [tried, done] = sorted(jobs)
    assert tried.startswith("1|scheduled|1|")
    assert tried.endswith("|SMTP 451")
    assert done.startswith("2|completed|2|bob|")


async def test_the_package_readme_runs_until_sigterm(environment: dict[str, str]) -> None:
    run_sql(environment, "create extension pgq; create table signup (email text)")
    [script] = snippets(PACKAGE_README, "python")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        RUN_TOP_LEVEL,
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin
    assert process.stdout
    process.stdin.write(script.encode())
    process.stdin.close()
    line = await within(process.stdout.readline())
    assert line == b"to ada@example.org\n"
    process.send_signal(signal.SIGTERM)
    assert await within(process.wait()) == 0


def test_the_examples_of_the_python_page_run(environment: dict[str, str]) -> None:
    run_sql(environment, "create extension pgq")
    process = subprocess.run(
        [sys.executable, "-c", RUN_TOP_LEVEL],
        input="\n".join(snippets(PYTHON, "python")),
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    digest = hashlib.sha256(Path(hashlib.__file__).read_bytes()).hexdigest()
    assert lines[:2] == ["ready", "True"], "the job was cancelled before it began"
    assert lines[2] == "job 1, attempt 1: ada@example.org", "the highest priority is first"
    assert lines[6:9] == ["1", "default: {'n': 1}", "tenant.ada {'n': 1}"]
    assert lines.pop(9) == "dead", "its deadline has passed"
    assert lines[9] == "3"
    progress = "Progress(total=3, pending=0, completed=2, dead=1, cancelled=0, unknown=0)"
    assert (lines[10], lines[12]) == (f"mailboxes {progress}", progress)
    assert lines[11].endswith("there is no such mailbox"), "what did not complete is told"
    assert lines[13] == digest
    assert lines[14].endswith("sue@example.org")
    assert lines[15] == "tenant: acme"
    assert lines[16].endswith("zoe@example.org")
    assert lines[17] == "completed"
    sent, handled, processed = lines[18:21]
    assert (sent, processed) == ("send emails", "process emails")
    assert handled.endswith("eve@example.org")
    assert lines[21:] == [sent, lines[22], processed, "queue.process send_email emails"]
    assert lines[22].endswith("eve@example.org")
    assert (
        run_sql(environment, "select * from signup")
        == f"ada@example.org\neve@example.org\nbob@example.org\n{digest}\nsue@example.org\n"
    )


def list_make_targets() -> list[str]:
    """The targets of which `make help` tells what they do."""
    help_text = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return re.findall(r"^(\S+) +\S", help_text, re.MULTILINE)


@pytest.mark.constant
def test_make_help_tells_of_each_target() -> None:
    makefile = read("Makefile").replace("\\\n", "")
    [phony] = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert sorted(list_make_targets()) == sorted(phony.split())


@pytest.mark.constant
def test_the_make_targets_exist() -> None:
    shell = "\n".join(snippets(README, "sh"))
    named = set(re.findall(r"^(?:sudo )?make ([a-z-]+)", shell, re.MULTILINE))
    assert named == {"all", "demo", "dev-setup", "dist", "install", "test"}
    assert named <= set(list_make_targets())


@pytest.mark.constant
def test_the_workflows_call_all_make_targets_that_check_something() -> None:
    workflows = [*(ROOT / ".github" / "workflows").glob("*.yml")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in workflows)
    calls = re.findall(r"run: (?:sudo )?make ([a-z -]+)", text)
    assert calls
    called = {target for call in calls for target in call.split()}
    targets = set(list_make_targets())
    assert called <= targets
    tests = {target for target in targets if target.startswith("test")}
    assert tests | {"lint", "docs", "dist", "deb", "ha", "shards"} <= called


@pytest.mark.constant
def test_a_release_has_packages_and_images_besides_what_make_dist_builds() -> None:
    workflow = read(".github/workflows/release.yml").partition("\njobs:\n")[2]
    jobs = dict(re.findall(r"^  (\w+):\n((?:    .*\n|\n)+)", workflow, re.MULTILINE))
    assert "run: make dist\n" in jobs["build"]
    assert "run: make deb\n" in jobs["packages"]
    assert "--target server" in jobs["image"]
    matrix = re.compile(r"version: (\[14,.*\])")
    assert matrix.findall(jobs["image"]) == matrix.findall(read(".github/workflows/ci.yml"))
    [needed] = re.findall(r"needs: \[(.*)\]", jobs["github"])
    assert {*needed.split(", ")} == jobs.keys() - {"test", "build", "github"}
    for name in ("dist", "packages"):
        assert f"name: {name}\n          path: dist/\n" in jobs["github"]


@pytest.mark.constant
def test_make_does_one_target_after_the_other() -> None:
    """As `make -j8 build` shall not build a wheel before its tools are there."""
    assert re.search(r"^\.NOTPARALLEL:$", read("Makefile"), re.MULTILINE)


@pytest.mark.constant
def test_make_install_copies_the_extension_and_refuses_a_foreign_one(
    pg_config: Path, tmp_path: Path
) -> None:
    def make(target: str) -> str:
        """Return what is said if that is refused."""
        command = ["make", target, f"PG_CONFIG={pg_config}", f"DESTDIR={tmp_path / 'root'}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stderr if done.returncode else ""

    assert make("install") == ""
    [control] = (tmp_path / "root").glob("**/extension/pgq.control")
    scripts = [*control.parent.glob("pgq--*.sql")]
    assert scripts
    assert (control.parent / "pgq_proxy.sql").exists(), "the front of shards"
    control.write_text("comment = 'another one of pgq'\n", encoding="utf-8")
    assert make("install") == "", "the comment is not what counts"
    assert "another one" not in control.read_text(encoding="utf-8")
    for script in scripts:
        script.unlink()
    (control.parent / "pgq--3.5.sql").write_text("select 1;", encoding="utf-8")
    for target in ("install", "uninstall"):
        assert "belongs to another extension" in make(target)
    left = {path.name for path in control.parent.iterdir()}
    assert left == {"pgq.control", "pgq--3.5.sql", "pgq_proxy.sql"}


@pytest.mark.constant
def test_make_installcheck_runs_the_tests_on_a_running_server(tmp_path: Path) -> None:
    pg_prove, variables = bootstrap.pg_prove()
    program = tmp_path / "pg_prove"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(pg_prove)} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    with Server(18, {"fsync": "off", "autovacuum": "off"}, ["pgtap"]) as server:
        environment = server.environment()
        path = os.pathsep.join([str(tmp_path), environment["PATH"]])
        pg_config = Path(environment["PG_BIN"]) / "pg_config"
        for _ in range(2):
            output = run_program(
                *("make", "installcheck", f"PG_CONFIG={pg_config}"),
                "PGQ_SQL_TESTS=tests/sql/10_functions.sql",
                cwd=ROOT,
                env={**environment, **variables, "PATH": path},
            )
            assert "tests/sql/10_functions.sql .. ok" in output
