"""What the pages in docs/ show is run, in its order, and their links are checked.

A block of SQL runs in psql, in the session that its title names; a block of text right after one
is what it prints. Pages that a test of their own runs are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Container
from importlib import import_module
from pathlib import Path

import asyncpg
import pgq
import pytest
from bootstrap import ROOT

from . import pages
from .sessions import (
    Connection,
    dequeue,
    enqueue,
    no_ticks,
    rolled_back,
    started,
    waiting,
    within,
)
from .test_readme import environment, run_sql

__all__ = ["environment", "run_page"]

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}}

DOCS = ROOT / "docs"
RUN_ELSEWHERE = {
    "application.md",
    "change-data-capture.md",
    "cli.md",
    "clients.md",
    "dashboard.md",
    "deployment.md",
    "dumps.md",
    "features.md",
    "high-availability.md",
    "install.md",
    "playground.md",
    "python.md",
    "scaling.md",
}

FENCE = re.compile(
    r"^```(?P<language>\w+)(?: title=\"(?P<session>[^\"]+)\")?\n(?P<code>.*?)^```\n"
    r"(?:\n```text\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)


def read(name: str) -> str:
    return pages.read(f"docs/{name}")


def shown_pages() -> list[str]:
    """The pages that show something to run."""
    names = {path.name for path in DOCS.glob("*.md")} - RUN_ELSEWHERE
    return sorted(name for name in names if FENCE.search(read(name)))


class Psql:
    """A session of psql that is given one block after the other."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def run(self, code: str) -> str:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{code}\n\\echo done\n".encode())
        output = await within(self._process.stdout.readuntil(b"done\n"))
        return output.decode().removesuffix("done\n")


