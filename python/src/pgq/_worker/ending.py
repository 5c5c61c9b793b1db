"""What an attempt has ended with, in a word, for those who instrument it."""

from __future__ import annotations

import asyncio
from typing import Final

from pgq._outcomes import Cancel, Retry, Settled, Snooze
from pgq._worker.handle import NotBegun, RolledBack

# What becomes of a job by what its handler raised, and the type of error.
_RAISED: Final[dict[type[Exception], tuple[str, str | None]]] = {
    Retry: ("retried", None),
    Snooze: ("snoozed", None),
    Cancel: ("cancelled", None),
    Settled: ("settled", None),
    RolledBack: ("lost", "LeaseLost"),
    NotBegun: ("released", None),
}
# The same for a handler that the worker has cancelled, by the reason.
_CANCELLED: Final[dict[str | None, tuple[str, str | None]]] = {
    "deadline": ("failed", "TimeoutError"),
    "lost": ("lost", "LeaseLost"),
    "cancel": ("cancelled", None),
    "abort": ("released", None),
}


def ending(end: object) -> tuple[str, str | None]:
    """Return what becomes of a job, by what its handler returned or raised; the type of error."""
    if not isinstance(end, BaseException):
        return "completed", None
    for kind, found in _RAISED.items():
        if isinstance(end, kind):
            return found
    return _CANCELLED.get(_reason(end), ("failed", type(end).__qualname__))


def _reason(error: BaseException | None) -> str | None:
    """Return why the worker has cancelled a handler; None if it was not the worker."""
    if not isinstance(error, asyncio.CancelledError):
        return None
    return str(error.args[0]) if error.args else _reason(error.__context__)
