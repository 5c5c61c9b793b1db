"""System checks: what the databases of the application need, when a command looks at databases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core import checks
from django.db import connections, router

from pgq._calls import Calls
from pgq._driver import finish
from pgq._errors import Error, NotInstalled
from pgq._version import PACKAGE, is_supported, remedy
from pgq.django import DjangoDriver


def check_databases(
    *, databases: Sequence[str] | None = None, **_: Any
) -> list[checks.CheckMessage]:
    """Look for pgq in each database that its migration is for.

    These are warnings: `migrate` checks first, and would not begin after an error.
    """
    return [
        message
        for alias in databases or ()
        if connections[alias].vendor == "postgresql" and router.allow_migrate(alias, "pgq")
        for message in _check(alias)
    ]


def _check(alias: str) -> list[checks.CheckMessage]:
    try:
        version = finish(Calls(DjangoDriver(alias)).version())
    except NotInstalled:
        text = f'Database "{alias}" has no pgq, or not in its search_path.'
        return [checks.Warning(text, hint="Run: manage.py migrate pgq", id="pgq.W001")]
    except Error as exc:
        return [checks.Warning(f'Database "{alias}": {exc}', hint=exc.hint, id="pgq.W001")]
    if is_supported(version):
        return []
    text = f'pgq-asyncpg {PACKAGE} does not work with pgq {version} in database "{alias}".'
    return [checks.Warning(text, hint=remedy(version), id="pgq.W002")]
