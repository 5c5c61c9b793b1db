"""What may happen to a job while its worker holds it, and what that leads to."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Final, cast, get_args

import pytest
from pgq import testing
from pgq._worker.held import TRANSITIONS, Event, Held, Reason, State
from pgq._worker.intake import Intake

pytestmark = [pytest.mark.once, pytest.mark.constant]

STATES: Final[tuple[State, ...]] = get_args(State)
EVENTS: Final[tuple[Event, ...]] = get_args(Event)
ENDS: Final[set[State]] = {"completing", "completed", "settling", "releasing", "ended"}

# What becomes of jobs, from their claim on.
LIVES: Final[list[list[Event]]] = [
    ["end"],
    ["release", "end"],
    ["start", "end"],
    ["start", "release", "end"],
    ["start", "settle", "end"],
    ["start", "complete", "end"],
    ["start", "complete", "release", "end"],
    ["start", "complete", "settle", "end"],
    ["start", "complete", "complete", "commit", "end"],
    ["start", "complete", "commit", "complete", "commit", "end"],
    ["start", "complete", "roll back", "settle", "end"],
]


def held(state: State = "claimed") -> Held:
    return Held(testing.job(None), cast("Intake", None), state)


def test_the_table_has_each_state_and_leads_to_states() -> None:
    assert tuple(TRANSITIONS) == STATES
    assert {event for events in TRANSITIONS.values() for event in events} == set(EVENTS)
    assert {state for events in TRANSITIONS.values() for state in events.values()} == (
        set(STATES) - {"claimed"}
    )


def test_whatever_can_happen_has_been_lived() -> None:
    lived = set[tuple[State, Event]]()
    for life in LIVES:
        one = held()
        for event in life:
            assert one.state != "ended"
            lived.add((one.state, event))
            one.on(event)
        assert one.state == "ended"
    assert lived == {(state, event) for state, events in TRANSITIONS.items() for event in events}


@pytest.mark.parametrize(("state", "event"), list(product(STATES, EVENTS)))
def test_nothing_else_can_happen(state: State, event: Event) -> None:
    one = held(state)
    if event in TRANSITIONS[state]:
        one.on(event)
        assert one.state == TRANSITIONS[state][event]
    else:
        with pytest.raises(AssertionError, match=f"is {state}: it cannot {event}"):
            one.on(event)
        assert one.state == state


def test_a_job_ends_once_and_its_outcome_is_written_once() -> None:
    assert TRANSITIONS["ended"] == {}
    for state in ("settling", "releasing"):
        assert TRANSITIONS[state] == {"end": "ended"}


def test_what_has_been_completed_is_neither_settled_nor_given_back() -> None:
    assert set(TRANSITIONS["completed"].values()) == {"completed", "ended"}


def test_only_what_is_completing_can_be_rolled_back() -> None:
    assert [state for state in STATES if "roll back" in TRANSITIONS[state]] == ["completing"]


# Cancelling


async def asleep() -> None:
    await asyncio.Event().wait()


async def running() -> Held:
    """Return a job whose attempt is at work."""
    one = held("running")
    one.task = asyncio.create_task(asleep())
    await asyncio.sleep(0)
    return one


async def test_an_attempt_is_cancelled_with_its_reason() -> None:
    one = await running()
    assert one.task is not None
    one.cancel("deadline")
    with pytest.raises(asyncio.CancelledError, match="deadline"):
        await one.task
    assert one.reason == "deadline"


async def test_an_attempt_that_has_not_begun_is_not_interrupted() -> None:
    one = await running()
    assert one.task is not None
    one.state = "claimed"
    one.cancel("abort")
    assert (one.reason, one.task.cancelling()) == ("abort", 0)
    one.task.cancel()


@pytest.mark.parametrize("state", sorted(ENDS))
async def test_what_has_an_outcome_is_cancelled_later_if_at_all(state: State) -> None:
    one = await running()
    assert one.task is not None
    one.state = state
    one.cancel("cancel")
    one.cancel("abort")
    assert (one.reason, one.deferred, one.task.cancelling()) == (None, "cancel", 0)
    one.task.cancel()


@pytest.mark.parametrize(
    ("first", "then", "kept"),
    [("cancel", "abort", "cancel"), ("abort", "lost", "lost"), ("lost", "cancel", "lost")],
)
def test_the_first_reason_stays_unless_the_lease_is_lost(
    first: Reason, then: Reason, kept: Reason
) -> None:
    one = held()
    one.cancel(first)
    one.cancel(then)
    assert one.reason == kept


async def test_an_attempt_whose_lease_is_lost_is_cancelled_once() -> None:
    one = await running()
    assert one.task is not None
    one.cancel("cancel")
    one.cancel("lost")
    one.cancel("abort")
    assert (one.reason, one.deferred, one.task.cancelling()) == ("lost", None, 2)
