"""How values, and numbers of jobs, are told to people."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any, Final

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BESIDE_THE_ERROR: Final = ("DETAIL:", "HINT:", "CONTEXT:")


def age(value: timedelta | None) -> str:
    """Return a duration in its two largest units."""
    if value is None:
        return ""
    seconds = value.total_seconds()
    sign = "-" if seconds < 0 else ""
    seconds = abs(seconds)
    if seconds < 60:
        return f"{sign}{seconds:.1f}s" if seconds < 10 else f"{sign}{seconds:.0f}s"
    for large, small, name, part in ((86400, 3600, "d", "h"), (3600, 60, "h", "m")):
        if seconds >= large:
            return f"{sign}{seconds // large:.0f}{name} {seconds % large // small:.0f}{part}"
    return f"{sign}{seconds // 60:.0f}m {seconds % 60:.0f}s"


def text(value: Any) -> str:
    """Return a value as people read it; control characters are escaped."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, timedelta):
        return age(value)
    if isinstance(value, datetime):
        return value.astimezone().isoformat(" ", "seconds").removesuffix(":00")  # as in psql
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", str(value))


def line(value: Any) -> str:
    """Return a value as `text` does, on one line."""
    return " ".join(text(value).split())


def error_line(value: Any) -> str:
    """Return the line of a text that says the error: of a traceback the last, before its hints."""
    lines = [line for line in text(value).splitlines() if line.strip()]
    while len(lines) > 1 and lines[-1].startswith(_BESIDE_THE_ERROR):
        lines.pop()
    return lines[-1] if lines else ""


def jobs(count: int, what: str = "") -> str:
    """Return how many jobs that are."""
    return f"{count} {what}{'job' if count == 1 else 'jobs'}"


def jobs_are(count: int) -> str:
    """Return the beginning of a sentence on so many jobs."""
    return f"{jobs(count)} {'is' if count == 1 else 'are'}"
