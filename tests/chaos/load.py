"""The load of a run: its processes, and how many jobs they get through."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, final

from pgserver import PATIENCE

from tests.python.sessions import Dsn

ROOT: Final = Path(__file__).resolve().parents[2]
RATE: Final = 10.0
"""Jobs that a producer adds in a second."""


@final
class Load:
    """Two producers, two workers and a consumer that is psql, each a process of its own.

    Args:
        dsn: how they connect.
        environment: has psql in its PATH.
        directory: gets their histories, and what they print.
    """

    def __init__(self, dsn: Dsn, environment: Mapping[str, str], directory: Path) -> None:
        self._dsn = json.dumps(dsn)
        self._environment = {**environment, "PYTHONPATH": f"{ROOT}:{ROOT / 'tools'}"}
        self._directory = directory
        self._numbers = itertools.count(1)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start everything."""
        for role in ("produce", "produce", "work", "work", "consume"):
            self.add(role)

    def add(self, role: str, rate: float = RATE) -> str:
        """Start one process, and return its name, which none had before."""
        name = f"{role}{next(self._numbers)}"
        command = [sys.executable, "-m", "tests.chaos.client", role, name]
        with (self._directory / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [*command, self._directory, self._dsn, str(rate)],
                env=self._environment,
                cwd=self._directory,
                stderr=log,
            )
        return name

    def names(self, role: str) -> list[str]:
        """Return the processes of a role, the oldest first."""
        return [name for name in self.processes if name.startswith(role)]

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process."""
        self.processes[name].send_signal(number)

    def end(self, *names: str) -> None:
        """Tell processes to end, and wait until they have; they must not fail."""
        for name in names:
            self.processes[name].terminate()
        for name in names:
            status = self.processes.pop(name).wait(PATIENCE)
            assert status == 0, f"{name} has ended with {status}:\n{self._log(name)}"

    def check(self) -> None:
        """Fail if a process has ended by itself."""
        for name, process in self.processes.items():
            status = process.poll()
            assert status is None, f"{name} has ended with {status}:\n{self._log(name)}"

    def answers(self) -> dict[str, int]:
        """Return how many answers each process has got."""
        files = {name: self._directory / f"{name}.jsonl" for name in self.processes}
        return {
            name: file.read_bytes().count(b'"answer"') if file.exists() else 0
            for name, file in files.items()
        }

    def close(self) -> None:
        """Kill what is left."""
        for name in [*self.processes]:
            self.kill(name)

    def _log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text(encoding="utf-8")[-3000:]
