"""Which scenarios are run: all schedules of every pair of calls, triples, and random ones."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from .calls import KINDS
from .rules import Call
from .scenario import Scenario
from .schedule import Run
from .stage import Stage

# How the jobs are made that calls name, in this order.
JOBS = {
    "r1": "enqueue r1",
    "r2": "enqueue r2",
    "l1": "enqueue l1; claim l1",
    "g1": "enqueue g1 group=g; claim g1; enqueue g2 group=g",
    "k1": "enqueue k1 key=k",
    "s1": "enqueue s1 in=30000",
    "d1": "enqueue d1; claim d1; fail_dead d1",
    "w1": "enqueue w1 after=l1",
    "x1": "enqueue x1; claim x1 for=5000; later 6000",
}
NEEDS = {"g2": "g1", "w1": "l1 w1", "k": "k1"}
ALWAYS = "r1"
WHERE_ALL_ARE_MEANT = "r1 r2 l1 g1 x1"
# `+1` and `+2` are names of new jobs, each session has its own.
CALLS = """
enqueue +1
enqueue +1 prio=5
enqueue +1 key=k
enqueue +1 key=new
enqueue +1 key=k dup=replace
enqueue +1 key=k dup=error
enqueue +1 group=g
enqueue +1 group=new
enqueue +1 after=r1
enqueue +1 after=l1
enqueue +1 after=l1 on_dead=run
enqueue +1 in=1000
enqueue_many +1 +2
enqueue_many +1 +2 group=g
dequeue
dequeue batch=10
pop
pop batch=10
claim r1
claim x1
heartbeat l1
heartbeat x1
heartbeat l1 g1 x1
complete l1
complete x1
complete g1
complete_many l1 g1 x1
complete_and_dequeue l1
fail l1
fail_dead l1
fail x1
fail_dead g1
release l1
release x1
release g1 in=1000
reclaim
cancel r1
cancel l1
cancel l1 force=true
cancel x1
cancel g2
cancel w1
move r1 prio=5
move r1 in=1000
move s1 in=1000
move w1 prio=5
move x1 prio=5
move g2 prio=5
cancel_all
cancel_all force=true
retry d1
purge
purge states=dead
configure
pause
drop
drop force=true
tick
wait
"""
# What a third session holds, and single calls that may be stopped by it half way.
HOLDS = """
complete l1
complete g1
cancel r1
cancel g2
release x1
enqueue +1 after=l1
enqueue +1 key=k dup=replace
enqueue +1 key=new
retry d1
configure
drop force=true
"""
SEVERAL = """
enqueue_many +1 +2
enqueue +1 key=k dup=replace
enqueue +1 after=r1
dequeue batch=10
complete_many l1 g1 x1
complete_and_dequeue l1
fail g1
heartbeat l1 g1 x1
reclaim
cancel g2
cancel_all
cancel_all force=true
purge
retry d1
configure
drop force=true
tick
"""
ENDS = ("commit", "rollback")
UNUSUAL_ENDS = (
    ("prepare", "commit_prepared"),
    ("prepare", "rollback_prepared"),
    ("rollback_to", "commit"),
)
BEGINS = ("begin", "begin_old", "begin_serializable")


VARIANTS = tuple(CALLS.strip().splitlines())


def scene(calls: Iterable[Call]) -> tuple[Call, ...]:
    """Return what makes the jobs that calls name, and some others."""
    wanted = {*ALWAYS.split()}
    for made in calls:
        if KINDS[made.kind].everything:
            wanted |= {*WHERE_ALL_ARE_MEANT.split()}
        options = [made.options.get("after", ""), made.options.get("key", "")]
        for name in (*made.names, *options):
            wanted |= {*NEEDS.get(name, name).split()}
    steps = [step for name, made in JOBS.items() if name in wanted for step in made.split("; ")]
    return tuple(Call.parse(step) for step in steps)


def call(text: str, who: str, number: int = 0) -> Call:
    """Return the so manieth call of a session."""
    return Call.parse(text.replace("+", f"{who.lower()}{number or ''}"))


def generic(made: Call, who: str) -> str:
    """Return a call as CALLS has it."""
    own = re.compile(rf"{who.lower()}\d*(\d)")
    return str(replace(made, names=tuple(own.sub(r"+\1", name) for name in made.names)))


def script(text: str, who: str, begin: str = "begin", ends: Sequence[str] = ()) -> tuple[Call, ...]:
    """Return the script of one call in a transaction with this beginning and these ends."""
    made = call(text, who)
    if made.kind == "wait":
        return (made, Call("later", ("50",)), made, Call("wake"))  # the first one is a nap
    if KINDS[made.kind].alone or not ends:
        return (made,)
    saved = [Call("savepoint")] if "rollback_to" in ends else []
    return (Call(begin), *saved, made, *(Call(end) for end in ends))


def pairs(
    ends: Sequence[Sequence[str]], begin: str = "begin", others: Sequence[str] = ENDS
) -> Iterator[Scenario]:
    """Yield a scenario for each pair of calls and ends; the first one has the given beginning."""
    for first, second in itertools.combinations_with_replacement(VARIANTS, 2):
        for one, other in itertools.product(ends, [[end] for end in others]):
            scripts = {
                "A": script(first, "A", begin, one),
                "B": script(second, "B", "begin", other),
            }
            calls = itertools.chain(*scripts.values())
            yield Scenario(setup=scene(calls), scripts=scripts)


def triples() -> Iterator[Scenario]:
    """Yield scenarios in which two single calls meet while a third session holds something."""
    for holds in HOLDS.strip().splitlines():
        for one, other in itertools.combinations_with_replacement(SEVERAL.strip().splitlines(), 2):
            scripts = {
                "A": script(one, "A"),
                "B": script(other, "B"),
                "C": script(holds, "C", ends=["commit"]),
            }
            yield Scenario(setup=scene(itertools.chain(*scripts.values())), scripts=scripts)


def chance(random_: random.Random, sessions: int = 3, steps: int = 4) -> Scenario:
    """Return a scenario made by chance."""
    scripts: dict[str, tuple[Call, ...]] = {}
    for who in "ABCD"[:sessions]:
        texts = random_.choices(VARIANTS[:-1], k=random_.randint(1, steps - 1))  # none waits
        calls = [call(text, who, number) for number, text in enumerate(texts, 1)]
        begin = random_.choices(["", *BEGINS], [4, 8, 2, 1])[0]
        end = random_.choice([["commit"], ["commit"], ["rollback"], *UNUSUAL_ENDS[:2]])
        if random_.random() < 0.1:
            calls.insert(random_.randrange(len(calls) + 1), Call("later", ("1500",)))
        if begin:
            calls = [Call(begin), *calls, *(Call(word) for word in end)]
        scripts[who] = tuple(calls)
    return Scenario(
        setup=scene(itertools.chain(*scripts.values())),
        scripts=scripts,
        keeps=random_.random() < 0.7,
        max_active=random_.choice([0, 0, 0, 3]),
    )


async def schedules(stage: Stage, scenario: Scenario) -> AsyncGenerator[Run]:
    """Play a scenario once for each order in which its sessions can step."""
    prefix: list[int] = []
    while True:
        taken: list[tuple[int, int]] = []  # which one of how many
        yield await stage.play(scenario, partial(_choose, prefix, taken))
        while taken and taken[-1][0] + 1 >= taken[-1][1]:
            taken.pop()
        if not taken:
            return
        prefix = [index for index, _ in taken]
        prefix[-1] += 1


def _choose(prefix: Sequence[int], taken: list[tuple[int, int]], enabled: Sequence[str]) -> str:
    """Choose as the prefix says and then the first one; write down what the choices were."""
    wanted = prefix[len(taken)] if len(taken) < len(prefix) else 0
    index = min(wanted, len(enabled) - 1)
    taken.append((index, len(enabled)))
    return enabled[index]
