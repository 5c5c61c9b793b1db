"""A long run on a private server: loads, sizes, the judge. `make history`.

    PYTHONPATH=tools python -m tests.history [--seed N] [--jobs N] [--keep DIRECTORY] [--no-sizes]

Prints the seed; the loads of the same seed ask the same, though the server may answer otherwise.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from pgserver import Server

from . import harness, size
from .record import Recorder

LOAD: Final = size.Load(backlog=2000, traffic=20_000, slot_size=1 << 17)
# Backlog, and what is held.
CASES: Final = (
    ("none", "horizon"),
    ("none", "dump"),
    ("paused", "horizon"),
    ("paused", "dump"),
    ("leased", "horizon"),
    ("leased", "dump"),
    ("scheduled", "horizon"),
    ("grouped", "horizon"),
)


def judge(directory: Path, *options: str) -> int:
    """Run the judge, which is a program of its own."""
    command = [sys.executable, "-m", "tests.history.judge", str(directory), *options]
    return subprocess.run(command, check=False).returncode


def run_loads(server: Server, directory: Path, seed: int, jobs: int) -> int:
    """Run the loads and judge them; every rule must have had something to look at."""
    server.psql("create extension pgq")
    harness.run(directory, server.environment(), seed, jobs)
    return judge(directory, "--expect", ",".join(harness.RULES))


def run_sizes(server: Server, directory: Path) -> int:
    """Measure the sizes in all cases, and judge them; return how many are beyond the bound."""
    failed = 0
    for kind, hold in CASES:
        databases = [f"{kind}_{hold}", f"{kind}_{hold}_fresh"]
        for database in databases:
            server.psql(f"create database {database}")
            server.psql("create extension pgq", database)
        environments = [{**server.environment(), "PGDATABASE": name} for name in databases]
        place = directory / databases[0]
        place.mkdir()
        recorder = Recorder(place, "size")
        size.run(recorder, *environments, kind=kind, hold=hold, load=LOAD)
        recorder.close()
        print(f"\nbacklog {kind}, held by {hold}", flush=True)
        failed += judge(place) != 0
    return failed


def main() -> int:
    """Run all, and return 1 if a rule is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(1, 10**9))
    parser.add_argument("--jobs", type=int, default=5_000, help="of each of two producers")
    parser.add_argument("--keep", type=Path, help="a new directory for the histories")
    parser.add_argument("--no-sizes", action="store_true", help="only the loads")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as scratch, Server(settings={"fsync": "off"}) as server:
        directory: Path = options.keep or Path(scratch)
        (directory / "loads").mkdir(parents=True)
        failed = run_loads(server, directory / "loads", options.seed, options.jobs)
        if not options.no_sizes:
            failed += run_sizes(server, directory)
    print(f"seed {options.seed}: {'failed' if failed else 'ok'}", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
