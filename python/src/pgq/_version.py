"""Which versions of the extension this package works with."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

from pgq._errors import NotSupported

PACKAGE: Final = version("pgq-asyncpg")


def is_supported(extension: str) -> bool:
    """Tell whether it is of this package's minor release, the one before or the one after."""
    major, minor = _release(PACKAGE)
    other_major, other_minor = _release(extension)
    return major == other_major and abs(minor - other_minor) <= 1


def remedy(extension: str) -> str:
    """Return how to bring package and extension together."""
    if _release(extension) < _release(PACKAGE):
        return "Upgrade the extension: ALTER EXTENSION pgq UPDATE, or pgq upgrade."
    return "Upgrade the package: pip install --upgrade pgq-asyncpg."


def check(extension: str) -> None:
    """Raise `NotSupported` unless the package works with a version of the extension."""
    if not is_supported(extension):
        raise NotSupported(
            f"pgq-asyncpg {PACKAGE} does not work with version {extension} of the extension",
            hint=remedy(extension),
        )


def _release(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)
