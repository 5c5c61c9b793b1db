"""The comparison of catalogs, by which dumps and upgrades are judged, sees what it has to."""

from __future__ import annotations

from typing import Any

import pytest
from pgserver import Server

from .catalog import describe, differences
from .conftest import TEMPLATE

# Each with the kinds of lines that must differ then.
pytestmark = pytest.mark.extension

CHANGES = {
    "create index on pgq.schedule (next_at)": {"index"},
    "alter table pgq.schedule add note text": {"column"},
    "alter table pgq.schedule alter paused drop default": {"column"},
    "alter table pgq.dependency alter on_dead type varchar(9)": {"column"},
    "alter table pgq.schedule drop constraint schedule_missed_check": {"constraint"},
    "alter table pgq.chore disable trigger chore_at_commit": {"trigger"},
    "alter table pgq.job_2 set (fillfactor = 90)": {"relation"},
    "alter table pgq.archive detach partition pgq.archive_7": {"relation"},
    "alter sequence pgq.number increment by 2": {"sequence"},
    "alter function pgq_version() cost 7": {"function"},
    "alter function pgq_get(bigint) reset search_path": {"function"},
    "create or replace view pgq_locks as select v.* from pgq._locks() v": {"relation"},
    "grant select on pgq.queue to public": {"relation"},
    "grant select (name) on pgq.queue to public": {"column"},
    "grant execute on function pgq_version() to public": {"function"},
    "grant usage on schema pgq to public": {"schema"},
    "comment on column pgq.job.pid is 'other'": {"comment"},
    "comment on function pgq_version() is null": {"comment"},
    "alter extension pgq drop function pgq_version()": {"member", "initial privileges"},
    "alter type pgq_job add attribute note text": {"column"},
    "update pg_extension set extrelocatable = true where extname = 'pgq'": {"extension"},
}


def test_databases_with_the_same_catalog_do_not_differ(server: Server, dsn: dict[str, Any]) -> None:
    fresh = describe(server, TEMPLATE)

    assert len(fresh) > 1000
    assert differences(fresh, describe(server, dsn["database"])) == []


@pytest.mark.constant
def test_each_kind_of_difference_is_seen(server: Server, dsn: dict[str, Any]) -> None:
    before = describe(server, TEMPLATE)
    for change, kinds in CHANGES.items():
        server.psql(change, database=dsn["database"])
        after = describe(server, dsn["database"])

        found = {line[2:].split("|")[0] for line in differences(before, after)}

        assert kinds <= found, change
        before = after
