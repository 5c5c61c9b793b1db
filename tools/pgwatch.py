"""Ends one private PostgreSQL and removes its directories as soon as its starter is gone.

Runs as a process of its own, started by `pgserver.py` with a pipe as standard input. The pipe
ends when the starter closes it or dies, whatever the cause, SIGKILL included.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path


def processes(directory: Path) -> Iterator[int]:
    """Yield the ids of the processes that work below a directory, as all of PostgreSQL's do."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cwd").readlink().is_relative_to(directory):
                yield int(entry.name)


def end(directory: Path, *signals: signal.Signals) -> None:
    """Send each signal to what still works below a directory, and give it five seconds to go."""
    for number in signals:
        for pid in processes(directory):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + 5
        while any(processes(directory)) and time.monotonic() < deadline:
            time.sleep(0.02)


def main() -> None:
    """Wait for the end of standard input, then clean up the directories that are the arguments."""
    directories = [Path(argument) for argument in sys.argv[1:]]
    sys.stdin.buffer.read()
    for directory in directories:
        end(directory, signal.SIGQUIT, signal.SIGKILL)
    for directory in directories:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
