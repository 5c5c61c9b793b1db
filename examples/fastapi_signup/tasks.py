"""The jobs of the application: what the app enqueues and the worker does."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

import pgq

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Welcome:
    """A mail to somebody who has signed up."""

    email: str


@pgq.task("emails", deadline=timedelta(seconds=30))
async def send_welcome(job: pgq.Job[Welcome]) -> str:
    """Send the mail and return its Message-ID, the same one in every attempt."""
    message_id = f"<welcome-{job.id}@example.org>"
    log.info("%s to %s", message_id, job.payload.email)  # your mail server goes here
    return message_id
