"""Some of the faults of `make chaos`, shorter: nothing is lost or done twice, and all goes on."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from pgserver import Server

from tests.chaos.faults import FAULTS
from tests.chaos.stage import run, unharmed

pytestmark = pytest.mark.constant

SCALE = 0.25


@pytest.fixture(scope="module")
def spared() -> Iterator[Server]:
    """The server that no fault hits."""
    with unharmed() as server:
        yield server


@pytest.mark.parametrize("name", ["kill_at_points", "disk_full_wal", "lock_memory", "notify_full"])
async def test_a_fault_loses_and_doubles_nothing(
    spared: Server, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    seed = random.randrange(1, 10**9)
    figures = await run(FAULTS[name].scaled(SCALE), seed, spared)
    with capsys.disabled():
        print(f"\n{name}, seed {seed}: {dict(figures.happened)}")
    assert all(figures.happened.values()), "each part of the fault happened"
    assert figures.at_risk > 0
    assert figures.is_good, figures
