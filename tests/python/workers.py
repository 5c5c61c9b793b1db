"""Running workers and acting at chosen moments of theirs, for the tests of faults."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

import pgq
import pytest

from .sessions import within

FAST: Final = timedelta(milliseconds=5)
Moment: TypeAlias = Literal["before", "after"]


@contextlib.asynccontextmanager
async def running(
    worker: pgq.Worker, patience: float = 30.0
) -> AsyncGenerator[asyncio.Task[None], None]:
    """Run the worker for as long as the block lasts, then stop it and wait for its end."""
    task = asyncio.create_task(worker.run(handle_signals=False))
    try:
        yield task
    finally:
        worker.stop()
        await within(task, patience)


class Hook:
    """Acts once, `before` the server is asked or `after` it has answered a method of Queue.

    The first call only prepares its statement before it runs it: the `nth` is acted on.
    """

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        moment: Moment,
        method: str,
        action: Callable[[], object],
        nth: int = 2,
    ) -> None:
        original = getattr(pgq.Queue, method)
        self.calls = 0
        self.nth = nth

        async def hooked(queue: pgq.Queue, *args: Any, **options: Any) -> Any:
            self.calls += 1
            due = self.calls == nth
            if due and moment == "before":
                action()
            answer = await original(queue, *args, **options)
            if due and moment == "after":
                action()
            return answer

        patch.setattr(pgq.Queue, method, hooked)

    @property
    def done(self) -> bool:
        """Whether the action was taken, or is about to be."""
        return self.calls >= self.nth
