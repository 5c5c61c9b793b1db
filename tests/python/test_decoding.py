"""What logical decoding shows of the queue."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pgserver import Server

from .conftest import TEMPLATE, serve
from .test_docs import run_page

KINDS = """
    select string_agg(distinct chr(get_byte(data, 0)), '')
      from pg_logical_slot_get_binary_changes(
               '{name}', null, null, 'proto_version', '1', 'publication_names', '{name}'
           )
"""


@pytest.fixture(scope="module", name="decoded")
def server_that_decodes() -> Iterator[Server]:
    """A server whose log can be decoded."""
    with serve(wal_level="logical") as server:
        yield server


async def test_the_guide_does_what_it_says(decoded: Server) -> None:
    decoded.psql("create database guide")
    names = {"PGDATABASE": "guide", "PYTHONUNBUFFERED": "1"}
    await run_page({**os.environ, **decoded.environment(), **names}, "change-data-capture.md")


def test_a_truncate_of_a_slot_is_published_under_the_name_of_the_slot_alone(
    decoded: Server,
) -> None:
    decoded.psql(f"create database truncates template {TEMPLATE}")

    def psql(sql: str) -> str:
        return decoded.psql(sql, database="truncates")

    for name, via_root in (("of_slots", False), ("of_root", True)):
        options = f"publish = 'insert, truncate', publish_via_partition_root = {via_root}"
        psql(f"create publication {name} for table pgq.job with ({options})")
        psql(f"select pg_create_logical_replication_slot('{name}', 'pgoutput')")
    for turn in range(8):
        psql(f"""
            create or replace function pgq._now() returns timestamptz
            language plpgsql volatile set search_path = pg_catalog, pg_temp
            as $$ begin return clock_timestamp() + interval '{2 * turn} s'; end $$;
        """)
        psql("select pgq_enqueue_many('{1, 2, 3}')")
        psql("select pgq_complete(id, token) from pgq_dequeue(9)")
        psql("set pgq.slot_size = '1'; select pgq_maintain()")
    assert psql(KINDS.format(name="of_slots")) == "BCIRT"
    assert psql(KINDS.format(name="of_root")) == "BCIR"
