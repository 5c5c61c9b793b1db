"""A run of one fault: the same load before, under and after it, and the figures that it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, final

import asyncpg
from bootstrap import fetch_debian
from pgserver import Server

from tests.history.final import write_final
from tests.history.judge import judge
from tests.history.read import read
from tests.history.record import Recorder
from tests.python.proxy import Proxy
from tests.python.sessions import Connection, Dsn, connect, dsn_of, until

from . import speed
from .client import QUEUES
from .disk import Content, Disk
from .load import Load

GONE: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)
SEEN: Final = ("accounting", "ends", "leases", "tokens", "effects", "rollbacks")
"""The rules of the judge to which each run gives facts."""
LIVE: Final = "state in ('ready', 'scheduled', 'waiting', 'active')"

Counts: TypeAlias = Counter[str]
Inject: TypeAlias = "Callable[[Stage], Awaitable[Counts]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to the load, and what its server needs for that.

    `inject` returns how often each part of the fault happened: none may be missing.
    """

    name: str
    inject: Inject
    what: Literal["crash", "clock", "other"] = "other"
    """What the judge has to know: a crash may undo claims, and a clock end leases."""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    extension: str | None = None
    """The version of the extension that is there at first; the newest by default."""
    has_proxy: bool = False
    has_standby: bool = False
    has_clock: bool = False
    disk: Content | None = None
    """What is on a small disk of its own."""
    warmup: float = 2.0
    baseline: float = 6.0
    stress: float = 12.0
    recovery: float = 6.0

    def scaled(self, by: float) -> Fault:
        """Return the same fault with longer phases."""
        phases = {
            name: by * getattr(self, name) for name in ("warmup", "baseline", "stress", "recovery")
        }
        return replace(self, **phases)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What became of the jobs of one run."""

    fault: str
    happened: Counts
    at_risk: int
    lost: int
    twice: int
    dead: int
    again: int
    """Jobs that needed more than one attempt."""
    seconds: float
    """From the end of the fault until all jobs at risk had ended."""
    rate: float
    """Completions a second after the recovery, for one before the fault."""
    speed: float
    """How fast one session is after the recovery, for 1 before the fault."""
    broken: dict[str, str]
    """What broke other rules of the judge."""

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost or done twice, and no other promise broken."""
        return self.lost == self.twice == self.dead == 0 and not self.broken


@final
class Clock:
    """The time of a server that runs with libfaketime."""

    def __init__(self, library: Path, directory: Path) -> None:
        shutil.copy(library, directory / library.name)
        self._file = directory / "clock"
        self.set(0)
        self.environment = {
            "LD_PRELOAD": str(directory / library.name),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, ahead: int) -> None:
        """Let the clock go on so many seconds ahead of the machine's."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{ahead:+d}\n", encoding="utf-8")
        new.chmod(0o644)
        new.rename(self._file)


@dataclass(slots=True, kw_only=True)
class Stage:
    """What a fault finds: a server under load, and means to do it harm."""

    fault: Fault
    chance: random.Random
    directory: Path
    server: Server
    load: Load
    dsn: Dsn
    recorder: Recorder
    standby: Server | None = None
    proxy: Proxy | None = None
    clock: Clock | None = None
    disk: Disk | None = None
    _observer: Connection | None = None

    @property
    def seconds(self) -> float:
        """How long the fault is to last."""
        return self.fault.stress

    @contextlib.contextmanager
    def recorded(self) -> Generator[None]:
        """Write into the history when the fault begins, and when it is over."""
        number = self.recorder.call("fault", {"what": self.fault.what}, "stage")
        yield
        self.recorder.answer(number, None)

    async def ask(self, query: str, *args: Any) -> Any:
        """Return the first value of a query as the superuser, as soon as there is an answer."""
        answer: list[Any] = []

        async def attempt() -> bool:
            try:
                if self._observer is None:
                    self._observer = await self.session()
                answer.append(await self._observer.fetchval(query, *args, timeout=10))
            except GONE:
                self.forget()
            return bool(answer)

        await until(attempt, pause=0.05)
        return answer[0]

    def forget(self) -> None:
        """Give up the connection on which `ask` asks."""
        if self._observer is not None:
            self._observer.terminate()
            self._observer = None

    async def session(self, dsn: Dsn | None = None) -> Connection:
        """Open a session as soon as one can be had, of the superuser beside the load by default."""
        opened = await until(partial(self.session_at_once, dsn), pause=0.05)
        assert opened is not None
        return opened

    async def session_at_once(self, dsn: Dsn | None = None) -> Connection | None:
        """Open a session, unless none can be had."""
        with contextlib.suppress(*GONE):
            return await connect(
                dsn or dsn_of(self.server), statement_timeout="0", lock_timeout="0"
            )
        return None

    async def answered(self, *names: str) -> None:
        """Return once each of these processes, all by default, has got five more answers."""
        before = self.load.answers()

        async def all_did() -> bool:
            self.load.check()
            now = self.load.answers()
            return all(now[name] >= before[name] + 5 for name in names or self.load.processes)

        await until(all_did, pause=0.3)

    async def ticks(self, every: float) -> AsyncGenerator[int]:
        """Yield again and again, at random times, until the fault has lasted long enough."""
        end = time.monotonic() + self.seconds
        number = 0
        while time.monotonic() < end:
            await asyncio.sleep(self.chance.uniform(0.5, 1.5) * every)
            yield number
            number += 1

    def logged(self, text: str) -> int:
        """Return how often the server's log has a text."""
        return self.server.log.read_text(encoding="utf-8", errors="replace").count(text)


