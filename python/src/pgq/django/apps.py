"""The application `pgq.django`."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks

from pgq.django.checks import check_databases


class PgqConfig(AppConfig):
    """Its models are the views; its migration installs the extension."""

    name = "pgq.django"
    label = "pgq"
    verbose_name = "pgq"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        checks.register(check_databases, checks.Tags.database)
