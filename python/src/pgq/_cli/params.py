"""Values on the command line, and options that several commands have."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypeVar

import click

from pgq._operate import when

T = TypeVar("T")

_SHOWN: Final = 60  # characters of a payload that cannot be


def duration(text: str) -> timedelta:
    """Read a duration such as 90s, 15m or 1d12h."""
    return _read(when.duration, text)


def address(text: str) -> tuple[str, int]:
    """Read where to listen, as host:port."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        raise click.BadParameter(f"{text!r} is not host:port.")
    if int(port) > 65535:
        raise click.BadParameter(f"The port of {text!r} is above 65535.")
    return host.strip("[]"), int(port)


def time(text: str) -> datetime:
    """Read a time in ISO 8601; without a time zone it is local."""
    return _read(when.time, text)


def moment(text: str) -> datetime | timedelta:
    """Read a time as `time` does, or a duration, which is so long ago."""
    return _read(when.moment, text)


def _read(function: Callable[[str], T], text: str) -> T:
    try:
        return function(text)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


def json_text(text: str) -> str:
    """Read JSON, and return it as it is written."""
    check_payload(text)
    return text


def header(text: str) -> tuple[str, Any]:
    """Read key=value; the value is JSON, or else text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"{text!r} is not key=value.")
    try:
        return key, exact(value)
    except ValueError:
        return key, value


def exact(text: str) -> Any:
    """Return what JSON holds; raises ValueError where a float could not keep a number."""
    return _load(text, _float)


def _float(text: str) -> float:
    value = float(text)
    if Decimal(repr(value)) != Decimal(text):
        raise ValueError(f"{text} is more than a float can keep")
    return value


def is_json(text: str) -> bool:
    """Tell whether a text is JSON, of which NaN and the like are no part."""
    try:
        _load(text)
    except ValueError:
        return False
    return True


def _load(text: str, parse_float: Callable[[str], float] = float) -> Any:
    text.encode()  # what is not UTF-8 came as surrogates
    try:
        return json.loads(text, parse_float=parse_float, parse_constant=_refuse)
    except RecursionError as exc:
        raise ValueError("arrays or objects are nested too deep") from exc


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def check_payload(text: str) -> None:
    """Raise an error with what is likely to be meant unless a payload is JSON."""
    try:
        _load(text)
    except ValueError as exc:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        advice = ""
        if text.lstrip()[:1] in ("{", "["):
            advice = """ On a command line it goes between single quotes, as '{"to": "ada"}'."""
        elif shown is text:
            quoted = shlex.quote(json.dumps(text, ensure_ascii=False))
            advice = f" On a command line, that text is {quoted}."
        raise click.UsageError(f"The payload {shown!r} is not JSON: {exc}.{advice}") from exc


def dumps(value: Any) -> str:
    """Return JSON text for a value; a text is JSON already, and stays as it was written."""
    return value if isinstance(value, str) else json.dumps(value)


def header_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options --header and --task."""
    function = click.option("--task", metavar="NAME", help='Set the header "task".')(function)
    return click.option(
        "--header",
        "headers",
        type=header,
        metavar="KEY=VALUE",
        multiple=True,
        help="Set a header; the value is JSON, or else text. May be repeated.",
    )(function)


def headers_of(pairs: Sequence[tuple[str, Any]], task: str | None) -> dict[str, Any] | None:
    """Return what the options of `header_options` give, None for nothing."""
    headers = dict(pairs)
    if task is not None:
        headers["task"] = task
    return headers or None
