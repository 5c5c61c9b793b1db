"""Logging of `pgq worker`: the library itself leaves it to the application."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(level: str, *, as_json: bool) -> None:
    """Write the log to stderr.

    Args:
        level: the least severe level that is written.
        as_json: one object a line, with the `extra` fields, instead of a readable line.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


class LineFormatter(logging.Formatter):
    """Time, level, process and message, then the extra fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback if there is one."""
        time = _time(record).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        extra = "".join(f" {name}={value}" for name, value in _extra(record).items())
        line = f"{time} {record.levelname:7} [{record.process}] {record.getMessage()}{extra}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object, with the extra fields beside time, level, logger, process and message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object on one line."""
        fields: dict[str, Any] = {
            "time": _time(record).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str, skipkeys=True)
