"""A moderator's desk: python -m examples.moderation NAME take|open|keep|remove ..."""

from __future__ import annotations

import argparse
import asyncio

import asyncpg
import pgq

from . import desk


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.moderation")
    parser.add_argument("name", help="who you are")
    commands = parser.add_subparsers(dest="command", required=True)
    take = commands.add_parser("take", help="the next posts")
    take.add_argument("most", type=int)
    opened = commands.add_parser("open", help="one given post")
    opened.add_argument("post", type=int)
    for verdict in ("keep", "remove"):
        decide = commands.add_parser(verdict, help="a verdict")
        decide.add_argument("job", type=int, help="the receipt, as it was shown")
        decide.add_argument("token", type=int)
    return parser.parse_args()


async def main() -> None:
    """Do one thing and forget about it: what a moderator holds is in the database."""
    args = parse()
    connection = await asyncpg.connect()
    try:
        if args.command == "take":
            cases = await desk.take(connection, args.name, args.most)
        elif args.command == "open":
            cases = [await desk.open_post(connection, args.name, args.post)]
        else:
            receipt = pgq.Receipt(pgq.JobId(args.job), pgq.Token(args.token))
            verdict: desk.Verdict = "kept" if args.command == "keep" else "removed"
            await desk.decide(connection, args.name, receipt, verdict)
            return
    except (desk.Taken, desk.TooLate, LookupError) as error:
        raise SystemExit(str(error)) from error
    finally:
        await connection.close()
    for case in cases:
        print(f"post {case.post}: {case.body} (receipt {case.receipt.id} {case.receipt.token})")


asyncio.run(main())
