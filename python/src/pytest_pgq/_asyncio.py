"""The pool in a loop of pytest-asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest_asyncio

if TYPE_CHECKING:
    import asyncpg
    from pgq._databases import Databases


@pytest_asyncio.fixture
async def _pgq_pool_asyncio(
    _pgq_databases: Databases, pgq_dsn: str
) -> AsyncIterator[asyncpg.Pool[Any]]:
    async with _pgq_databases.open_pool(pgq_dsn) as pool:
        yield pool
