"""A request of a user, and what it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from starlette.requests import Request

from pgq._models import JobState
from pgq._operate import when
from pgq._operate.finding import Row
from pgq._operate.search import Filter
from pgq.dashboard._access import User, base_of
from pgq.dashboard._actions import Entry, RefusedError
from pgq.dashboard._live import Live, Snapshot

STATES: Final[tuple[str, ...]] = get_args(JobState)
# The names in URLs and forms of what a filter has.
NAMES: Final = {
    "queue": "queue",
    "task": "task",
    "key": "dedupe_key",
    "group": "group",
    "worker": "worker",
    "text": "text",
    "error": "error",
    "since": "since",
    "until": "until",
}
_EXACT: Final = ("queue", "task", "key", "group", "worker")


@dataclass(slots=True)
class Asked:
    """The filter that a URL or a form names.

    Args:
        wanted: what the jobs are like.
        given: the values as they were written, by their names in URLs; empty where there is none.
        states: those that were named.
        problems: what is wrong with them.
    """

    wanted: Filter
    given: dict[str, str]
    states: list[str]
    problems: list[str] = field(default_factory=list[str])

    @property
    def is_any(self) -> bool:
        """Tell whether nothing is asked for."""
        return not any(self.given.values()) and not self.states


def asked(pairs: Sequence[tuple[str, str]]) -> Asked:
    """Read a filter."""
    given = dict.fromkeys(NAMES, "")
    given |= {name: value for name, value in _cleaned(pairs) if name in NAMES}
    states = [value for name, value in pairs if name == "state" and value in STATES]
    values: dict[str, Any] = {NAMES[name]: value for name, value in given.items() if value}
    named = [value for name, value in pairs if name == "state" and value]
    problems = [f"{value!r} is no state" for value in named if value not in STATES]
    for name in ("since", "until"):
        if name in values:
            try:
                values[name] = when.moment(values[name])
            except ValueError as exc:
                problems.append(f"{name}: {exc}")
                del values[name]
    wanted = Filter(states=tuple(states) or None, **values)
    return Asked(wanted, given, states, problems)


def _cleaned(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the pairs; blanks around a name are part of it, those around other words are not."""
    return [
        (name, clean(value) if name in _EXACT else clean(value).strip()) for name, value in pairs
    ]


def clean(value: str) -> str:
    """Return a text without what the server cannot keep."""
    return value.replace("\0", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A request, by whom, and what is known of the server.

    Args:
        request: as it came.
        user: who has sent it.
        can_act: whether this user may change anything here.
        token: for forms.
        live: what asks the server.
        snapshot: the last look.
        done: the action that led here.
    """

    request: Request
    user: User
    can_act: bool
    token: str
    live: Live
    snapshot: Snapshot
    done: Entry | None

    @property
    def base(self) -> str:
        """Return the path at which the dashboard is mounted."""
        return base_of(self.request)

    @property
    def here(self) -> str:
        """Return the path and query of the page."""
        url = self.request.url
        return url.path + (f"?{url.query}" if url.query else "")

    @property
    def queues(self) -> list[Row]:
        """Return pgq_queues."""
        return self.snapshot.facts.queues

    def may(self, action: str, queue: str) -> bool:
        """Tell whether a button for something in a queue makes sense."""
        has_privilege = self.snapshot.may("manage", queue)  # all actions need that
        return self.can_act and has_privilege and self._is_allowed(action, queue)

    def check(self, action: str, queue: str) -> None:
        """Refuse what the user may not do in a queue; the server knows what the role may."""
        if not self._is_allowed(action, queue):
            raise RefusedError(f"you may not do that in the queue {queue}")

    def _is_allowed(self, action: str, queue: str) -> bool:
        return self.user.may is None or self.user.may(action, queue)

    def may_somewhere(self, action: str, queue: str) -> bool:
        """Tell whether a button makes sense for jobs of a queue, or of any if none is named."""
        names = [queue] if queue else [row["queue"] for row in self.queues]
        return any(self.may(action, name) for name in names)

    def param(self, name: str) -> str:
        """Return a value of the query."""
        return clean(self.request.query_params.get(name, ""))
