"""Reads the state after a run into the history: the jobs that are left or kept, the effects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from .psql import Psql
from .record import Recorder

_JOBS: Final = """
    select json_build_object('id', id, 'mark', payload->>'mark', 'queue', queue, 'state', state,
           'token', token, 'priority', priority, 'group', group_key, 'key', dedupe_key)
      from pgq_jobs order by id"""
_EFFECTS: Final = "select json_build_object('job', job) from effect order by job"


def write_final(
    recorder: Recorder, environment: Mapping[str, str] | None = None, dsn: str = ""
) -> None:
    """Write the final state: when all clients have ended, and nothing else changes it."""
    psql = Psql(environment, dsn)
    jobs, effects = psql.run(_JOBS), psql.run(_EFFECTS)
    psql.close()
    for line in jobs:
        recorder.note("job", **json.loads(line))
    for line in effects:
        recorder.note("effect", **json.loads(line))
    recorder.note("final", jobs=len(jobs), effects=len(effects))
