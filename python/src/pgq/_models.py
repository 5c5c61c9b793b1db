from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, NewType, TypeAlias, TypedDict

from pgq._errors import InvalidArgument, InvalidPayload

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    PayloadT = TypeVar("PayloadT", default=Any)
else:  # a type variable has a default from Python 3.13 on
    from typing import TypeVar

    PayloadT = TypeVar("PayloadT")

JobId = NewType("JobId", int)
"""The id of a job: it grows, and is never used twice."""
Token = NewType("Token", int)
"""The fencing token of one claim of a job: it grows with every claim."""

JobState: TypeAlias = Literal[
    "ready", "scheduled", "waiting", "active", "completed", "dead", "cancelled"
]
"""Where a job is in its life; the last three have ended."""
FailOutcome: TypeAlias = Literal["scheduled", "dead", "cancelled"]
"""What became of a job whose attempt has failed."""
ReceiptState: TypeAlias = Literal["active", "completed", "dead", "cancelled", "lost"]
"""What became of a receipt; "lost": its job goes on, or has ended, without it."""
GroupOnDead: TypeAlias = Literal["continue", "block"]
"""What a group does when a job of it dies: go on, or wait for `Admin.unblock`."""
OnDuplicate: TypeAlias = Literal["keep", "replace", "error"]
"""What an enqueue does with the live job that has its dedupe key."""
AfterOnDead: TypeAlias = Literal["die", "wait", "run"]
"""What a job does when one dies for which it waits: "run" runs when all have ended."""
Missed: TypeAlias = Literal["skip", "once", "all"]
"""How many jobs a schedule adds for the ticks that it has missed."""
Privilege: TypeAlias = Literal["enqueue", "consume", "observe", "manage"]
"""What a role may do with a queue."""


class Receipt(NamedTuple):
    """What a claim hands out and settling it takes back: the job and the token of this claim."""

    id: JobId
    token: Token


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """What stands in a job for JSON that `loads` cannot read, as a number of 5000 digits.

    A worker fails the attempt at such a job, and handles the others that were claimed with it.
    """

    text: str = field(repr=False)
    error: Exception


def readable(name: str, value: PayloadT) -> PayloadT:
    """Return what was read; raises `InvalidPayload` if it could not be."""
    if isinstance(value, Unreadable):
        raise InvalidPayload(f"the {name} cannot be read: {value.error}") from value.error
    return value


@dataclass(frozen=True, kw_only=True)
class Job(Generic[PayloadT]):
    """A job as the server returned it.

    Times are aware and the server's. `token` is None for a job that was popped. In a
    handler that takes a `Job[SendEmail]` the payload is a `SendEmail`, else it is as `loads` read
    it. A payload, checkpoint, result or headers that it cannot read are an `Unreadable`.
    """

    id: JobId
    token: Token | None
    queue: str
    priority: int
    state: JobState
    attempt: int
    max_attempts: int
    payload: PayloadT
    headers: dict[str, Any] | None
    group_key: str | None
    dedupe_key: str | None
    worker: str | None
    enqueued_at: datetime
    run_at: datetime
    claimed_at: datetime | None
    lease_expires_at: datetime | None
    last_error: str | None
    cancel_requested: bool
    checkpoint: Any

    @property
    def receipt(self) -> Receipt:
        """The (id, token) pair of this claim; a popped job has none (`InvalidArgument`)."""
        if self.token is None:
            raise InvalidArgument(
                f"job {self.id} has no receipt: it was popped, or nobody holds it"
            )
        return Receipt(self.id, self.token)


class FailedAttempt(TypedDict):
    """An attempt that has failed, or whose lease was lost; the times are ISO 8601 text."""

    attempt: int
    worker: str | None
    claimed_at: str
    ended_at: str
    error: str | None


@dataclass(frozen=True, kw_only=True)
class JobSnapshot(Job):
    """A job, live or finished, as `Queue.get` saw it.

    `expires_at` is the time by which it has to start, `finished_at` when it ended. `token` is that
    of the claim that holds it, or was the last one of a finished job. `history` has the last ten
    attempts that failed, the oldest first; None if none has. `after` has the first 100 jobs for
    which it still waits, `before` the first 100 that wait for it; None if there are none.
    """

    expires_at: datetime | None
    finished_at: datetime | None
    result: Any
    history: list[FailedAttempt] | None
    after: list[JobId] | None
    before: list[JobId] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A renewed lease: when it runs out, and whether somebody asked to cancel the job."""

    id: JobId
    lease_expires_at: datetime
    cancel_requested: bool


AnyReceipt: TypeAlias = Job[Any] | Receipt | tuple[int, int]


def receipt_of(receipt: AnyReceipt) -> tuple[int, int]:
    """Return the (id, token) pair of a job or of a pair."""
    if isinstance(receipt, Job):
        if receipt.token is None:
            return receipt.receipt  # raises
        return receipt.id, receipt.token
    job_id, token = receipt
    return job_id, token
