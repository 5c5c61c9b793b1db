"""What idle workers cost the server."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import workers
from benchmarks.capture import logged
from benchmarks.figures import Figure, number, of_every_peer
from benchmarks.scenario import Context, Found, Scenario
from benchmarks.stage import Stage
from benchmarks.watch import cpu_seconds

_CPU, _STATEMENTS = "server CPU ms/s", "statements/s"
_WORKERS = 10
_WARM = 10.0
_SECONDS, _QUICK_SECONDS = 20, 10


@dataclass(frozen=True, kw_only=True)
class Idle(Scenario):
    """Ten processes with a worker each, one system after the other."""

    def run(self, context: Context) -> Iterator[Found]:
        """Run all systems that bring a worker once."""
        programs = [(s, file) for s in context.turn(0) if (file := workers.program(s.short))]
        if programs:
            time.sleep(_WARM)
            alone = _cpu(programs[0][0], _seconds(context))
            context.remark(f"Without any worker the server takes {number(alone)} ms/s.")
        for stage, program in programs:
            measure = partial(_measure, context, stage, program)
            yield from context.attempt(stage, self.variants[0], measure)


def _seconds(context: Context) -> int:
    return _QUICK_SECONDS if context.quick else _SECONDS


def _cpu(stage: Stage, seconds: int) -> float:
    """Return the milliseconds of processor time that the server takes for each second."""
    before, begin = cpu_seconds(stage.server), time.monotonic()
    time.sleep(seconds)
    used, passed = cpu_seconds(stage.server) - before, time.monotonic() - begin
    return 1e3 * used / passed


def _measure(context: Context, stage: Stage, program: Path) -> list[Found]:
    seconds = _seconds(context)
    with stage.database() as database, workers.running(program, database, _WORKERS) as running:
        time.sleep(_WARM)
        cpu = _cpu(stage, seconds)
        statements = len(logged(stage.server, seconds)) / seconds
        running.check()
        # Workers that have given up cost nothing.
        database.psql(f"\\set client_id 0\n{workers.script(context, stage)}")
        running.next_start()
    return [
        Figure(variant="", system=stage.short, round=0, value=value, metric=metric)
        for metric, value in ((_CPU, cpu), (_STATEMENTS, statements))
    ]


SCENARIO = Idle(
    title="Idle workers",
    description=(
        "Ten processes, each with one of the project's own workers as in the scenario of waking, "
        "and nothing to do; one system after the other, one round. After 10 s the processor time "
        "of all processes of the server is read over 20 s, as the kernel's scheduler counts it; "
        "then log_statement = all is set for another 20 s, and the lines of the server's log are "
        "counted: each is one statement of a client, BEGIN and COMMIT included, what functions "
        "and triggers run not. A job that is added afterwards has to be run. A quick run has 10 s "
        "of both."
    ),
    settings={"autovacuum": "off"},
    matrix=True,
    bars=[
        of_every_peer(label=metric, metric=metric, at_most=True) for metric in (_CPU, _STATEMENTS)
    ],
)
