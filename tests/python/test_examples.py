"""The examples do what their pages say, also when their processes are killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import httpx
import pytest
from pgserver import Server

from examples.fastapi_signup import app as signups
from examples.fastapi_signup import worker as mailer

from .sessions import Connection, until, within

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0

Install: TypeAlias = Callable[[str], None]


@pytest.fixture(autouse=True)
def environment(server: Server, dsn: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lead all that connects without an address to the test's database."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PGDATABASE", dsn["database"])


@pytest.fixture
def install(server: Server, dsn: dict[str, Any]) -> Install:
    """Makes the tables of an example."""

    def run(example: str) -> None:
        server.psql(read(example, "schema.sql"), dsn["database"])

    return run


def read(example: str, file: str) -> str:
    return (ROOT / "examples" / example / file).read_text(encoding="utf-8")


def commands(example: str, number: int = 0) -> str:
    """Return one of the shell scripts of an example's page."""
    scripts: list[str] = re.findall(
        r"^```sh\n(.*?)^```$", read(example, "README.md"), re.MULTILINE | re.DOTALL
    )
    return scripts[number]


@contextlib.asynccontextmanager
async def running(*command: str) -> AsyncGenerator[Process, None]:
    """Run a command as long as the block lasts, then end it and all that it has started."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=STDOUT, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        await within(process.communicate(), PATIENCE)


async def output(*command: str) -> str:
    async with running(*command) as process:
        text, _ = await within(process.communicate(), PATIENCE)
        return text.decode()


@contextlib.asynccontextmanager
async def at_work(module: Any) -> AsyncGenerator[None, None]:
    """Run the main() of an example's worker as long as the block lasts."""
    main = asyncio.create_task(module.main())
    try:
        yield
    finally:
        module.worker.stop()
        await within(main, PATIENCE)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# The web application


async def test_a_signup_and_its_mail_are_one(
    install: Install, pool: asyncpg.Pool[Any], connection: Connection
) -> None:
    install("fastapi_signup")
    ada = {"email": "ada@example.org"}
    transport = httpx.ASGITransport(app=signups.app)
    async with (
        signups.lifespan(signups.app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        accepted = await client.post("/signups", json=ada)
        assert accepted.status_code == 202
        progress = f"/signups/{accepted.json()['id']}"
        assert (await client.get(progress)).json() == {
            "state": "ready",
            "message_id": None,
            "last_error": None,
        }
        refused = await client.post("/signups", json=ada)
        assert refused.status_code == 409
        jobs = await connection.fetchval("select count(*) from pgq_jobs")
        assert jobs == 1, "that of the second signup is gone with it"

        await mailer.worker.run_until_idle(pool)
        done = (await client.get(progress)).json()
        assert (done["state"], done["message_id"]) == ("completed", "<welcome-1@example.org>")
        unknown = "/signups/00000000-0000-0000-0000-000000000000"
        assert (await client.get(unknown)).status_code == 404


async def test_the_web_application_and_its_worker_run(install: Install) -> None:
    port = str(free_port())
    url = f"http://127.0.0.1:{port}/signups"
    script = commands("fastapi_signup").replace("8000", port)
    async with running("sh", "-c", script), httpx.AsyncClient() as client:

        async def accepted() -> str | None:
            with contextlib.suppress(httpx.ConnectError):
                answer = await client.post(url, json={"email": "ada@example.org"})
                return str(answer.json()["id"])
            return None

        signup = await until(accepted, PATIENCE, 0.1)

        async def sent() -> bool:
            return bool((await client.get(f"{url}/{signup}")).json()["state"] == "completed")

        await until(sent, PATIENCE)
