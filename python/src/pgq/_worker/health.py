"""How a worker is, for probes and whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

HealthStatus: TypeAlias = Literal[
    "starting", "ok", "full", "database lost", "stopping", "loop blocked"
]
STATUSES: Final[tuple[HealthStatus, ...]] = get_args(HealthStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How a worker is, as `Worker.health` found it.

    Attributes:
        status: of these the last one that is true: "starting", or not running; "ok"; "full", it
            holds as many jobs of each queue as it may; "database lost", the server has not
            answered since a call failed; "stopping"; "loop blocked", its event loop has not
            answered for 5 seconds.
        seconds: for how long that has been so; while it is full, since a job last came or ended.
            0 while it is none of "full", "database lost" and "loop blocked".
        jobs: how many it holds.
    """

    status: HealthStatus
    seconds: float = 0.0
    jobs: int = 0

    @property
    def is_live(self) -> bool:
        """Whether it can help itself; if not, it is to be killed."""
        return self.status != "loop blocked"

    @property
    def is_ready(self) -> bool:
        """Whether it can work; one that is full can."""
        return self.status in ("ok", "full")
