"""Runs private databases that share jobs, and a front of them, as docs/scaling.md sets it up."""

import contextlib
import re
from collections.abc import Generator, Mapping, Sequence
from typing import Final

import bootstrap
from pgserver import Server, ServerError

NUMBER: Final = 3
SCRIPT: Final = bootstrap.ROOT / "extension" / "proxy" / "pgq_proxy.sql"
_PAGE: Final = bootstrap.ROOT / "docs" / "scaling.md"
_SETUP: Final = re.compile(
    r"^```sql\n(CREATE EXTENSION plproxy;.*?)^```$", re.MULTILINE | re.DOTALL
)


@contextlib.contextmanager
def serve(settings: Mapping[str, str]) -> Generator[list[Server]]:
    """Run a server for each shard and, the last one, for their front, which has PL/Proxy."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(Server(None, settings))
        first.psql("create extension pgq")
        # Copies are made sooner than new ones.
        rest = [Server(None, settings, primary=first) for _ in range(NUMBER - 1)]
        shards = [first, *map(stack.enter_context, rest)]
        for shard in rest:
            shard.promote()
        places = [place_of(shard) for shard in shards]
        yield [*shards, stack.enter_context(serve_front(places, settings))]


@contextlib.contextmanager
def serve_front(places: Sequence[str], settings: Mapping[str, str]) -> Generator[Server]:
    """Run a front with PL/Proxy of the shards that are at these places."""
    with Server(bootstrap.plpgsql_check_major(), settings, ["plproxy"]) as front:
        front.psql(_setup(places))
        front.psql(SCRIPT.read_text(encoding="utf-8"))
        yield front


def place_of(server: Server) -> str:
    """Return where the database of a server is, for the front."""
    return f"host={server.host} port={server.port} dbname={server.database}"


def _setup(places: Sequence[str]) -> str:
    """Return what the documentation has a superuser of the front run, for these shards."""
    found = _SETUP.search(_PAGE.read_text(encoding="utf-8"))
    if found is None:
        raise ServerError(f"{_PAGE.name} does not show how a front is made")
    setup = found[1].replace("'shop', password '...'", f"'{Server.user}'")
    for name, place in zip("abc", places, strict=True):
        setup = setup.replace(f"host={name}.internal dbname=shop", place)
    if ".internal" in setup or "'...'" in setup:
        raise ServerError(f"{_PAGE.name} shows another front than is made of it here")
    return setup
