"""What a program with a worker is asked for, and what it tells of the jobs that begin.

Its arguments are the address of the database, and for the scenario of draining the width, how many
jobs it may take at once, of how many jobs that begin it tells the last, and of how many groups they
are, if of any.
"""

import itertools
import sys
import time

WIDTH = int(sys.argv[2]) if len(sys.argv) > 2 else None

_step = int(sys.argv[3]) if len(sys.argv) > 3 else 1
_number = itertools.count(1)


def begun() -> None:
    """Tell that a job begins, or let it pass."""
    if next(_number) % _step == 0:
        print(time.monotonic(), flush=True)
