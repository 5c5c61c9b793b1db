"""The application of docs/application.md does what the page says."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pgq
import pytest

from .cli_session import SCRIPT, running, variables
from .pages import read, snippets
from .programs import run_program
from .sessions import Connection, until

pytestmark = pytest.mark.once
PAGE = read("docs/application.md")
PLACE = """
import asyncio, sys
import asyncpg
from shop.orders import place

async def main():
    async with asyncpg.create_pool(min_size=1) as pool:
        for cents in sys.argv[1:]:
            await place(pool, int(cents))

asyncio.run(main())
"""

Shell: TypeAlias = Callable[..., str]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A directory with the files of the page."""
    files = re.findall(r"^```\w+\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for name, text in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def run(dsn: dict[str, Any], shop: Path) -> Shell:
    """Runs a program there, and returns what it prints."""
    path = f"{SCRIPT.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **variables(dsn), "PATH": path, "COLUMNS": "200"}
    environment.pop("PGQ_TEST_DSN", None)

    def run(*command: str) -> str:
        return run_program(*command, cwd=shop, env=environment)

    return run


async def test_the_shop_of_the_page_works(
    dsn: dict[str, Any], connection: Connection, run: Shell, shop: Path
) -> None:
    setup, mend = snippets(PAGE, "sh")
    [worker] = re.findall(r"^\$ pgq (worker .*)$", PAGE, re.MULTILINE)
    run("sh", "-ec", setup)
    await connection.execute("select pgq_configure_queue('payments', max_attempts => 1)")
    run(sys.executable, "-c", PLACE, "1999", "100001")

    async def states(queue: str) -> list[str]:
        rows = await connection.fetch(
            "select state from pgq_jobs where queue = $1 order by id", queue
        )
        return [row["state"] for row in rows]

    async def are_done() -> bool:
        return (await states("payments"), await states("orders")) == (
            ["completed", "dead"],
            ["completed", "waiting"],
        )

    reports = pgq.Queue(connection, "reports")

    async def is_added_up() -> bool:
        return await states("reports") == ["completed"]

    async with running(dsn, *worker.split(), cwd=shop) as process:
        await until(are_done)
        job_id = await reports.enqueue(None)
        await until(is_added_up)
        assert await process.terminated() == 0
    job = await reports.get(job_id)
    assert job is not None
    assert (job.checkpoint, job.result) == ({"last": 1, "cents": 1999}, 1999)

    output = run("sh", "-ec", mend)
    assert "the bank does not answer" in output
    assert "1 job is ready again" in output
    assert await states("payments") == ["completed", "ready"]
    assert await states("orders") == ["completed", "waiting"]


def test_the_tests_of_the_page_pass(run: Shell) -> None:
    output = run(sys.executable, "-m", "pytest", "-q", "-W", "error")
    assert "3 passed" in output


@pytest.mark.constant
def test_the_types_of_the_page_are_right(run: Shell) -> None:
    assert "no issues found in 6 source files" in run(
        sys.executable, "-m", "mypy", "--strict", "-p", "shop"
    )
