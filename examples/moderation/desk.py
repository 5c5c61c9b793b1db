"""What moderators do: take the next posts, open a given one, decide."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, TypeAlias

import asyncpg
import pgq

QUEUE: Final = "moderation"
LEASE: Final = timedelta(minutes=10)

Verdict: TypeAlias = Literal["kept", "removed"]


@dataclass(frozen=True)
class Case:
    """A post on a moderator's desk; the receipt is what a web page would keep in its form."""

    post: int
    body: str
    receipt: pgq.Receipt


class Taken(Exception):  # noqa: N818 it says what happened
    """A moderator has opened the post; who, is not to be seen before that claim is committed."""

    def __init__(self, job: pgq.JobSnapshot | None) -> None:
        if job is not None and job.state == "active":
            super().__init__(f"{job.worker} has the post until {job.lease_expires_at:%H:%M %Z}")
        else:
            super().__init__("somebody has just opened the post")


class TooLate(Exception):  # noqa: N818 it says what happened
    """The lease has run out, and nothing was written."""


async def take(connection: asyncpg.Connection, moderator: str, most: int) -> list[Case]:
    """Return the next posts that nobody has; never waits."""
    jobs = await pgq.Queue(connection, QUEUE).dequeue(most, LEASE, worker=moderator)
    rows = await connection.fetch(
        "select job, id, body from post where job = any ($1)", [job.id for job in jobs]
    )
    posts = {row["job"]: row for row in rows}
    return [Case(posts[job.id]["id"], posts[job.id]["body"], job.receipt) for job in jobs]


async def open_post(connection: asyncpg.Connection, moderator: str, post: int) -> Case:
    """Return one given post; raises `Taken` at once if a moderator has it.

    The connection must not be in a transaction, which the refusal would end.
    """
    row = await connection.fetchrow("select job, body from post where id = $1", post)
    if row is None:
        raise LookupError(f"there is no post {post}")
    queue = pgq.Queue(connection, QUEUE)
    try:
        job = await queue.claim(row["job"], LEASE, worker=moderator)
    except pgq.JobHeld as exc:
        raise Taken(await queue.get(row["job"])) from exc
    return Case(post, row["body"], job.receipt)


async def decide(
    connection: asyncpg.Connection, moderator: str, receipt: pgq.Receipt, verdict: Verdict
) -> None:
    """Write a verdict and end the job, both or neither; raises `TooLate`."""
    async with connection.transaction():
        await connection.execute(
            "update post set verdict = $2, moderator = $3 where job = $1",
            receipt.id,
            verdict,
            moderator,
        )
        if not await pgq.Queue(connection, QUEUE).complete(receipt):
            raise TooLate("somebody else may have the post by now")
