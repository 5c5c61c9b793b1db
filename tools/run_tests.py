"""Runs the pgTAP and pytest suites against one or more versions of PostgreSQL.

    python tools/run_tests.py [--version 18]... [--sql 17]... [--only sql|python|clients]
        [--install extension|upgraded|script] [-- argument ...]

On the versions of --sql the pgTAP suite runs, on 15 and 17 in other surroundings: settings, locale
and way of installation. The pytest suite runs in two parts. Three run at a time; their lines begin
with the version then.
Arguments after `--` go to pg_prove or pytest; with a file among them only that one runs. A skipped
test counts as a failure. Tests with the mark "once" run on PostgreSQL 18 only, beside the others
when all are to run. pytest finds the version to test in PGQ_TEST_VERSION, and in PGQ_TEST_INSTALL
how to install pgq, see pginstall.py. The clients, which need languages that others do not have, are
tested only when they are asked for.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import bootstrap
from pginstall import INSTALL, WAYS, install
from pgserver import Server, ServerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """How to tell from a runner's output what failed, what was skipped and that tests ran."""

    name: str
    failed: re.Pattern[str]
    skipped: re.Pattern[str]
    ran: re.Pattern[str]


@dataclass(slots=True)
class Outcome:
    """What one suite did on one version."""

    suite: str
    version: int
    option: str = "--version"
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list[str])
    failed: list[str] = field(default_factory=list[str])

    def report(self) -> str:
        """Return one line for a success; for a failure also how to run that part again."""
        head = f"PostgreSQL {self.version} {self.suite}: "
        if not self.problems:
            return f"{head}ok ({self.seconds:.0f} s)"
        again = [os.path.relpath(sys.executable), "tools/run_tests.py"]
        again += [self.option, str(self.version), "--only", self.suite]
        again += ["--", *dict.fromkeys(self.failed)] if self.failed else []
        return f"{head}FAILED, {'; '.join(self.problems)}\n    again: {shlex.join(again)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the pgTAP suite meets: server settings, options of its database, a way to install."""

    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    database: str = ""
    install: str | None = None


_AT_A_TIME = 3

_USUAL = Surroundings()
_UNUSUAL = {
    15: Surroundings(
        settings={"plan_cache_mode": "force_generic_plan", "max_prepared_transactions": "10"},
        install="script",
    ),
    17: Surroundings(
        settings={
            "DateStyle": "German",
            "IntervalStyle": "sql_standard",
            "TimeZone": "Asia/Kathmandu",
            "plan_cache_mode": "force_custom_plan",
        },
        install="upgraded",
        database="template template0 locale_provider icu icu_locale 'tr-TR' locale 'C'",
    ),
}

# Where those tests run that are marked as being the same on each version.
_NEWEST = 18

SQL = Suite(
    name="sql",
    failed=re.compile(r"^(tests/sql/.+\.sql)\s+\(Wstat:"),
    skipped=re.compile(r"(?i)^\s*(?:not )?ok \d+.*# (?:skip|todo)|^tests/sql/.*skipped:"),
    ran=re.compile(r"^Files=\d+, Tests=[1-9]"),
)
PYTHON = Suite(
    name="python",
    failed=re.compile(r"^(?:FAILED|ERROR) (\S+\.py(?:::[\w:]+(?:\[.*?\](?= - |$))?)?)"),
    skipped=re.compile(r"^(?:SKIPPED|XFAIL|XPASS) "),
    ran=re.compile(r"^=* ?.*\b[1-9]\d* (?:passed|failed|error)"),
)
CLIENTS = replace(PYTHON, name="clients")


def main() -> int:
    """Run the suites on every version asked for and print a summary."""
    parser = argparse.ArgumentParser(description="Run the tests.")
    parser.add_argument("--version", type=int, action="append", metavar="MAJOR")
    parser.add_argument("--sql", type=int, action="append", metavar="MAJOR", default=[])
    parser.add_argument("--only", choices=["sql", "python", "clients"])
    parser.add_argument("--install", choices=WAYS, default="extension", help="how")
    parser.add_argument("arguments", nargs="*", help="for pg_prove or pytest, needs --only")
    options = parser.parse_args()
    if options.arguments and options.only is None:
        parser.error("arguments for pg_prove or pytest need --only")
    os.environ[INSTALL] = options.install
    usual: list[int] = options.version or ([] if options.sql else [18])
    plan: list[tuple[int, Callable[[str], Outcome]]] = []
    # What takes longest begins first.
    for suite in [options.only] if options.only else ["python", "sql"]:
        for version in usual:
            plan += [(version, run) for run in _runs(suite, version, options.arguments)]
    for version in options.sql:
        plan.append((version, partial(_run_sql_around, version, options.arguments)))

    def run(version: int, call: Callable[[str], Outcome]) -> Outcome:
        return call(f"{version}: " if len(plan) > 1 else "")

    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        outcomes = list(pool.map(run, *zip(*plan, strict=True)))
    print("\n" + "\n".join(outcome.report() for outcome in outcomes))
    return 1 if any(outcome.problems for outcome in outcomes) else 0


