"""Lets faults happen to pgq under load, and prints what became of the jobs.

    PYTHONPATH=tools python -m tests.chaos [--seed N] [--scale 1] [--list] [fault ...]

Without names all faults happen, one after the other. Histories and logs of each are left in
.cache/chaos. The exit status is 1 if a job was lost or done twice, or if a fault did not happen.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterable
from typing import NoReturn

from bootstrap import CACHE

from .faults import FAULTS
from .stage import Figures, run, unharmed

HEAD = (
    "fault",
    "happened",
    "jobs at risk",
    "lost",
    "done twice",
    "tried again",
    "recovered after (s)",
    "rate, after / before",
    "speed, after / before",
)
SLOW = 0.95  # a speed below this is told as lost


def line(cells: Iterable[object]) -> str:
    """Return a row of a table in Markdown."""
    return f"| {' | '.join(map(str, cells))} |"


def row(figures: Figures) -> str:
    """Return the figures as a row of the table."""
    return line(
        (
            f"`{figures.fault}`",
            ", ".join(f"{number:,} {what}" for what, number in figures.happened.items()),
            f"{figures.at_risk:,}",
            f"{figures.lost:,}",
            f"{figures.twice:,}",
            f"{figures.again:,}",
            f"{figures.seconds:.1f}",
            f"{figures.rate:.2f}",
            f"{figures.speed:.2f}" + " (lost)" * (round(figures.speed, 2) < SLOW),
        )
    )


def leave(_number: int, _frame: object) -> NoReturn:
    """End with what was started."""
    sys.exit(1)


def main() -> int:
    """Run what the command line names; return the exit status."""
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(1, 10**9))
    parser.add_argument("--scale", type=float, default=1.0, help="makes all phases longer")
    parser.add_argument("--list", action="store_true", help="print the names of the faults")
    parser.add_argument("fault", nargs="*", choices=[*FAULTS, []], metavar="fault")
    options = parser.parse_args()
    if options.list:
        print(*FAULTS, sep="\n")
        return 0
    print(f"seed {options.seed}", flush=True)
    table: list[Figures] = []
    failed: list[str] = []
    start = time.monotonic()
    signal.signal(signal.SIGTERM, leave)
    with unharmed() as spared:
        for name in options.fault or FAULTS:
            fault = FAULTS[name].scaled(options.scale)
            begun = time.monotonic()
            try:
                figures = asyncio.run(run(fault, options.seed, spared, CACHE / "chaos" / name))
            except Exception:  # noqa: BLE001 -- the other faults go on, and the status tells
                traceback.print_exc()
                failed.append(name)
                continue
            table.append(figures)
            if not figures.is_good:
                failed.append(name)
                print(figures, file=sys.stderr)
            print(f"{row(figures)}  {time.monotonic() - begun:.0f} s", flush=True)
    print(f"\n{len(table)} faults in {(time.monotonic() - start) / 60:.0f} minutes\n")
    print("\n".join([line(HEAD), line(["---"] * len(HEAD)), *map(row, table)]))
    if failed:
        print(f"\nFAILED, with seed {options.seed}: {' '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