@contextlib.contextmanager
def workplace(keep: Path | None) -> Generator[Path]:
    """Make a directory that the server's user can read, too; keep its histories elsewhere."""
    directory = Path(tempfile.mkdtemp(prefix="pgq-chaos-", dir="/tmp"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        if keep is not None:
            if keep.exists():
                shutil.rmtree(keep)
            keep.mkdir(parents=True)
            for file in [*directory.glob("*.jsonl"), *directory.glob("*.log")]:
                shutil.copy(file, keep)
        shutil.rmtree(directory)


def install(server: Server, version: str | None) -> None:
    """Install the extension, and what the load needs."""
    named = f"version '{version}'" if version else ""
    server.psql(
        f"create extension pgq {named}; create table effect (job bigint); create role app login;"
        "grant insert, select on effect to app;"
    )
    for queue in QUEUES:
        server.psql(
            f"select pgq_create_queue('{queue}', backoff_base => '100 ms', backoff_max => '2 s',"
            "    max_attempts => 1000, keep_completed => '10 years');"
            f"select pgq_grant('{queue}', 'app', '{{enqueue,consume,observe}}')"
        )


@contextlib.asynccontextmanager
async def staged(fault: Fault, seed: int, directory: Path) -> AsyncGenerator[Stage]:
    """Run a server under load."""
    with contextlib.ExitStack() as stack:
        clock = make_clock(directory) if fault.has_clock else None
        server = Server(
            find_version(),
            fault.settings,
            environment=clock.environment if clock else None,
        )
        stack.enter_context(server)
        disk = stack.enter_context(Disk(server, fault.disk)) if fault.disk else None
        install(server, fault.extension)
        dsn = {**dsn_of(server), "user": "app"}
        standby = proxy = None
        if fault.has_standby:
            standby = stack.enter_context(Server(primary=server))
            server.psql("alter system set synchronous_standby_names = '*'")
            server.psql("select pg_reload_conf()")
            dsn |= {
                "host": [server.host, standby.host],
                "port": [server.port, standby.port],
                "target_session_attrs": "read-write",
            }
        if fault.has_proxy:
            proxy = stack.enter_context(Proxy(dsn))
            dsn = proxy.dsn
        load = Load(dsn, server.environment(), directory)
        stack.callback(load.close)
        stage = Stage(
            fault=fault,
            chance=random.Random(seed),
            directory=directory,
            server=server,
            load=load,
            dsn=dsn,
            recorder=Recorder(directory, "stage"),
            standby=standby,
            proxy=proxy,
            clock=clock,
            disk=disk,
        )
        stack.callback(stage.forget)
        yield stage


def make_clock(directory: Path) -> Clock:
    """Return a clock that can be set, by Debian's libfaketime."""
    home = fetch_debian("libfaketime")
    return Clock(next(home.rglob("libfaketime.so.1")), directory)


def find_version() -> int | None:
    """Return the major version of the servers; None is the newest at hand."""
    version = os.environ.get("PGQ_TEST_VERSION")
    return int(version) if version else None


@contextlib.contextmanager
def unharmed() -> Generator[Server]:
    """Run the server that the speed is compared with."""
    with Server(find_version()) as server:
        server.psql("create extension pgq")
        server.psql(f"select pgq_create_queue('{speed.QUEUE}', keep_completed => '0')")
        yield server


async def run(fault: Fault, seed: int, spared: Server, keep: Path | None = None) -> Figures:
    """Let a fault happen, and judge what became of the jobs."""
    with workplace(keep) as directory:
        async with staged(fault, seed, directory) as stage:
            return await perform(stage, spared)


async def perform(stage: Stage, spared: Server) -> Figures:
    """Go through the phases."""
    fault, load = stage.fault, stage.load
    await stage.ask("select pgq_create_queue($1, keep_completed => '0')", speed.QUEUE)
    load.start()
    await stage.answered()
    await asyncio.sleep(fault.warmup)
    before = await measure(stage, spared, fault.baseline)
    newest = await stage.ask("select max(id) from pgq_jobs")
    at_risk: int = await stage.ask(f"select count(*) from pgq_jobs where {LIVE}")
    with stage.recorded():
        happened = await fault.inject(stage)
    start = time.monotonic()
    missing = [what for what, number in happened.items() if not number]
    assert not missing, f"did not happen: {', '.join(missing)}"
    last = await stage.ask("select max(id) from pgq_jobs")
    at_risk += await stage.ask(
        "select count(*) from pgq_jobs where id > $1 and id <= $2", newest, last
    )
    await ended(stage, f"id <= {last}")
    seconds = time.monotonic() - start
    await stage.answered()
    after = await measure(stage, spared, fault.recovery)
    load.check()
    load.end(*load.names("produce"))
    await ended(stage, "true")
    load.end(*load.processes)
    write_final(stage.recorder, stage.server.environment())
    stage.recorder.close()
    rows = await stage.ask(
        "select json_build_object('dead', count(*) filter (where state <> 'completed'),"
        " 'again', count(*) filter (where attempt > 1)) from pgq_jobs where queue = any ($1)",
        list(QUEUES),
    )
    findings = judge(read(stage.directory))
    unseen = [name for name in SEEN if not findings[name].facts]
    assert not unseen, f"the judge has seen nothing of {', '.join(unseen)}"
    broken = {name: found.broken for name, found in findings.items()}
    return Figures(
        fault=fault.name,
        happened=happened,
        at_risk=at_risk,
        lost=len(broken.pop("accounting")),
        twice=len(broken.pop("effects")),
        broken={name: texts[0] for name, texts in broken.items() if texts},
        seconds=seconds,
        rate=after[0] / before[0],
        speed=after[1] / before[1],
        **json.loads(rows),
    )


async def ended(stage: Stage, condition: str) -> None:
    """Wait until no job is live of those that a condition names."""
    query = f"select count(*) from pgq_jobs where {LIVE} and queue = any ($1) and {condition}"

    async def none_left() -> bool:
        stage.load.check()
        return not await stage.ask(query, list(QUEUES))

    await until(none_left, pause=0.2)


async def measure(stage: Stage, spared: Server, seconds: float) -> tuple[float, float]:
    """Return completions a second, and the speed of a session."""
    query = "select count(*) from pgq_jobs where state = 'completed'"
    first, start = await stage.ask(query), time.monotonic()
    hit, other = await stage.session(), await connect(dsn_of(spared))
    try:
        ratio = await speed.measure(hit, other)
    finally:
        hit.terminate()
        other.terminate()
    await asyncio.sleep(max(0.0, start + seconds - time.monotonic()))
    return (await stage.ask(query) - first) / (time.monotonic() - start), ratio
