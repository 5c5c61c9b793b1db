"""Tells receivers about events: what the application calls, and what the worker does."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final

import httpx
import pgq

LONGEST_PAUSE: Final = timedelta(hours=1)

client: ContextVar[httpx.AsyncClient] = ContextVar("client")  # the worker's, for all deliveries


@dataclass(frozen=True)
class Delivery:
    """An event on its way to one receiver."""

    receiver: int
    url: str
    event: str
    data: dict[str, Any]


@pgq.task("webhooks", deadline=timedelta(seconds=30))
async def deliver(job: pgq.Job[Delivery]) -> int:
    """Post an event; by the webhook-id the receiver knows a delivery that it has seen before."""
    delivery = job.payload
    response = await client.get().post(
        delivery.url,
        json={"event": delivery.event, "data": delivery.data},
        headers={"webhook-id": str(job.id)},
    )
    if response.status_code == HTTPStatus.GONE:
        raise pgq.Cancel("410: the receiver wants no more")
    if response.status_code == HTTPStatus.TOO_MANY_REQUESTS:
        raise pgq.Retry("429: the receiver is busy", in_=_retry_after(response))
    response.raise_for_status()
    return response.status_code


async def publish(
    connection: pgq.Connection, event: str, data: dict[str, Any]
) -> list[pgq.JobHandle[int]]:
    """Enqueue an event for all receivers, in the transaction that made it.

    What goes to one receiver is a group: it arrives in order, also after retries, and a receiver
    that does not answer holds up nobody else.
    """
    rows = await connection.fetch("select id, url from receiver")
    return await deliver.enqueue_many(
        [Delivery(row["id"], row["url"], event, data) for row in rows],
        connection=connection,
        group_key=lambda delivery: str(delivery.receiver),
    )


def _retry_after(response: httpx.Response) -> timedelta | None:
    """Return the pause that was asked for in seconds; None leaves it to the queue's backoff."""
    try:
        seconds = int(response.headers["retry-after"])
    except (KeyError, ValueError):
        return None
    return min(timedelta(seconds=max(seconds, 0)), LONGEST_PAUSE)
