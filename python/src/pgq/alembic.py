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

    Where pgq is of that version already, or was installed without the extension's files, nothing
    happens. Else the role has to be a superuser, or own the extension. Servers without the
    extension's files need `pgq install` before it. With `--sql` the script has both statements.

    Args:
        schema: of the functions, when pgq is installed; None takes the first of search_path.
    """
    create = _sql.CREATE_EXTENSION
    if schema is not None:
        create += f" schema {_sql.quoted(schema)}"
    if op.get_context().as_sql:
        op.execute(create)
        op.execute(_sql.UPDATE_EXTENSION)
        return
    found = op.get_bind().exec_driver_sql(_sql.in_schema(_sql.FOUND, schema))
    installed, available, is_there = found.one()
    if installed is not None and installed != available:
        op.execute(_sql.UPDATE_EXTENSION)
    elif not is_there:
        op.execute(create)
