"""Begins the import of a file and shows its progress: python -m examples.bulk_import FILE."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import asyncpg

from .tasks import start


async def main(path: Path) -> None:
    """Print a line twice a second until the import is finished."""
    connection = await asyncpg.connect()
    import_id = await start(connection, path)
    while True:
        [progress] = await connection.fetch(
            "select * from import_progress where id = $1", import_id
        )
        print(f"{progress['loaded']} of {progress['chunks']} chunks, {progress['rows']} rows")
        if progress["finished_at"] is not None:
            break
        await asyncio.sleep(0.5)
    await connection.close()


asyncio.run(main(Path(sys.argv[1]).resolve()))
