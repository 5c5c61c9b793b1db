"""What `pgq worker --health` serves, from threads: a blocked event loop does not stop it."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from http import HTTPStatus

from pgq._cli.web import Answer, Pages
from pgq._worker.health import Health
from pgq._worker.worker import Worker


class Probes:
    """Tells how a worker is.

    Attributes:
        worker: None as long as it is still to be made.
    """

    def __init__(self) -> None:
        self.worker: Worker | None = None

    def health(self) -> Health:
        """Return how the worker is."""
        return Health(status="starting") if self.worker is None else self.worker.health()

    def pages(self) -> Pages:
        """Return the pages; /metrics only where prometheus_client is installed."""
        probes = {
            "/live": partial(self._probe, "is_live"),
            "/ready": partial(self._probe, "is_ready"),
        }
        try:
            from pgq._cli.attempts import measured  # noqa: PLC0415 -- an extra
        except ModuleNotFoundError as exc:
            if exc.name != "prometheus_client":
                raise
            return probes
        return {**probes, "/metrics": measured(self)}

    def _probe(self, question: str) -> Answer:
        health = self.health()
        name = None if self.worker is None else self.worker.name
        told = {**asdict(health), "worker": name}
        return Answer(
            body=f"{json.dumps(told)}\n".encode(),
            content_type="application/json",
            status=HTTPStatus.OK if getattr(health, question) else HTTPStatus.SERVICE_UNAVAILABLE,
        )
