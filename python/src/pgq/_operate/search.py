"""Which jobs are meant, and the search for them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final

import asyncpg

from pgq._operate import sql
from pgq._operate.client import Client

_FIRST_STEP: Final = 1000  # ids that are looked at at once; doubled while that is quick
_QUICK_SECONDS: Final = 0.3
_MOST_MILLISECONDS: Final = 1000  # of a statement; then it is tried again with less ids
_FEWER: Final = 16
_LARGEST: Final = 2**63 - 1
_PAGE: Final = 10_000  # jobs that are fetched at once


@dataclass(frozen=True, slots=True)
class Filter:
    """What a job has to be like; None: no matter.

    Args:
        queue: its queue.
        states: one of these.
        task: the header "task".
        error: a part of its last error, in small or large letters.
        payload: JSON that its payload contains.
        group: its group key.
        worker: who claimed it last.
        since: not before that time, or that long ago. A job's time is that of its end, else of its
            claim, else of its enqueue.
        until: before that.
        dedupe_key: its dedupe key.
        text: a part of its payload as JSON text, in small or large letters.
    """

    queue: str | None = None
    states: tuple[str, ...] | None = None
    task: str | None = None
    error: str | None = None
    payload: str | None = None
    group: str | None = None
    worker: str | None = None
    since: datetime | timedelta | None = None
    until: datetime | timedelta | None = None
    dedupe_key: str | None = None
    text: str | None = None

    def __bool__(self) -> bool:
        """Tell whether it says more than the queue and the state."""
        return any(
            getattr(self, field.name) is not None
            for field in fields(self)
            if field.name not in ("queue", "states")
        )

    def arguments(self) -> list[object]:
        """Return the arguments of the statements that take it, from $4 on."""
        return [
            self.queue,
            list(self.states) if self.states else None,
            *(self.task, self.error, self.payload, self.group, self.worker),
            *(
                end if isinstance(end, kind) else None
                for end in (self.since, self.until)
                for kind in (datetime, timedelta)
            ),
            *(self.dedupe_key, self.text),
        ]


@dataclass(slots=True)
class Search:
    """The jobs that match a filter, from the largest id down.

    Args:
        client: where they are.
        wanted: what they are like.
        low: the ids above it have been looked at.
        known: an id that has been given: the search for the largest one begins there.
    """

    client: Client
    wanted: Filter
    low: int = 0
    known: int = 0

    async def pages(
        self, statement: str, *, limit: int, before: int | None = None, depth: int | None = None
    ) -> AsyncGenerator[list[dict[str, Any]]]:
        """Yield pages of jobs.

        Args:
            statement: JOBS_BETWEEN or IDS_BETWEEN.
            limit: the most jobs.
            before: only jobs below this id.
            depth: how many ids are looked at; None: all.
        """
        top = _LARGEST if before is None else before - 1
        # From far above all jobs, the way down to them would take many steps.
        if top >= self.known:
            top = min(top, await self._top_id())
        last = 0 if depth is None else max(top - depth, 0)
        self.low, step = top, _FIRST_STEP
        while limit and self.low > last:
            high, low = self.low, max(self.low - step, last)
            most = min(limit, _PAGE)
            began = time.monotonic()
            try:
                page = await self.client.fetch_by_index(
                    statement,
                    *(low, high, most, *self.wanted.arguments()),
                    milliseconds=_MOST_MILLISECONDS if step > 1 else None,
                )
            except asyncpg.QueryCanceledError:
                # Many jobs lie below many ids that are not in use.
                if step == 1:
                    raise
                step = max(step // _FEWER, 1)
                continue
            self.low = low
            if len(page) == most < limit:
                self.low = page[-1]["id"] - 1
            limit -= len(page)
            is_quick = time.monotonic() - began < _QUICK_SECONDS
            step = step * 2 if is_quick else max(step // 2, 1)
            yield page

    async def _top_id(self) -> int:
        """Return an id above which there is no job: the largest one, or `known`."""

        async def is_below_a_job(job_id: int) -> bool:
            [answer] = await self.client.fetch_by_index(sql.HAS_JOB_ABOVE, job_id)
            return bool(answer["found"])

        low, step = self.known, _FIRST_STEP
        if not await is_below_a_job(low):
            return low
        while await is_below_a_job(low + step):
            low, step = low + step, step * 8
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            if await is_below_a_job(middle):
                low = middle
            else:
                high = middle
        self.known = high
        return high
