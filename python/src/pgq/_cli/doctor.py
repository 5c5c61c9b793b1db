"""`pgq doctor`: what is wrong, and what to do."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import timedelta
from typing import Final

import click
from rich.text import Text

from pgq._cli import extension, output, params
from pgq._cli.base import Command, Settings, connect, databases, settings
from pgq._cli.checks import EVERYWHERE, INSTALLED, Case, Check
from pgq._cli.errors import FAILED, Failure, explain
from pgq._operate import wording
from pgq._operate.client import SERVER_ERRORS
from pgq._operate.finding import Finding, Limits, Status
from pgq._version import is_supported

_STYLES: Final[dict[Status, str]] = {"ok": "green", "warning": "yellow", "problem": "bold red"}


@click.command(
    cls=Command,
    many_dsns=True,
    examples="""
        pgq doctor
        pgq doctor --max-transaction-age 10m --strict
        pgq doctor --json
        pgq doctor --dsn postgresql://a.internal/shop --dsn postgresql://b.internal/shop
    """,
)
@click.option(
    "--max-transaction-age",
    type=params.duration,
    default="1m",
    show_default=True,
    help="Warn of older transactions in the way of rotation or vacuum.",
)
@click.option(
    "--max-ready-age",
    type=params.duration,
    default="10m",
    show_default=True,
    help="Warn of queues whose oldest job has been ready for longer.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
def doctor(max_transaction_age: timedelta, max_ready_age: timedelta, *, strict: bool) -> None:
    """Check server, extension and queues, and say what to do.

    Looks at versions, privileges, settings, connections, maintenance, at whether notifications
    arrive, at transactions and replication slots that are in the way, and at queues and schedules
    that do not move: names the cause, who holds it, and the command that ends it. Exits with 1
    if there is a problem: pgq does not work, or not as promised. Several --dsn are looked at
    at the same time, each for itself.
    """
    found = asyncio.run(_examine_all(Limits(max_transaction_age, max_ready_age)))
    if settings().json:
        output.print_json(
            [
                {"database": name, **asdict(finding)} if name else asdict(finding)
                for name, findings in found.items()
                for finding in findings
            ]
        )
    else:
        for name, findings in found.items():
            if name:
                output.console().print(Text(name, style="bold"), soft_wrap=True)
            _print(findings)
    bad = {"problem", "warning"} if strict else {"problem"}
    if any(finding.status in bad for findings in found.values() for finding in findings):
        raise click.exceptions.Exit(FAILED)


async def _examine_all(limits: Limits) -> dict[str, list[Finding]]:
    each = databases(settings())
    found = await asyncio.gather(*(_examine(options, limits) for options in each.values()))
    return dict(zip(each, found, strict=True))


async def _examine(options: Settings, limits: Limits) -> list[Finding]:
    try:
        async with connect(options, "pgq doctor") as client:
            extra = await extension.look(client)
            case = Case(options, client, extra, limits)
            found = [finding for check in EVERYWHERE for finding in await _run(check, case)]
            if extra.installed is not None and is_supported(extra.installed):
                found += [finding for check in INSTALLED for finding in await _run(check, case)]
            return found
    except (Failure, *SERVER_ERRORS) as exc:
        return [Finding("connection", "problem", explain(exc).message)]


async def _run(check: Check, case: Case) -> list[Finding]:
    """Return what a check finds; that it could not look is a finding, too."""
    try:
        return [finding async for finding in check(case)]
    except SERVER_ERRORS as exc:
        name = check.__name__.removeprefix("check_")
        return [Finding(name, "warning", f"could not look: {explain(exc).message}")]


def _print(found: list[Finding]) -> None:
    console = output.console()
    for finding in found:
        line = Text(f"{finding.status:8}", style=_STYLES[finding.status])
        line.append(f" {finding.check}: {wording.line(finding.detail)}", style="not bold default")
        console.print(line, soft_wrap=True)
        for more in (finding.holder, finding.advice):
            if more:
                console.print(Text(f"{'':9}{wording.line(more)}", style="dim"), soft_wrap=True)