async def run_program(environment: dict[str, str], code: str, *command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await within(process.communicate(code.encode()))
    assert process.returncode == 0, output.decode()
    return output.decode()


@pytest.mark.parametrize("name", shown_pages())
async def test_a_page_does_what_it_says(environment: dict[str, str], name: str) -> None:
    await run_page(environment, name)


async def run_page(environment: dict[str, str], name: str) -> None:
    """Run all that a page shows in an empty database, and compare what is printed."""
    run_sql(environment, "create extension pgq")
    variables = {**environment, "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}"}
    await does_what_it_says(variables, name)


async def does_what_it_says(
    variables: dict[str, str], name: str, unrun: Container[str] = ()
) -> None:
    """Run what a page shows but the languages `unrun`, and compare what it prints."""
    async with contextlib.AsyncExitStack() as stack:
        sessions: dict[str | None, Psql] = {}
        for block in FENCE.finditer(read(name)):
            match block["language"]:
                case "sql":
                    session = block["session"]
                    if session not in sessions:
                        sessions[session] = await start_psql(stack, variables)
                    output = await sessions[session].run(block["code"])
                case "sh":
                    output = await run_program(variables, block["code"], "sh", "-e")
                case language if language in unrun:
                    continue
                case "python" if block["session"]:
                    continue  # the name of a file, which has a test of its own
                case "python":
                    output = await run_program(variables, block["code"], sys.executable)
                case language:
                    pytest.fail(f"nothing runs {language}")
            if block["output"] is None:
                assert "ERROR:" not in output, block["code"]
            else:
                assert shown(output) == shown(block["output"]), block["code"]


def shown(output: str) -> list[str]:
    """What is printed, without the blanks at the ends of lines that psql adds."""
    return [line.rstrip() for line in output.rstrip().splitlines()]


async def start_psql(stack: contextlib.AsyncExitStack, variables: dict[str, str]) -> Psql:
    process = await asyncio.create_subprocess_exec(
        *("psql", "-X", "-q", "-P", "footer=off", "-v", "SHOW_CONTEXT=never"),
        env=variables,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )

    async def end() -> None:
        process.kill()
        await process.wait()

    stack.push_async_callback(end)
    return Psql(process)


# Tables


def table(page: str, corner: str) -> list[list[str]]:
    """The rows of the table whose first cell is `corner`, that one included."""
    lines = read(page).partition(f"\n| {corner} |")[2].partition("\n\n")[0].splitlines()
    rows = [f"| {corner} |{lines[0]}", *lines[2:]]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


async def test_row_locks_wait_for_each_other_as_the_table_says(
    a: Connection, b: Connection
) -> None:
    [_, *held], *rows = table("concepts.md", "asks for \\ holds")
    assert len(held) == len(rows) == 4
    await a.execute("create table post as select 1 as id")
    for asked, *cells in rows:
        for holds, cell in zip(held, cells, strict=True):
            async with a.transaction():
                await a.execute(f"select from post for {holds}")
                lock = b.execute(f"select from post for {asked} nowait")
                if cell == "waits":
                    with pytest.raises(asyncpg.LockNotAvailableError):
                        await lock
                else:
                    await lock


# What B asks while A has locked job 2, which is ready, and job 1, of which B has the receipt.
ASKED = {
    "pgq_dequeue": "select id = 3 from pgq_dequeue(1, '1 hour')",
    "pgq_pop": "select id = 3 from pgq_pop(1)",
    "pgq_heartbeat": "select pgq_heartbeat({receipt}, '1 day') < now() + interval '2 hours'",
    "pgq_claim": "select pgq_claim(2) is not null",
    "pgq_complete": "select pgq_complete({receipt})",
    "pgq_fail": "select pgq_fail({receipt}) is not null",
    "pgq_release": "select pgq_release({receipt})",
    "pgq_cancel": "select pgq_cancel(1) is not null",
    "pgq_get": "select id = 1 from pgq_get(1)",
    "pgq_jobs": "select count(*) = 3 from pgq_jobs",
    "pgq_enqueue": "select pgq_enqueue('4') > 3",
}
# How many of the three jobs others can lock FOR KEY SHARE and FOR SHARE beside that lock on one.
FREE = {"none on job 1": [3, 3], "NO KEY UPDATE": [3, 2], "UPDATE": [2, 2]}


async def test_each_call_does_beside_a_row_lock_what_the_picture_shows(
    a: Connection, b: Connection
) -> None:
    rows = re.findall(
        r'((?:<text class="call".*\n\s*)+)<text class="lock".*?>(.+)</text>\s*'
        r'<text class="(?:good|bad)".*?>(.+)</text>',
        read("row-locks.svg"),
    )
    shown = {name: row[1:] for row in rows for name in re.findall(r"pgq_\w+", row[0])}
    assert shown.keys() == ASKED.keys()
    await enqueue(a, 3)
    [receipt] = await dequeue(a)
    assert receipt[0] == 1
    await no_ticks(a)
    for name, template in ASKED.items():
        asked = template.format(receipt="{}, {}".format(*receipt))
        lock, does = shown[name]
        async with rolled_back(b):
            await b.execute(asked)
            free = [
                len(await a.fetch(f"select from pgq.job where id < 4 for {mode} skip locked"))
                for mode in ("key share", "share")
            ]
            assert free == FREE[lock.removesuffix(" SKIP LOCKED")], name
        async with rolled_back(b), rolled_back(a):
            await a.execute("select from pgq.job where id < 3 for update")
            match does:
                case "waits for A":
                    async with started(b.fetchval(asked)) as call:
                        await waiting(a, b, call)
                        await a.execute("rollback; begin")
                        assert await within(call), name
                case "fails with 55P03":
                    with pytest.raises(asyncpg.LockNotAvailableError):
                        await within(b.execute(asked))
                case "goes on" | "takes another job" | "returns the present expiry":
                    assert await within(b.fetchval(asked)), name
                case _:
                    pytest.fail(f"nothing tests {does}")


def test_what_is_said_of_other_queues_has_a_source() -> None:
    rows = re.findall(r"^\| (?!\||-)(.+) \|$", read("comparison.md"), re.MULTILINE)
    names = {re.sub(r"\[(.+?)\]\(.*", r"\1", row.partition(" | ")[0]) for row in rows}
    assert len(names) == 12
    assert len(rows) == 3 * len(names)
    for row in rows:
        for cell in row.split(" | ")[1:]:
            assert re.search(r"\[.+\]\(|^\*none found\*|^jobs$|^messages$|^a log of", cell), row


async def test_the_metrics_to_be_alerted_of_exist(environment: dict[str, str]) -> None:
    run_sql(environment, "create extension pgq")
    command = (sys.executable, "-m", "pgq", "metrics", "--once")
    exposed = await run_program(environment, "", *command)
    metrics = {row[1] for row in table("operations.md", "symptom")}
    named = set(re.findall(r"\bpgq_\w+", " ".join(metrics)))
    assert len(named) > 8
    assert named <= set(re.findall(r"^# TYPE (\w+)", exposed, re.MULTILINE))


# The reference


def test_the_reference_shows_all_that_the_package_exports() -> None:
    shown = re.findall(r"^::: pgq\.(\w+)$", read("reference/python.md"), re.MULTILINE)
    assert sorted(shown) == sorted(pgq.__all__)


@pytest.mark.parametrize("module", ["pgq", "pgq.otel", "pgq.sentry", "pgq.testing", "pytest_pgq"])
def test_all_that_is_public_has_a_docstring(module: str) -> None:
    exported = import_module(module)
    names = getattr(exported, "__all__", [name for name in vars(exported) if name[0] != "_"])
    for name in names:
        found = getattr(exported, name)
        if not inspect.isroutine(found) and not inspect.isclass(found):
            continue  # a type that has got a name
        if not (getattr(found, "__module__", None) or "").startswith(("pgq", "pytest_pgq")):
            continue
        assert found.__doc__, name
        for member, value in vars(found).items():
            function = value.fget if isinstance(value, property) else value
            if member[0] != "_" and inspect.isroutine(function):
                assert inspect.getdoc(getattr(found, member)), f"{name}.{member}"


# The site

WRONG = """
# A page

* [a page](nowhere.md)
* [a heading](index.md#nowhere)
* [a file](../tests/nowhere.py)
* [a test](../tests/python/test_docs.py#test_nowhere)
* [not an address](https://example)
* [not encrypted](http://example.org/)
* <img src="https://example.org/pixel.png">
* ![no image](../tools/docs_hooks.py)
"""


@pytest.mark.constant
def test_wrong_links_and_what_a_browser_would_fetch_are_found(tmp_path: Path) -> None:
    settings = {
        "INHERIT": str(ROOT / "mkdocs.yml"),
        "docs_dir": str(tmp_path / "docs"),
        "site_dir": str(tmp_path / "site"),
        "hooks": [str(ROOT / "tools" / "docs_hooks.py")],
        "plugins": [],
        "nav": ["index.md"],
    }
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(WRONG, encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text(json.dumps(settings), encoding="utf-8")
    # The options of `make docs`: with --quiet, MkDocs counts no warning.
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    [options] = re.findall(r" -m mkdocs (.*)$", makefile, re.MULTILINE)
    command = [sys.executable, "-m", "mkdocs", *options.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    for part in (
        "'nowhere.md'",
        "#nowhere",
        "tests/nowhere.py",
        "#test_nowhere",
        "https://example ",
        "http://example.org/ ",
        "https://example.org/pixel.png",
        "docs_hooks.py/, which is no image",
    ):
        assert any(part in warning for warning in warnings), (part, done.stderr)
