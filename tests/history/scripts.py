"""A load in plain SQL, through psql: producers and consumers, recorded.

    python -m tests.history.scripts produce --history DIR --name p2 --jobs 1000
    python -m tests.history.scripts consume --history DIR --name c1

The variables of libpq say where to, or --dsn. A consumer ends with SIGTERM. Both stand losses of
the connection: they connect again, and use the receipts that they have.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import Any, Final

from .psql import Client, ConnectionLostError, SqlError
from .record import Recorder, load_parser

QUEUES: Final = ("work", "grouped", "limited")
SOLE: Final = "sole"  # has one consumer
GONE: Final = (SqlError, ConnectionLostError)
Job = dict[str, Any]


class Loop:
    """One program with one session after the other; `over` tells when it has done enough."""

    def __init__(self, recorder: Recorder, dsn: str, seed: int) -> None:
        self.recorder = recorder
        self.dsn = dsn
        self.chance = random.Random(seed)
        self.stops = False
        self.client: Client | None = None

    def run(self, step: Callable[[Client], None], over: Callable[[], bool]) -> None:
        """Take steps; what ends one is in the history, and the next one begins afresh."""
        while not over():
            try:
                if self.client is None:
                    self.client = Client(self.recorder, dsn=self.dsn)
                step(self.client)
            except SqlError:
                self._recover()
            except ConnectionLostError:
                self._drop()
                time.sleep(0.05)
        self._drop()

    def _recover(self) -> None:
        """End a transaction block in which a call has failed."""
        assert self.client is not None
        try:
            if self.client.in_transaction:
                self.client.rollback()
        except GONE:
            self._drop()

    def _drop(self) -> None:
        if self.client is not None:
            self.client.close()
        self.client = None


class Producer(Loop):
    """Enqueues in calls and transactions of random size, some of which roll back."""

    def __init__(self, recorder: Recorder, dsn: str, seed: int, jobs: int, pause: float) -> None:
        super().__init__(recorder, dsn, seed)
        self.jobs = jobs
        self.pause = pause
        self.made = 0

    def work(self) -> None:
        """Make all jobs."""
        self.run(self._step, lambda: self.stops or self.made >= self.jobs)

    def _step(self, client: Client) -> None:
        chance = self.chance
        if chance.random() < 0.3:
            client.begin()
            for _ in range(chance.choice([1, 2])):
                self._enqueue(client)
            if chance.random() < 0.3:
                client.rollback()
            else:
                client.commit()
        else:
            ids = self._enqueue(client)
            if chance.random() < 0.05:
                client.start_cancel(chance.choice(ids)).answer()
            elif chance.random() < 0.01:
                client.start_purge("limited", ["ready"]).answer()
        time.sleep(chance.uniform(0, 2 * self.pause))

    def _enqueue(self, client: Client) -> list[int]:
        chance = self.chance
        number = chance.choice([1, 1, 1, 5, 20])
        marks = [f"{self.recorder.process}:{self.made + n}" for n in range(number)]
        self.made += number
        queue = chance.choice((*QUEUES, SOLE))
        ids: list[int] = client.start_enqueue(
            marks,
            queue,
            priority=chance.choice([0, 0, 0, 5]) if queue != "grouped" else 0,
            delay=0.3 if queue == "work" and chance.random() < 0.1 else None,
            groups=[f"g{chance.randrange(5)}" for _ in marks] if queue == "grouped" else None,
            keys=[f"k{chance.randrange(50)}" for _ in marks] if queue == "limited" else None,
        ).answer()
        return ids


class Consumer(Loop):
    """Claims, and does with its receipts whatever a consumer may do, also what it should not."""

    def __init__(self, recorder: Recorder, dsn: str, seed: int, lease: float, queue: str) -> None:
        super().__init__(recorder, dsn, seed)
        self.lease = lease
        self.queues = [queue] if queue else list(QUEUES)
        self.used: list[Job] = []

    def work(self) -> None:
        """Work until it is told to stop."""
        self.run(self._step, lambda: self.stops)

    def _step(self, client: Client) -> None:
        queue = self.chance.choice(self.queues)
        if self.chance.random() < 0.1:
            self._pop(client, queue)
            return
        if self.chance.random() < 0.1:
            self.used += client.start_dequeue(1, 0.001, queue, self.recorder.process).answer()
        batch = self.chance.choice([1, 1, 5])
        jobs = client.start_dequeue(batch, self.lease, queue, self.recorder.process).answer()
        held = {job["id"] for job in jobs}
        for lost in [job for job in self.used if job["id"] in held]:
            self._settle(client, lost)
        for job in jobs:
            self._settle(client, job)
            self.used = [*self.used[-20:], job]
        if self.used and self.chance.random() < 0.1:
            self._settle(client, self.chance.choice(self.used))
        if not jobs:
            time.sleep(0.01)

    def _pop(self, client: Client, queue: str) -> None:
        client.begin()
        for job in client.start_pop(self.chance.choice([1, 3]), queue).answer():
            client.start_effect(job).answer()
        if self.chance.random() < 0.3:
            client.rollback()
        else:
            client.commit()

    def _settle(self, client: Client, job: Job) -> None:
        fate = self.chance.random()
        if fate < 0.6:
            client.begin()
            client.start_effect(job).answer()
            if not client.start_complete([job]).answer() or self.chance.random() < 0.1:
                client.rollback()
            else:
                client.commit()
        elif fate < 0.75:
            client.start_complete([job]).answer()
        elif fate < 0.85:
            client.start_fail(job, retryable=self.chance.random() < 0.8).answer()
        elif fate < 0.9:
            client.start_release(job).answer()
        elif fate < 0.99:
            client.start_heartbeat([job], self.lease).answer()
            client.start_complete([job]).answer()
        # else: nothing, and the lease runs out.


def main() -> None:
    """Run the load that the command line names."""
    parser = load_parser(__doc__, ["produce", "consume"], lease=2.0)
    parser.add_argument("--queue", default="", help="of a consumer; default: all")
    options = parser.parse_args()
    recorder = Recorder(options.history, options.name, program="scripts", seed=options.seed)
    loop: Producer | Consumer
    if options.role == "produce":
        loop = Producer(recorder, options.dsn, options.seed, options.jobs, options.pause)
    else:
        loop = Consumer(recorder, options.dsn, options.seed, options.lease, options.queue)

    def stop(*_: object) -> None:
        loop.stops = True

    signal.signal(signal.SIGTERM, stop)
    loop.work()
    recorder.note("end")
    recorder.close()


if __name__ == "__main__":
    main()
