"""Explores interleavings of calls on private servers: see README.md beside this file.

python -m tests.explore [--pairs] [--triples] [--random N] [--seed N] [--part 1/4] ...
python -m tests.explore --replay FILE
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pgserver import Server

from . import plans
from .coverage import Coverage
from .describe import tell
from .driver import explore, smallest
from .scenario import Scenario
from .schedule import Run
from .stage import SETTINGS, prepared

ENDS = {
    "commit": [["commit"]],
    "rollback": [["rollback"]],
    "unusual": plans.UNUSUAL_ENDS,
}


def scenarios(options: argparse.Namespace) -> Iterator[Scenario]:
    """Yield what is to be run."""
    if options.pairs:
        ends = [end for name in options.ends.split(",") for end in ENDS[name]]
        yield from plans.pairs(ends, options.begin, options.second.split(","))
    if options.triples:
        yield from plans.triples()
    chance = random.Random(options.seed)
    for _ in range(options.random):
        yield plans.chance(chance)


def chosen(options: argparse.Namespace) -> Iterator[Scenario]:
    """Yield what is left of it by --only and --part."""
    number, of = (int(word) for word in options.part.split("/"))
    words: list[str] = options.only.split(",") if options.only else []
    wanted = (
        scenario for scenario in scenarios(options) if all(word in str(scenario) for word in words)
    )
    return itertools.islice(itertools.islice(wanted, number - 1, None, of), options.skip, None)


async def main(arguments: Sequence[str]) -> int:
    """Explore what the arguments say, and report faults and coverage."""
    parser = argparse.ArgumentParser(prog="python -m tests.explore", description=__doc__)
    parser.add_argument("--pairs", action="store_true", help="all schedules of every pair")
    parser.add_argument("--triples", action="store_true", help="two calls while a third one holds")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="so many by chance")
    parser.add_argument("--seed", type=int, default=random.randrange(1, 10**9))
    parser.add_argument(
        "--ends", default="commit,rollback", help="of the first one: " + str([*ENDS])
    )
    parser.add_argument("--second", default="commit", help="ends of the second one")
    parser.add_argument("--begin", default="begin", choices=plans.BEGINS, help="of the first one")
    parser.add_argument("--only", default="", help="scenarios with all of these words")
    parser.add_argument("--part", default="1/1", help="each so manieth scenario")
    parser.add_argument("--skip", type=int, default=0, help="not the first so many of these")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--faults", type=int, default=5, help="stop after so many")
    parser.add_argument("--version", type=int, help="of PostgreSQL")
    parser.add_argument("--replay", type=Path, help="a file with one scenario")
    options = parser.parse_args(arguments)
    if options.replay is None and not (options.pairs or options.triples or options.random):
        options.pairs = options.triples = True
        options.random = 2000
    print(f"--seed {options.seed}", flush=True)
    wanted = chosen(options)
    if options.replay is not None:
        wanted = iter([Scenario.parse(options.replay.read_text(encoding="utf-8"))])
    coverage = Coverage()
    faults: dict[str, Run] = {}
    begun = time.monotonic()
    with Server(options.version, SETTINGS) as server, prepared(server):
        chance = random.Random(options.seed)
        runs = explore(server, wanted, chance, seconds=options.seconds)
        async with contextlib.aclosing(runs):
            async for run in runs:
                coverage.add(run)
                if coverage.schedules % 500 == 0:
                    told = f"{coverage.schedules:,} schedules, {time.monotonic() - begun:.0f} s"
                    print(told, flush=True)
                if run.fault is None or run.fault.kind in faults:
                    continue
                faults[run.fault.kind] = small = await smallest(server, run)
                print(tell(small), flush=True)
                if len(faults) >= options.faults:
                    break
    print("\n".join(coverage.report()))
    print(f"{len(faults)} faults, {time.monotonic() - begun:.0f} s, --seed {options.seed}")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(sys.argv[1:])))
