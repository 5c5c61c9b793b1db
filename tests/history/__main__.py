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

# Backlog, what is held, and how many jobs pass. What a dump has held up takes some seconds more.
CASES: Final = (
    ("none", "horizon", 50_000),
    ("none", "dump", 100_000),
    ("paused", "horizon", 100_000),
    ("paused", "dump", 250_000),
    ("leased", "horizon", 100_000),
    ("leased", "dump", 250_000),
    ("scheduled", "horizon", 100_000),
    ("grouped", "horizon", 100_000),
)

# Two seconds pass before cleaning begins, and again before it goes on with the next slots. The
# slack is eight slots, so a slot must not be full much sooner than in a second: ten batches.
PACE: Final = {"horizon": 0.08, "dump": 0}


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
    for kind, hold, traffic in CASES:
        load = size.Load(backlog=20_000, traffic=traffic, slot_size=1 << 20, pace=PACE[hold])
        databases = [f"{kind}_{hold}", f"{kind}_{hold}_fresh"]
        for database in databases:
            server.psql(f"create database {database}")
            server.psql("create extension pgq", database)
        environments = [{**server.environment(), "PGDATABASE": name} for name in databases]
        place = directory / databases[0]
        place.mkdir()
        recorder = Recorder(place, "size")
        size.run(recorder, *environments, kind=kind, hold=hold, load=load)
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
