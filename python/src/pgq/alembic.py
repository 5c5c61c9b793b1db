"""Migrations with Alembic: they install and upgrade pgq, and leave its tables alone.

Needs the extra "alembic".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from alembic import op

from pgq import _sql

__all__ = ["include_name", "install"]

_SCHEMA: Final = "pgq"  # of the tables


def include_name(name: str | None, type_: str, parent_names: Mapping[Any, str | None]) -> bool:
    """Tell autogenerate to look at everything but pgq's own schema.

    This is for `context.configure(include_name=...)` in env.py, where `include_schemas` is set:
    autogenerate would drop tables that no model describes. A filter of your own may call it.

    Args:
        name: of what was found in the database.
        type_: "schema", "table" and so on.
        parent_names: of what it is in.
    """
    owner = name if type_ == "schema" else parent_names.get("schema_name")
    return owner != _SCHEMA


def install(schema: str | None = None) -> None:
    """Install pgq, or upgrade it to the version that the server has, in a migration.

    Where pgq is of that version already, nothing happens. The role has to be a superuser, or own
    the extension. Servers without the extension's files need `pgq install` instead.

    Args:
        schema: of the functions, when pgq is installed; None takes the first of search_path.
    """
    op.execute(_sql.CREATE_EXTENSION + ("" if schema is None else f" schema {_sql.quoted(schema)}"))
    op.execute(_sql.UPDATE_EXTENSION)
