"""Runs the command line: in this process, or its console script in another one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from click.testing import CliRunner, Result
from pgq._cli.main import cli

from .sessions import within

SCRIPT = Path(sys.executable).with_name("pgq")


def variables(dsn: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of libpq that lead to a database."""
    return {
        "PGHOST": str(dsn["host"]),
        "PGPORT": str(dsn["port"]),
        "PGUSER": str(dsn["user"]),
        "PGPASSWORD": str(dsn["password"]),
        "PGDATABASE": str(dsn["database"]),
        "TMPDIR": str(dsn["host"]),  # what programs leave when they are killed goes with the server
    }


def url_of(dsn: Mapping[str, Any], **changed: str) -> str:
    """Return the URL of a database, for --dsn."""
    place = {**dsn, **changed}
    query = urlencode({name: place[name] for name in ("host", "port", "user")})
    return f"postgresql:///{place['database']}?{query}"


@dataclass
class Cli:
    """The command line on one database, in this process."""

    environment: Mapping[str, str]

    def run(self, *args: str, stdin: str | bytes | None = None) -> Result:
        """Run a command."""
        return CliRunner().invoke(cli, args, input=stdin, env=self.environment, prog_name="pgq")

    def ok(self, *args: str, stdin: str | bytes | None = None) -> str:
        """Run a command that must succeed, and return what it prints."""
        result = self.run(*args, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *args: str, stdin: str | bytes | None = None) -> Any:
        """Run a command with --json that must succeed, and return what it prints."""
        return json.loads(self.ok(*args, "--json", stdin=stdin))

    def fails(self, status: int, *args: str, stdin: str | bytes | None = None) -> str:
        """Run a command that must fail with a status and one line, and return the line."""
        result = self.run(*args, stdin=stdin)
        assert result.exit_code == status, result.output
        assert "Traceback" not in result.output
        return result.stderr


@dataclass
class Running:
    """A console script that runs, and the lines that it has written to stderr."""

    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list[str])

    async def until(self, condition: Callable[[str], object]) -> str:
        """Wait for a line on stderr, and return it."""
        assert self.process.stderr is not None
        while True:
            raw = await within(self.process.stderr.readline())
            assert raw, "".join(self.lines)
            self.lines.append(raw.decode())
            if condition(self.lines[-1]):
                return self.lines[-1]

    async def logged(self, pattern: str) -> dict[str, Any]:
        """Wait for a line of a JSON log that a pattern is found in, and return what it holds."""
        fields: dict[str, Any] = json.loads(await self.until(lambda line: re.search(pattern, line)))
        return fields

    async def ended(self) -> int:
        """Wait for the end, and return the exit status."""
        assert self.process.stderr is not None
        rest = await within(self.process.stderr.read())
        self.lines += rest.decode().splitlines()
        return await within(self.process.wait())

    async def terminated(self) -> int:
        """Send SIGTERM, wait for the end, and return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return await self.ended()


@contextlib.asynccontextmanager
async def running(
    dsn: Mapping[str, Any], *args: str, cwd: Path | None = None
) -> AsyncGenerator[Running]:
    """Start the console script; on leaving, it is killed if it still runs."""
    process = await asyncio.create_subprocess_exec(
        SCRIPT,
        *args,
        env={**os.environ, **variables(dsn)},
        cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Running(process)
    finally:
        if process.returncode is None:
            process.kill()
        await within(process.communicate())
