"""Transfers between accounts, each of which happens exactly once."""

from __future__ import annotations

from dataclasses import dataclass

import asyncpg
import pgq


@dataclass(frozen=True)
class Transfer:
    """An amount that goes from one account to another one."""

    source: str
    target: str
    cents: int


@pgq.task("transfers", transaction=True)
async def make_transfer(job: pgq.Job[Transfer], connection: asyncpg.Connection) -> None:
    """Move the money and book it, in the transaction that completes the job."""
    move = job.payload
    try:
        # Always in this order, so that two transfers cannot wait for each other.
        await connection.execute(
            "select from account where id in ($1, $2) order by id for update",
            move.source,
            move.target,
        )
        await connection.execute(
            "insert into transfer (job, source, target, cents) values ($1, $2, $3, $4)",
            job.id,
            move.source,
            move.target,
            move.cents,
        )
        await connection.execute(
            "update account set balance = balance - $2 where id = $1", move.source, move.cents
        )
        await connection.execute(
            "update account set balance = balance + $2 where id = $1", move.target, move.cents
        )
    except asyncpg.IntegrityConstraintViolationError as exc:
        raise pgq.Cancel(str(exc)) from exc  # no money, no such account: all is rolled back
