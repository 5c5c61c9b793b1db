"""Operations of migrations."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import router
from django.db.migrations.operations.base import Operation

from pgq import _sql


class InstallPgq(Operation):
    """Installs pgq, or upgrades it to the version that the server has.

    Where pgq is of that version already, or was installed without the extension's files, nothing
    happens. Else the role has to be a superuser, or own the extension. Reversed, it leaves
    pgq and its jobs where they are.
    """

    reduces_to_sql: ClassVar[Any] = True
    reversible: ClassVar[Any] = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Change no model."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        """Run what is needed; `sqlmigrate` shows what this database needs, or CREATE EXTENSION."""
        connection = schema_editor.connection
        if connection.vendor != "postgresql" or not router.allow_migrate(
            connection.alias, app_label
        ):
            return
        with connection.cursor() as cursor:
            cursor.execute(_sql.in_schema(_sql.FOUND, None))
            installed, available, is_there = cursor.fetchone()
        if installed is not None and installed != available:
            schema_editor.execute(_sql.UPDATE_EXTENSION)
        elif not is_there or schema_editor.collect_sql:
            schema_editor.execute(_sql.CREATE_EXTENSION)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        """Leave pgq where it is."""

    def describe(self) -> str:
        """Say what it does."""
        return "Installs or upgrades pgq"

    @property
    def migration_name_fragment(self) -> str:
        """Name a migration of it alone."""
        return "install_pgq"
