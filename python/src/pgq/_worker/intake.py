"""The jobs of one queue that a worker holds, and how many more it may claim."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from pgq._queue import Queue
from pgq._worker.config import Consumer
from pgq._worker.held import Held
from pgq._worker.oversized import Blind


@dataclass(slots=True, eq=False)
class Intake:
    """The jobs of one queue that the worker holds."""

    queue: Queue
    blind: Blind  # the same queue
    consumer: Consumer
    backlog: deque[Held] = field(default_factory=deque[Held])
    held: int = 0
    running: int = 0
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    ended: int = 0  # how many jobs it does not hold any more
    is_resting: bool = False  # until the next one ends, or until it is woken
    idle_at: int = -1  # how many jobs of the worker had ended when it last found nothing
    is_gone: bool = False  # the queue was dropped, or the privilege to consume from it revoked
    most: int | None = None  # to claim at once after a claim that was too large; 0: see claim_one

    def room(self) -> int:
        """Return how many jobs to claim now; with a prefetch, not before half of it is gone.

        Jobs whose outcome is still to be written do not count, until it holds twice as many as may
        be at hand.
        """
        most = self.consumer.concurrency + self.consumer.prefetch
        free = min(most - len(self.backlog) - self.running, 2 * most - self.held)
        if free < max(self.consumer.prefetch // 2, 1):
            return 0
        return min(free, self.consumer.batch or free, free if self.most is None else self.most or 1)

    def claimed(self, number: int, room: int) -> None:
        """After a claim that was too large, claim more again when one of fewer has succeeded."""
        if self.most is not None:
            self.most = 2 * self.most or 1
            all_was_read = number < room
            if all_was_read or self.most >= self.consumer.concurrency + self.consumer.prefetch:
                self.most = None