def _runs(suite: str, version: int, arguments: Sequence[str]) -> list[Callable[[str], Outcome]]:
    """Return what runs a suite on a version, in one part or more."""
    if suite == "sql":
        return [partial(run_sql, version, arguments)]
    if suite == "clients":
        return [partial(run_pytest, CLIENTS, version, arguments, "")]
    marks = ["not once"]
    if version == _NEWEST:
        marks = [""] if arguments else ["not once", "once"]
    parts = [arguments] if arguments else _python_parts()
    return [partial(run_pytest, PYTHON, version, part, mark) for mark in marks for part in parts]


def _python_parts() -> list[list[str]]:
    """Return the files of the pytest suite in two parts, one of which may run beside the other."""
    files = sorted((bootstrap.ROOT / "tests" / "python").glob("test_*.py"))
    names = [str(file.relative_to(bootstrap.ROOT)) for file in files]
    return [names[0::2], names[1::2]]


def _run_sql_around(version: int, arguments: Sequence[str], mark: str) -> Outcome:
    outcome = run_sql(version, arguments, mark, _UNUSUAL.get(version, _USUAL))
    return replace(outcome, option="--sql")


def run_sql(
    version: int, arguments: Sequence[str], mark: str, around: Surroundings = _USUAL
) -> Outcome:
    """Run pg_prove over tests/sql in a fresh database that has pgq and pgTAP."""
    way = around.install or os.environ[INSTALL]
    command, variables = bootstrap.pg_prove()
    command += ["--verbose", "--ext", ".sql", *_with_default(arguments, *_sql_files(way))]
    try:
        # Autovacuum could hold a lock for longer than pgq_drop_queue waits.
        settings = {"fsync": "off", "autovacuum": "off", **around.settings}
        with Server(version, settings, ["pgtap"]) as server:
            server.psql(f"create database pgtap {around.database}")
            server.psql("create extension pgtap", database="pgtap")
            install(server, "pgtap", way)
            variables |= server.environment() | {"PGDATABASE": "pgtap"}
            return _run(SQL, version, command, variables, mark)
    except ServerError as error:
        return Outcome("sql", version, problems=[str(error)])


def run_pytest(
    suite: Suite, version: int, arguments: Sequence[str], chosen: str, mark: str
) -> Outcome:
    """Run pytest over the tests of a suite with the chosen marks; they start their own servers."""
    marks = [chosen] if chosen else []
    marks += ["not extension"] if os.environ[INSTALL] == "script" else []
    command = [sys.executable, "-m", "pytest", "-rfEsxX", "-m", " and ".join(marks)]
    command += _with_default(arguments, f"tests/{suite.name}")
    return _run(suite, version, command, {**os.environ, "PGQ_TEST_VERSION": str(version)}, mark)


def _sql_files(way: str) -> list[str]:
    """Return the pgTAP suite, without what is about extensions where pgq is none."""
    files = sorted((bootstrap.ROOT / "tests" / "sql").glob("*.sql"))
    left_out = "12_install.sql" if way == "script" else None
    return [str(file.relative_to(bootstrap.ROOT)) for file in files if file.name != left_out]


def _with_default(arguments: Sequence[str], *default: str) -> list[str]:
    """Return the arguments, after the default paths unless they name one themselves."""
    if any(Path(argument.split("::")[0]).exists() for argument in arguments):
        return [*arguments]
    return [*default, *arguments]


def _run(
    suite: Suite,
    version: int,
    command: Sequence[str],
    environment: Mapping[str, str],
    mark: str,
) -> Outcome:
    """Run one suite, passing its output on behind `mark` while looking for what went wrong."""
    outcome = Outcome(suite.name, version)
    start = time.monotonic()
    ran, skipped = False, 0
    with subprocess.Popen(
        command,
        env=environment,
        cwd=bootstrap.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(f"{mark}{line}")
            sys.stdout.flush()
            if failure := suite.failed.match(line):
                outcome.failed.append(failure[1])
            skipped += bool(suite.skipped.match(line))
            ran = ran or bool(suite.ran.match(line))
    outcome.seconds = time.monotonic() - start
    if process.returncode != 0:
        outcome.problems.append(f"exit status {process.returncode}")
    if skipped:
        outcome.problems.append(f"{skipped} skipped")
    if not ran:
        outcome.problems.append("no test ran")
    return outcome


if __name__ == "__main__":
    raise SystemExit(main())
