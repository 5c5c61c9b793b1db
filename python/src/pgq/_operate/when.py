"""Durations and times as people write them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final

_UNITS: Final = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")


def duration(text: str) -> timedelta:
    """Read a duration such as 90s, 15m or 1d12h."""
    if text == "0":
        return timedelta(0)
    if not text or _PART.sub("", text):
        raise ValueError(f"{text!r} is not a duration such as 90s, 15m or 1d12h.")
    try:
        parts = [float(number) * _UNITS[unit] for number, unit in _PART.findall(text)]
        return sum(parts, timedelta(0))
    except OverflowError as exc:
        raise ValueError(f"{text!r} is too long.") from exc


def shown_duration(value: timedelta) -> str:
    """Return a duration as `duration` reads it."""
    rest, parts = value, ""
    for unit in ("d", "h", "m"):
        number, rest = divmod(rest, _UNITS[unit])
        parts += f"{number}{unit}" if number else ""
    if not rest and parts:
        return parts
    return f"{parts}{rest.total_seconds():f}".rstrip("0").rstrip(".") + "s"


def time(text: str) -> datetime:
    """Read a time in ISO 8601; without a time zone it is local."""
    try:
        value = datetime.fromisoformat(text.upper())
    except ValueError as exc:
        message = f"{text!r} is not a time such as 2027-01-31T08:00:00Z."
        raise ValueError(message) from exc
    return value if value.utcoffset() is not None else value.astimezone()


def moment(text: str) -> datetime | timedelta:
    """Read a time as `time` does, or a duration, which is so long ago."""
    try:
        return duration(text)
    except ValueError:
        pass
    try:
        return time(text)
    except ValueError as exc:
        message = f"{text!r} is not a time such as 2027-01-31T08:00:00Z, or a duration such as 2h."
        raise ValueError(message) from exc
