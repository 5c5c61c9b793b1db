"""What all commands share: their options, their help and their connection."""

from __future__ import annotations

import asyncio
import errno
import functools
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Concatenate, Final, ParamSpec

import asyncpg
import click

from pgq._cli.errors import Failure, ServerFailure, explain
from pgq._log import name_of
from pgq._operate.client import SERVER_ERRORS, Client

P = ParamSpec("P")

_CONNECT_SECONDS: Final = 10.0
_CLOSE_SECONDS: Final = 2.0


@dataclass(slots=True)
class Settings:
    """The options that every command has."""

    dsn: str | None = None
    schema: str | None = None
    json: bool = False
    debug: bool = False


def settings() -> Settings:
    """Return the options of the command that runs."""
    return click.get_current_context().find_root().ensure_object(Settings)


class SharedOption(click.Option):
    """An option of every command, also before its name; it goes to `settings`."""


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if parameter.multiple:
        value = " ".join(value or ()) or None  # a URL has no blanks
    if value is not None:
        setattr(context.find_root().ensure_object(Settings), str(parameter.name), value)


def _shared_options(
    dsn_variable: str | None = None, *, many_dsns: bool = False
) -> list[click.Parameter]:
    return [
        SharedOption(
            ["--dsn"],
            metavar="URL",
            multiple=many_dsns,
            envvar=dsn_variable,
            callback=_keep,
            expose_value=False,
            help="The database, as postgresql://user@host/name; else PGQ_DSN, else PGHOST, "
            "PGDATABASE and the other variables of libpq."
            + (" May be repeated." if many_dsns else ""),
        ),
        SharedOption(
            ["--schema"],
            callback=_keep,
            expose_value=False,
            help="Where the pgq functions are; else they are looked for in search_path.",
        ),
        SharedOption(
            ["--json"],
            is_flag=True,
            default=None,
            callback=_keep,
            expose_value=False,
            help="Print JSON.",
        ),
        SharedOption(
            ["--debug"],
            is_flag=True,
            default=None,
            callback=_keep,
            expose_value=False,
            help="Print the traceback of an error.",
        ),
    ]


class Command(click.Command):
    """A command with examples, and with the shared options.

    Args:
        examples: command lines, one a line; the help ends with them.
        has_json: False leaves out --json.
        many_dsns: --dsn may be given several times; `Settings.dsn` has blanks in between, and
            `databases` takes it apart.
    """

    def __init__(
        self,
        *args: Any,
        examples: str,
        has_json: bool = True,
        many_dsns: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = [line.strip() for line in examples.strip().splitlines()]
        options = _shared_options(many_dsns=many_dsns)
        self.params += [option for option in options if has_json or option.name != "json"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, then the shared ones."""
        for heading, shared in (("Options", False), ("Options of every command", True)):
            records = [
                record
                for parameter in self.get_params(ctx)
                if isinstance(parameter, click.Option)
                and isinstance(parameter, SharedOption) == shared
                and (record := parameter.get_help_record(ctx)) is not None
            ]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        del ctx
        with formatter.section("Examples"):
            for line in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Group(click.Group):
    """A command of commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Print the help when nothing else is asked for, without an error."""
        return super().parse_args(ctx, args or ["--help"])


class Root(Group):
    """The command `pgq`: its commands come in sections, and errors become one line.

    Args:
        sections: the commands under their headings.
    """

    def __init__(
        self, *args: Any, sections: Mapping[str, Sequence[click.Command]], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.params += _shared_options("PGQ_DSN")
        self.sections = sections
        for commands in sections.values():
            for command in commands:
                self.add_command(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings."""
        width = max(len(name) for name in self.list_commands(ctx))
        for heading, commands in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (f"{command.name:{width}}", command.get_short_help_str(100))
                        for command in commands
                    ]
                )

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the arguments; --help and --version end here, also if they cannot be printed."""
        try:
            return super().make_context(*args, **kwargs)
        except OSError as exc:
            if exc.errno == errno.EPIPE:
                raise
            raise explain(exc) from exc

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of whatever kind ends with one line and its status."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort) as exc:
            if ctx.ensure_object(Settings).debug and isinstance(exc, Failure):
                traceback.print_exc()
            raise
        except Exception as exc:
            if isinstance(exc, OSError) and exc.errno == errno.EPIPE:
                raise
            if ctx.ensure_object(Settings).debug:
                traceback.print_exc()
            if isinstance(exc, SERVER_ERRORS):
                raise explain(exc) from exc
            name = type(exc).__name__
            raise Failure(f"{name}: {exc} (--debug prints the traceback)") from exc


def databases(options: Settings) -> dict[str, Settings]:
    """Return the options for each database that --dsn names, by what names it; "" for the only one.

    Raises:
        UsageError: two have the same name.
    """
    dsns = (options.dsn or "").split()
    if len(dsns) < 2:
        return {"": options}
    found = {name_of(dsn): replace(options, dsn=dsn) for dsn in dsns}
    if len(found) < len(dsns):
        raise click.UsageError("--dsn names a database twice.")
    return found


def server_settings(options: Settings, name: str) -> dict[str, str]:
    """Return what the server shows in pg_stat_activity, unless --dsn says that itself."""
    return {} if "application_name=" in (options.dsn or "") else {"application_name": name}


@asynccontextmanager
async def connect(options: Settings, name: str, **arguments: Any) -> AsyncGenerator[Client]:
    """Open the connection of a command.

    Args:
        options: which database, which schema.
        name: of the command, for pg_stat_activity.
        arguments: more of `asyncpg.connect`.

    Raises:
        ServerFailure: it could not be opened.
        UsageError: the options name several databases.
    """
    if (options.dsn or "").count("://") > 1:
        raise click.UsageError(
            "PGQ_DSN names several databases, and this command is about one: choose it by --dsn."
        )
    try:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(
            options.dsn,
            timeout=_CONNECT_SECONDS,
            server_settings=server_settings(options, name),
            statement_cache_size=0,  # poolers that share sessions
            **arguments,
        )
    except TimeoutError as exc:
        raise ServerFailure(f"no connection within {_CONNECT_SECONDS:.0f} s") from exc
    except SERVER_ERRORS as exc:
        hint = "Say where the database is with --dsn, PGQ_DSN or PGHOST."
        raise ServerFailure(f"cannot connect: {exc}. Hint: {hint}") from exc
    try:
        yield Client(connection, options.schema)
    finally:
        with suppress(*SERVER_ERRORS):
            await connection.close(timeout=_CLOSE_SECONDS)


def connected(
    function: Callable[Concatenate[Client, P], Awaitable[None]],
) -> Callable[P, None]:
    """Make a coroutine function whose first argument is a `Client` the body of a command."""

    @functools.wraps(function)
    def command(*args: P.args, **kwargs: P.kwargs) -> None:
        async def run() -> None:
            name = click.get_current_context().command_path
            async with connect(settings(), name) as client:
                await function(client, *args, **kwargs)

        asyncio.run(run())

    return command
