"""pgq: a job queue inside PostgreSQL. These are its asyncpg bindings and a worker."""

from pgq._errors import (
    DuplicateKey,
    Error,
    InvalidArgument,
    JobHeld,
    LeaseLost,
    NotClaimable,
    NotInstalled,
    NotPermitted,
    NotSupported,
    QueueExists,
    QueueInUse,
    SerializationFailure,
    UnknownJob,
    UnknownQueue,
    WrongTransaction,
)
from pgq._models import (
    FailOutcome,
    GroupOnDead,
    Job,
    JobId,
    JobState,
    Lease,
    OnDuplicate,
    Receipt,
    Token,
)
from pgq._queue import Queue
from pgq._register import register
from pgq._worker import Worker

__all__ = [
    "DuplicateKey",
    "Error",
    "FailOutcome",
    "GroupOnDead",
    "InvalidArgument",
    "Job",
    "JobHeld",
    "JobId",
    "JobState",
    "Lease",
    "LeaseLost",
    "NotClaimable",
    "NotInstalled",
    "NotPermitted",
    "NotSupported",
    "OnDuplicate",
    "Queue",
    "QueueExists",
    "QueueInUse",
    "Receipt",
    "SerializationFailure",
    "Token",
    "UnknownJob",
    "UnknownQueue",
    "Worker",
    "WrongTransaction",
    "register",
]
