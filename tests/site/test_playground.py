"""The playground of the documentation, as a visitor uses it."""

from __future__ import annotations

import re
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, expect

from .visit import Visit

pytestmark = pytest.mark.long

OTHER = {"ann": "bob", "bob": "ann"}


def completed_by(name: str, attempt: int) -> re.Pattern[str]:
    return re.compile(rf"completed\s*{attempt}\s*{name}")


def test_two_consumers_share_the_jobs_and_the_highest_priority_is_next(visit: Visit) -> None:
    visit.press("Enqueue ten")
    expect(visit.status).to_have_text("10 jobs are enqueued.")
    urgent = visit.enqueue("Enqueue with priority 9")
    for number in range(urgent - 10, urgent + 1):
        expect(visit.job(number)).to_contain_text("completed")
    claims = visit.claims()
    assert {name for name, _ in claims} == {"ann", "bob"}
    ids = [job["id"] for _, job in claims]
    assert sorted(ids) == list(range(urgent - 10, urgent + 1)), "each job was claimed once"
    [(_, following), *rest] = visit.claims(since="priority => 9")
    assert following["id"] == urgent
    assert len(rest) > 2, "others waited for longer"


def test_the_job_of_a_crashed_consumer_is_taken_over(visit: Visit) -> None:
    number = visit.enqueue()
    crashed = visit.worker_of(number)
    visit.press("Crash", consumer=crashed)
    expect(visit.consumer(crashed)).to_contain_text(f"crashed, holds job {number}")
    expect(visit.job(number)).to_contain_text("active")
    other = OTHER[crashed]
    expect(visit.status).to_have_text(f"{other} takes job {number} over from {crashed}.")
    expect(visit.job(number)).to_contain_text(completed_by(other, attempt=2))
    visit.press("Restart", consumer=crashed)
    expect(visit.consumer(crashed)).to_contain_text("looks for a job")


def test_a_frozen_consumer_loses_its_lease(visit: Visit) -> None:
    number = visit.enqueue()
    frozen = visit.worker_of(number)
    visit.press("Freeze", consumer=frozen)
    expect(visit.consumer(frozen)).to_contain_text(f"frozen, holds job {number}")
    other = OTHER[frozen]
    expect(visit.status).to_have_text(f"{other} takes job {number} over from {frozen}.")
    visit.press("Thaw", consumer=frozen)
    expect(visit.status).to_have_text(f"{frozen} has lost the lease of job {number}.")
    expect(visit.statements).to_contain_text('-- {"expiry":null}')
    expect(visit.job(number)).to_contain_text(completed_by(other, attempt=2))


def test_a_job_that_fails_is_tried_again_later(visit: Visit) -> None:
    number = visit.enqueue("Enqueue one that fails twice")
    expect(visit.job(number)).to_contain_text(re.compile(r"scheduled.*due in.*SMTP 451"))
    expect(visit.job(number)).to_contain_text(re.compile(r"completed\s*3"))
    assert [job["attempt"] for _, job in visit.claims() if job["id"] == number] == [1, 2, 3]


def test_the_keyboard_is_enough(visit: Visit) -> None:
    reached: list[str] = []
    visit.page.locator("a").first.focus()
    while not reached or reached[-1] != "Enqueue with priority 9":
        assert len(reached) < 10, reached
        visit.page.keyboard.press("Tab")
        reached.append(visit.page.evaluate("document.activeElement.textContent"))
    assert reached == ["Enqueue", "Enqueue ten", "Enqueue with priority 9"]
    visit.page.keyboard.press("Enter")
    expect(visit.job(visit.enqueued())).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(visit: Visit, axe: str, scheme: Literal["light", "dark"]) -> None:
    visit.page.emulate_media(color_scheme=scheme)
    done = visit.enqueue("Enqueue with priority 9")
    expect(visit.job(done)).to_contain_text("completed")
    number = visit.enqueue("Enqueue one that fails twice")
    expect(visit.job(number)).to_contain_text("scheduled")
    visit.page.evaluate(axe)
    found: dict[str, Any] = visit.page.evaluate("axe.run()")
    assert found["passes"]
    elements = [node["html"] for rule in found["violations"] for node in rule["nodes"]]
    assert elements == [], found["violations"]


def test_all_that_is_fetched_is_on_the_site(visit: Visit, browser: Browser) -> None:
    assert visit.address + "built/pglite/pglite.wasm" in visit.requests
    fetched = {url for url in visit.requests if url.startswith(visit.address)}
    context = browser.new_context()
    sizes = [len(context.request.get(url).body()) for url in fetched]
    context.close()
    assert round(sum(sizes) / 1e6) == 16, "as the page says"


@pytest.mark.parametrize("file", ["server.js", "built/pglite/pglite.data"])
def test_a_start_that_fails_is_told(browser: Browser, address: str, file: str) -> None:
    visit = Visit(browser, address)
    visit.page.route(f"**/{file}", lambda route: route.abort())
    visit.press("Start PostgreSQL")
    expect(visit.status).to_have_text(re.compile("^That did not work: .+"))
    expect(visit.page.get_by_role("button", name="Start PostgreSQL")).to_be_enabled()
    visit.page.close()
