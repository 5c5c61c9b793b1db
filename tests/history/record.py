"""Writes the history of a process: what it asked, what it was told. The README has the format."""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from pathlib import Path
from typing import Any


class Recorder:
    """An append-only file of JSON lines; each is in the file before `call` or `answer` returns.

    So a process that is killed leaves all that it had asked. Threads may share a recorder.
    """

    def __init__(self, directory: Path, process: str, **facts: Any) -> None:
        self.process = process
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._file = os.open(directory / f"{process}.jsonl", flags, 0o644)
        self._lock = threading.Lock()
        self._calls = 0
        self._sessions = 0
        self.note("process", pid=os.getpid(), **facts)

    def session(self) -> str:
        """Return a name for a new connection, which no other file uses."""
        with self._lock:
            self._sessions += 1
            return f"{self.process}.{self._sessions}"

    def call(self, do: str, args: dict[str, Any], session: str, tx: int | None = None) -> int:
        """Write that a call is about to be sent, and return its number for the answer.

        Args:
            do: what it does, a name of the README.
            args: the arguments that matter.
            session: the connection, as `session` named it.
            tx: the number of the transaction block in that session; None outside of one.
        """
        with self._lock:
            self._calls += 1
            number = self._calls
        line: dict[str, Any] = {"n": number, "do": do, "args": args, "session": session}
        self._write(line if tx is None else {**line, "tx": tx})
        return number

    def answer(self, number: int, answer: Any) -> None:
        """Write what the server answered to a call."""
        self._write({"n": number, "answer": answer})

    def error(self, number: int, sqlstate: str) -> None:
        """Write the SQLSTATE with which the server refused a call."""
        self._write({"n": number, "error": sqlstate})

    def lost(self, number: int) -> None:
        """Write that no answer to a call will come: nobody knows whether it was done."""
        self._write({"n": number, "lost": True})

    def note(self, kind: str, **facts: Any) -> None:
        """Write something else than a call: a fault, a sample, a row of the final state."""
        self._write({"note": kind, **facts})

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, line: dict[str, Any]) -> None:
        text = json.dumps({"at": time.monotonic_ns(), **line}, separators=(",", ":"))
        os.write(self._file, f"{text}\n".encode())


def load_parser(
    description: str | None, roles: list[str], *, lease: float
) -> argparse.ArgumentParser:
    """Return a parser of what all loads take; `lease` is the default of that option."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("role", choices=roles)
    parser.add_argument("--history", type=Path, required=True, help="the directory")
    parser.add_argument("--name", required=True, help="of the process, and of its file")
    parser.add_argument("--dsn", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--pause", type=float, default=0.005, help="seconds between two calls")
    parser.add_argument("--lease", type=float, default=lease, help="seconds")
    return parser
