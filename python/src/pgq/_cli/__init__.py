"""The command `pgq`; click and rich come with the extra "cli"."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit."""
    try:
        from pgq._cli.main import cli  # noqa: PLC0415 -- an extra
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in ("click", "rich"):
            raise
        sys.exit("pgq: the command line is an extra: pip install 'pgq-asyncpg[cli]'")
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    cli(prog_name="pgq")
