"""The systems' own workers, which run beside the harness as processes.

A system that brings a worker has a program beside its `system.py`, `worker.py` or `worker.mjs`. It
gets the address of the database as its argument and in the environment, writes the line "ready"
when it runs the worker, and one line for each job: the monotonic clock, which all processes of the
machine share, when the handler starts.
"""

import math
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, final

import bootstrap

from benchmarks import node
from benchmarks.pgbench import BenchmarkError
from benchmarks.scenario import Context, Variant
from benchmarks.stage import Stage
from benchmarks.system import Database

_SYSTEMS = Path(__file__).resolve().parent / "systems"
_PATIENCE = 60.0
_GRACE = 5.0
_READY = "ready"


@final
class Workers:
    """Some processes that do the same."""

    def __init__(self, lines: "queue.SimpleQueue[str]", processes: "Sequence[_Process]") -> None:
        self._lines = lines
        self._processes = processes

    def next_start(self, patience: float = _PATIENCE) -> float:
        """Wait until one of them has begun a job and return when; raises `BenchmarkError`."""
        line = self._next(patience)
        try:
            return float(line)
        except ValueError:
            raise BenchmarkError(f"its worker said: {line}") from None

    def wait_until_ready(self) -> None:
        """Wait until all of them say so; raises `BenchmarkError`."""
        begun: list[str] = []
        for _ in self._processes:
            while (line := self._next(_PATIENCE)) != _READY:
                begun.append(line)
        for line in begun:
            self._lines.put(line)

    def lines(self) -> list[str]:
        """Return the lines that nobody has asked for so far."""
        return [self._lines.get() for _ in range(self._lines.qsize())]

    def _next(self, patience: float) -> str:
        deadline = time.monotonic() + patience
        while (left := deadline - time.monotonic()) > 0:
            with suppress(queue.Empty):
                return self._lines.get(timeout=min(left, 1.0))
            self.check()
        raise BenchmarkError(f"its worker did nothing for {math.ceil(patience)} s")

    def check(self) -> None:
        """Raise `BenchmarkError` if one of them has ended."""
        for process in self._processes:
            process.check()


def program(short: str) -> Path | None:
    """Return the program with a system's own worker, None if there is none."""
    names = ("worker.py", "worker.mjs")
    return next((file for name in names if (file := _SYSTEMS / short / name).exists()), None)


@contextmanager
def running(
    file: Path, database: Database, count: int = 1, *, arguments: Sequence[str] = ()
) -> Generator[Workers, None, None]:
    """Run a program so many times while the block runs."""
    command = [*_interpreter(file), database.dsn, *arguments]
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    with ExitStack() as stack:
        processes = [stack.enter_context(_process(command, database, lines)) for _ in range(count)]
        # All of them at once, before each is waited for.
        for process in processes:
            stack.callback(process.stop)
        workers = Workers(lines, processes)
        workers.wait_until_ready()
        yield workers


@final
class _Process:
    def __init__(self, process: "subprocess.Popen[str]", errors: IO[str]) -> None:
        self._process = process
        self._errors = errors

    def stop(self) -> None:
        self._process.terminate()

    def check(self) -> None:
        if (status := self._process.poll()) is not None:
            self._errors.seek(0)
            raise BenchmarkError(
                f"its worker has ended with status {status}: {first_error(self._errors.read())}"
            )


def first_error(text: str) -> str:
    """Return the line of a traceback that names the error it began with, or else the last one."""
    lines = text.strip().splitlines() or ["without a word"]
    return next((line for line in lines if re.match(r"\S*(Error|Exception)\b", line)), lines[-1])


@contextmanager
def _process(
    command: Sequence[str | Path], database: Database, lines: "queue.SimpleQueue[str]"
) -> Generator[_Process, None, None]:
    """Run a program while the block runs; whatever it has started ends with it."""
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=_environment(database),
            text=True,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdout is not None
        reader = threading.Thread(target=_read, args=(process.stdout, lines), name="worker")
        reader.start()
        try:
            yield _Process(process, errors)
        finally:
            _end(process)
            reader.join()


def _read(output: IO[str], lines: "queue.SimpleQueue[str]") -> None:
    for line in output:
        lines.put(line.strip())


def _end(process: "subprocess.Popen[str]") -> None:
    """Let a worker stop, but not for long; its process group ends with it."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _interpreter(file: Path) -> list[str | Path]:
    if file.suffix == ".mjs":
        return [node.program(), file]
    return [sys.executable, file]


def _environment(database: Database) -> dict[str, str]:
    places = (bootstrap.ROOT, bootstrap.ROOT / "tools", bootstrap.ROOT / "python" / "src")
    return {
        **database.environment(),
        "PEERS": str(bootstrap.PEERS),
        "PYTHONPATH": os.pathsep.join(map(str, places)),
    }


def script(context: Context, stage: Stage) -> str:
    """Return the statements that enqueue one job for a system's worker.

    They are those of the scenario `enqueue_one`, unless `wake` has others.
    """
    variant = Variant(name="")
    text = context.script(stage, variant, scenario="wake") or context.script(
        stage, variant, scenario="enqueue_one"
    )
    if text is None:
        raise BenchmarkError("it has no script that enqueues one job")
    return text
