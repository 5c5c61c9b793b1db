"""What a handler returns or raises, other than a result or an error."""

# ruff: noqa: N818 (they are not errors)

from __future__ import annotations

from datetime import timedelta
from types import NoneType

from pgq._errors import expect


class Outcome(Exception):
    """Base of what a handler may return or raise besides a result and an error."""


class Retry(Outcome):
    """Try the job again: the attempt counts, and after the last one the job is dead.

    Args:
        in_: when; None (the default) backs off as the queue is configured.
        reason: kept as the job's `last_error`.

    Raises:
        TypeError: in_ is no timedelta.
        ValueError: it is negative.
    """

    def __init__(self, reason: str | None = None, *, in_: timedelta | None = None) -> None:
        expect("in_", in_, timedelta, NoneType)
        if in_ is not None and in_ < timedelta(0):
            raise ValueError("in_ must not be negative")
        super().__init__(reason)
        self.reason = reason
        self.in_ = in_


class Snooze(Outcome):
    """Give the job back for a while: the attempt does not count.

    Args:
        for_: not to be claimed again before.

    Raises:
        TypeError: for_ is no timedelta.
        ValueError: it is negative.
    """

    def __init__(self, for_: timedelta) -> None:
        expect("for_", for_, timedelta)
        if for_ < timedelta(0):
            raise ValueError("for_ must not be negative")
        super().__init__(for_)
        self.for_ = for_


class GiveUp(Outcome):
    """End the job as dead, whatever attempts are left.

    Args:
        reason: kept as the job's `last_error`; "GiveUp" if there is none.
    """

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason


class Cancel(Outcome):
    """End the job as cancelled, whatever attempts are left.

    Args:
        reason: kept as the job's `last_error`.
    """

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason


class Settled(Outcome):
    """The handler has settled the job itself, on a connection of its own.

    It has completed, failed or released the job, as in the transaction of an ORM's session. The
    worker writes nothing then, and hooks are not called. If the job was not settled after all, its
    lease runs out and the attempt counts. A handler with `transaction` must not settle its job.
    """
