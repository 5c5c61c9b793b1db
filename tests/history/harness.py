"""Runs loads against a server that has pgq, ends them, and reads the final state."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from .final import write_final
from .psql import PATIENCE, Client, ConnectionLostError, SqlError
from .record import Recorder
from .scripts import QUEUES, SOLE

# What the loads of `run` give something to look at.
RULES: Final = (
    *("accounting", "ends", "leases", "tokens", "receipts", "effects", "rollbacks"),
    *("order", "finding", "groups", "limits", "keys", "waits"),
)

Program = Literal["workers", "scripts"]

_ROOT: Final = Path(__file__).resolve().parents[2]
_LEFT: Final = """select count(*) from pgq_jobs
    where state in ('ready', 'scheduled', 'waiting', 'active')"""


def set_up(recorder: Recorder, environment: Mapping[str, str]) -> None:
    """Create the queues of the loads, and the table of their effects."""
    client = Client(recorder, environment)
    client.psql.run("create table effect (job bigint not null)")
    for queue in (*QUEUES, SOLE):
        limit = {"max_active": 3} if queue == "limited" else {}
        backoff = {"backoff_base": "10 ms", "backoff_max": "50 ms"}
        client.configure(queue, create=True, **backoff, **limit)
    client.close()


@dataclass(slots=True)
class Loads:
    """The processes of a run, all of which write into one directory."""

    directory: Path
    environment: Mapping[str, str]

    def start(
        self, program: Program, role: str, name: str, *options: str
    ) -> subprocess.Popen[bytes]:
        """Start a producer or a consumer."""
        command = [sys.executable, "-m", f"tests.history.{program}", role, "--name", name]
        path = str(_ROOT)
        return subprocess.Popen(
            [*command, "--history", str(self.directory), *options],
            env={**self.environment, "PYTHONPATH": path},
            cwd=_ROOT,
        )


@contextlib.contextmanager
def sampling(recorder: Recorder, environment: Mapping[str, str]) -> Generator[None]:
    """Look twice a second who waits for whom, while the block lasts."""
    stop = threading.Event()

    def work() -> None:
        client: Client | None = None
        while not stop.wait(0.5):
            try:
                client = client or Client(recorder, environment)
                client.start_sample().answer()
            except (SqlError, ConnectionLostError):
                client = None
        if client is not None:
            client.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def drain(environment: Mapping[str, str], recorder: Recorder) -> None:
    """Wait until the consumers have ended all jobs."""
    client = Client(recorder, environment)
    deadline = time.monotonic() + PATIENCE
    while client.psql.run(_LEFT) != ["0"]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"jobs are left after {PATIENCE} s")
        time.sleep(0.1)
    client.close()


def run(directory: Path, environment: Mapping[str, str], seed: int, jobs: int) -> None:
    """Run both loads until each has made so many jobs, and all have ended; leave the history."""
    recorder = Recorder(directory, "harness", seed=seed)
    set_up(recorder, environment)
    loads = Loads(directory, environment)
    consumers = [
        loads.start("scripts", "consume", f"c{n}", "--seed", str(seed + n)) for n in (1, 2)
    ]
    consumers += [
        loads.start("scripts", "consume", "sole", "--queue", SOLE, "--seed", str(seed + 3)),
        loads.start("workers", "work", "w1", "--seed", str(seed + 4)),
    ]
    with sampling(recorder, environment):
        made = ["--jobs", str(jobs), "--seed", str(seed + 5)]
        producers = [
            loads.start("scripts", "produce", "p1", *made),
            loads.start("workers", "produce", "p2", *made),
        ]
        statuses = [process.wait(PATIENCE) for process in producers]
        drain(environment, recorder)
    for process in consumers:
        process.send_signal(signal.SIGTERM)
    statuses += [process.wait(PATIENCE) for process in consumers]
    if any(statuses):
        raise RuntimeError(f"a load has failed: {statuses}")
    write_final(recorder, environment)
    recorder.close()
