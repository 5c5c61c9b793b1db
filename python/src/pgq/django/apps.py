"""The application `pgq.django`."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks

from pgq.django.checks import check_databases


class PgqConfig(AppConfig):
    """Its models are the views; its migration installs the extension."""

    name: Any = "pgq.django"
    label: Any = "pgq"
    verbose_name: Any = "pgq"
    default_auto_field: Any = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks, and that of Django's tasks, which few projects import."""
        from pgq.django._names import check_tasks  # noqa: PLC0415 models may be used from here on

        checks.register(check_tasks)
        checks.register(check_databases, checks.Tags.database)
