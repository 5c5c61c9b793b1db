"""What buttons of the dashboard do to jobs, in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest
from pgserver import Server
from playwright.sync_api import Browser, expect

from .dashboard import Dashboard, Window, serve, wait_for

READY: Final = """
    select count(*) from pgq_enqueue_many(
        array(select to_jsonb(n) from generate_series(1, 3) n), '{queue}');
"""
LATER: Final = """
    select count(pgq_enqueue('1', '{queue}', run_at => now() + interval '1 h'))
      from generate_series(1, 3);
"""
ACTIVE: Final = f"{READY} select count(*) from pgq_dequeue(2, '10 minutes', '{{queue}}');"
DEAD: Final = f"""
    {READY}
    select count(pgq_fail(id, token, 'SMTP 451', retryable => false))
      from pgq_dequeue(3, queue => '{{queue}}');
"""
BLOCKED: Final = """
    select count(pgq_enqueue('1', '{queue}', group_key => 'a group'))
      from generate_series(1, 2);
    select pgq_fail(id, token, 'refused', retryable => false) from pgq_dequeue(queue => '{queue}');
"""
ALL: Final = "Select all on this page"
STATES: Final = """
    select string_agg(jobs || ' ' || state, ', ' order by state)
      from (select state, count(*) as jobs from pgq_jobs where queue = '{queue}' group by 1) s
