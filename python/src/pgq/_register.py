from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncpg


async def register(connection: asyncpg.Connection[Any]) -> None:
    """Make json and jsonb values of a connection Python objects: `create_pool(init=register)`.

    It is a convenience for the caller's own statements. `Queue` and `Worker` do not need it, and
    work the same beside any other json codec.

    Args:
        connection: the connection to set up.
    """
    for name in ("json", "jsonb"):
        await connection.set_type_codec(
            name, schema="pg_catalog", encoder=json.dumps, decoder=json.loads
        )
