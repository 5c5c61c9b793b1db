"""The server with which the speed of the others is compared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pgserver import Server

from tests.chaos.stage import unharmed


@pytest.fixture(scope="session")
def spared() -> Iterator[Server]:
    """A server that nothing hits."""
    with unharmed() as server:
        yield server