"""


@dataclass(frozen=True, slots=True)
class Deed:
    """What somebody does to the jobs of a queue.

    Args:
        jobs: the statements that have made them.
        page: where it is done; the job is the first one, the last one comes after it.
        button: what is pressed.
        told: what the page says then.
        states: what has become of the jobs.
        question: what is asked before.
        ticks: the boxes that are ticked before; those that are ticked are cleared.
        fills: what is typed into which fields before.
    """

    jobs: str
    page: str
    button: str
    told: str
    states: str
    question: str | None = None
    ticks: tuple[str, ...] = ()
    fills: tuple[tuple[str, str], ...] = ()


DEEDS: Final = {
    "run_one": Deed(LATER, "/job/{job}", "Run now", "Job {job} is ready.", "1 ready, 2 scheduled"),
    "tell_one": Deed(
        ACTIVE,
        "/job/{job}",
        "Cancel",
        "Job {job} is active: its worker is told at its next heartbeat.",
        "2 active, 1 ready",
    ),
    "retry_selected": Deed(
        DEAD,
        "/jobs?queue={queue}&state=dead",
        "Retry selected…",
        "Done: 2 jobs are ready again.",
        "1 dead, 2 ready",
        "Retry 2 jobs",
        (ALL, "Select job {job}"),
    ),
    "run_selected": Deed(
        LATER,
        "/jobs?queue={queue}",
        "Run selected now…",
        "Done: 1 job is ready.",
        "1 ready, 2 scheduled",
        "Run 1 job",
        ("Select job {job}",),
    ),
    "move_one": Deed(
        READY,
        "/job/{job}",
        "Move",
        "Job {job} is of priority 7.",
        "3 ready",
        fills=(("To priority", "7"),),
    ),
    "move_selected": Deed(
        READY,
        "/jobs?queue={queue}",
        "Move selected…",
        "Done: 1 job is moved.",
        "2 ready",
        "Move 1 job",
        ("Select job {job}",),
        (("To queue", "default"),),
    ),
    "move_all": Deed(
        LATER,
        "/jobs?queue={queue}",
        "Move all that match…",
        "Done: 3 jobs are moved.",
        "3 scheduled",
        "Move 3 jobs",
        fills=(("To priority", "5"),),
    ),
    "cancel_selected": Deed(
        READY,
        "/jobs?queue={queue}",
        "Cancel selected…",
        "Done: 3 jobs are cancelled.",
        "3 cancelled",
        "Cancel 3 jobs",
        (ALL,),
    ),
    "retry_all": Deed(
        DEAD,
        "/jobs?queue={queue}",
        "Retry all that match…",
        "Done: 3 jobs are ready again.",
        "3 ready",
        "Retry 3 jobs",
    ),
    "run_all": Deed(
        LATER,
        "/jobs?queue={queue}",
        "Run all that match now…",
        "Done: 3 jobs are ready.",
        "3 ready",
        "Run 3 jobs",
    ),
    "cancel_all_but_active_ones": Deed(
        ACTIVE,
        "/jobs?queue={queue}",
        "Cancel all that match…",
        "Done: 1 job is cancelled; 2 jobs not: no longer live, or active: then the worker is told.",
        "2 active, 1 cancelled",
        "Cancel 3 jobs",
    ),
    "cancel_all": Deed(
        ACTIVE,
        "/jobs?queue={queue}",
        "Cancel all that match…",
        "Done: 3 jobs are cancelled.",
        "3 cancelled",
        "Cancel 3 jobs",
        ("also active ones at once",),
    ),
    "cancel_all_live": Deed(
        LATER,
        "/queue?name={queue}",
        "Cancel all live…",
        "Done: 3 jobs are cancelled.",
        "3 cancelled",
        "Cancel 3 jobs",
    ),
    "retry_all_dead": Deed(
        DEAD,
        "/queue?name={queue}",
        "Retry all dead…",
        "Done: 3 jobs are ready again.",
        "3 ready",
        "Retry 3 jobs",
    ),
    "retry_what_blocks": Deed(
        BLOCKED,
        "/queue?name={queue}",
        "Retry",
        "Job {job} is ready again.",
        "1 ready, 1 waiting",
    ),
    "unblock_from_behind": Deed(
        BLOCKED,
        "/job/{last}",
        "Let the group go on without job {job}",
        "Group a group goes on; its dead job stays dead.",
        "1 dead, 1 ready",
    ),
}


@pytest.fixture(scope="module")
def dashboard(browser: Browser, server: Server) -> Iterator[Dashboard]:
    """A dashboard for everybody, which has seen the jobs of all deeds, each in its queue."""
    with serve(browser, server, "--no-token") as dashboard:
        for queue, deed in DEEDS.items():
            dashboard.sql(f"select pgq_create_queue('{queue}', group_on_dead => 'block')")
            dashboard.sql(deed.jobs.format(queue=queue))
        wait_for(f"{dashboard.address}/queue?name={list(DEEDS)[-1]}")
        yield dashboard


@pytest.fixture(scope="module")
def window(dashboard: Dashboard) -> Window:
    """A window that goes from test to test."""
    return dashboard.open()


@pytest.mark.parametrize("queue", DEEDS)
def test_a_button_does_to_the_jobs_what_it_says(
    dashboard: Dashboard, window: Window, queue: str
) -> None:
    deed = DEEDS[queue]
    ids = dashboard.sql(f"select min(id), max(id) from pgq_jobs where queue = '{queue}'")
    places = {"queue": queue, **dict(zip(("job", "last"), ids.split("|"), strict=True))}
    window.go(deed.page.format_map(places))
    for label in deed.ticks:
        box = window.page.get_by_label(label.format_map(places), exact=True)
        box.set_checked(not box.is_checked())
    for label, text in deed.fills:
        window.page.get_by_label(label, exact=True).fill(text)
    window.press(deed.button.format_map(places))
    told = window.page.get_by_text(deed.told.format_map(places), exact=True)
    if deed.question is not None:
        settles(window)
        expect(window.page.get_by_text(f"{deed.question}?", exact=True)).to_be_visible()
        window.press(deed.question)
        settles(window)
    expect(told).to_be_visible()
    assert dashboard.sql(STATES.format(queue=queue)) == deed.states
    assert not dashboard.problems


def settles(window: Window) -> None:
    """Load the page of a run again until it is not at work: by itself it does so once a second."""
    while window.page.locator("[hx-trigger='every 1s']").count():
        window.page.reload()
