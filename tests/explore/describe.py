"""Tells a fault: a script that can be pasted into a test, and what the model knew."""

from __future__ import annotations

from .check import Blocked, Event, Killed, Later, Returned, Sent
from .model import World
from .schedule import Run


def tell(run: Run) -> str:
    """Return the fault of a run as text."""
    if run.fault is None:
        return "no fault"
    lines = [f"FAULT: {run.fault.why}", "", str(run.executed()), "", "what was answered:"]
    lines += [f"  {line}" for line in history(run.history[: run.fault.at + 1])]
    for number, world in enumerate(run.fault.worlds[:3], 1):
        lines += [f"what the model knew ({number} of {len(run.fault.worlds)}):", *_world(world)]
    return "\n".join(lines)


def history(events: list[Event]) -> list[str]:
    """Return a history as lines."""
    lines: list[str] = []
    for event in events:
        if isinstance(event, Sent):
            lines.append(f"{event.who}: {event.call}")
        elif isinstance(event, Returned):
            last = f"{event.who}: "
            together = bool(lines) and lines[-1].startswith(last) and " -> " not in lines[-1]
            if together:
                lines[-1] += f"  -> {event.answer!r}"
            else:
                lines.append(f"{last}... -> {event.answer!r}")
        elif isinstance(event, Blocked):
            lines.append(f"{event.who}: ... waits for {', '.join(event.by)}")
        elif isinstance(event, Killed):
            lines.append(f"{event.who}: its backend is ended")
        else:
            assert isinstance(event, Later)
            lines.append(f"{event.ms} ms pass")
    return lines


def _world(world: World) -> list[str]:
    lines = [f"  {job}" for job in world.base.jobs.values()]
    lines += [f"  {who} has open: {transaction}" for who, transaction in world.open.items()]
    return [*lines, f"  {world.base.queue}, now {world.now}"]
